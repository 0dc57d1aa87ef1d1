"""A Nexmark query whose workers are all killed several times, compared with SQL.

The moments are drawn from the seed, by how much of the input is acknowledged: all of them come
before its end. The seed also says when the auction began and how its events are shuffled and late.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from examples.nexmark.generator import Kind
from examples.nexmark.model import Auction, Bid, Person, to_milliseconds
from examples.nexmark.options import BASE_TIME, Options
from examples.nexmark.sources import write
from millwheel.store.console.migrate import migrate
from tests.campaign import query
from tests.campaign.crew import Crew, Hand
from tests.campaign.faults import until
from tests.campaign.ledger import Say
from tests.campaign.plan import Nexmark
from tests.campaign.results import FaultCount, Result
from tests.campaign.sites import Plain
from tests.campaign.workload import Work
from tests.support.fleet import make_directory

EVENT_SECONDS = 200
"""Event time of all events: windows close, and no auction of Q3 waits for its seller for the 600 s
after which it is given up."""

FIRST_KILL, LAST_KILL = 0.05, 0.9
"""Shares of the input between which workers are killed."""

LEAST_STEP = 0.001
"""Something was acknowledged between any two."""

KILL_SECONDS = 60.0
"""Within which the next of those shares must be acknowledged."""

FAULT = "nexmark: kill all"
INJECTORS: dict[str, Kind] = {
    "people_injector": Person,
    "auctions_injector": Auction,
    "bids_injector": Bid,
}
POSITIONS = """
SELECT computation, (position -> 'reader' ->> 'row')::bigint FROM {schema}.latest_commits
WHERE kind = 'injector'
"""


def options_of(run: Nexmark) -> Options:
    """The events of a seed."""
    draw = Random(run.seed)
    return Options(
        events=run.events,
        rate=run.events // EVENT_SECONDS,
        base_time=BASE_TIME + timedelta(milliseconds=draw.randrange(10**9)),
        generators=draw.choice((1, 2, 3)),
        group=draw.choice((1, 7, 100, 1300)),
        late=draw.choice((0.0, 0.05, 0.1)),
    )


class Worker(Hand):
    """A worker of a query."""

    target = "tests.campaign.query:pipeline"


class NexmarkRun:
    """One query with one seed."""

    def __init__(self, run: Nexmark, keep: Path, say: Say) -> None:
        self._run = run
        self._keep = keep
        self._say = say
        self._options = options_of(run)
        self._schema = f"nexmark_{run.query}"
        self._result = Result(run.name, run.seed, records=run.events)
        self._environment = {
            query.VARIABLE: run.query,
            "NEXMARK_EVENTS": str(run.events),
            "NEXMARK_RATE": str(self._options.rate),
            "NEXMARK_BASE_TIME": self._options.base_time.isoformat(),
            "NEXMARK_GENERATORS": str(self._options.generators),
            "NEXMARK_GROUP": str(self._options.group),
            "NEXMARK_LATE": str(self._options.late),
        }
        self._totals: dict[str, int] = {}

    async def carry_out(self) -> Result:
        """Write the events, kill, finish, compare."""
        began = time.monotonic()
        directory = make_directory("millwheel-nexmark-")
        site: Plain | None = None
        crew: Crew | None = None
        try:
            lines = await asyncio.to_thread(write, directory, self._options)
            blocks = self._options.generators * -(
                -self._run.events // self._options.generators // self._options.block
            )
            self._totals = {name: lines[kind] + blocks for name, kind in INJECTORS.items()}
            site = await asyncio.to_thread(Plain, directory)
            await asyncio.to_thread(migrate, site.url, self._schema)
            crew = Crew(directory, site, Work(""), frames=False, wire=False, hand=Worker)
            await self._kill_and_finish(crew)
            await asyncio.to_thread(self._judge, site.url, directory)
        except TimeoutError as error:
            self._result.errors.append(f"stuck: {error}")
        finally:
            if crew is not None:
                await crew.end()
                self._result.exits = {str(code): n for code, n in crew.report.exits.items()}
                self._result.errors += crew.report.errors
                if not self._result.good:
                    self._keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(crew.log, self._keep / "workers.log")
            if site is not None:
                await asyncio.to_thread(site.remove)
            shutil.rmtree(directory, ignore_errors=True)
        self._result.seconds = time.monotonic() - began
        return self._result

    async def _kill_and_finish(self, crew: Crew) -> None:
        draw = Random(self._run.seed * 1000 + int(self._run.query[1:]))
        shares = sorted(draw.uniform(FIRST_KILL, LAST_KILL) for _ in range(self._run.kills))
        count = self._result.faults.setdefault(FAULT, FaultCount())
        with psycopg.connect(crew.site.url, autocommit=True) as connection:
            for share in shares:
                await self._start(crew)
                at = await self._reach(connection, crew, share)
                killed = [hand for hand in crew.alive if hand.id]
                for hand in crew.alive:
                    hand.expected.add(-signal.SIGKILL)
                    hand.send(signal.SIGKILL)
                for hand in crew.members:
                    await hand.wait()
                count.struck += 1
                count.effective += bool(killed) and not crew.finished
                self._say(f"killed {len(killed)} at {at:.2f} of the input")
        await self._start(crew)
        ending = asyncio.gather(*(hand.wait() for hand in crew.alive))
        await asyncio.wait_for(ending, KILL_SECONDS * 2)
        if count.effective < self._run.kills:
            self._result.errors.append(f"only {count.effective} kills came before the end")

    async def _start(self, crew: Crew) -> None:
        await asyncio.gather(*(crew.add(**self._environment) for _ in range(self._run.workers)))

    async def _reach(self, connection: psycopg.Connection[Any], crew: Crew, share: float) -> float:
        """Wait until so much of the input is acknowledged, and something since they have started;
        gives how much it was."""
        await until(lambda: all(hand.id for hand in crew.alive), KILL_SECONDS)
        seen = self._share(connection)
        share = max(share, seen + LEAST_STEP)

        def reached() -> bool:
            nonlocal seen
            seen = self._share(connection)
            return seen >= share or not crew.alive

        if not await until(reached, KILL_SECONDS):
            raise TimeoutError(f"only {seen:.2f} of the input was acknowledged, not {share:.2f}")
        return seen

    def _share(self, connection: psycopg.Connection[Any]) -> float:
        rows = connection.execute(POSITIONS.format(schema=self._schema).encode()).fetchall()
        if not rows:
            return 0.0
        total = sum(self._totals[name] for name in {name for name, _ in rows})
        return sum(row or 0 for _, row in rows) / total

    def _judge(self, url: str, directory: Path) -> None:
        from tests.support.nexmark_oracle import (
            Oracle,  # DuckDB, which tells of leaks where it is not used
        )

        wanted = Counter(Oracle(directory).answer(self._run.query))
        with psycopg.connect(url) as connection:
            text = f"SELECT * FROM {self._schema}.{self._run.query}"
            found = Counter(map(normal, connection.execute(text.encode())))
        few, many = wanted - found, found - wanted
        self._result.differences = [
            f"{rows.total()} rows {what}: {rows.most_common(3)}"
            for what, rows in (("are missing", few), ("are too many", many))
            if rows
        ]
        self._result.broken_chains = 0
        if few:
            self._result.anomalies["lost write"] = few.total()
        if many:
            self._result.anomalies["duplicate"] = many.total()
        if not wanted:
            self._result.errors.append("there was nothing to compare")


def normal(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row with its times in milliseconds."""
    return tuple(to_milliseconds(v) if isinstance(v, datetime) else v for v in row)
