"""The cable between two machines is pulled out (`tests.support.machines`): nothing but the batch
answer.

Both workers go on to reach Postgres, by its socket. So nobody dies, no lease ends, and what is left
is decision 22: who does not reach the others owns nothing, says so, and comes back.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import machines, visits
from tests.support.fleet import Fleet, Member, Report, housed
from tests.support.machines import Cable, Machine

SECRET = "sixteen bytes or more"
PAUSE = 1.0
UNACKED = "40"
"""Slow and with little on its way: what is measured here is no rate."""

PATIENT_LEASE = "8"
"""Seconds; in the long forms nobody is to lose his lease for want of CPU."""

SECONDS = 60.0
"""For anything that is waited for."""

INTERVALS = """
SELECT count(*), count(*) FILTER (WHERE owner::text LIKE %s || '%%') FROM visits.key_interval
"""
CLAIMS = """
SELECT count(*) FROM visits.placement_event WHERE what = 'claim' AND to_worker::text LIKE %s || '%%'
"""
BLINK = 1
"""Heartbeats of all, a third of a lease apart: below the silence after which a link is given up."""

LEASES = "SELECT min(lease_until) FROM visits.worker WHERE NOT stopped"

PROBE = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.fixture
def joined() -> Iterator[tuple[Machine, Machine, Cable]]:
    """Two machines and their cable; skips where that is not allowed."""
    made = machines.machines("10.99.0.1", "10.99.0.2")
    try:
        found = made.__enter__()
    except machines.Refused as error:
        pytest.skip(f"two machines cannot be made of this one: {error}")
    yield found
    made.__exit__(None, None, None)


class Wired(Member):
    """A worker of one machine."""

    def __init__(self, office: Office, machine: Machine, **environment: str) -> None:
        super().__init__(office)
        self._environment = environment
        self.said: list[dict[str, Any]] = []
        self._office = office
        self._machine = machine
        self._url = ""
        self._news = asyncio.Event()

    async def begin(self) -> None:
        """Begin to work, and wait until it has."""
        await self.start(
            "--listen", f"{self._machine.address}:0", "--http", "127.0.0.1:0",
            within=self._machine.entering, MILLWHEEL_SECRET=SECRET, VISITS_UNACKED=UNACKED,
            **self._environment,
        )  # fmt: skip
        await self.says("started")

    def hear(self, event: dict[str, Any]) -> None:
        super().hear(event)
        if event["event"] == "http_listening":
            self._url = event["url"]
        self.said.append(event)
        self._news.set()

    async def says(self, *events: str) -> dict[str, Any]:
        """Wait for it to say one of these; what it said is forgotten up to there."""
        async with asyncio.timeout(SECONDS):
            while True:
                while self.said:
                    event = self.said.pop(0)
                    if event["event"] in events:
                        return event
                self._news.clear()
                await self._news.wait()

    async def goes_down(self) -> str:
        """Wait until its link to the other one does; how that looks from here."""
        while True:
            event = await self.says("link_down")
            if event["outgoing"]:
                return str(event["kind"])

    @property
    def owns(self) -> int:
        """Intervals."""
        ((_, number),) = self._office.ask(INTERVALS, self.id)
        return int(number)

    @property
    def owns_all(self) -> bool:
        """Whether nobody else has any."""
        ((all_, number),) = self._office.ask(INTERVALS, self.id)
        return bool(all_ == number)

    async def is_ready(self) -> str:
        """What `/readyz` says."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*self._machine.entering, sys.executable, "-c", PROBE, f"{self._url}/readyz"],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


class Office(Fleet[Report]):
    """Two workers, one a machine."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Report(), PAUSE)

    async def until(self, true: Any, what: str) -> None:
        """Wait until the store says so."""
        await self.wait_until(true, what, SECONDS)

    async def go_on(self) -> None:
        """Wait until more is done."""
        before = self.rows_done() or 0
        await self.until(lambda: (self.rows_done() or 0) > before + 50, "more is done")

    async def live(self, heartbeats: int) -> None:
        """Let everybody renew his lease so many times."""
        for _ in range(heartbeats):
            before = self.ask(LEASES)
            await self.until(lambda before=before: self.ask(LEASES) > before, "a heartbeat of all")

    async def finish(self, answer: visits.Answer) -> None:
        """Come to the end, and compare."""
        visits.hurry(self.directory).touch()
        async with asyncio.timeout(2 * SECONDS):
            await asyncio.gather(*(member.wait() for member in self.members))
        self.judge(answer)
        assert self.report.good, "\n".join(self.report.lines())


@asynccontextmanager
async def office(rows: int) -> AsyncIterator[tuple[Office, visits.Answer]]:
    """With so much to do."""
    async with housed(Office) as made:
        yield made, visits.write(made.directory, rows, users=400)


@asynccontextmanager
async def both(
    here: Machine, there: Machine
) -> AsyncIterator[tuple[Office, Wired, Wired, visits.Answer]]:
    """Two workers that share the work; the first one is the elder."""
    async with office(30_000) as (made, answer):
        first, second = (
            Wired(made, machine, VISITS_LEASE=PATIENT_LEASE) for machine in (here, there)
        )
        await first.begin()
        await made.until(lambda: first.owns_all, "the first one has everything")
        await second.begin()
        await made.until(lambda: second.owns, "the second one has its share")
        await made.go_on()
        yield made, first, second, answer


@pytest.mark.soak
async def test_who_is_cut_off_as_it_starts_owns_nothing_until_the_cable_is_there(
    joined: tuple[Machine, Machine, Cable],
) -> None:
    here, there, cable = joined
    cable.cut()
    async with office(2500) as (made, answer):
        first, second = Wired(made, here), Wired(made, there)
        await first.begin()
        await made.until(lambda: first.owns_all, "the first one has everything")
        await second.begin()
        event = await second.says("out_of_touch")
        assert event["others"] == [first.id]
        assert made.ask(CLAIMS, second.id) == [(0,)], "what would be sent to it waits for ever"
        await made.go_on()
        assert first.owns_all
        cable.mend()
        await second.says("in_touch_again")
        await made.until(lambda: second.owns, "the second one has its share")
        await made.finish(answer)
        assert not any(event["event"] == "out_of_touch" for event in first.said)


@pytest.mark.soak
async def test_for_less_than_silence_nobody_notices(
    joined: tuple[Machine, Machine, Cable],
) -> None:
    """TCP sends again what was lost: not even a link goes down."""
    here, there, cable = joined
    async with both(here, there) as (made, first, second, answer):
        cable.cut()
        await made.live(BLINK)
        cable.mend()
        await made.live(BLINK)
        await made.go_on()
        told = {event["event"] for event in first.said + second.said}
        assert not told & {"link_down", "out_of_touch"}
        await made.finish(answer)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["cut", "the first is not heard", "the second is not heard"])
async def test_for_longer_than_silence_and_lease(
    how: str, joined: tuple[Machine, Machine, Cable]
) -> None:
    """Twice: the second time it stays so until everything is done."""
    here, there, cable = joined
    apart, together = {
        "cut": (cable.cut, cable.mend),
        "the first is not heard": (lambda: cable.lose(here), lambda: cable.find(here)),
        "the second is not heard": (lambda: cable.lose(there), lambda: cable.find(there)),
    }[how]
    async with both(here, there) as (made, first, second, answer):
        assert await second.is_ready() == "ready"
        for again in (True, False):
            apart()
            reasons = {await first.goes_down(), await second.goes_down()}
            assert "silent" in reasons, reasons
            event = await second.says("out_of_touch")
            assert event["others"] == [first.id]
            await made.until(lambda: first.owns_all, "the first one has everything")
            await made.go_on()
            assert (await second.is_ready()).startswith(
                f"503 not ready: it does not reach the workers {first.id}"
            )
            if again:
                together()
                await second.says("in_touch_again")
                await made.until(lambda: second.owns, "the second one has its share again")
                await made.go_on()
                assert await second.is_ready() == "ready"
        await made.finish(answer)
        assert second.owns == 0
        assert not any(event["event"] == "out_of_touch" for event in first.said)
