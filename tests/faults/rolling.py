"""``python -m tests.faults.rolling [--seconds 60] [--workers 3] [--stay]``: new code, one worker
after the other.

Worker processes share the pipeline of `tests.support.visits_later` on an embedded Postgres. All
begin with the ``first`` code. Then, under load:

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
import signal
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millwheel.errors import DeployRefused
from tests.support import visits
from tests.support.fleet import (
    LOOK_SECONDS,
    Fleet,
    Member,
    Report,
    housed,
    unless_it_stands_still,
)

ROWS_PER_SECOND = 3500
PAUSE = 0.5
"""Seconds that every tenth visit takes, so that there is work for as long as is wanted."""

READY_SECONDS = 60.0
END_SECONDS = 60.0
"""In which something must be done of what is left when all have the last code."""

SLOW_SECONDS = 10.0
"""In which a worker must be gone, and all it had be somebody else's. Waiting for its lease would be
seconds; a worker that could not drain gives up after 3."""

STILL_SECONDS = 15.0
"""After a rest, in which something must have been done since before it."""

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
class RollingReport(Report):
    """What happened."""

    orderly: list[HandOver] = field(default_factory=list)
    killed: list[HandOver] = field(default_factory=list)
    refused: int = 0
    """Workers of old code that came too late."""
    touched: dict[str, int] = field(default_factory=dict)
    """Keys that only workers of this code have touched since it was everybody's."""

    def lines(self) -> list[str]:
        """For people."""
        return [
            *(f"SIGTERM to {hand_over}" for hand_over in self.orderly),
            *(
                f"SIGKILL to {hand_over} (lease {visits.LEASE_SECONDS:g} s)"
                for hand_over in self.killed
            ),
            f"exits {dict(self.exits)}; keys brought to each version: {self.touched}",
            *super().lines(),
        ]


class Refused(Exception):
    """A worker of old code has nothing left to do."""


class Versioned(Member):
    """A worker process, and which code it runs."""

    def __init__(self, fleet: Rolling, version: str) -> None:
        super().__init__(fleet)
        self.version = version
        self.name = f"{self.name} ({version})"
        self.url = ""
        """Where it answers probes."""
        self.seconds = 0.0
        """That it took to end."""

    async def begin(self) -> None:
        """Begin to work, and wait until it says that it does.

        Raises:
            Refused: all is newer code's.
        """
        self.expected = {0, DeployRefused.exit_code}
        await self.start(
            "--http", "127.0.0.1:0",
            pipeline="tests.support.visits_later:pipeline", VISITS_VERSION=self.version,
        )  # fmt: skip
        async with asyncio.timeout(READY_SECONDS):
            while not self.id or not await asyncio.to_thread(is_ready, self.url):
                if not self.alive:
                    if await self.wait() == DeployRefused.exit_code:
                        self.expected = {DeployRefused.exit_code}
                        raise Refused
                    raise AssertionError(f"{self.name} ended before it was ready")
                await asyncio.sleep(LOOK_SECONDS)
        self.expected = {0}

    def hear(self, event: dict[str, Any]) -> None:
        super().hear(event)
        if event.get("event") == "http_listening":
            self.url = event["url"]


def is_ready(url: str) -> bool:
    """What `/readyz` says."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # an answer of another kind is one, too
        return False


class Rolling(Fleet[RollingReport]):
    """Workers of one pipeline, and their replacement."""

    def __init__(self, directory: Path, rest: float) -> None:
        super().__init__(directory, RollingReport(), PAUSE)
        self._rest = rest

    @property
    def alive(self) -> list[Versioned]:
        """Those that work."""
        return [m for m in self.members if isinstance(m, Versioned) and m.alive]

    async def add(self, version: str) -> Versioned:
        """One more worker, ready to work."""
        member = Versioned(self, version)
        await member.begin()
        return member

    async def share(self) -> None:
        """Wait until everybody has something to do."""
        await self.wait_until(
            lambda: all(self.ask(OWNED, member.id) for member in self.alive),
            "all have something to do",
            READY_SECONDS,
        )

    async def roll(self, version: str, *, kill_one: bool) -> None:
        """Replace all workers by such with other code, one after the other."""
        old = self.alive
        before = old[0].version
        while old:
            leaver = old.pop(0)
            at, had = await self._leave(leaver, signal.SIGTERM)
            self.report.orderly.append(await self._handed_over(leaver, at, had))
            await self.add(version)
            await self._go_on(f"with {len(old)} of {before} and {version}")
            if kill_one and old:
                kill_one = False
                victim = old.pop(0)
                at, had = await self._leave(victim, signal.SIGKILL)
                try:
                    old.append(await self.add(before))
                except Refused:  # it came so late that all is newer code's
                    self.report.refused += 1
                    await self.add(version)
                self.report.killed.append(await self._handed_over(victim, at, had))
                await self._go_on(f"after one of {before} was killed")
        await self._check_versions(version)

    async def _leave(self, member: Versioned, number: signal.Signals) -> tuple[float, list[int]]:
        """End a worker by a signal; gives when it was sent, and which intervals it had."""
        had = [id_ for (id_,) in self.ask(OWNED, member.id)]
        at = time.time()
        await member.end(number, 128 + number if number is signal.SIGTERM else -number)
        member.seconds = time.time() - at
        return at, had

    async def _handed_over(self, member: Versioned, at: float, had: list[int]) -> HandOver:
        """Wait until others have what a worker had."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                # What was split or merged since is claimed by another id, or by its owner.
                left = {id_ for (id_,) in self.ask("SELECT id FROM visits.key_interval")}
                claims = dict(self.ask(CLAIMS, had, at, member.id))
                if left & set(had) <= set(claims):
                    break
                await asyncio.sleep(LOOK_SECONDS)
        owned = max((when - at for when in claims.values()), default=0.0)
        found = HandOver(member.name, len(had), member.seconds, owned)
        if 128 + signal.SIGTERM in member.expected and max(member.seconds, owned) > SLOW_SECONDS:
            self.report.errors.append(f"slow: {found}")
        return found

    async def _go_on(self, when: str) -> None:
        """Let them work together for a while: all are there, and the results grow."""
        before, began = self._numbers(), time.monotonic()
        await asyncio.sleep(self._rest)
        while self._numbers() == before:
            await asyncio.sleep(LOOK_SECONDS)
            if time.monotonic() - began > self._rest + STILL_SECONDS:
                self.report.errors.append(f"it stands still {when}")
                break
        for member in self.members:
            if not member.alive and member.expected == {0}:
                self.report.errors.append(f"{member.name} has ended by itself {when}")

    def _numbers(self) -> dict[str, int]:
        """How many steps each user has."""
        return dict(self.ask(STEPS))

    async def _check_versions(self, version: str) -> None:
        """What was touched from now on is stored as the newest code says."""
        before = self._numbers()
        await self._go_on(f"with {version} alone")
        touched = {user for user, number in self._numbers().items() if number > before.get(user, 0)}
        states = {user: (found, set(value)) for user, found, value in self.ask(STATES)}
        wanted = VERSIONS[version], FIELDS[version]
        wrong = [user for user in touched if states[user] != wanted]
        self.report.touched[version] = len(touched)
        if wrong or not touched:
            self.report.errors.append(
                f"{len(wrong)} of {len(touched)} states that {version} has touched are not of its "
                f"version: {[(user, states[user]) for user in wrong[:3]]}"
            )

    async def finish(self) -> None:
        """Let the workers come to the end."""
        visits.hurry(self.directory).touch()
        ending = asyncio.gather(*(member.wait() for member in self.alive))
        await unless_it_stands_still(ending, self.rows_done, END_SECONDS)


async def run(*, seconds: float, workers: int, back: bool) -> RollingReport:
    """Work, replace, finish, judge."""
    rests = 2 * (workers + 1) if back else workers + 2

    def rolling(directory: Path) -> Rolling:
        return Rolling(directory, seconds / rests)

    async with housed(rolling) as made:
        rows = int(ROWS_PER_SECOND * (seconds + 10))
        answer = visits.write(made.directory, rows, seed=workers)
        await asyncio.gather(*(made.add("first") for _ in range(workers)))
        try:
            await made.share()
            await made.roll("later", kill_one=True)
            if back:
                await made.roll("back", kill_one=False)
            await made.finish()
            made.judge(answer)
        except (AssertionError, TimeoutError) as error:
            made.report.errors.append(f"{type(error).__name__}: {error}")
    return made.report


def main() -> int:
    """The exit code is 0 if everything is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.rolling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="under load, all in all")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--stay", action="store_true", help="do not go back to the first code")
    options = parser.parse_args()
    report = asyncio.run(
        run(seconds=options.seconds, workers=options.workers, back=not options.stay)
    )
    return report.tell()


if __name__ == "__main__":
    sys.exit(main())
