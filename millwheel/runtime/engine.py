"""One worker's engine: deploys the graph, owns intervals, and ties lanes together.

The engine itself is a registry: which step has which id, which log belongs to whom, who
must be told when a watermark was stored or a record acknowledged. The work is done by its
lanes (run, commit), injectors (read), heartbeat (lease), folding (fold, drop what is done with)
and housekeeping (the chores in between).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from hashlib import blake2b
from typing import Any, TypeVar

import structlog

from millwheel.clock import Clock, SystemClock
from millwheel.errors import (
    InvariantBroken,
    StoreError,
    StoreUnavailable,
    StoreWentBack,
    UsageError,
)
from millwheel.model import MAX_TIME, Delivery
from millwheel.pipeline import Pipeline
from millwheel.runtime.interval.buckets import Buckets, Stamps
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.routing import NOBODY, Step, StreamRoute, WeakRoute, connect
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.lane.lane import Lane
from millwheel.runtime.lane.late_use import LateUses
from millwheel.runtime.lane.recovery import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from millwheel.runtime.modes.batches import Numbering
from millwheel.runtime.modes.tree_acks import Stretches
from millwheel.runtime.modes.weak_ids import mark_of
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.network.ports import Network
from millwheel.runtime.network.remote_intervals import Neighbours
from millwheel.runtime.ownership.claiming import Pauses
from millwheel.runtime.ownership.deploying import deploy
from millwheel.runtime.ownership.heartbeat import Heartbeat
from millwheel.runtime.ownership.owned_intervals import Holdings
from millwheel.runtime.process.lease import Lease
from millwheel.runtime.process.load import Meter, Process
from millwheel.runtime.process.observer import Observer
from millwheel.runtime.process.service import Service
from millwheel.runtime.process.tasks import end
from millwheel.runtime.restarts import Restarts
from millwheel.runtime.source.injector import Injector
from millwheel.runtime.source.source_task import SourceTask
from millwheel.runtime.upkeep.folding import Folding
from millwheel.runtime.upkeep.housekeeping import Housekeeping
from millwheel.runtime.upkeep.letters import DeadLetterLog
from millwheel.runtime.upkeep.watermark_publisher import Promises
from millwheel.store.port import (
    DeadLetter,
    Deployment,
    Store,
)

T = TypeVar("T")


CLOCK_OFF_SECONDS = 5.0
"""A machine's clock that is so far from the store's is no matter of round trips: its logs and
files bear wrong times, and somebody should set it."""

HAND_OVER_SECONDS = 3.0
"""How long a worker that stops takes to finish what it has begun."""


class Engine:
    """Runs one pipeline on one store, in this event loop.

    Args:
        keep_open: leave event time where the data put it when a bounded source ends. Otherwise its
            partitions promise the end of time, and once all sources have, every window closes.
        accept_late: process rows that come after event time has ended, as late ones; otherwise they
            are an error.
        inject_copies: how often each source row is delivered; 2 to test deduplication.
        guard_shared: fail a record that changes `Context.shared`, which it may only read; costs an
            encoding of the table for each key in a chunk.
        run_weak_twice: call the code of weak computations twice on each record, and fail if it does
            not produce the same; for tests.
        take_over: claim the intervals even of a worker that is alive; it will be fenced.
        network: to share the pipeline with other workers: makes the links of the worker whose id
            it is given. None of the intervals are claimed until `Holdings.take` is told to.
            None: this worker has all of them to itself.
        worker: its id, a UUID nobody else has; None: a new one.
        process: what this process costs.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: Store,
        *,
        clock: Clock | None = None,
        keep_open: bool = False,
        accept_late: bool = False,
        inject_copies: int = 1,
        guard_shared: bool = False,
        run_weak_twice: bool = False,
        take_over: bool = False,
        network: Callable[[str], Network] | None = None,
        worker: str | None = None,
        process: Process | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.graph = pipeline.graph()
        self.settings = pipeline.settings
        self.store = store
        self.clock = clock or SystemClock()
        self.process = process or Process()
        self.keep_open = keep_open
        self.accept_late = accept_late
        self.inject_copies = inject_copies
        self.guard_shared = guard_shared
        self.run_weak_twice = run_weak_twice
        self._take_over = take_over
        self.worker = worker or str(uuid.uuid4())
        self._network = None if network is None else network(self.worker)
        self.log = structlog.get_logger().bind(pipeline=pipeline.name, worker=self.worker[:8])
        self.processed = 0
        """Records and timers whose effects are durable, since this start."""
        self.done = asyncio.Event()
        """No source has a row to read, now or ever, and all effects of those read are stored. Cleared
        when a row comes."""
        self.observer = Observer()
        """Called on engine events."""
        self.stopping = False
        """Nothing new is read or run: what is finished is committed, and that is all."""
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self.late_uses = LateUses(self.log, self.fail)
        self._clock_is_off = False
        """The clock warning has been logged."""
        self._beside: list[tuple[Callable[[Engine], Service], str]] = []
        """Services that work beside the engine whenever it runs."""
        self._restarts = Restarts(self)
        self._given = 0
        """The greatest number of a bundle that this process knew when it started over; 0: it never did."""
        self._listens = False
        self.forget()

    def forget(self) -> None:
        """Hold nothing in memory that is not in the store: as at the first start."""
        self.done.clear()
        self.numbering = Numbering()
        """Of the bundles that are closed from now on."""
        self.stamps = Stamps(self.clock)
        self.buckets = Buckets(
            self.store, self.settings, self.stamps, shared=self._network is not None
        )
        self.promises = Promises(self)
        self.rekeyed: frozenset[str] = frozenset()
        """Computations whose records may have had other keys under former code."""
        self.steps: dict[int, Step] = {}
        self.logs: dict[int, tuple[SentLog, Interval]] = {}
        self.holdings = Holdings(self)
        self.courier = None if self._network is None else Courier(self, self._network)
        """To and from other workers; None: there are none."""
        self.neighbours = Neighbours(self)
        self.lane = Lane(self)
        self.lease = Lease(self.clock, self.settings.lease_seconds)
        self.out_of_touch: frozenset[str] = frozenset()
        """The workers that share the pipeline, if this one cannot since it does not reach them."""
        self.generation = 0
        """Of the code that this worker runs; known once it has deployed."""
        self.paused: frozenset[int] = frozenset()
        """The injectors, by computation, that an operator wants to rest."""
        self.started = False
        """It has claimed what it is to begin with, or looked around for it."""
        self.letting_go = False
        """Of everything it has: no lane may begin to work on it again meanwhile."""
        self.letters = DeadLetterLog(self.log, self.clock, self.steps)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changes: set[asyncio.Task[None]] = set()
        """Takings and givings that are under way."""
        self._meter = Meter(self.clock, self.process)
        self.heartbeat = Heartbeat(self)
        self.housekeeping = Housekeeping(self)
        self.folding = Folding(self)
        self.stretches = Stretches(self)
        """What is passed on under tree acknowledgement."""

    # -- start and end ----------------------------------------------------------------

    async def start(self) -> None:
        """Deploy and run; a worker that is alone claims every interval.

        Raises:
            DeployRefused: the stored pipeline and this code do not agree.
            UsageError: a live worker holds the pipeline's intervals.
            InputError: a source is missing or has changed.
        """
        try:
            await self.begin()
        except StoreWentBack as error:
            await self._restarts.start_over(error)
        self._restarts.watch()

    def attend(self, make: Callable[[Engine], Service], name: str) -> None:
        """Let a service work beside the engine from now on, and again after each start over."""
        self._beside.append((make, name))
        if self.started:  # else it begins with the engine
            self.spawn(make(self).run(), name)

    async def begin(self) -> None:
        """Start with nothing in memory."""
        address = ""
        incarnation = await self.patiently(self.store.incarnation)
        if self._network is not None:  # first: who cannot be reached begins no generation
            assert self.courier is not None
            if self._listens:
                self._network.begin_again(self.courier, incarnation)
            else:
                await self._network.start(self.courier, incarnation)
                self._listens = True
            address = self._network.address
            before = self.clock.now()
            self.tell_time(before, await self.patiently(self.store.now))
        deployment = await deploy(self)
        self.generation = deployment.generation
        self.rekeyed = deployment.rekeyed
        self._tell_rekeyed(deployment)
        if any(node.bundles is not None for node in self.graph.nodes):
            self.numbering = Numbering(
                blake2b(incarnation.encode(), digest_size=8).hexdigest(),
                max(self._given, await self.patiently(self.store.now)),
                is_first=deployment.is_first and not self._restarts.under_way,
            )
        asked = self.clock.monotonic()
        await self.store.register_worker(
            self.worker,
            self.settings.lease_seconds,
            address=address,
            generation=deployment.generation,
        )
        self.lease.renewed(asked)
        if self._network is None:
            await self._wait_for_others()
        self.spawn(self.heartbeat.run(), "heartbeat")  # claiming may take longer than a lease
        for place, node in enumerate(self.graph.nodes):
            id_ = deployment.computations[node.name]
            kind = WeakRoute if node.is_weak else StreamRoute
            routes = {s.name: kind(s, node.sinks.get(s.name, [])) for s in node.writes}
            self.steps[id_] = Step(id_, place, node, routes, mark_of(self.worker))
        by_name = {step.name: step for step in self.steps.values()}
        for step in self.steps.values():
            connect(by_name, step.node, step.routes)
        self.promises.connect(by_name)
        await self.lane.connect()
        self.lane.start()
        if self._network is None:
            pauses = Pauses(self)
            await pauses.run_once()
            await self.holdings.take([row.id for row in deployment.intervals])
            self.spawn(pauses.run(), "pauses")
        else:
            await self.neighbours.look_around()
        self.spawn(self.housekeeping.run(), "housekeeping")
        self.spawn(self.folding.run(), "folding")
        self.spawn(self.stretches.run(), "stretches")
        for make, name in self._beside:
            self.spawn(make(self).run(), name)
        self.started = True
        self.log.info(
            "started",
            intervals=len(self.intervals),
            generation=deployment.generation,
        )

    def _tell_rekeyed(self, deployment: Deployment) -> None:
        """Log which key extractors this deploy has changed, and what that leaves behind."""
        for name, stream in deployment.newly_rekeyed:
            node = self.graph.by_name[name]
            does = "records not acknowledged come again under the new keys, and count once"
            to_do = "nothing"
            if node.named:
                does = "ids are taken anew: rows not acknowledged so far, whose ids differ, count again"
                to_do = "if that must not be, deploy such a change when all rows are acknowledged"
            elif node.kind == "computation" and node.layout and not node.layout.stateless:
                does += "; state of keys that are given no more stays, and nothing reads it"
                to_do = f"see the view state_of_{name} for keys of the former kind"
            self.log.warning(
                "key_extractor_changed",
                computation=name,
                stream=stream,
                what_it_means=does,
                what_to_do=to_do,
            )

    async def _wait_for_others(self) -> None:
        """A worker known to be dead is ended at once; a live one keeps its intervals."""
        for other in await self.store.other_workers(self.worker):
            if self._take_over or other.lease_left <= 0 or self.store.is_dead(other):
                await self.store.end_worker(other)
                continue
            await self.store.stop_worker(self.worker)
            raise UsageError(
                f"pipeline {self.pipeline.name!r} is being run by process {other.pid} on "
                f"{other.host.split()[0]!r} (its lease ends in {other.lease_left:.0f} s unless it "
                "renews it). Stop that one first, or wait for its lease to end"
            )

    async def run(self, stop: asyncio.Event | None = None, *, until_done: bool = True) -> None:
        """Wait until everything is done, or `stop` is set, or something fails.

        Args:
            until_done: False: there may be more to do later, so `done` is no reason to end.

        Raises:
            MillwheelError: what went wrong; nothing that was acknowledged is lost.
        """
        events = [self._failed, *([self.done] if until_done else [])]
        if stop is not None:
            events.append(stop)
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.late_uses.check_tasks(all_is_done=self.done.is_set())
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """End in order: read no more, commit what is finished, give up the lease."""
        self.stopping = True
        await self._restarts.close()
        if self._restarts.under_way or self._restarts.is_wanted:
            await self.kill()
            await self._say_that_it_stops()
            return
        if self.courier is not None and self._failure is None:
            await self._hand_everything_over()
        for task in self.source_tasks:
            await task.stop()
        await self.lane.stop_running()
        healthy = self._failure is None
        if healthy:
            drained: asyncio.Future[Any] = asyncio.ensure_future(self.lane.finish_commits())
            failed: asyncio.Future[Any] = asyncio.ensure_future(self._failed.wait())
            await asyncio.wait((drained, failed), return_when=asyncio.FIRST_COMPLETED)
            drained.cancel()
            failed.cancel()
            await asyncio.gather(drained, failed, return_exceptions=True)
        await self.kill()
        for interval in self.intervals:
            if interval.ownership is Ownership.HELD:
                interval.transition("release")
        await self._say_that_it_stops()

    async def _say_that_it_stops(self) -> None:
        """Give up the lease: others need not wait for its end."""
        try:
            await self.store.stop_worker(self.worker)
        except (StoreUnavailable, StoreWentBack) as error:
            self.log.warning("lease_not_given_up", error=str(error))

    async def _hand_everything_over(self) -> None:
        """Leave all intervals drained to the others, as far as that goes in a short time.

        What does not is claimed by them as it is stored, once this worker has said that it stops.
        """
        handing = [
            asyncio.create_task(self.holdings.give_up(interval)) for interval in self.intervals
        ]
        late = asyncio.create_task(self.clock.sleep(HAND_OVER_SECONDS))
        everything = asyncio.gather(*handing, return_exceptions=True)
        await asyncio.wait((everything, late), return_when=asyncio.FIRST_COMPLETED)
        late.cancel()
        if not everything.done():
            self.log.warning("not_handed_over", intervals=[i.name for i in self.intervals])
            await end(handing)
        for outcome in await everything:
            if isinstance(outcome, Exception):
                self.log.warning("not_handed_over", error=str(outcome))

    async def kill(self) -> None:
        """End without order, as a crash would: no commit, no farewell."""
        await self._restarts.close()
        await self.drop_everything()
        if self.courier is not None:
            await self.courier.close()

    async def drop_everything(self) -> None:
        """Stop all work, as a crash would; what is not durable never was."""
        numbers = (i.bundling.number for i in self.intervals if i.bundling is not None)
        self._given = max(self._given, *numbers, 0)
        self.stretches.close()
        self.letters.flush(all_of_them=True)
        while self._tasks:
            await end(list(self._tasks))
        await self.lane.stop_running()
        with contextlib.suppress(StoreError):  # a successor ends what is left of it
            await self.lane.close()
        for task in self.source_tasks:
            await task.stop()
            task.close()
        for interval in self.intervals:
            if interval.part_file is not None:
                interval.part_file.close()

    def now(self) -> int:
        """Wall time in microseconds: that of the store where others share it, so that a timer or
        an age means the same to whoever has the interval next."""
        return self.stamps.now()

    def tell_time(self, before: int, store: int) -> None:
        """Go by the store's clock, which was asked when this machine's showed `before`."""
        ahead = self.stamps.adjust((before + self.clock.now()) // 2, store)
        off = abs(ahead) >= CLOCK_OFF_SECONDS * 1e6
        if off and not self._clock_is_off:
            self.log.warning(
                "clock_is_off",
                seconds=round(-ahead / 1e6, 1),
                what_it_means="this machine's clock is so far ahead of the store's (below zero: "
                "behind); the worker goes by the store's",
                what_to_do="set the machine's clock, or let NTP do it",
            )
        self._clock_is_off = off

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something for the engine's life; its failure is the engine's."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())

    def fail(self, error: BaseException | None) -> None:
        """Something cannot go on; the first reason counts. A store that went back is no failure: the
        engine starts over, or stops without another commit if it is stopping."""
        if isinstance(error, StoreWentBack):
            self._restarts.wanted(error)
            if self.stopping:
                self._failed.set()
            return
        if self._failure is None and error is not None:
            self._failure = error
            self._failed.set()

    @property
    def intervals(self) -> list[Interval]:
        """The intervals this worker holds."""
        return self.holdings.intervals

    @property
    def source_tasks(self) -> list[SourceTask]:
        """The tasks of the injectors' intervals that it holds."""
        return [i.source_task for i in self.holdings.intervals if i.source_task is not None]

    @property
    def injectors(self) -> list[Injector]:
        """Those of them that read a partition."""
        return [task for task in self.source_tasks if isinstance(task, Injector)]

    @property
    def is_shared(self) -> bool:
        """Whether other workers may have intervals of the pipeline."""
        return self._network is not None

    @property
    def failure(self) -> BaseException | None:
        """What went wrong, if anything."""
        return self._failure

    def partitions_appeared(self, interval_ids: list[int]) -> None:
        """There are intervals for partitions that were found: a worker that is alone takes them;
        otherwise they are placed like all others."""
        if self.courier is None:
            self.spawn(self._take_partitions(interval_ids), "new partitions")
        else:
            self.neighbours.look_up()

    async def _take_partitions(self, interval_ids: list[int]) -> None:
        await self.holdings.take([id_ for id_ in interval_ids if not self.holdings.knows(id_)])

    # -- changes of who holds what ------------------------------------------------------------

    async def change(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something about who holds what; cut short when everything is let go of."""
        task = asyncio.ensure_future(work)
        self._changes.add(task)
        try:
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
        finally:
            self._changes.discard(task)
            await end([task])

    async def let_go_of_all(self) -> None:
        """Touch no interval any more: others may have them by now, or will soon."""
        self.letting_go = True
        try:
            await self.lane.stop_running()
            self.lane.drop_open()
            await end(self._changes)
            for interval in list(self.intervals):
                if interval in self.intervals:  # else it was given up while others were let go of
                    await self.holdings.lose(interval)
        finally:
            self.letting_go = False
        self.lane.run_on()

    def pause(self, computations: frozenset[int]) -> None:
        """Injectors of these computations read no more, those of all others do.

        What was read is processed; the watermark stays where it is, since nobody knows what
        comes next.
        """
        if computations == self.paused:
            return
        resting = [task for task in self.source_tasks if task.paused]
        self.paused = computations
        names = [step.name for id_, step in self.steps.items() if id_ in computations]
        self.log.info("injectors_paused", injectors=names)
        for task in resting:
            if not task.paused:
                task.resume()
        self.check_finished()

    # -- between this worker's intervals ----------------------------------------------------

    def made_room(self, reader: Step) -> None:
        """A queue of a computation is not full any more: who passes on to it may have waited for
        that (I8), and have nothing on its way that would wake it."""
        for interval in self.intervals:
            if interval.entry is not None and reader in interval.entry.readers:
                interval.wake()

    def send(self, productions: Iterable[Delivery[Any]]) -> None:
        """Records go to their readers, for the first time or again; here that is a queue away.

        Who puts records into queues otherwise has to wake their lanes as well: if these records fill
        all credits, nobody else will.
        """
        steps = self.steps
        sent = False
        for production in productions:
            if production.receiver != NOBODY:
                steps[production.receiver].interval_of(production.slot).intake.append(production)
                sent = True
        if sent:
            self.lane.wake.set()

    def acknowledge(self, deliveries: Iterable[Delivery[Any]]) -> None:
        """The effects of these records are durable: tell their senders (I1)."""
        by_sender: dict[tuple[int, int], list[int]] = {}
        log = receiver = -1
        seqs: list[int] = []
        for delivery in deliveries:
            if delivery.log < 0:
                self.stretches.tell(-delivery.log, delivery.seq)
                continue
            if delivery.log != log or delivery.receiver != receiver:
                log, receiver = delivery.log, delivery.receiver
                seqs = by_sender.setdefault((log, receiver), [])
            seqs.append(delivery.seq)
        owners: dict[Interval, None] = {}
        for (log, receiver), seqs in by_sender.items():
            found = self.logs.get(log)
            if found is not None:
                sent, owner = found
                self._arrived(sent, owner, receiver, seqs)
                owners[owner] = None
            elif self.courier is not None:
                self.courier.acknowledge(log, receiver, seqs)
            # else a log that was drained and retired: late copies
        self._credit(owners)

    def acknowledged(self, log: int, receiver: int, seqs: list[int]) -> None:
        """Records of a log here are durable on another worker. The courier has seen to it that they
        were sent there and were un-ACKed."""
        found = self.logs.get(log)
        if found is None:
            return
        sent, owner = found
        self._arrived(sent, owner, receiver, seqs)
        self._credit([owner])

    def _arrived(self, sent: SentLog, owner: Interval, receiver: int, seqs: list[int]) -> None:
        """Records of a log here have arrived; what waited for weak productions may land by it."""
        sent.acknowledge(seqs, self._reader_bit(owner, receiver) if sent.source else 0)
        if owner.chain is not None and sent is owner.log:
            done = owner.chain.arrived(seqs)
            if done:
                self.land(owner, done)

    def land(self, interval: Interval, inputs: list[Delivery[Any]]) -> None:
        """Inputs of a weak computation are done with, and nothing of them had to be stored."""
        interval.workload.records += len(inputs)
        self.processed += len(inputs)
        self.acknowledge(interval.dedup.landed([cause.id for cause in inputs]))
        interval.touch(urgent=False)

    def _credit(self, owners: Iterable[Interval]) -> None:
        """Something of these intervals' logs was acknowledged."""
        for owner in owners:
            owner.touch(urgent=owner.has_news())
            owner.wake()
            if owner.source_task is not None:
                owner.source_task.acknowledged()

    def _reader_bit(self, owner: Interval, receiver: int) -> int:
        for route in owner.step.routes.values():
            for reader in route.readers:
                if reader.step.id == receiver:
                    return reader.bit
        raise InvariantBroken(f"{owner.name} never sent to computation {receiver}")

    async def load_timers(self, interval: Interval, kind: str) -> None:
        """Read the next page of an interval's stored timers."""
        limit = self.settings.timers_in_memory
        after = interval.timers[kind].begin_page()
        changes = await self.patiently(
            lambda: self.store.read_timers(interval.id, kind, after, limit)
        )
        interval.add_timers(kind, after, changes, more=len(changes) == limit)
        if interval.has_news():
            interval.touch(urgent=True)

    def give_up_row(self, interval: Interval, offset: int, letter: DeadLetter) -> None:
        """Keep a bad row of a source, in its injector's next commit."""
        self.lane.give_up_row(interval, offset, letter)

    def shrink(self, intervals: Iterable[Interval]) -> None:
        """Keep the state cache within its bytes."""
        total = sum(i.states.size for i in self.intervals if i.states is not None)
        if total <= self.settings.cache_bytes:
            return
        share = self.settings.cache_bytes // max(1, len(self.intervals))
        for interval in intervals:
            if interval.states is not None:
                backlog = interval.backlog
                interval.states.evict(share, backlog.__contains__)

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try something of the store until it answers, for as long as patience lasts.

        Raises:
            StoreUnavailable: it did not answer in time.
        """
        pause = FIRST_PAUSE_SECONDS
        deadline = self.clock.monotonic() + self.settings.store_patience_seconds
        while True:
            try:
                return await attempt()
            except StoreUnavailable:
                if self.clock.monotonic() > deadline:
                    raise
                await self.clock.sleep(pause)
                pause = min(LONGEST_PAUSE_SECONDS, pause * 2)

    def check_finished(self) -> None:
        """Set `done` when no source has a row and nothing is left to do."""
        tasks = self.source_tasks
        if self.paused or not all(task.has_nothing for task in tasks):
            return
        now = self.now()
        if self.courier is not None and not self.promises.watermarks.all_at_end():
            return  # other workers have work left, or some intervals have no owner
        ended = not self.keep_open and all(task.ended for task in tasks)
        through = Interval.is_finished if ended else Interval.is_idle
        if all(through(interval, now) for interval in self.intervals) and not self.lane.busy:
            self.done.set()

    # -- what there is to tell --------------------------------------------------------------

    def progress(self) -> dict[str, Any]:
        """Figures for people: processed records, watermark, backlog, share of the input read."""
        sinks = [interval.durable for interval in self.intervals]
        return {
            "processed": self.processed,
            "read": sum(injector.rows for injector in self.injectors),
            "low_watermark": min(sinks, default=MAX_TIME),
            "backlog": sum(len(interval.intake) for interval in self.intervals),
            "unacked": sum(log.unacked for log, _ in self.logs.values()),
            "share": _least_share(self.source_tasks),
            "wall_timers": sum(i.next_wall_timer() is not None for i in self.intervals),
        }

    def load(self) -> dict[str, Any]:
        """What a heartbeat publishes: `progress`, and what the work cost since the one before."""
        unreached = [] if self.courier is None else self.courier.unreached()
        return {
            **self.progress(),
            **self._meter.take(self.intervals),
            "unreached": unreached,
        }


def _least_share(tasks: list[SourceTask]) -> float | None:
    """How much of the input has been read, 0 to 1; None if some of it has no end."""
    shares = [task.progress() for task in tasks]
    known = [share for share in shares if share is not None]
    return None if len(known) < len(shares) else min(known, default=1.0)
