"""Dead letters are retried and states edited while workers are killed."""

from __future__ import annotations

import pytest

from tests.faults.kill_flights import workplace
from tests.faults.mended import mend


@pytest.mark.soak  # `make test` loses the commits of requests in `tests.runtime.test_requests`
@pytest.mark.parametrize(("letters", "edits", "kills"), [(500, 200, 1), (20_000, 4_000, 8)])
def test_each_has_its_effect_once(letters: int, edits: int, kills: int) -> None:
    with workplace() as directory:
        mend(directory, letters, edits, kills, keys=100, say=print)
