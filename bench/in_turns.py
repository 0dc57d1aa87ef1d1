"""Two sides of one thing, measured in turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.meter import Cost


def compared(pairs: Sequence[tuple[Cost, Cost]]) -> dict[str, float]:
    """The median rate of the first sides, and the medians of their rate and CPU beside the
    second."""
    return {
        "rate": statistics.median(one.rate for one, _ in pairs),
        "ratio": statistics.median(one.rate / other.rate for one, other in pairs),
        "cpu": statistics.median(one.cpu_us / other.cpu_us for one, other in pairs),
    }


def shown(name: str, of: dict[str, Any], beside: str) -> str:
    """A line with these figures.

    Args:
        beside: names the second side.
    """
    return (
        f"{name:30}: {of['rate']:9,.0f} records/s, {of['ratio']:.2f} of the rate {beside} at "
        f"{of['cpu']:.2f} of its CPU"
    )
