"""Carries out the runs one after the other until the targets are reached, and goes on where it
stood.

::

    python -m tests.campaign                          # until all is shown, a few hours
    python -m tests.campaign --hours 1                # for so long
    python -m tests.campaign --only kills,failover    # runs whose names begin so
    python -m tests.campaign --only nexmark --seeds 1-10
    python -m tests.campaign --again                  # what did not hold is repeated
    python -m tests.campaign --report docs/why/campaign.md  # from the lines there; runs nothing

Each finished run is a line in ``DIRECTORY/runs.jsonl``, and what failed has a directory beside it.
Ctrl-C or SIGTERM ends it and all that it started. Exit code 0: the targets are reached (with
--hours, --only or --seeds: what was run held); 1: something did not hold; 3: the time was over
before the targets were reached.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from tests.campaign import plan, results
from tests.campaign.ledger import Ledger
from tests.campaign.nexmark import NexmarkRun
from tests.campaign.plan import Nexmark, Run
from tests.campaign.report import Sum, markdown, summed
from tests.campaign.results import Result

DIRECTORY = Path("campaign-out")
BROKEN, NOT_REACHED, INTERRUPTED = 1, 3, 130
NEXMARK_BESIDE = 4
"""Nexmark runs between two others, as long as there are both."""


class Campaign:
    """The runs of one directory."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._file: Path = options.directory / "runs.jsonl"
        known = list(results.read(self._file))
        if options.again:
            known = [result for result in known if result.good or result.refused]
        self._sum = summed(known)
        self._done = {result.name for result in self._sum.results}
        self._broken = 0
        self._until = time.monotonic() + options.hours * 3600 if options.hours is not None else None
        self._now = "no run"

    @property
    def sum(self) -> Sum:
        """What there is so far."""
        return self._sum

    async def carry_out(self) -> int:
        """All that is asked for; gives the exit code."""
        for run in self._runs():
            if self._until is not None and time.monotonic() >= self._until:
                break
            await self._one(run)
        self._line("was the last", lasting=True)
        if self._broken or self._sum.bad:
            return BROKEN
        if self._options.only or self._options.seeds or self._sum.reached():
            return 0
        return NOT_REACHED

    async def _one(self, run: Run | Nexmark) -> None:
        self._now = run.name
        self._line("begins")
        keep = self._options.directory / run.name
        made = (
            NexmarkRun(run, keep, self._line)
            if isinstance(run, Nexmark)
            else Ledger(run, keep, self._line)
        )
        try:
            result = await made.carry_out()
        except Exception as error:
            result = Result(run.name, run.seed, errors=[f"{type(error).__name__}: {error}"])
        results.write(self._file, result)
        self._done.add(run.name)
        self._sum.add(result)
        self._broken += not result.good and not result.refused
        word = (
            "held" if result.good else f"refused: {result.refused}" if result.refused else "FAILED"
        )
        rate = result.records / max(result.seconds, 1)
        self._line(
            f"{word}: {result.records:,} records in {result.seconds:.0f} s ({rate:,.0f}/s), "
            f"{sum(count.effective for count in result.faults.values())} effective faults, "
            f"{result.looks} looks",
            lasting=True,
        )
        for line in (*result.errors, *result.told[:5], *(result.differences or ())[:5]):
            self._line(f"  {line}", lasting=True)

    def _runs(self) -> Iterator[Run | Nexmark]:
        """Those that are asked for and not done, of both kinds in turn."""
        both = zip_longest(self._ledgers(), self._batches())
        for ledger, batch in both:
            if ledger is not None:
                yield ledger
            yield from batch or ()

    def _ledgers(self) -> Iterator[Run]:
        all_of_them = self._options.seeds or self._options.only
        for run in plan.rounds():
            if not all_of_them and self._sum.ledgers_done():
                return
            if all_of_them and not self._options.seeds and not run.name.endswith("-0"):
                return  # what is asked for by name comes once
            if self._is_asked_for(run.name, run.seed // 100):
                yield run
            if self._options.seeds and run.seed // 100 > self._seeds[1]:
                return

    def _batches(self) -> Iterator[list[Nexmark]]:
        batch: list[Nexmark] = []
        for run in plan.nexmark():
            if self._is_asked_for(run.name, run.seed):
                batch.append(run)
                if len(batch) == NEXMARK_BESIDE:
                    yield batch
                    batch = []
        yield batch

    @property
    def _seeds(self) -> tuple[int, int]:
        first, _, last = self._options.seeds.partition("-")
        return int(first), int(last or first)

    def _is_asked_for(self, name: str, number: int) -> bool:
        """A number is that of a round, or of a Nexmark seed."""
        if name in self._done:
            return False
        if self._options.seeds:
            low, high = self._seeds
            if not low <= number <= high:
                return False
        only = self._options.only
        return not only or any(name.startswith(part) for part in only.split(","))

    def _line(self, text: str, *, lasting: bool = False) -> None:
        """Where it is: a line that is written over on a terminal, else lines of a log."""
        counts = self._sum.counts()
        where = ", ".join(f"{name} {counts[name]}/{least}" for name, least in plan.TARGETS.items())
        where += f", {self._sum.records / 1e6:.1f}/{plan.TARGET_RECORDS / 1e6:.0f} M records"
        where += f", nexmark {sum(self._sum.nexmark().values())}"
        if sys.stderr.isatty():
            end = "\n" if lasting else ""
            print(
                f"\r\x1b[2K[{where}] {self._now}: {text}"[:240],
                end=end,
                file=sys.stderr,
                flush=True,
            )
        elif lasting or text == "begins":
            print(
                f"{time.strftime('%H:%M:%S')} [{where}] {self._now}: {text}",
                file=sys.stderr,
                flush=True,
            )
        elif self._options.verbose:
            print(f"{time.strftime('%H:%M:%S')} {self._now}: {text}", file=sys.stderr, flush=True)


async def ending(campaign: Campaign) -> int:
    """The campaign, ended in order by a signal."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await campaign.carry_out()


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--hours", type=float, help="for so long at the most")
    parser.add_argument("--only", metavar="NAME,...", help="runs whose names begin so, once")
    parser.add_argument("--seeds", metavar="A-B", help="rounds, or seeds of Nexmark")
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write it, and run nothing")
    parser.add_argument("--again", action="store_true", help="repeat what did not hold")
    parser.add_argument(
        "--verbose", action="store_true", help="a line for each fault, in a log too"
    )
    options = parser.parse_args(arguments)
    campaign = Campaign(options)
    if options.report is not None:
        options.report.write_text(markdown(campaign.sum))
        return 0 if not campaign.sum.bad else BROKEN
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        return asyncio.run(ending(campaign))
    print("\ninterrupted; what is done is kept", file=sys.stderr)
    return INTERRUPTED
