"""Builds, starts and stops the rooms of one worker (`millwheel.runtime`), which do the work; none
of them imports this module."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from millwheel.core.clock import Clock, SystemClock
from millwheel.errors import DeployRefused, Fenced, QueriesChanged, StoreWentBack
from millwheel.pipeline import Pipeline
from millwheel.runtime.environment import Environment, Options
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.observer import Observer
from millwheel.runtime.lane.lane import Lane
from millwheel.runtime.modes.choosing import Modes
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.network.peer_ports import Network
from millwheel.runtime.network.remote_intervals import RemoteIntervals
from millwheel.runtime.ownership.balancer import Balancer
from millwheel.runtime.ownership.claiming import Claiming, Decide, LeaseGuard, Pauses
from millwheel.runtime.ownership.deploying import (
    connect_steps,
    deploy,
    log_changes,
    log_rekeyed,
)
from millwheel.runtime.ownership.heartbeat import Heartbeat
from millwheel.runtime.ownership.joining import (
    end_dead_workers,
    give_up_lease,
    hand_all_over,
    register,
)
from millwheel.runtime.ownership.own_outputs import log_withheld, writes_files
from millwheel.runtime.ownership.owned_intervals import OwnedIntervals
from millwheel.runtime.ownership.store_clock import StoreClock
from millwheel.runtime.process.late_use import LateUses
from millwheel.runtime.process.lease import Lease
from millwheel.runtime.process.load import Process
from millwheel.runtime.process.service import Service
from millwheel.runtime.process.tasks import end, unless
from millwheel.runtime.restarts import OutputsSwitched, Restarts
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.runtime.source.injector import Injector
from millwheel.runtime.source.source_tasks import SourceTasks
from millwheel.runtime.upkeep.completion import Completion
from millwheel.runtime.upkeep.figures import WorkerFigures
from millwheel.runtime.upkeep.folding import Folding
from millwheel.runtime.upkeep.housekeeping import Housekeeping
from millwheel.runtime.upkeep.request_desk import RequestDesk
from millwheel.runtime.upkeep.store_waits import StoreWaits
from millwheel.store.port import Store
from millwheel.store.port.deploy import Deployment

DEFAULT_OPTIONS = Options()


class Engine:
    """Runs one pipeline on one store, in this event loop.

    Args:
        take_over: claim intervals even from a worker that is alive; it will be fenced.
        network: makes this worker's network from its id, to share the pipeline: the engine then
            claims no interval by itself. None: this worker claims all intervals.
        worker: this worker's id, a UUID that no other worker has; None: a new one.
        process: measures the costs of this process.
        renew: gives the pipeline with the queries that the store has; the engine runs it in place
            of `pipeline`, and asks again whenever it starts over.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: Store,
        *,
        clock: Clock | None = None,
        options: Options = DEFAULT_OPTIONS,
        take_over: bool = False,
        network: Callable[[str], Network] | None = None,
        worker: str | None = None,
        process: Process | None = None,
        renew: Callable[[], Awaitable[Pipeline]] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.graph = pipeline.graph()
        self._renew = renew
        self.settings = pipeline.settings
        self.store = store
        self.clock = clock or SystemClock()
        self.worker = worker or str(uuid.uuid4())
        self.log = options.logger().bind(pipeline=pipeline.name, worker=self.worker[:8])
        self.done = asyncio.Event()
        """Set when no source has a row to read, now or ever, and all effects of rows read are
        stored. Cleared when a row arrives."""
        self.observer = Observer()
        self.late_uses = LateUses(self.log, self.fail)
        self._options = options
        self._take_over = take_over
        self._process = process or Process()
        self._network = None if network is None else network(self.worker)
        self._listens = False
        self.failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._ended = asyncio.Event()
        self._beside: list[tuple[Callable[[Engine], Service], str]] = []
        """Services that run with the engine, by maker and name."""
        self._restarts = Restarts(self)
        self.heartbeat: Heartbeat | None = None
        """None before the worker has registered."""
        self.blocked_by: str | None = None
        """The code that blocks the event loop at this moment, set by another thread."""
        self.blocked_seconds = 0.0
        """Total time for which the event loop was blocked, without short times."""
        self._processed_before = 0
        self._given = 0
        """The greatest bundle number known at a start over; 0: there was none."""
        self._build()

    def _build(self) -> None:
        """Nothing in the parts is older than this start."""
        self.started = False
        """Intervals were claimed or, in a shared pipeline, located."""
        self.done.clear()
        self.env = env = Environment(
            self.graph,
            self.settings,
            self.store,
            self.clock,
            self.log,
            self.worker,
            self._process,
            self._options,
            fail=self.fail,
            check_finished=lambda: self._completion.check(),
            done=self.done,
            late_uses=self.late_uses,
            is_shared=self._network is not None,
        )
        self.lease = Lease(self.clock, self.settings.lease_seconds)
        self.buckets = Buckets(self.store, self.settings, env.stamps, shared=env.is_shared)
        self.exchange = exchange = Exchange(env, self.observer)
        self.publisher = WatermarkPublisher(env, exchange)
        self.modes = Modes(env, exchange)
        self.sources = SourceTasks(env, exchange, self.buckets, self.publisher)
        self.lane = Lane(env, exchange, self.buckets, self.publisher, self.modes)
        self.courier = None if self._network is None else self._build_courier(self._network)
        """None if this worker is alone."""
        self.owned = OwnedIntervals(
            env,
            exchange,
            self.buckets,
            self.publisher,
            self.modes,
            self.sources,
            self.lane,
            self.courier,
        )
        self.figures = WorkerFigures(env, exchange, self.courier)
        self._store_clock = StoreClock(env)
        self._completion = Completion(env, exchange, self.publisher, self.lane, self.sources.paused)
        self.lane.use(self.owned.restoring)
        self.sources.on_partitions = self.owned.take_new
        self.sources.on_ended = self.owned.retire

    def _build_courier(self, network: Network) -> Courier:
        publisher, pause = self.publisher, self.sources.paused.set
        courier = Courier(self.env, self.exchange, publisher, self.lease, network, pause)
        self.exchange.remote = courier
        self.modes.connect(courier)
        publisher.publish = courier.sender.publish
        return courier

    # -- start ------------------------------------------------------------------------

    async def start(self) -> None:
        """Deploy and run; a worker that is alone claims every interval.

        Raises:
            DeployRefused: the stored pipeline and this code do not agree.
            UsageError: a live worker holds the pipeline's intervals.
            InputError: a source is missing or has changed.
        """
        self._ended.clear()
        try:
            await self.begin()
        except (StoreWentBack, QueriesChanged) as error:
            await self._restarts.start_over(error)
        self._restarts.watch()

    def attend(self, make: Callable[[Engine], Service], name: str) -> None:
        self._beside.append((make, name))
        if self.started:  # otherwise `begin` starts it
            self.env.spawn(make(self).run(), name)

    def observe(self, observer: Observer) -> None:
        self.observer = self.exchange.observer = observer

    async def begin(self) -> None:
        await self._take_queries()
        env = self.env
        incarnation = await env.patiently(self.store.incarnation)
        # Listen first: a worker that cannot be reached must not begin a generation.
        address = "" if self._network is None else await self._listen(self._network, incarnation)
        deployment = await self._deploy()
        env.generation, env.rekeyed = deployment.generation, deployment.rekeyed
        env.copied = deployment.copied
        log_changes(env, deployment)
        log_rekeyed(env, deployment)
        log_withheld(env)
        first = deployment.is_first and not self._restarts.under_way
        await self.modes.number_bundles(incarnation, above=self._given, is_first=first)
        await register(env, self.lease, address)
        if self._network is None:
            await end_dead_workers(env, self.pipeline.name, take_over=self._take_over)
        self.heartbeat = Heartbeat(
            env,
            self.lease,
            self.figures.load,
            self._store_clock.set,
            partial(self._restarts.wanted, OutputsSwitched()),
        )
        env.spawn(self.heartbeat.run(), "heartbeat")  # claiming may take longer than a lease
        connect_steps(self.exchange.steps, env, deployment)
        if writes_files(env):
            env.file_owner = await env.store_id()
        self.publisher.connect()
        await self.lane.start()
        await self._take_intervals(deployment)
        self._start_services()
        self.started = True
        self.log.info("started", intervals=len(self.intervals), generation=deployment.generation)

    async def _deploy(self) -> Deployment:
        try:
            return await deploy(self.env)
        except QueriesChanged as error:
            if self._renew is None:
                raise DeployRefused(str(error)) from error
            raise

    async def _take_queries(self) -> None:
        """Take the graph with the queries that the store has now."""
        if self._renew is None:
            return
        pipeline = await self.env.patiently(self._renew)
        if pipeline is not self.pipeline:
            self.pipeline, self.graph = pipeline, pipeline.graph()
            self._build()

    async def _listen(self, network: Network, incarnation: str) -> str:
        """Adopts the store's clock too; returns this worker's address."""
        assert self.courier is not None
        if self._listens:
            network.begin_again(self.courier, incarnation)
        else:
            await network.start(self.courier, incarnation)
            self._listens = True
        before = self.clock.now()
        self._store_clock.set(before, await self.env.patiently(self.store.now))
        return network.address

    async def _take_intervals(self, deployment: Deployment) -> None:
        """Claim all intervals or, in a shared pipeline, locate those of other workers."""
        if self.courier is not None:
            await self.courier.remotes.refresh()
            return
        pauses = Pauses(self.env, self.sources.paused)
        await pauses.run_once()
        await self.owned.take([row.id for row in deployment.intervals])
        self.env.spawn(pauses.run(), "pauses")

    def _start_services(self) -> None:
        env, exchange, buckets = self.env, self.exchange, self.buckets
        self.housekeeping = Housekeeping(
            env, exchange, buckets, self.publisher, self.lane.letters, self.courier
        )
        self.folding = Folding(env, exchange, buckets)
        env.spawn(self.housekeeping.run(), "housekeeping")
        env.spawn(self.folding.run(), "folding")
        assert self.heartbeat is not None
        commits, beats = self.lane.committer, self.heartbeat
        waits = StoreWaits(env, lambda: commits.waits_since, lambda: beats.waits_since)
        env.spawn(waits.run(), "store waits")
        env.spawn(self._attend_requests(), "request desk")
        self.modes.start()
        for make, name in self._beside:
            env.spawn(make(self).run(), name)

    async def _attend_requests(self) -> None:
        """A run does not end before it has looked for requests once."""
        desk = RequestDesk(self.env, self.exchange)
        await self.env.patiently(desk.run_once)
        self._completion.is_open = True
        self._completion.check()
        await desk.run()

    # -- run and stop -------------------------------------------------------------------

    async def run(self, stop: asyncio.Event | None = None, *, until_done: bool = True) -> None:
        """Wait until all input is processed, `stop` is set, or the engine fails, is stopped or is
        killed.

        Args:
            until_done: False: do not end at `done`, since more input may arrive later.

        Raises:
            MillwheelError: why the engine could not continue; no acknowledged record is lost.
        """
        events = [self._failed, self._ended, *([self.done] if until_done else [])]
        if stop is not None:
            events.append(stop)
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.late_uses.check_tasks(all_is_done=self.done.is_set())
        if self.failure is not None:
            raise self.failure

    async def stop(self) -> None:
        """Stop in order: read no more, commit finished work, give up the lease."""
        env = self.env
        env.stopping = True
        await self._restarts.close()
        if self._restarts.under_way or self._restarts.is_wanted:
            await self.kill()
            await give_up_lease(env)
            return
        if self.courier is not None and self.failure is None:
            await hand_all_over(env, self.owned)
        for task in self.exchange.source_tasks:
            await task.stop()
        await self.lane.stop_running()
        if self.failure is None:
            await unless(self._failed, self.lane.committer.finish())
        await self.kill()
        for interval in self.intervals:
            if interval.ownership is Ownership.HELD:
                interval.transition("release")
        await give_up_lease(env)
        await env.graph.close_sinks()

    async def kill(self) -> None:
        """Stop at once, as in a crash: without a commit, and without notice to other workers."""
        await self._restarts.close()
        await self._drop_everything()
        if self.courier is not None:
            await self.courier.close()
        self._ended.set()

    async def _drop_everything(self) -> None:
        self._given = max(self._given, self.modes.close())
        self.lane.letters.flush(all_of_them=True)
        while self.env.tasks:
            await end(list(self.env.tasks))
        await self.lane.stop_running()
        await self.lane.close()
        for task in self.exchange.source_tasks:
            await task.stop()
            task.close()
        for interval in self.intervals:
            if interval.part_file is not None:
                interval.part_file.close()

    def reload(self) -> None:
        """Continue as the generation of the store's queries: a takeover from oneself."""
        self._restarts.wanted(QueriesChanged("queries were submitted, replaced or dropped"))

    async def are_queries_changed(self) -> bool:
        stored = await self.env.patiently(self.store.queries_revision)
        return self._renew is not None and stored != self.graph.submitted.revision

    async def commit_finished_work(self) -> None:
        """Read no more rows, and commit finished work: records that wait run again later."""
        for task in self.exchange.source_tasks:
            await task.stop()
        await self.lane.stop_running()
        await self.lane.committer.finish()

    async def drop_and_forget(self) -> None:
        self.started = False
        if self.courier is not None:  # first: no message from before the store went back may pass
            self.courier.hang_up()
        await self._drop_everything()
        for interval in list(self.intervals):
            self.observer.interval_gone(interval)
        self._processed_before = self.processed
        self._build()
        self.store.begin_again()

    # -- sharing the pipeline -------------------------------------------------------------

    def claiming(self, decide: Decide | None = None) -> Claiming:
        """The service that takes and hands over intervals; `decide` replaces the balancer."""
        assert self.courier is not None
        decide = decide or Balancer(self.env)
        return Claiming(self.env, self.exchange, self.owned, self.courier, self.lease, decide)

    def lease_guard(self) -> LeaseGuard:
        return LeaseGuard(self.env, self.exchange, self.owned, self.lease)

    @property
    def remotes(self) -> RemoteIntervals:
        assert self.courier is not None
        return self.courier.remotes

    @property
    def out_of_touch(self) -> frozenset[str]:
        """Workers that this one cannot reach; empty unless that keeps it from sharing the
        pipeline."""
        return frozenset() if self.courier is None else self.courier.remotes.out_of_touch

    @property
    def unowned(self) -> int:
        return 0 if self.courier is None else self.courier.remotes.unowned

    # -- state ------------------------------------------------------------------

    def fail(self, error: BaseException | None) -> None:
        """Stop with an error; only the first one counts.

        `StoreWentBack` is no failure: the engine starts over or, while stopping, ends without
        another commit. A worker that is alone may be fenced by a query that was dropped.
        """
        is_alone = self._network is None
        if isinstance(error, StoreWentBack) or (
            isinstance(error, Fenced) and is_alone and self._renew is not None
        ):
            self._restarts.wanted(error)
            if self.stopping:
                self._failed.set()
            return
        if self.failure is None and error is not None:
            self.failure = error
            self._failed.set()

    @property
    def stopping(self) -> bool:
        return self.env.stopping

    @property
    def processed(self) -> int:
        """Records and timers with durable effects in this run."""
        return self._processed_before + self.env.processed

    @property
    def intervals(self) -> list[Interval]:
        return self.exchange.intervals

    @property
    def injectors(self) -> list[Injector]:
        return [task for task in self.exchange.source_tasks if isinstance(task, Injector)]

    def progress(self) -> dict[str, Any]:
        return {**self.figures.progress(), "processed": self.processed}
