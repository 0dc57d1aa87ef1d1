"""Runs a scenario: workers, wire and server on one virtual loop, from one seed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from random import Random
from typing import Any, NoReturn, cast

import structlog

from millwheel.errors import StoreUnavailable
from millwheel.store.port.placement import MergeWish, SplitWish, Wish
from millwheel.testing import advance, inject
from millwheel.testing.fake_network import FakeNetwork, Weather
from millwheel.testing.virtual_loop import NothingToDo, VirtualLoop, current_machine, new_loop
from tests.sim.brokers import Brokers
from tests.sim.machines import LoopClock, Worker
from tests.sim.monitor import NOTHING_LEFT, Beginner, Monitor
from tests.sim.network import Sky
from tests.sim.oracle import check_outcome
from tests.sim.pipelines import make_pipeline
from tests.sim.scenario import Act, Calls, Member, Scenario
from tests.sim.server import Database, Server, Trouble
from tests.sim.violation import Violation
from tests.sim.wire import Wire, store
from tests.support.random_graphs import SOURCES, Dot, Row, Tape, Wait, Word
from tests.support.values import at

MOST_WORKERS = 4
NOBODY = 1000
"""The number of a worker that never works."""
ELSEWHERE = 500
LIMIT_SECONDS = 300.0
"""Within which everything is done, once nothing goes wrong any more."""
STILL_SECONDS = 15.0
"""How long nothing may become of what was given and is not done, once nothing goes wrong any more:
a lease is over by then, and somebody else at it."""
LOOK_SECONDS = 0.25
TURN_SECONDS = 0.01
"""Between two looks at how many commits there are."""
RESTART_SECONDS = 1.0
"""After which a worker that could not reach the store is started again, as systemd would."""
LOST_SECONDS = 0.1
"""For which a server that crashes is away."""
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
        self._first = 0 if tapes is None else ELSEWHERE
        """The number of the first worker: those of another cluster are others."""
        self._closing = False
        self._closed = False
        self._clock = LoopClock()
        """The server's."""
        self.database = Database("graph", clock=self._clock)
        self.server = Server(self.database, Random(scenario.seed + 1), monitor)
        self._sky = Sky(Weather(Random(scenario.seed + 2), delay=0.01), monitor)
        self._ether = FakeNetwork(LoopClock(), self._sky)
        self._plays: list[asyncio.Task[None]] = []
        self.brokers = Brokers(Random(scenario.seed + 4), scenario.calls)
        pipeline = make_pipeline(scenario, self.tapes, self.brokers)
        monitor.watch(self.database, self.tapes, pipeline.graph())
        monitor.is_current = self._is_current

    # -- the course of things -----------------------------------------------------

    async def play(self) -> None:
        """The scenario, and then its end."""
        scenario = self.scenario
        self._worsen()
        for member in scenario.members:
            self._join(member)
        feeding = asyncio.ensure_future(self._feed())
        for act in scenario.acts:
            await self._wait_for(act)
            self._happen(act)
        await feeding
        await asyncio.gather(*self._plays)
        await self.finish()

    async def _wait_for(self, act: Act) -> None:
        """Until it is time for what is to happen."""
        if act.commits is None:
            await asyncio.sleep(act.at - self._loop.time())
            return
        while self._loop.time() < act.at:
            if self.monitor.ledger.commits >= act.commits:
                return
            await asyncio.sleep(TURN_SECONDS)

    async def finish(self) -> None:
        """Nothing goes wrong any more: everything comes to its end, in bounded time."""
        self._clear_up()
        if self.scenario.quiet:
            await self._settle()
        self.monitor.ledger.closing = self._closing = True
        for tape in self.tapes:
            tape.end()
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

    async def _settle(self) -> None:
        """Nothing comes to anybody's help: no row, no word of time, no fault. What was given is
        done by and by, and at no time does nothing become of it for long, unless the server has yet
        to find out that somebody is gone in the middle of a transaction."""
        left, since = self.monitor.left(), self._loop.time()
        while left != NOTHING_LEFT:
            if all(worker.over for worker in self.workers):
                self._join(self._another)
            await asyncio.sleep(LOOK_SECONDS)
            before, left = left, self.monitor.left()
            if left != before or self.server.is_writing:
                since = self._loop.time()
            if self._loop.time() - since > STILL_SECONDS or self._machines.steps > MOST_STEPS:
                what = f"nothing has become of what came for {STILL_SECONDS:g} seconds"
                raise Violation("progress", what, self.describe())

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self._loop.time() + LIMIT_SECONDS
        while not condition():
            if self._loop.time() > deadline or self._machines.steps > MOST_STEPS:
                raise Violation(
                    "progress", f"{what} within {LIMIT_SECONDS:g} seconds", self.describe()
                )
            if not self._closed and all(worker.over for worker in self.workers):
                self._join(self._another)
            await asyncio.sleep(LOOK_SECONDS)

    async def _feed(self) -> None:
        """The sources get their rows, when it is time."""
        for step in self.scenario.plan.steps:
            if isinstance(step, Wait):
                await asyncio.sleep(step.turns * 0.05)
            elif isinstance(step, Row | Word):
                self._give(step)

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
        number = self._first + len(self.workers)
        machine = self._machines.machine(f"w{number}")
        database = self.database.another()
        assert isinstance(database, Database)
        worker = Worker(
            number,
            machine,
            member,
            make_pipeline(self.scenario, self.tapes, self.brokers),
            store(self.server, database, machine),
            self._ether,
            self.monitor,
            copies=self.scenario.plan.copies,
        )
        self.workers.append(worker)
        self.monitor.joined(worker.name, worker.id)
        life = machine.start(worker.work())
        life.add_done_callback(lambda task: self._ended(worker, task))

    @property
    def _another(self) -> Member:
        """A worker that joins later: its clock is right."""
        return Member()

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
            self._join(self._another)

    def _crash(self, worker: Worker, *, loudly: bool) -> None:
        self.monitor.note(worker.name, "crashes" if loudly else "vanishes")
        self._gone(worker, loudly=loudly)

    def _gone(self, worker: Worker, *, loudly: bool) -> None:
        worker.over = True
        worker.machine.crash()
        self.server.gone(worker.machine, worker.id, loudly=loudly)
        self._ether.lose(worker.name, silently=not loudly)

    # -- what goes wrong ------------------------------------------------------------

    def _happen(self, act: Act) -> None:
        present = self._present()
        what, how = act.what, act.how
        if not present:
            self._join(self._another)
            return
        worker = present[act.who % len(present)]
        other = present[(act.who + 1) % len(present)]
        self.monitor.count(what)
        self.monitor.note("act", f"{what} {worker.name} {how:g}")
        if what == "join" and len(present) < MOST_WORKERS:
            self._join(self._another)
        elif what == "leave":
            worker.leave()
        elif what == "crash":
            worker.machine.after(int(how), lambda: self._crash(worker, loudly=True))
        elif what == "vanish":
            self._crash(worker, loudly=False)
        elif what == "pause":
            self._for_a_while(worker.machine.pause, worker.machine.resume, how)
        elif what == "stall":
            self._for_a_while(
                lambda: self.server.stall(worker.machine),
                lambda: self.server.let_through(worker.machine),
                how,
            )
        elif what == "mute":
            muted = self.server.muted
            self.database.end_liveness_session(worker.id)
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
        elif what == "dark":
            self._for_a_while(self.brokers.go_away, self.brokers.come_back, how)
        elif what == "step":
            self._clock.stepped += how
        elif what == "lose":
            self._play(self._lose(how))
        elif what == "storm":
            self._for_a_while(self._worsen_calls, self._ease_calls, how)
        elif what in ("move", "split", "merge"):
            self._play(self._wish(act))

    async def _lose(self, seconds: float) -> None:
        """The server crashes in so many seconds, and what took effect until then is lost."""
        saved, ledger = self.database.saved(), self.monitor.ledger.saved()
        await asyncio.sleep(seconds)
        self.monitor.note("server", f"loses what it did in {seconds:g} seconds")
        self.server.crash(saved)
        self.monitor.ledger.go_back(ledger)
        await asyncio.sleep(LOST_SECONDS)
        self.server.come_back()

    def _is_current(self, name: str) -> bool:
        """Whether a worker has met the server as it is now."""
        return all(cast(Wire, w.store).is_current for w in self.workers if w.name == name)

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
        present = self._present()
        if not rows or not present:
            return
        row = rows[act.who % len(rows)]
        if act.what == "move":
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
            calls.lost * part, calls.torn * part, calls.slow * part, calls.slow_seconds,
            calls.usual_seconds,
        )  # fmt: skip
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
        self.server.trouble = Trouble(usual_seconds=self.scenario.calls.usual_seconds)
        self.brokers.calls = Calls(usual_seconds=self.scenario.calls.usual_seconds)
        self.brokers.come_back()

    def describe(self) -> str:
        """What each interval waits for."""
        lines = []
        for worker in self._present():
            engine = worker.engine
            lines.append(f"{worker.name} lease {engine.lease._ends:.1f} failure {engine.failure!r}")
            for i in engine.intervals:
                logs = [(log.id, log.first, log.next_seq, log.unacked) for log in i.logs]
                lines.append(
                    f"  {i.name} id {i.id} input {i.watermarks.input} stored "
                    f"{i.watermarks.durable} intake {len(i.intake)} busy {len(i.backlog)} leaving "
                    f"{i.leaving} dirty {i.dirty} logs {logs}"
                )
            for r in engine.remotes.remotes():
                streams = {log: (s.epoch, s.last, len(s.unacked)) for log, s in r.streams.items()}
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

    def play() -> Cluster:
        cluster = Cluster(scenario, monitor)
        tapes.extend(cluster.tapes)
        return cluster

    _run(loop, monitor, play, Cluster.play)
    if monitor.copy is not None:
        _run_from(scenario, tapes, *monitor.copy)
    return monitor


def _run_from(scenario: Scenario, tapes: Sequence[Tape], at: float, copy: Database) -> None:
    """Bring a copy of a store to its end, elsewhere (I10)."""
    loop = new_loop(at)
    monitor = Beginner(scenario, loop)

    def play() -> Cluster:
        cluster = Cluster(scenario, monitor, tapes)
        copy.copy_into(cluster.database)
        return cluster

    try:
        _run(loop, monitor, play, Cluster.finish)
    except Violation as violation:
        violation.check = f"from a copy: {violation.check}"
        raise


def _run(
    loop: VirtualLoop,
    monitor: Monitor,
    make: Callable[[], Cluster],
    play: Callable[[Cluster], Awaitable[None]],
) -> None:
    configure_logs(monitor)
    collecting = gc.isenabled()
    gc.disable()  # a run is short, and what it leaves goes all at once

    async def to_the_end() -> None:
        cluster = make()
        await play(cluster)
        # another cluster has brokers of its own, which have only what was written since the copy
        brokers = cluster.brokers if play is Cluster.play else None
        check_outcome(monitor.ledger.scenario, monitor.database, brokers)

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
