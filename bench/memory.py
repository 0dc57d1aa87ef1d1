"""Memory of a long run: the year of flights, repeated many times."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.server import fresh_store
from millwheel.services import loop


def resident_megabytes() -> float:
    """Return the resident memory of this process (on macOS: its maximum)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        pages = int(statm.read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1e6 if sys.platform == "darwin" else 1e3
    )


def _replay(url: str, directory: Path, times: int, answer: Connection) -> None:
    """Replay in a separate process, sampling its memory at each hundredth of the input."""
    from examples.flights import build, replay
    from millwheel.runtime.engine import Engine

    async def run() -> list[tuple[float, float]]:
        path = replay.repeat(times, directory)
        store = await fresh_store(url, "flights")
        engine = Engine(build(path), store)
        await engine.start()
        samples: list[tuple[float, float]] = []

        async def sample() -> None:
            while True:
                share = engine.progress()["share"]
                if not samples or share >= samples[-1][0] + 0.01:
                    samples.append((share, resident_megabytes()))
                await asyncio.sleep(0.2)

        sampling = asyncio.create_task(sample())
        await engine.run()
        sampling.cancel()
        samples.append((1.0, resident_megabytes()))
        await engine.stop()
        await store.close()
        return samples

    answer.send(loop.run(run()))


async def measure(url: str, directory: Path, *, times: int) -> dict[str, Any]:
    """Measure the worker's resident memory over the run; compare the end with a quarter."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_replay, args=(url, directory, times, theirs)
    )
    process.start()
    theirs.close()
    samples: list[tuple[float, float]] = await asyncio.to_thread(ours.recv)
    process.join()
    quarter = next(size for share, size in samples if share >= 0.25)
    end = samples[-1][1]
    result = {
        "times": times,
        "megabytes_at_25": quarter,
        "megabytes_at_100": end,
        "highest_megabytes": max(size for _, size in samples),
        "ratio": end / quarter,
        "samples": samples,
    }
    print(
        f"the year {times} times: {quarter:.0f} MB at 25 %, {end:.0f} MB at 100 % "
        f"(highest {result['highest_megabytes']:.0f}); ratio {result['ratio']:.2f}"
    )
    return result
