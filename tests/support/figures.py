"""Figures of a worker as its HTTP endpoint shows them."""

from __future__ import annotations

from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.runtime.process.durations import Durations
from millwheel.services.worker_figures import ComputationFigures, Figures
from millwheel.store.console.inspection import (
    ComputationStatus,
    Holder,
    IntervalStatus,
    PipelineStatus,
)

NOW = 1_700_000_000_000_000


def some_figures() -> Figures:
    commits = Durations()
    for seconds in (0.0005, 0.001, 0.02, 60.0):
        commits.observe(seconds)
    return Figures(
        pipeline="shop",
        worker="w1",
        version="1.2.3",
        now=NOW,
        lease_seconds_left=9.5,
        fenced=2,
        certificates={"workers": 1_800_000_000.0},
        commits=commits.distribution(),
        code={"count": commits.distribution()},
        stages={"windows": commits.distribution()},
        acknowledgements={"lines_injector": commits.distribution()},
        computations=(
            ComputationFigures(
                name="lines",
                intervals=1,
                counters={"bad_rows": 3},
                unacked=40,
                pending_cap=64,
                acknowledge_seconds=0.4,
                input_watermark=MAX_TIME,
                low_watermark=NOW - 2_500_000,
            ),
            ComputationFigures(
                name="windows",
                intervals=2,
                counters={
                    "processed": 1000,
                    "duplicates_dropped": 7,
                    "late_dropped": 4,
                    "late_amended": 5,
                    "dead_letters": 1,
                    'odd "name"\n': 6,
                },
                backlog=12,
                bundle_open_seconds=1.5,
                input_watermark=NOW - 3_000_000,
                low_watermark=MIN_TIME,
            ),
        ),
    )


def some_status(name: str) -> PipelineStatus:
    """The status of a pipeline without a live worker."""
    holder = Holder("timer", "timer of key 1", 1, "2024-01-01", age_seconds=90.0)
    return PipelineStatus(
        name,
        "0007",
        True,
        computations=[
            ComputationStatus(
                "check", "computation", backlog=7, dead_letters_kept=3, holder=holder
            ),
            ComputationStatus("out", "relay", lag_seconds=5.0),
        ],
        intervals=[IntervalStatus(1, "check", 0, 65536, None, 1, 1, 1, "", "")],
    )
