"""Real workers among peers that lie (`tests.faults.under_attack`)."""

from __future__ import annotations

import pytest

from tests.faults.kill_flights import workplace
from tests.faults.under_attack import attack


@pytest.mark.soak
@pytest.mark.parametrize("knows", [True, False], ids=["with the secret", "without it"])
async def test_workers_among_liars_equal_arithmetic(knows: bool) -> None:
    """40,000 rows, with three `kill -9`."""
    with workplace() as directory:
        await attack(directory, 40_000, 3, print, knows=knows)
