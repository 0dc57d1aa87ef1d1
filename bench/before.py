"""The engine as it stood at an earlier commit, on the same workload and in turns with this one.

Its tree is checked out beside this one for as long as it is measured; each run is a process of its own.
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
"""The first engine that did all it promised: one worker, strong productions, windows."""

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
    """The tree of a commit, in a directory of its own.

    Raises:
        subprocess.CalledProcessError: this is no clone that has the commit.
    """
    place = directory / f"tree-{commit[:12]}"
    git = ["git", "-C", str(HERE), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
    try:
        yield place
    finally:
        subprocess.run([*git, "remove", "--force", str(place)], check=True)


async def rate(tree: Path, url: str, directory: Path, records: int) -> float:
    """Records a second of the engine of a tree."""
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
    """Alternating pairs; who is first alternates too."""
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
