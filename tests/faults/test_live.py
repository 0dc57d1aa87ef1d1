"""A live service over files that another process appends to and rotates (`tests.faults.live`)."""

from __future__ import annotations

import pytest

from tests.faults.kill_flights import workplace
from tests.faults.live import live


def test_a_live_service_equals_arithmetic() -> None:
    """Twelve seconds, with two `kill -9`."""
    with workplace() as directory:
        live(directory, minutes=1 / 5, kills=2, seed=1, say=print)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_a_live_service_equals_arithmetic_after_a_while(seed: int) -> None:
    """Ten minutes, with ten `kill -9`."""
    with workplace() as directory:
        live(directory, minutes=10, kills=10, seed=seed, say=print)
