"""A followed directory, read by two workers that are killed (`tests.faults.folder`)."""

from __future__ import annotations

import pytest

from tests.faults.folder import follow
from tests.faults.kill_flights import workplace


@pytest.mark.soak  # `make test` follows files by real workers in `tests.faults.test_live`
@pytest.mark.parametrize(("rows", "kills", "seed"), [(300, 2, 1), (4_000, 20, 2), (4_000, 20, 3)])
def test_a_followed_directory_is_read_once_although_workers_are_killed(
    rows: int, kills: int, seed: int
) -> None:
    with workplace() as directory:
        follow(directory, rows=rows, kills=kills, seed=seed, say=print)
