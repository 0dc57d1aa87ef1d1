"""A followed directory, read by two workers that are killed (`tests.faults.folder`)."""

from __future__ import annotations

import pytest

from tests.faults.folder import follow
from tests.faults.kill_flights import workplace


def test_a_followed_directory_is_read_once_although_workers_are_killed() -> None:
    with workplace() as directory:
        follow(directory, rows=300, kills=2, seed=1, say=print)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_a_followed_directory_is_read_once_after_a_while(seed: int) -> None:
    with workplace() as directory:
        follow(directory, rows=4_000, kills=20, seed=seed, say=print)
