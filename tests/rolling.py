"""``python -m tests.rolling [--seconds 60] [--workers 3] [--stay]``: new code, one worker after the other.

Worker processes share the pipeline of `tests.visits_later` on an embedded Postgres. All begin with
the ``first`` code. Then, under load:

1. each is stopped by SIGTERM and replaced by one with ``later`` code, of which the state of a
   computation and a stream have another type; one that is still old is killed meanwhile, and comes
   back with the old code. Before the next one, `/readyz` of the new one must say yes;
2. the same again with the code that goes ``back``, unless it is told to ``--stay``;
3. the rest of the input is processed.

Everything must be exactly what a batch computes of the input; what was touched since the last old
worker went must be stored as the version of the new code; nobody may end by himself, and nothing
may stand still. The exit code says so. How long each hand-over took is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from millwheel.errors import DeployRefused
from millwheel.store import embedded
from millwheel.store.migrate import migrate
from tests import visits
from tests.chaos import CHAINS, NAME, ROOT, make_directory

ROWS_PER_SECOND = 2000
PAUSE = 0.5
"""Seconds that every tenth visit takes, so that there is work for as long as is wanted."""

READY_SECONDS = 60.0
END_SECONDS = 180.0
"""For what is left when all have the last code."""

SLOW_SECONDS = 10.0
"""In which a worker must be gone, and all it had be somebody else's. Waiting for its lease would be
seconds; a worker that could not drain gives up after 3."""

STILL_SECONDS = 5.0
"""After a rest, in which something must have been done since before it."""

LOOK_SECONDS = 0.05

VERSIONS = {"first": 1, "later": 2, "back": 1}
FIELDS = {"first": {"number"}, "later": {"count", "last"}, "back": {"number"}}
"""Of the state, as JSON."""

STATES = """
SELECT key #>> '{}', version, value FROM visits.states WHERE computation = 'count_visits'
"""
STEPS = 'SELECT "user", max(number) FROM visits.step GROUP BY "user"'
OWNED = "SELECT id FROM visits.key_interval WHERE owner::text LIKE %s || '%%'"
CLAIMS = """
SELECT interval_id, extract(epoch FROM min(at))::float8 FROM visits.placement_event
WHERE what = 'claim' AND interval_id = ANY(%s) AND at >= to_timestamp(%s)
  AND to_worker::text NOT LIKE %s || '%%'
GROUP BY interval_id
"""


@dataclass(frozen=True)
class HandOver:
    """How a worker left."""

    what: str
    intervals: int
    """That it had."""
    exit_seconds: float
    """From the signal to its end."""
    owned_seconds: float
    """From the signal until the last of its intervals was somebody else's."""

    def __str__(self) -> str:
        return (
            f"{self.what}: gone after {self.exit_seconds:.2f} s, its {self.intervals} intervals "
            f"at work elsewhere after {self.owned_seconds:.2f} s"
        )


@dataclass
class Report:
    """What happened."""

    orderly: list[HandOver] = field(default_factory=list)
    killed: list[HandOver] = field(default_factory=list)
    exits: Counter[int] = field(default_factory=Counter)
    touched: dict[str, int] = field(default_factory=dict)
    """Keys that only workers of this code have touched since it was everybody's."""
    errors: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=lambda: ["nobody has looked"])

    @property
    def good(self) -> bool:
        """Everything is as it must be."""
        return not self.errors and not self.differences

    def lines(self) -> list[str]:
        """For people."""
        return [
            *(f"SIGTERM to {hand_over}" for hand_over in self.orderly),
            *(
                f"SIGKILL to {hand_over} (lease {visits.LEASE_SECONDS:g} s)"
                for hand_over in self.killed
            ),
            f"exits {dict(self.exits)}; keys brought to each version: {self.touched}",
            *self.errors,
            *(self.differences or ["equal to the batch answer"]),
        ]


class Refused(Exception):
    """A worker of old code has nothing left to do."""


class Member:
    """A worker process."""

    def __init__(self, number: int, version: str, log: Path) -> None:
        self.version = version
        self.name = f"worker {number} ({version})"
        self.id = ""
        """As it says itself, its first part."""
        self.url = ""
        """Where it answers probes."""
        self.expected = {0}
        """Exit codes that are no surprise."""
        self.seconds = 0.0
        """That it took to end."""
        self._number = number
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[int] | None = None

    async def start(self, environment: dict[str, str]) -> None:
        """Begin to work, and wait until it says that it does."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "millwheel.cli.main", "worker", "tests.visits_later:pipeline",
            "--until-done", "--http", "127.0.0.1:0",
            cwd=ROOT, env={**environment, "VISITS_VERSION": self.version},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=1 << 24,
        )  # fmt: skip
        self._ended = asyncio.create_task(self._read())
        async with asyncio.timeout(READY_SECONDS):
            while not self.id or not await asyncio.to_thread(is_ready, self.url):
                if self._ended.done():
                    if self._ended.result() == DeployRefused.exit_code:
                        self.expected = {DeployRefused.exit_code}
                        raise Refused
                    raise AssertionError(f"{self.name} ended before it was ready")
                await asyncio.sleep(LOOK_SECONDS)

    async def _read(self) -> int:
        assert self._process is not None  # after `start`
        assert self._process.stderr is not None
        with self._log.open("ab") as log:
            while line := await self._process.stderr.readline():
                log.write(b"%d " % self._number + line)
                log.flush()
                with contextlib.suppress(ValueError):
                    self._note(json.loads(line))
        return await self._process.wait()

    def _note(self, event: Any) -> None:
        what = event.get("event") if isinstance(event, dict) else None
        if what == "started":
            self.id = event["worker"]
        elif what == "http_listening":
            self.url = event["url"]

    @property
    def alive(self) -> bool:
        """Whether it works."""
        return self._ended is not None and not self._ended.done()

    async def end(self, number: signal.Signals | None, expected: int) -> int:
        """Send it a signal, and wait for its end; gives its exit code."""
        assert self._process is not None
        assert self._ended is not None
        self.expected = {expected}
        if number is not None and self._process.returncode is None:
            self._process.send_signal(number)
        return await self._ended


def is_ready(url: str) -> bool:
    """What `/readyz` says."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # an answer of another kind is one, too
        return False


class Rolling:
    """Workers of one pipeline, and their replacement."""

    def __init__(self, directory: Path, rest: float) -> None:
        self.report = Report()
        self._directory = directory
        self._rest = rest
        self._members: list[Member] = []
        self._server = embedded.start(directory / "store")
        migrate(self._server.url, NAME)
        self._environment = {
            **os.environ,
            "MILLWHEEL_STORE": self._server.url,
            "VISITS": str(directory),
            "VISITS_NAME": NAME,
            "VISITS_PAUSE": str(PAUSE),
        }

    @property
    def alive(self) -> list[Member]:
        """Those that work."""
        return [member for member in self._members if member.alive]

    async def start(self, version: str) -> Member:
        """One more worker, ready to work."""
        member = Member(len(self._members) + 1, version, self._directory / "workers.log")
        self._members.append(member)
        await member.start(self._environment)
        return member

    async def share(self) -> None:
        """Wait until everybody has something to do."""
        async with asyncio.timeout(READY_SECONDS):
            while not all(self._ask(OWNED, member.id) for member in self.alive):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)

    async def roll(self, version: str, *, kill_one: bool) -> None:
        """Replace all workers by such with other code, one after the other."""
        old = self.alive
        before = old[0].version
        while old:
            leaver = old.pop(0)
            at, had = await self._end(leaver, signal.SIGTERM)
            self.report.orderly.append(await self._handed_over(leaver, at, had))
            await self.start(version)
            await self._go_on(f"with {len(old)} of {before} and {version}")
            if kill_one and old:
                kill_one = False
                victim = old.pop(0)
                at, had = await self._end(victim, signal.SIGKILL)
                with contextlib.suppress(Refused):  # it came so late that all is newer code's
                    old.append(await self.start(before))
                self.report.killed.append(await self._handed_over(victim, at, had))
                await self._go_on(f"after one of {before} was killed")
        await self._check_versions(version)

    async def _end(self, member: Member, number: signal.Signals) -> tuple[float, list[int]]:
        """End a worker by a signal; gives when it was sent, and which intervals it had."""
        had = [id_ for (id_,) in self._ask(OWNED, member.id)]
        at = time.time()
        code = await member.end(number, 128 + number if number is signal.SIGTERM else -number)
        member.seconds = time.time() - at
        self._count(member, code)
        return at, had

    async def _handed_over(self, member: Member, at: float, had: list[int]) -> HandOver:
        """Wait until others have what a worker had."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                # What was split or merged since is claimed by another id, or by its owner.
                left = {id_ for (id_,) in self._ask("SELECT id FROM visits.key_interval")}
                claims = dict(self._ask(CLAIMS, had, at, member.id))
                if left & set(had) <= set(claims):
                    break
                await asyncio.sleep(LOOK_SECONDS)
        owned = max((when - at for when in claims.values()), default=0.0)
        found = HandOver(member.name, len(had), member.seconds, owned)
        if 128 + signal.SIGTERM in member.expected and max(member.seconds, owned) > SLOW_SECONDS:
            self.report.errors.append(f"slow: {found}")
        return found

    def _count(self, member: Member, code: int) -> None:
        self.report.exits[code] += 1
        if code not in member.expected:
            self.report.errors.append(f"{member.name} ended with exit code {code}")

    async def _go_on(self, when: str) -> None:
        """Let them work together for a while: all are there, and the results grow."""
        before, began = self._numbers(), time.monotonic()
        await asyncio.sleep(self._rest)
        while self._numbers() == before:
            await asyncio.sleep(LOOK_SECONDS)
            if time.monotonic() - began > self._rest + STILL_SECONDS:
                self.report.errors.append(f"it stands still {when}")
                break
        for member in self._members:
            if not member.alive and member.expected == {0}:
                self.report.errors.append(f"{member.name} has ended by itself {when}")

    def _numbers(self) -> dict[str, int]:
        """How many steps each user has."""
        return dict(self._ask(STEPS))

    async def _check_versions(self, version: str) -> None:
        """What was touched from now on is stored as the newest code says."""
        before = self._numbers()
        await self._go_on(f"with {version} alone")
        touched = {user for user, number in self._numbers().items() if number > before.get(user, 0)}
        states = {user: (found, set(value)) for user, found, value in self._ask(STATES)}
        wanted = VERSIONS[version], FIELDS[version]
        wrong = [user for user in touched if states[user] != wanted]
        self.report.touched[version] = len(touched)
        if wrong or not touched:
            self.report.errors.append(
                f"{len(wrong)} of {len(touched)} states that {version} has touched are not of its "
                f"version: {[(user, states[user]) for user in wrong[:3]]}"
            )

    def _ask(self, query: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self._server.url) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    async def finish(self) -> None:
        """Let the workers come to the end."""
        visits.hurry(self._directory).touch()
        async with asyncio.timeout(END_SECONDS):
            for member in self.alive:
                self._count(member, await member.end(None, 0))

    def judge(self, answer: visits.Answer) -> None:
        """Compare everything with what it must be."""
        ((broken,),) = self._ask(CHAINS)
        if broken:
            self.report.errors.append(f"chains of commits broken: {broken}")
        self.report.differences = visits.differences(visits.read(self._server.url, NAME), answer)

    async def end(self) -> None:
        """Whatever is left."""
        for member in self.alive:
            await member.end(signal.SIGKILL, -signal.SIGKILL)


@asynccontextmanager
async def rolling(rest: float) -> AsyncIterator[tuple[Rolling, Path]]:
    """Workers' place on a store of their own; everything is gone in the end."""
    directory = make_directory()
    try:
        made = Rolling(directory, rest)
        try:
            yield made, directory
        finally:
            await made.end()
    finally:
        await asyncio.to_thread(embedded.remove, directory / "store")
        if made.report.good:
            shutil.rmtree(directory, ignore_errors=True)


async def run(*, seconds: float, workers: int, back: bool) -> Report:
    """Work, replace, finish, judge."""
    rests = 2 * (workers + 1) if back else workers + 2
    async with rolling(seconds / rests) as (made, directory):
        answer = visits.write(directory, int(ROWS_PER_SECOND * (seconds + 10)), seed=workers)
        await asyncio.gather(*(made.start("first") for _ in range(workers)))
        try:
            await made.share()
            await made.roll("later", kill_one=True)
            if back:
                await made.roll("back", kill_one=False)
            await made.finish()
            made.judge(answer)
        except (AssertionError, TimeoutError) as error:
            made.report.errors.append(f"{type(error).__name__}: {error}")
        if not made.report.good:
            made.report.errors.append(f"logs: {directory / 'workers.log'}")
        return made.report


def main() -> int:
    """The exit code is 0 if everything is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.rolling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="under load, all in all")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--stay", action="store_true", help="do not go back to the first code")
    options = parser.parse_args()
    report = asyncio.run(
        run(seconds=options.seconds, workers=options.workers, back=not options.stay)
    )
    for line in report.lines():
        print(line, flush=True)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
