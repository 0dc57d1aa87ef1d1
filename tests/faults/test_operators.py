"""Operators press the buttons of the pages while workers are killed."""

from __future__ import annotations

import pytest

from tests.faults.kill_flights import workplace
from tests.faults.operators import operate


@pytest.mark.parametrize(
    ("records", "presses", "kills"),
    [(400, 6, 1), pytest.param(20_000, 60, 8, marks=pytest.mark.soak)],
)
def test_the_log_and_the_effects_agree(records: int, presses: int, kills: int) -> None:
    with workplace() as directory:
        operate(directory, records, presses, kills, say=print)
