"""Queries of workers that run, with kills (`tests.faults.live_queries`)."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.faults.kill_flights import workplace
from tests.faults.live_queries import run


def wrong_after(kills: int, seed: int) -> list[str]:
    with workplace() as directory:
        return asyncio.run(run(directory, kills=kills, seed=seed, say=print))


@pytest.mark.process
def test_queries_are_exact_while_workers_are_killed() -> None:
    """A query is submitted, replaced twice and dropped, with a kill at each of the four."""
    assert not wrong_after(kills=4, seed=1)


@pytest.mark.soak
def test_queries_are_exact_while_workers_are_killed_for_long() -> None:
    assert not wrong_after(kills=20, seed=time.time_ns())
