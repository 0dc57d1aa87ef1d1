"""Worker processes that share the pipeline of `tests.support.visits` on an embedded Postgres of
their own.

What happens to them is another's part (`tests.faults.chaos`, `tests.faults.rolling`,
`tests.faults.test_cables`). Here they are started, heard, and ended whatever happens, and in the
end everything is compared with what a batch computes of the input. What they said is in
``workers.log`` beside the store, which stays where it is if something is wrong.

`bench.fleet` is not this one: it looks at workers from outside only, by what they store and cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import psycopg

from millwheel.store import embedded
from millwheel.store.console.migrate import migrate
from tests.support import visits
from tests.support.forked_commands import ROOT, AsyncForked, parent
from tests.support.servers import reachable_directory

NAME = "visits"
LOOK_SECONDS = 0.05
"""Between two looks at what tells nobody by itself."""

ROWS = "SELECT (SELECT count(*) FROM visits.step) + (SELECT count(*) FROM visits.reminder)"
CHAINS = """
SELECT count(*) FROM (
    SELECT sequencer, n, lag(sequencer) OVER chain AS before, lag(n) OVER chain AS n_before
    FROM {schema}.commit_record WINDOW chain AS (PARTITION BY interval_id ORDER BY n)
) AS link
WHERE before > sequencer OR (n_before + 1 <> n AND n_before > 0)
"""
"""The first link of a part stands in the newest bucket: those between may be dropped before it."""


@dataclass
class Report:
    """How it ended."""

    exits: Counter[int] = field(default_factory=Counter)
    broken_chains: int = -1
    """Commits that do not follow the one before; -1: nobody has looked."""
    differences: list[str] = field(default_factory=lambda: ["nobody has looked"])
    errors: list[str] = field(default_factory=list)
    comes_to: str = "the same"
    """How the tables compare with the batch answer, if that is as it must be."""

    @property
    def good(self) -> bool:
        """Nothing lost, nothing doubled, nothing by a zombie, and no worker ended by itself."""
        return not self.differences and self.broken_chains == 0 and not self.errors

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"chains of commits broken: {self.broken_chains}",
            *self.errors,
            *(self.differences or [f"{self.comes_to} as the batch answer"]),
        ]

    def tell(self) -> int:
        """Print it; gives the exit code of a command."""
        for line in self.lines():
            print(line, flush=True)
        return 0 if self.good else 1


class Member:
    """A worker process. How it ends is counted in the report, and an error if nobody expects it."""

    def __init__(self, fleet: Fleet[Any]) -> None:
        fleet.members.append(self)
        self.number = len(fleet.members)
        self.name = f"worker {self.number}"
        self.id = ""
        """As it says itself, its first part."""
        self.expected = {0}
        """Exit codes that are no surprise."""
        self._fleet = fleet
        self._process: asyncio.subprocess.Process | AsyncForked | None = None
        self._ended: asyncio.Task[int] | None = None

    async def start(
        self, *options: str, pipeline: str = "tests.support.visits:pipeline",
        within: Sequence[str] = (),
        **environment: str,
    ) -> None:  # fmt: skip
        """Begin to work, forked from a process that has imported what a worker needs; `within` are
        the words of a command that runs another one, so that Python starts as well."""
        words = ["worker", pipeline, "--until-done", *options]
        everything = {**self._fleet.environment, **environment}
        if not within:
            self._process = await AsyncForked.start(parent(), words, everything)
        else:
            self._process = await asyncio.create_subprocess_exec(
                *within, sys.executable, "-m", "millwheel.cli.main", *words,
                cwd=ROOT, env=everything,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=1 << 24,
            )  # fmt: skip
        self._ended = asyncio.create_task(self._listen())

    async def _listen(self) -> int:
        assert self._process is not None
        assert self._process.stderr is not None
        with self._fleet.log.open("ab") as log:
            while line := await self._process.stderr.readline():
                log.write(b"%d " % self.number + line)
                log.flush()
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        self.hear(event)
        code = await self._process.wait()
        self._fleet.report.exits[code] += 1
        if not self.is_expected(code):
            self._fleet.report.errors.append(f"{self.name} ended with exit code {code}")
        return code

    def hear(self, event: dict[str, Any]) -> None:
        """It says something."""
        if event.get("event") == "started":
            self.id = event["worker"]

    def is_expected(self, code: int) -> bool:
        """Whether it may end so now."""
        return code in self.expected

    @property
    def alive(self) -> bool:
        """Whether it has started and not ended."""
        return self._ended is not None and not self._ended.done()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Until it has ended and all it said was heard; gives its exit code."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)  # of those who wait, one may be cancelled

    async def end(self, number: signal.Signals, expected: int) -> int:
        """Send it a signal, and wait for its end; gives its exit code."""
        self.expected = {expected}
        self.send(number)
        return await self.wait()


R = TypeVar("R", bound=Report)


class Fleet(Generic[R]):
    """Workers of one pipeline, and the store they share.

    Args:
        directory: for the input, the store and the log.
        pause: seconds that every tenth visit takes, until there is to be an end.
        mode: of `visits.MODES`: what is promised. None: the pipeline as it is, exactly once.
    """

    def __init__(self, directory: Path, report: R, pause: float, mode: str | None = None) -> None:
        self.report = report
        self.mode = mode
        self.directory = directory
        self.log = directory / "workers.log"
        self.members: list[Member] = []
        self.url = embedded.start(directory / "store").url
        migrate(self.url, NAME)
        self.environment = {
            **os.environ,
            "MILLWHEEL_STORE": self.url,
            "VISITS": str(directory),
            "VISITS_NAME": NAME,
            "VISITS_PAUSE": str(pause),
            "VISITS_MODE": mode or "",
        }

    def ask(self, query: str, *parameters: object) -> list[Any]:
        """Rows of the store."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def rows_done(self) -> int | None:
        """How much is in the tables; None: the store is away, or has no tables yet."""
        try:
            ((rows,),) = self.ask(ROWS)
        except psycopg.Error:
            return None
        return int(rows)

    async def wait_until(self, true: Callable[[], object], what: str, seconds: float) -> None:
        """Look again and again.

        Raises:
            TimeoutError: it was not so for that long.
        """
        try:
            async with asyncio.timeout(seconds):
                while not await asyncio.to_thread(true):  # noqa: ASYNC110 (the store tells nobody)
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"not within {seconds:g} s: {what}") from None

    def judge(self, answer: visits.Answer) -> None:
        """Compare everything with what it must be."""
        ((self.report.broken_chains,),) = self.ask(CHAINS.format(schema=NAME))
        found = visits.read(self.url, NAME)
        if self.mode is None:
            self.report.differences = visits.differences(found, answer)
            return
        mode = visits.MODES[self.mode]
        self.report.differences = visits.broken_promises(found, answer, mode)
        self.report.comes_to = mode.comes_to

    async def end(self) -> None:
        """Whoever is left."""
        for member in self.members:
            if member.alive:
                member.send(signal.SIGCONT)
                await member.end(signal.SIGKILL, -signal.SIGKILL)


def make_directory(prefix: str) -> Path:
    """One that an unprivileged server can reach."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)
    return directory


F = TypeVar("F", bound=Fleet[Any])


@asynccontextmanager
async def housed(make: Callable[[Path], F]) -> AsyncIterator[F]:
    """A fleet in a directory of its own. In the end everybody is ended and the store is gone; if
    all was good the directory is too, else the report says where the log is."""
    directory = reachable_directory(f"millwheel-{make.__name__.lower()}-")
    good = False
    try:
        made = make(directory)
        try:
            yield made
            good = made.report.good
            if not good:
                made.report.errors.append(f"logs: {made.log}")
        finally:
            await made.end()
    finally:
        await asyncio.to_thread(embedded.remove, directory / "store")
        if good:
            shutil.rmtree(directory, ignore_errors=True)


async def unless_it_stands_still(
    work: asyncio.Future[Any], progress: Callable[[], int | None], seconds: float
) -> None:
    """Wait for the end of some work that may take as long as it likes while something is done.

    Raises:
        TimeoutError: nothing was, for so long, as far as `progress` knows; the work was cancelled.
    """
    known = progress()
    while not (await asyncio.wait([work], timeout=seconds))[0]:
        now = progress()
        if now is None or now == known:
            work.cancel()
            raise TimeoutError(f"nothing was done for {seconds:g} s, and more was to do")
        known = now
    await work
