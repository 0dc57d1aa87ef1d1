"""A worker of a simulated cluster: its machine, its clock, its engine."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

from millwheel.core.clock import Clock
from millwheel.errors import PeerError
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.network.connection import Connection
from millwheel.runtime.network.frames import Frame
from millwheel.runtime.network.handshake import Identity
from millwheel.runtime.network.links import Links
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.services.hosting import unless
from millwheel.store.port import Store
from millwheel.testing.fake_network import SECRET, FakeNetwork
from millwheel.testing.virtual_loop import Machine
from tests.sim.network import Spot
from tests.sim.scenario import Member
from tests.sim.violation import Violation
from tests.sim.watch import Watch

EPOCH_MICROS = 1_700_000_000_000_000


class LoopClock:
    """The time of the running loop, as a clock that may be set wrong and go wrong shows it."""

    def __init__(self, member: Member | None = None) -> None:
        self._member = member or Member()
        self.stepped = 0.0
        """By how many seconds it was set forward."""
        self._loop = asyncio.get_running_loop()

    def now(self) -> int:
        return EPOCH_MICROS + int((self._member.ahead + self.stepped + self.monotonic()) * 1e6)

    def monotonic(self) -> float:
        return self._loop.time() * self._member.rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._member.rate)


class HonestLinks(Links):
    """Links among workers of which none sends garbage: a frame that is taken for it is refused
    again and again, whenever it is sent again."""

    watch: Watch

    def received(self, connection: Connection, frame: Frame) -> None:
        try:
            super().received(connection, frame)
        except PeerError as error:
            self.watch.fail(Violation("no worker sends garbage", f"{connection.peer}: {error}"))


class Worker:
    """One worker, on a machine of its own."""

    def __init__(
        self,
        number: int,
        machine: Machine,
        member: Member,
        pipeline: Pipeline,
        store: Store,
        ether: FakeNetwork,
        watch: Watch,
        *,
        copies: int,
    ) -> None:
        self.number = number
        self.store = store
        self.name = machine.name
        self.id = str(UUID(int=Random(number).getrandbits(128)))
        self.machine = machine
        self.member = member
        self.over = False
        """It has ended, one way or another."""
        self.leaving = False
        self._stop = asyncio.Event()
        clock: Clock = LoopClock(member)

        def network(worker: str) -> Links:
            links = HonestLinks(
                Identity(pipeline.name, worker, SECRET),
                Spot(ether, machine),
                clock=clock,
                random=Random(number),
            )
            links.watch = watch
            return links

        self.engine = Engine(
            pipeline,
            store,
            clock=clock,
            network=network,
            worker=self.id,
            process=FREE_OF_CHARGE,
            options=Options(inject_copies=copies),
        )

    async def work(self) -> None:
        """Its life, as `millwheel.services.worker` has it."""
        engine = self.engine
        try:
            if await unless(self._stop, engine.start()):
                engine.attend(Engine.claiming, "claiming")
                engine.attend(Engine.lease_guard, "lease guard")
                await engine.run(self._stop, until_done=False)
        finally:
            await engine.stop()
        if engine.failure is not None:
            raise engine.failure

    def leave(self) -> None:
        """Ask it to end in order."""
        self.leaving = True
        self._stop.set()

    @property
    def is_there(self) -> bool:
        """Whether it works, or would if it were not paused."""
        return not self.over and not self.leaving
