"""Forks and restores of a pipeline under load equal arithmetic."""

from __future__ import annotations

import pytest

from tests.faults.kill_flights import workplace
from tests.faults.travels import travel


@pytest.mark.parametrize(
    ("records", "forks", "restores", "kills"),
    [(6_000, 1, 1, 1), pytest.param(60_000, 20, 10, 8, marks=pytest.mark.soak)],
)
def test_copies_and_restored_pipelines_equal_arithmetic(
    records: int, forks: int, restores: int, kills: int
) -> None:
    with workplace() as directory:
        travel(directory, records, forks, restores, kills)
