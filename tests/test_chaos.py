"""Real workers, real faults (`tests.chaos`), and nothing but the batch answer."""

from __future__ import annotations

import pytest

from tests import chaos


async def check(seconds: float, seed: int, rows: int, workers: int = 3) -> chaos.Report:
    report = await chaos.run(
        seconds=seconds, workers=workers, seed=seed, rows=rows, rest=1.0, pause=0.5
    )
    print("\n".join(report.lines()))
    assert report.good, "\n".join(report.lines())
    return report


async def test_some_seconds_of_faults() -> None:
    await check(15, seed=3, rows=9000)


@pytest.mark.soak
async def test_ten_minutes_of_faults() -> None:
    report = await chaos.run(seconds=600, workers=4, seed=1, rows=250_000, rest=2.0, pause=1.0)
    print("\n".join(report.lines()))
    assert report.good, "\n".join(report.lines())
    assert len(report.faults) == 10
