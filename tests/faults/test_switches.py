"""Readers follow switches between two running pipelines, whoever is killed."""

from __future__ import annotations

import pytest

from tests.faults.kill_flights import workplace
from tests.faults.switches import follow


@pytest.mark.parametrize("switches", [3, pytest.param(50, marks=pytest.mark.soak)])
def test_readers_see_one_pipeline_and_no_sum_falls(switches: int) -> None:
    with workplace() as directory:
        follow(directory, switches)
