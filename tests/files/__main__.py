"""``python -m tests.files [COUNT] [FIRST SEED]``: run histories of followed files against the
model."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.files.folders import Folders
from tests.files.histories import Files, History, draw, failure_of, shorten
from tests.files.logs import Logs

WORLDS: dict[str, Callable[[Path], Awaitable[Files]]] = {
    "logs": Logs.begin,
    "folders": Folders.begin,
}
KINDS = [("logs", Logs.kinds), ("folders", Folders.kinds)]


def run(seed: int) -> str | None:
    """Run the history of a seed; gives what is wrong, with the shortest history that has it."""
    history = draw(seed, KINDS)
    world = WORLDS[history.kind]
    wrong = failure_of(history, world)
    if wrong is None:
        return None

    def fails(shorter: History) -> bool:
        found = failure_of(shorter, world)
        return found is not None and found.partition(":")[0] == wrong.partition(":")[0]

    shortest = shorten(history, fails)
    return f"seed {seed}: {wrong}\n  {shortest}\n  {failure_of(shortest, world)}"


def main(count: int = 10_000, first: int = 0) -> int:
    started, wrong = time.monotonic(), 0
    for seed in range(first, first + count):
        if (report := run(seed)) is not None:
            wrong += 1
            print(report, flush=True)
        if seed % 1_000 == 999:
            print(f"{seed + 1 - first} histories, {wrong} wrong", flush=True)
    seconds = time.monotonic() - started
    print(f"{count} histories from seed {first}, {wrong} wrong, {seconds:.0f} s")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
