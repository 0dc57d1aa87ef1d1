"""Compare the engine with an earlier commit on the same workload, in alternating runs.

The earlier tree is checked out during the measurement; each run is a separate process.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
FIRST = "1772f9be4d88eaf18d5dcdd2de2caf85a770b557"
"""The first complete engine: one worker, strong productions, windows."""

RUN = """
import sys
from pathlib import Path
from bench.rate import engine_rate
from millwheel.services import loop
found = loop.run(engine_rate(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
print(getattr(found, "rate", found))
"""


@contextmanager
def tree_of(commit: str, directory: Path) -> Iterator[Path]:
    """Check out a commit into a separate directory, during the block.

    Raises:
        subprocess.CalledProcessError: this is not a git clone with the commit.
    """
    place = directory / f"tree-{commit[:12]}"
    git = ["git", "-C", str(HERE), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
    try:
        yield place
    finally:
        subprocess.run([*git, "remove", "--force", str(place)], check=True)


async def rate(tree: Path, url: str, directory: Path, records: int) -> float:
    """Measure the records per second of the engine in a tree."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, url, str(directory), str(records),
        cwd=tree, env={"PYTHONPATH": str(tree)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the engine of {tree} ended with exit code {process.returncode}")
    return float(out.splitlines()[-1])


async def measure(
    url: str, directory: Path, *, pairs: int, records: int, commit: str = FIRST
) -> dict[str, Any]:
    """Measure pairs of runs, in alternating order."""
    found: list[tuple[float, float]] = []
    with tree_of(commit, directory) as earlier:
        for number in range(pairs):
            order = (earlier, HERE) if number % 2 else (HERE, earlier)
            rates = {tree: await rate(tree, url, directory, records) for tree in order}
            before, now = rates[earlier], rates[HERE]
            found.append((before, now))
            print(
                f"  pair {number + 1}: {commit[:7]} {before:9,.0f} records/s, now {now:9,.0f}: "
                f"{now / before:.2f}"
            )
    ratio = statistics.median(now / before for before, now in found)
    print(f"now / {commit[:7]}: {ratio:.2f}, median of {pairs}")
    return {"commit": commit, "pairs": found, "ratio": ratio}
