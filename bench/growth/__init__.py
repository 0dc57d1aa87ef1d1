"""How rate and memory change with what there is: keys, state, history, timers, depth, workers.

Every point is a run in a process of its own, on a fresh schema that is dropped afterwards. What a point
needs to be there is written straight into the store's tables, as a pipeline would have left it.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.growth import depth, history, keys, sizes, timers, workers

Curve = Callable[[str, Path, bool], Awaitable[list[dict[str, Any]]]]

CURVES: dict[str, Curve] = {
    "keys": keys.measure,
    "sizes": sizes.measure,
    "history": history.measure,
    "timers": timers.measure,
    "depth": depth.measure,
    "workers": workers.measure,
}
NEEDED_GIGABYTES = {False: 45.0, True: 3.0}
"""Free disk that the largest points need: 10^8 seen ids take about 12 GB in their table and as much
again in the log of writes and in sorting; by whether it is a full run, then a quick one."""


class DiskTooSmall(Exception):
    """There is not room enough for the largest points."""


def check_disk(directory: Path, *, quick: bool) -> None:
    """See to it that there is room.

    Raises:
        DiskTooSmall: there is not.
    """
    free = shutil.disk_usage(directory).free / 1e9
    needed = NEEDED_GIGABYTES[quick]
    print(f"disk: {free:.0f} GB free, up to {needed:.0f} GB needed")
    if free < needed:
        raise DiskTooSmall(f"{directory} has {free:.0f} GB free; the curves need {needed:.0f} GB")


async def measure(url: str, directory: Path, *, quick: bool) -> dict[str, Any]:
    """All curves, each with its bar."""
    check_disk(directory, quick=quick)
    found: dict[str, Any] = {}
    for name, curve in CURVES.items():
        print(f"growth by {name}")
        found[name] = await curve(url, directory, quick)
    found["bars"] = bars(found)
    for bar in found["bars"]:
        print(f"{bar['what']}: {bar['found']:.2f}, asked for: {bar['asked']}")
    return found


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What is asked of the curves, and what they show."""
    made = []
    for way in ("zipf", "uniform"):
        points = {p["keys"]: p["rate"] for p in found["keys"] if p["way"] == way}
        base = points.get(10_000, points[min(points)])
        made.append(
            {
                "what": f"rate with {max(points):,} keys ({way}) / with 10,000",
                "found": points[max(points)] / base,
                "asked": "at least 0.6" if way == "zipf" else "beside raw SQL",
            }
        )
    seen = {p["ids"]: p["rate"] for p in found["history"]}
    made.append(
        {
            "what": f"rate with {max(seen):,} seen ids / with none",
            "found": seen[max(seen)] / seen[0],
            "asked": "at least 0.8",
        }
    )
    return [*made, *_memory_bars(found)]


def _memory_bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Whether memory follows the configuration, not what there is."""
    few, *_, many = [p for p in found["keys"] if p["way"] == "uniform"]
    ids, timers = found["history"], found["timers"]
    more_ids = (ids[-1]["peak_megabytes"] - ids[0]["peak_megabytes"]) * 1e6 / ids[-1]["ids"]
    return [
        {
            "what": f"memory with {many['keys']:,} keys less that with {few['keys']:,}, in times the "
            "size of the cache",
            "found": (many["peak_megabytes"] - few["peak_megabytes"]) / many["cache_megabytes"],
            "asked": "bounded by configuration",
        },
        {
            "what": f"memory with {timers[-1]['timers']:,} timers / with {timers[-2]['timers']:,}",
            "found": timers[-1]["peak_megabytes"] / timers[-2]["peak_megabytes"],
            "asked": "bounded by configuration",
        },
        {
            "what": f"bytes of memory for each of {ids[-1]['ids']:,} seen ids",
            "found": more_ids,
            "asked": "grows with what is remembered: Bloom filters of 1.8 bytes an id and more",
        },
    ]
