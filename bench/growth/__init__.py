"""Rate and memory as a function of size: keys, state, history, timers, depth, workers.

Each point is a run in a separate process, on a fresh schema that is dropped afterwards. The data
that a point needs is written directly into the store's tables, as a pipeline would have left it.

A rate is compared with the mean of a run just before and a run just after it (`beside`), since the
machine's speed changes over an hour.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.growth import depth, history, keys, sizes, timers, workers

Points = list[dict[str, Any]]
Curve = Callable[[str, Path, bool], Awaitable[Points]]

CURVES: dict[str, Curve] = {
    "keys": keys.measure,
    "sizes": sizes.measure,
    "history": history.measure,
    "timers": timers.measure,
    "depth": depth.measure,
    "workers": workers.measure,
}
NEEDED_GIGABYTES = {False: 45.0, True: 3.0}
"""Free disk space that the largest points need, by whether the run is quick. 10^8 seen ids take
about 12 GB in their table, and about as much again in the WAL and for sorting."""


class DiskTooSmall(Exception):
    """There is not enough disk space for the largest points."""


def check_disk(directory: Path, *, quick: bool) -> None:
    """Check the free disk space.

    Raises:
        DiskTooSmall: there is not enough.
    """
    free = shutil.disk_usage(directory).free / 1e9
    needed = NEEDED_GIGABYTES[quick]
    print(f"disk: {free:.0f} GB free, up to {needed:.0f} GB needed")
    if free < needed:
        raise DiskTooSmall(f"{directory} has {free:.0f} GB free; the curves need {needed:.0f} GB")


async def measure(url: str, directory: Path, *, name: str, quick: bool) -> dict[str, Any]:
    """Measure one curve, and compute its ratios."""
    check_disk(directory, quick=quick)
    print(f"growth by {name}")
    points = await CURVES[name](url, directory, quick)
    made = BARS[name](points) if name in BARS else []
    for bar in made:
        print(f"{bar['what']}: {bar['found']:.2f}, required: {bar['asked']}")
    return {"points": points, "bars": made}


def _bar(what: str, found: float, asked: str) -> dict[str, Any]:
    return {"what": what, "found": found, "asked": asked}


def _keys(points: Points) -> Points:
    most = [point for point in points if "beside" in point]
    made = [
        _bar(
            f"rate with {point['keys']:,} keys ({point['way']}), a tenth of them in memory / with "
            f"{keys.BASE:,}, all in memory",
            point["rate"] / point["beside"],
            "at least 0.6" if point["way"] == "zipf" else "see raw SQL",
        )
        for point in most
    ]
    few = next(point for point in points if point["way"] == most[-1]["way"])
    many = most[-1]
    made.append(
        _bar(
            f"(memory with {many['keys']:,} keys - memory with {few['keys']:,}) / size of the "
            "cache",
            (many["peak_megabytes"] - few["peak_megabytes"]) / many["cache_megabytes"],
            "bounded by configuration",
        )
    )
    return made


def _history(points: Points) -> Points:
    none, most = points[0], points[-1]
    more = (most["peak_megabytes"] - none["peak_megabytes"]) * 1e6 / most["ids"]
    return [
        _bar(
            f"rate with {most['ids']:,} seen ids / without",
            most["rate"] / most["beside"],
            "at least 0.8",
        ),
        _bar(
            f"bytes of memory per seen id, with {most['ids']:,} ids",
            more,
            "grows with the number of ids: Bloom filters take 2.7 bytes per id or more",
        ),
    ]


def _timers(points: Points) -> Points:
    fewer, most = points[-2:]
    return [
        _bar(
            f"memory with {most['timers']:,} timers / with {fewer['timers']:,}",
            most["peak_megabytes"] / fewer["peak_megabytes"],
            "bounded by configuration",
        )
    ]


BARS: dict[str, Callable[[Points], Points]] = {
    "keys": _keys,
    "history": _history,
    "timers": _timers,
}
"""Functions that compute the ratios of a curve from its points."""
