"""Real workers go over to new code and back under load (`tests.faults.rolling`): nothing but the
batch answer."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from millwheel.errors import DeployRefused
from tests.faults import rolling


async def check(seconds: float, workers: int) -> None:
    report = await rolling.run(seconds=seconds, workers=workers, back=True)
    told = "\n".join(report.lines())
    print(told)
    assert report.good, told
    assert report.exits == Counter(
        {
            128 + signal.SIGTERM: 2 * workers - report.refused,
            DeployRefused.exit_code: report.refused,
            -signal.SIGKILL: 1,
            0: workers,
        }
    )
    assert all(hand_over.intervals for hand_over in report.orderly[:1] + report.killed)


@pytest.mark.soak
async def test_workers_go_over_to_new_code_and_back() -> None:
    await check(6, workers=2)


@pytest.mark.soak
async def test_both_versions_work_side_by_side_for_a_minute() -> None:
    await check(90, workers=3)
