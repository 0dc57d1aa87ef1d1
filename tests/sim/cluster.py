"""Runs a scenario: workers, wire and server on one virtual loop, from one seed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from random import Random
from typing import Any, NoReturn

import structlog

from millwheel.errors import StoreUnavailable
from millwheel.store.port import MergeWish, SplitWish, Wish
from millwheel.testing import advance, inject
from millwheel.testing.ether import Ether, Weather
from millwheel.testing.virtual_loop import NothingToDo, VirtualLoop, current_machine, new_loop
from tests.random_graphs import SOURCES, Dot, Row, Tape, Wait, Word
from tests.sim.machines import LoopClock, Worker
from tests.sim.monitor import Beginner, Monitor
from tests.sim.network import Sky
from tests.sim.oracle import check_outcome
from tests.sim.pipelines import make_pipeline
from tests.sim.scenario import Act, Member, Scenario
from tests.sim.server import Database, Server, Trouble
from tests.sim.violation import Violation
from tests.sim.wire import store
from tests.test_runtime_world import at

MOST_WORKERS = 4
LIMIT_SECONDS = 300.0
"""Within which everything is done, once nothing goes wrong any more."""
LOOK_SECONDS = 0.25
RESTART_SECONDS = 1.0
"""After which a worker that could not reach the store is started again, as systemd would."""
MOST_STEPS = 2_000_000
"""Of one run; more means that something goes round in circles."""


class Cluster:
    """One run of a scenario."""

    def __init__(
        self, scenario: Scenario, monitor: Monitor, tapes: Sequence[Tape] | None = None
    ) -> None:
        self.scenario = scenario
        self.monitor = monitor
        self.workers: list[Worker] = []
        plan = scenario.plan
        self._loop = asyncio.get_running_loop()
        assert isinstance(self._loop, VirtualLoop)
        self._machines = self._loop
        self._owners = plan.partitions()
        self.tapes = tapes or [Tape(number) for number in range(len(self._owners))]
        self._arrivals = plan.arrivals()
        self._fed = [0] * len(self.tapes)
        self._closing = False
        self._closed = False
        self.database = Database("graph", clock=LoopClock())
        self.server = Server(self.database, Random(scenario.seed + 1), monitor)
        self._sky = Sky(Weather(Random(scenario.seed + 2), delay=0.01), monitor)
        self._ether = Ether(LoopClock(), self._sky)
        self._plays: list[asyncio.Task[None]] = []
        monitor.watch(self.database, self.tapes, make_pipeline(scenario, self.tapes).graph())

    # -- the course of things -----------------------------------------------------

    async def play(self) -> None:
        """The scenario, and then its end."""
        scenario = self.scenario
        self._worsen()
        for member in scenario.members:
            self._join(member)
        feeding = asyncio.ensure_future(self._feed())
        for act in scenario.acts:
            await asyncio.sleep(act.at - self._loop.time())
            self._happen(act)
        await feeding
        await asyncio.gather(*self._plays)
        await self.finish()

    async def finish(self) -> None:
        """Nothing goes wrong any more: everything comes to its end, in bounded time."""
        self._clear_up()
        self.monitor.ledger.closing = self._closing = True
        for worker in self._present():
            worker.machine.do(self._close_at_end, worker)
        await self._until(self.monitor.is_finished, "not everything is done")
        await self._until(
            lambda: all(worker.engine.done.is_set() for worker in self._present()),
            "everything is done, and a worker does not say so",
        )
        self._closed = True
        for worker in self._present():
            worker.leave()
        await self._until(
            lambda: all(worker.over for worker in self.workers), "a worker does not end"
        )

    def _close_at_end(self, worker: Worker) -> None:
        worker.engine.close_at_end = True
        worker.engine.read_on()

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self._loop.time() + LIMIT_SECONDS
        while not condition():
            if self._loop.time() > deadline or self._machines.steps > MOST_STEPS:
                raise Violation(
                    "progress", f"{what} within {LIMIT_SECONDS:g} seconds", self.describe()
                )
            if not self._closed and all(worker.over for worker in self.workers):
                self._join(Member())
            await asyncio.sleep(LOOK_SECONDS)

    async def _feed(self) -> None:
        """The sources get their rows, when it is time."""
        for step in self.scenario.plan.steps:
            if isinstance(step, Wait):
                for worker in self._present():
                    worker.machine.do(worker.engine.read_on)
                await asyncio.sleep(step.turns * 0.05)
            elif isinstance(step, Row | Word):
                self._give(step)
        for worker in self._present():
            worker.machine.do(worker.engine.read_on)

    def _give(self, step: Row | Word) -> None:
        said = range(len(self.tapes)) if step.partition is None else [step.partition]
        for partition in said:
            stream = SOURCES[self._owners[partition]]
            given = self._arrivals[partition][self._fed[partition]]
            self._fed[partition] += 1
            if isinstance(given, Dot):
                self.tapes[partition].append(inject(stream, given))
            else:
                self.tapes[partition].append(advance(stream, at(given)))

    # -- workers ------------------------------------------------------------------

    def _present(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_there]

    def _join(self, member: Member) -> None:
        number = len(self.workers)
        machine = self._machines.machine(f"w{number}")
        database = self.database.another()
        assert isinstance(database, Database)
        worker = Worker(
            number,
            machine,
            member,
            make_pipeline(self.scenario, self.tapes),
            store(self.server, database, machine),
            self._ether,
            copies=self.scenario.plan.copies,
            close_at_end=self._closing,
        )
        self.workers.append(worker)
        self.monitor.joined(worker.name, worker.id)
        life = machine.start(worker.work())
        life.add_done_callback(lambda task: self._ended(worker, task))

    def _ended(self, worker: Worker, life: asyncio.Task[None]) -> None:
        self._gone(worker, loudly=True)  # the process ends, and whatever it has left with it
        error = life.exception()
        self.monitor.note(worker.name, "ends" + (f": {error!r}" if error else ""))
        if isinstance(error, StoreUnavailable) or (error and worker.member.is_too_slow):
            self.monitor.count("restart")
            self._loop.call_later(RESTART_SECONDS, self._restart)
        elif error is not None:
            self.monitor.worker_failed(worker.name, error)

    def _restart(self) -> None:
        if len(self._present()) < MOST_WORKERS and not self._closed:
            self._join(Member())

    def _crash(self, worker: Worker, *, loudly: bool) -> None:
        self.monitor.note(worker.name, "crashes" if loudly else "vanishes")
        self._gone(worker, loudly=loudly)

    def _gone(self, worker: Worker, *, loudly: bool) -> None:
        worker.over = True
        worker.machine.crash()
        self.server.gone(worker.machine, loudly=loudly)
        self._ether.lose(worker.name, silently=not loudly)

    # -- what goes wrong ------------------------------------------------------------

    def _happen(self, act: Act) -> None:
        present = self._present()
        what, how = act.what, act.how
        if not present:
            self._join(Member())
            return
        worker = present[act.who % len(present)]
        other = present[(act.who + 1) % len(present)]
        self.monitor.count(what)
        self.monitor.note("act", f"{what} {worker.name} {how:g}")
        if what == "join" and len(present) < MOST_WORKERS:
            self._join(Member())
        elif what == "leave":
            worker.leave()
        elif what == "crash":
            worker.machine.after(int(how), lambda: self._crash(worker, loudly=True))
        elif what == "vanish":
            self._crash(worker, loudly=False)
        elif what == "pause":
            self._for_a_while(worker.machine.pause, worker.machine.go_on, how)
        elif what == "stall":
            self._for_a_while(
                lambda: self.server.stall(worker.machine),
                lambda: self.server.let_through(worker.machine),
                how,
            )
        elif what == "mute":
            muted = self.server.muted
            self._for_a_while(
                lambda: muted.add(worker.machine), lambda: muted.discard(worker.machine), how
            )
        elif what == "cut":
            self._ether.cut(worker.name, other.name)
        elif what == "part" and worker is not other:
            self._for_a_while(
                lambda: self._ether.part(worker.name, other.name),
                lambda: self._ether.join(worker.name, other.name),
                how,
            )
        elif what == "deaf":
            way = worker.name, other.name
            blocked = self._sky.blocked
            self._for_a_while(lambda: blocked.add(way), lambda: blocked.discard(way), how)
        elif what == "away":
            self._for_a_while(self.server.go_away, self.server.come_back, how)
        elif what == "storm":
            self._for_a_while(self._worsen_calls, self._ease_calls, how)
        elif what in ("move", "split", "merge"):
            self._play(self._wish(act))

    def _play(self, work: Coroutine[Any, Any, None]) -> None:
        self._plays.append(asyncio.ensure_future(work))

    def _for_a_while(
        self, begin: Callable[[], object], end: Callable[[], object], seconds: float
    ) -> None:
        async def while_() -> None:
            begin()
            await asyncio.sleep(seconds)
            end()

        self._play(while_())

    async def _wish(self, act: Act) -> None:
        """An operator's wish for an interval, decided from what stands there now."""
        rows = self.database.placed().intervals
        if act.what != "move":
            rows = [row for row in rows if row.kind != "injector"]
        if not rows:
            return
        row = rows[act.who % len(rows)]
        if act.what == "move":
            present = self._present()
            wanted = present[(act.who // 2) % len(present)].id
            await self.database.wish([Wish(row.id, row.sequencer, wanted, "act")])
        elif act.what == "split":
            at = row.slot_from + int((row.slot_to - row.slot_from) * act.how)
            await self.database.wish([SplitWish(row.id, row.sequencer, at, "act")])
        else:
            above = [
                r for r in rows if (r.computation, r.slot_from) == (row.computation, row.slot_to)
            ]
            for upper in above:
                await self.database.wish(
                    [
                        Wish(upper.id, upper.sequencer, row.owner, "act"),
                        MergeWish(row.id, row.sequencer, upper.id, "act"),
                    ]
                )

    def _worsen(self) -> None:
        air = self.scenario.air
        weather = self._sky.weather
        weather.drop, weather.duplicate = air.drop, air.duplicate
        weather.overtake, weather.delay = air.overtake, air.delay
        self._worsen_calls(half=True)

    def _worsen_calls(self, *, half: bool = False) -> None:
        calls, part = self.scenario.calls, 0.5 if half else 2.0
        self.server.trouble = Trouble(
            calls.lost * part, calls.torn * part, calls.slow * part, calls.slow_seconds
        )
        if not half:
            self.server.trouble.lost += 0.05
            self.server.trouble.torn += 0.05

    def _ease_calls(self) -> None:
        self._worsen_calls(half=True)

    def _clear_up(self) -> None:
        """From here on nothing goes wrong."""
        self.monitor.note("act", "the weather clears")
        self._sky.weather = Weather(Random(self.scenario.seed + 3), delay=0.01)
        self._sky.blocked.clear()
        self.server.trouble = Trouble()

    def describe(self) -> str:
        """What each interval waits for."""
        lines = []
        for worker in self._present():
            engine = worker.engine
            lines.append(f"{worker.name} lease {engine.lease._ends:.1f} failure {engine.failure!r}")
            for i in engine.intervals:
                logs = [(log.id, log.first, log.next_seq, log.unacked) for log in i.logs]
                lines.append(
                    f"  {i.name} id {i.id} input {i.input_watermark} stored {i.durable} intake "
                    f"{len(i.intake)} busy {len(i.backlog)} leaving {i.leaving} dirty {i.dirty} "
                    f"logs {logs}"
                )
            for r in engine.neighbours.remotes():
                streams = {log: (s.begun, s.last, len(s.unacked)) for log, s in r.streams.items()}
                lines.append(f"  remote {r.step.name} {r.slots} id {r.id} of {r.owner} {streams}")
        return "\n".join(lines) + "\n" + self.monitor.ledger.describe()


def run(scenario: Scenario) -> Monitor:
    """Run a scenario to its end, and once more from a copy of its store if there is to be one.

    Raises:
        Violation: something that must hold does not; the last events are in it.
    """
    loop = new_loop()
    monitor = Monitor(scenario, loop)
    tapes: list[Tape] = []

    def play() -> Awaitable[None]:
        cluster = Cluster(scenario, monitor)
        tapes.extend(cluster.tapes)
        return cluster.play()

    _run(loop, monitor, play)
    if monitor.copy is not None:
        _run_from(scenario, tapes, *monitor.copy)
    return monitor


def _run_from(scenario: Scenario, tapes: Sequence[Tape], at: float, copy: Database) -> None:
    """Bring a copy of a store to its end, elsewhere (I10)."""
    loop = new_loop(at)
    monitor = Beginner(scenario, loop)

    def play() -> Awaitable[None]:
        cluster = Cluster(scenario, monitor, tapes)
        copy.copy_into(cluster.database)
        return cluster.finish()

    try:
        _run(loop, monitor, play)
    except Violation as violation:
        violation.check = f"from a copy: {violation.check}"
        raise


def _run(loop: VirtualLoop, monitor: Monitor, play: Callable[[], Awaitable[None]]) -> None:
    configure_logs(monitor)
    collecting = gc.isenabled()
    gc.disable()  # a run is short, and what it leaves goes all at once

    async def to_the_end() -> None:
        await play()
        check_outcome(monitor.ledger.scenario, monitor.database)

    try:
        loop.run(to_the_end())
    except Violation as violation:
        violation.trace = monitor.lines()
        raise
    except NothingToDo as error:
        stuck = Violation("progress", str(error), monitor.ledger.describe())
        stuck.trace = monitor.lines()
        raise stuck from error
    finally:
        monitor.steps, monitor.seconds = loop.steps, loop.time()
        loop.close()
        structlog.reset_defaults()
        if collecting:
            gc.enable()


def configure_logs(monitor: Monitor) -> None:
    """What workers log is a line of the trace."""

    def keep(logger: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        machine = current_machine()
        rest = " ".join(f"{k}={v}" for k, v in event.items() if k in TELLING)
        monitor.note(machine.name if machine else "?", f"says {event.get('event')} {rest}")
        raise structlog.DropEvent

    structlog.configure(processors=[keep], cache_logger_on_first_use=False)


TELLING = ("interval", "intervals", "error", "lower", "upper", "at", "reason")
