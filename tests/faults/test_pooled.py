"""Worker processes behind a connection pooler in session mode: nothing but the batch answer,
whatever is killed, and no work at all in another mode."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millwheel.errors import PooledStore
from tests.support import visits
from tests.support.fleet import Fleet, Member, Report, housed
from tests.support.forked_commands import ROOT
from tests.support.poolers import Pooler, needs_pgbouncer, running_pooler

pytestmark = needs_pgbouncer

PAUSE = 0.3
ROWS = 6_000
SECONDS = 90.0
"""For anything that is waited for."""

LEASE = "20"
"""Seconds, so that no takeover within `TAKEOVER_SECONDS` comes from the end of a lease."""

TAKEOVER_SECONDS = 12.0

OWNED = "SELECT count(*) FROM visits.key_interval WHERE owner::text LIKE %s || '%%'"
UNOWNED = """
SELECT count(*) FROM visits.key_interval AS k LEFT JOIN visits.worker AS w ON w.id = k.owner
WHERE w.id IS NULL OR w.stopped OR w.lease_until <= now()
"""


class Telling(Member):
    """A worker that keeps what it said."""

    def __init__(self, fleet: Fleet[Any]) -> None:
        super().__init__(fleet)
        self.said: list[str] = []

    def hear(self, event: dict[str, Any]) -> None:
        super().hear(event)
        self.said.append(str(event.get("event")))


class Queue(Fleet[Report]):
    """Workers that reach their store through a pooler."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Report(), PAUSE)

    async def until(self, true: Any, what: str, seconds: float = SECONDS) -> None:
        await self.wait_until(true, what, seconds)

    async def go_on(self) -> None:
        """Wait until more is done."""
        before = self.rows_done() or 0
        await self.until(lambda: (self.rows_done() or 0) > before + 50, "more is done")

    async def begin(self) -> Telling:
        """Start a worker, and wait until it has intervals."""
        made = Telling(self)
        await made.start(VISITS_LEASE=LEASE)
        await self.until(lambda: made.id and self.owned_by(made), f"{made.name} owns intervals")
        return made

    def owned_by(self, member: Member) -> int:
        ((found,),) = self.ask(OWNED, member.id)
        return int(found)


@asynccontextmanager
async def queue(*lines: str) -> AsyncIterator[tuple[Queue, Pooler, visits.Answer]]:
    async with housed(Queue) as made:
        answer = visits.write(made.directory, ROWS, users=200)
        with running_pooler(made.url, "session", *lines) as pooler:
            made.environment["MILLWHEEL_STORE"] = pooler.url
            yield made, pooler, answer


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((), id="as installed"),
        pytest.param(
            ("server_reset_query =", "default_pool_size = 32"),
            id="nothing is reset",
            marks=pytest.mark.soak,
        ),
    ],
)
async def test_a_killed_worker_and_a_pooler_that_starts_again_change_no_result(
    lines: tuple[str, ...],
) -> None:
    async with queue(*lines) as (made, pooler, answer):
        first, second = await made.begin(), await made.begin()
        await made.go_on()
        await first.end(signal.SIGKILL, -signal.SIGKILL)
        if not lines:  # else the liveness lock stays in a session without a client
            await made.until(
                lambda: made.ask(UNOWNED) == [(0,)] and not made.owned_by(first),
                "the other one has taken over, long before the lease is over",
                TAKEOVER_SECONDS,
            )
            await made.go_on()
        third = Telling(made)
        await third.start(VISITS_LEASE=LEASE)
        await made.until(lambda: third.id, "the next worker has started")
        pooler.stop()
        await asyncio.sleep(0.5)
        pooler.start()
        await made.go_on()
        visits.hurry(made.directory).touch()
        async with asyncio.timeout(2 * SECONDS):
            await asyncio.gather(second.wait(), third.wait())
        made.judge(answer)
        assert made.report.good, "\n".join(made.report.lines())
        assert made.report.exits == Counter({-signal.SIGKILL: 1, 0: 2})
        assert "starts_over" not in second.said, "the server has lost nothing"


async def test_a_pooler_that_begins_to_share_sessions_ends_all_workers_at_once() -> None:
    """Nothing that they wrote meanwhile is wrong: others come to the batch answer later."""
    async with queue() as (made, pooler, answer):
        members = [await made.begin(), await made.begin()]
        await made.go_on()
        for member in members:
            member.expected = {PooledStore.exit_code}
        pooler.set_mode("transaction")
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(member.wait() for member in members))
        assert made.report.exits == Counter({PooledStore.exit_code: 2})
        assert "session mode" in made.log.read_text()
        pooler.set_mode("session")
        visits.hurry(made.directory).touch()
        last = await made.begin()
        async with asyncio.timeout(2 * SECONDS):
            await last.wait()
        made.judge(answer)
        assert made.report.good, "\n".join(made.report.lines())


@pytest.mark.soak
async def test_a_run_comes_to_its_end_behind_a_pooler() -> None:
    async with queue("default_pool_size = 17") as (made, _, answer):
        command = [sys.executable, "-m", "millwheel", "run", "tests.support.visits:pipeline"]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, "--workers", "2", "--json"],
            cwd=ROOT,
            env={**made.environment, "VISITS_PAUSE": "0"},
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout)["outcome"] == "complete"
        made.judge(answer)
        assert made.report.good, "\n".join(made.report.lines())
