"""Runs seeds, one after the other or in several processes; what fails is made smaller and shown.

::

    python -m tests.sim                           # fixed seeds and fresh ones, for a minute
    python -m tests.sim --seed 4711               # one, with its last events
    python -m tests.sim --seeds 0-10000 --jobs 2
    python -m tests.sim --seconds 3600            # fresh ones for an hour
    python -m tests.sim --plant "a lost ACK" --seeds 0-1000

Exit code 1: something was violated. Ctrl-C ends it, and tells what was run.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import count, islice
from typing import NamedTuple

from tests.sim.cluster import run
from tests.sim.drawing import draw
from tests.sim.planted import PLANTED, planted
from tests.sim.shrink import shrunk, violation_of
from tests.sim.violation import Violation

FIXED_SEEDS = 200
"""What each run without options begins with."""

USUAL_SECONDS = 60.0
SHRINK_SECONDS = 30.0
LOGGED_SEEDS = 500
"""Between two lines of progress in a log."""
COLLECT_RUNS = 20
"""Runs between two collections of garbage: each leaves some megabytes in cycles."""


class Result(NamedTuple):
    """What came of a seed."""

    seed: int
    commits: int
    counts: dict[str, int]
    failure: str


def try_seed(seed: int) -> Result:
    """Run a seed."""
    if seed % COLLECT_RUNS == 0:
        gc.collect()
    try:
        monitor = run(draw(seed))
    except Violation as violation:
        return Result(seed, 0, {}, str(violation))
    return Result(seed, monitor.ledger.commits, monitor.counts, "")


def seeds_of(options: argparse.Namespace) -> Iterable[int]:
    """The seeds that are asked for; of fresh ones there is no end."""
    if options.seeds:
        first, _, last = options.seeds.partition("-")
        return range(int(first), int(last or int(first) + 1))
    fixed = () if options.seconds else range(FIXED_SEEDS)
    return _and_fresh_ones(fixed)


def _and_fresh_ones(fixed: Iterable[int]) -> Iterator[int]:
    yield from fixed
    yield from count(random.SystemRandom().randrange(1 << 40))


def explain(seed: int, seconds: float) -> bool:
    """Run a seed, and show how it fails and what the smallest scenario is that does; says whether
    it holds."""
    scenario = draw(seed)
    violation = violation_of(scenario)
    if violation is None:
        print(f"seed {seed} holds")
        return True
    print(f"\nseed {seed}: {violation}")
    smallest, violation = shrunk(scenario, violation, seconds)
    print("\n".join(violation.trace))
    if violation.more:
        print(violation.more)
    print(
        f"{violation}\n\nthe smallest that fails so:\n{smallest.plan.describe()}\nrun({smallest!r})"
    )
    return False


def results(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """Run seeds, in several processes if there are to be."""
    if jobs == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, _quietly) as pool:
        yield from pool.imap_unordered(try_seed, _bounded(seeds, jobs), chunksize=1)
        pool.terminate()


def _bounded(seeds: Iterable[int], jobs: int) -> Iterable[int]:
    """No more than a day's work: a pool takes all that it is given."""
    return seeds if isinstance(seeds, range) else list(islice(seeds, 50_000 * jobs))


def _quietly() -> None:
    """Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="run this one, and show how it fails")
    parser.add_argument("--seeds", help="run these, A-B")
    parser.add_argument("--seconds", type=float, help="run fresh ones for so long")
    parser.add_argument("--jobs", type=int, default=max(1, min(2, os.cpu_count() or 1)))
    parser.add_argument("--shrink", type=float, default=SHRINK_SECONDS, help="seconds for that")
    parser.add_argument("--plant", choices=sorted(PLANTED), help="with this bug in the engine")
    options = parser.parse_args(arguments)
    with planted(options.plant) if options.plant else nullcontext():
        if options.seed is not None:
            return 0 if explain(options.seed, options.shrink) else 1
        return run_many(options)


def run_many(options: argparse.Namespace) -> int:
    """Run until the seeds or the time are at an end, or one fails."""
    began = time.monotonic()
    limit = options.seconds or (None if options.seeds else USUAL_SECONDS)
    tried, commits, counts = 0, 0, Counter[str]()
    failed: Result | None = None
    try:
        for result in results(seeds_of(options), options.jobs):
            tried += 1
            commits += result.commits
            counts.update(result.counts)
            _show(tried, result.seed, began)
            if result.failure:
                failed = result
                break
            if limit is not None and time.monotonic() - began >= limit:
                break
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
    happened = ", ".join(f"{what} {number}" for what, number in sorted(counts.items()))
    seconds = time.monotonic() - began
    print(f"\n{tried} seeds, {commits} commits, {seconds:.0f} s. {happened}")
    if failed is not None:
        explain(failed.seed, options.shrink)
    return 1 if failed is not None else 0


def _show(tried: int, seed: int, began: float) -> None:
    """A line that goes on, where somebody looks at it; else one now and then."""
    looked_at = sys.stderr.isatty()
    if tried % (5 if looked_at else LOGGED_SEEDS) == 0:
        told = f"{tried} seeds, now {seed}, {tried / (time.monotonic() - began):.1f} a second"
        begin, end = ("\r", "") if looked_at else ("", "\n")
        print(begin + told, end=end, file=sys.stderr, flush=True)
