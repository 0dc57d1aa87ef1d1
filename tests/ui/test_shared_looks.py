"""Looks that viewers share: one at a time of each kind, and none longer than it serves."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from millwheel.errors import StoreError
from millwheel.ui.shared_looks import SharedLooks


class Figures:
    pass


def test_viewers_at_the_same_time_share_a_look_and_its_error() -> None:
    looks, asked, begin = SharedLooks(60.0), [], Barrier(8)

    def look() -> Figures:
        asked.append("look")
        return Figures()

    def view(_: int) -> Figures:
        begin.wait()
        return looks.get("steps", look)

    with ThreadPoolExecutor(8) as viewers:
        found = set(viewers.map(view, range(8)))
    assert (len(found), len(asked)) == (1, 1)

    def fail() -> Figures:
        asked.append("fail")
        raise StoreError("away")

    for _ in range(3):
        with pytest.raises(StoreError, match="away"):
            looks.get("log", fail)
    assert asked == ["look", "fail"]
    looks.forget()
    assert looks.get("log", look) not in found


def test_a_look_that_serves_nobody_is_dropped_when_another_is_asked_for() -> None:
    looks = SharedLooks(0.0)
    kept = []
    for kind in range(20):
        figures = looks.get(kind, Figures)
        kept.append(weakref.ref(figures))
        del figures
    assert sum(one() is not None for one in kept) == 1
