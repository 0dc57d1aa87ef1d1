"""Tests of this folder start no process, so no server and no Spark either: `make quick` runs them.

The marker `process` excepts a test, and `make quick` leaves it out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def _alone(item: pytest.Item) -> Iterator[None]:
    def refuse(self: object, args: Any, *_: Any, **__: Any) -> None:
        raise AssertionError(f"{item.nodeid} starts {args!r}: mark it with `process`, or move it")

    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("process") is None:
            patch.setattr(subprocess.Popen, "__init__", refuse)
            patch.setattr(subprocess.Popen, "__del__", lambda self: None)  # it was never made
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _alone(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _alone(item):
        return (yield)
