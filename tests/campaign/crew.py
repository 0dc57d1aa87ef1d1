"""The worker processes of one run: forked from a nursery, heard, and ended whatever happens.

How workers reach each other, and Postgres, is a choice of the run:

==========  ==========================================================================
frames      each behind a proxy that knows frames (`tests.support.proxy`)
wire        each behind a proxy that knows what a commit is (`tests.campaign.wire`)
machines    half of them on another machine, at the end of a cable (`tests.support.machines`)
==========  ==========================================================================
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from millwheel.errors import StoreError
from tests.campaign import worker
from tests.campaign.control import Control
from tests.campaign.sites import Site
from tests.campaign.wire import Wire, through
from tests.campaign.workload import VARIABLE, Work
from tests.faults.chaos import free_port
from tests.support.fleet import Member
from tests.support.forked_commands import AsyncForked, Parent
from tests.support.machines import Machine
from tests.support.proxy import Proxy

SECRET = "sixteen bytes or more"
KEPT_EVENTS = 400
"""What a worker said last."""


@functools.cache
def nursery() -> Parent:
    """What all workers are forked from."""
    return Parent(
        "tests.campaign.worker:main",
        (
            "tests.campaign.worker",
            "tests.campaign.workload",
            "tests.campaign.query",
            "uvloop",
            "millwheel.services.tcp",
        ),
    )


@dataclass
class Said:
    """What all workers have said, counted."""

    exits: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Commits of which a worker did not know what became of them."""


class Hand(Member):
    """One worker process, and what lies between it and everything else."""

    target = "tests.campaign.workload:pipeline"

    def __init__(self, crew: Crew, machine: Machine | None) -> None:
        super().__init__(crew)  # type: ignore[arg-type]
        self._crew = crew
        self.machine = machine
        self.busy = False
        """Something is being done to it."""
        self.expected = {0}
        self.heard: list[tuple[float, dict[str, Any]]] = []
        self.control = Control(crew.directory / f"control-{self.number}", create=True)
        self.proxy: Proxy | None = None
        self.wire: Wire | None = None
        self.started = False

    async def begin(self, **environment: str) -> None:
        """Begin to work."""
        crew = self._crew
        words = ["worker", self.target, "--until-done"]
        url = crew.site.url
        if crew.frames:
            listen_at = f"127.0.0.1:{free_port()}"
            self.proxy = Proxy(listen_at)
            words += ["--listen", listen_at, "--advertise", await self.proxy.start()]
        elif self.machine is not None:
            words += ["--listen", f"{self.machine.address}:0"]
            environment |= {
                worker.NETWORK: self.machine.namespace,
                "MILLWHEEL_SECRET": SECRET,
            }
        if crew.wire:
            self.wire = Wire(url)
            url = through(url, await self.wire.start(crew.directory / f"wire-{self.number}"))
        self._process = await AsyncForked.start(
            nursery(),
            words,
            {
                **os.environ,
                "MILLWHEEL_STORE": url,
                VARIABLE: msgspec.json.encode(crew.work).decode(),
                worker.CONTROL: str(self.control.path),
                worker.PLANT: crew.plant,
                **environment,
            },
        )
        self._ended = asyncio.create_task(self._listen())
        self.started = True

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def hear(self, event: dict[str, Any]) -> None:
        super().hear(event)
        what = str(event.get("event"))
        said = self._crew.report
        said.events[what] += 1
        if what == "commit_failed" and "on the wire" in str(event.get("error")):
            said.unknown += 1
        self.heard.append((time.time(), event))
        del self.heard[:-KEPT_EVENTS]

    def has_said(self, what: str, since: float) -> list[dict[str, Any]]:
        """What it said of that, since a time."""
        return [event for at, event in self.heard if at >= since and event.get("event") == what]

    def is_expected(self, code: int) -> bool:
        if code == StoreError.exit_code and (not self.id or self._crew.store_may_fail):
            return True  # the store was away when it started, or for longer than it waits
        return super().is_expected(code)

    async def wait(self) -> int:
        code = await super().wait()
        if self.proxy is not None:
            await self.proxy.close()
        if self.wire is not None:
            await self.wire.close()
        return code


class Crew:
    """All workers of one run.

    Attributes:
        store_may_fail: the store is harmed so that a worker may give up.
    """

    def __init__(
        self,
        directory: Path,
        site: Site,
        work: Work,
        *,
        frames: bool,
        wire: bool,
        machines: tuple[Machine, ...] = (),
        hand: type[Hand] = Hand,
        plant: str = "",
    ) -> None:
        self.directory = directory
        self.site = site
        self.work = work
        self.frames = frames
        self.wire = wire
        self.report = Said()
        self.log = directory / "workers.log"
        self.members: list[Hand] = []
        self.store_may_fail = False
        self._machines = machines
        self._hand = hand
        self.plant = plant

    @property
    def alive(self) -> list[Hand]:
        """Those that work, frozen or not."""
        return [member for member in self.members if member.alive]

    @property
    def finished(self) -> bool:
        """Whether a worker has found everything done."""
        return self.report.exits[0] > 0

    async def add(self, **environment: str) -> Hand:
        """One more worker; on the machine with fewer of them."""
        machine = None
        if self._machines:
            there = [member for member in self.members if member.alive or not member.started]
            crowd = Counter(member.machine.address for member in there if member.machine)
            machine = min(self._machines, key=lambda one: crowd[one.address])
        made = self._hand(self, machine)
        await made.begin(**environment)
        return made

    async def end(self) -> None:
        """Whoever is left."""
        for member in self.members:
            if member.alive:
                member.send(signal.SIGCONT)
                await member.end(signal.SIGKILL, -signal.SIGKILL)
            for between in (member.proxy, member.wire):
                if between is not None:
                    await between.close()
            member.control.close()
