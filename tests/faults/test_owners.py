"""Owners of intervals that are frozen and killed at any instant: the store loses no change (I3, I4,
I15)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millwheel.store import embedded
from tests.faults.kill_flights import workplace
from tests.faults.owners import hammer

ACTS = ("claimed", "committed", "folded", "released", "split", "merged", "refused")


@pytest.fixture
def url() -> Iterator[str]:
    with workplace() as directory:
        yield embedded.start(directory / "store").url


@pytest.mark.soak
def test_no_change_is_lost(url: str) -> None:
    outcome = hammer(url, 120.0, seed=1)
    assert (outcome.differences, outcome.exits) == ([], [])
    assert all(outcome.acts[act] for act in ACTS)


@pytest.mark.soak
def test_without_the_fence_changes_are_lost(url: str) -> None:
    outcome = hammer(url, 40.0, seed=1, bug="fence skipped")
    assert outcome.differences or outcome.exits
