"""Claiming: a worker claims the intervals that it should own, and hands over those of others.

There is no master (decision 22). Each worker reads the placement every second, and at once when an
interval has another owner than expected. The leader also writes wishes: owners, splits and merges.
The owners carry them out, like the wishes of an operator (decision 25).

An interval drains before it is handed over, split or merged. User code may delay a drain for any
time, and the worker does its other work during that time::

    read placement ──> claim ──> start drains, wait a moment ──> drained: release, cut, take back
          ^                                                        │
          └──────────── at the next period, or when a drain ends ──┘

If the wish is withdrawn during the drain, the interval is kept.

An interval is split only when its strong productions are acknowledged: its upper part does not know
the former log, and could send newer records of a key before older ones (I14). If that takes longer
than `ACKNOWLEDGED_SECONDS`, the wish lapses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Set
from functools import partial

from millwheel.errors import Fenced, PlacementRefused, StoreUnavailable
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.ownership.balancer import living
from millwheel.runtime.ownership.owned_intervals import OwnedIntervals
from millwheel.runtime.ownership.planner import in_touch
from millwheel.runtime.process.lease import Lease
from millwheel.runtime.process.service import Service
from millwheel.runtime.process.tasks import within
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.store.port.placement import Lapse, PlacedInterval, Placement, PlacementChange

ACKNOWLEDGED_SECONDS = 2.0
"""An interval stands still for at most this time while its readers do not acknowledge."""

ALERT_SECONDS = 2.0
"""The placement is read ten times as often after a link has gone down: the liveness lock of a dead
worker is free within a fifth of a second, and the leader's wishes follow."""

Act = tuple[list[Interval], Callable[[], Awaitable[None]]]
"""Intervals, and the action once all of them are drained."""

Decide = Callable[[Placement], list[PlacementChange]]


class Claiming(Service):
    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        owned: OwnedIntervals,
        courier: Courier,
        lease: Lease,
        decide: Decide,
    ) -> None:
        super().__init__(env.clock, env.settings.placement_seconds)
        self._env = env
        self._exchange = exchange
        self._owned = owned
        self._courier = courier
        self._remotes = courier.remotes
        self._lease = lease
        self._decide = decide
        self._left_out = False
        self._draining: set[Interval] = set()
        self._drained_since: dict[Interval, float] = {}

    async def run(self) -> None:
        while True:
            self._remotes.refresh_wanted.clear()
            with contextlib.suppress(StoreUnavailable):
                await self.run_once()
            if not self._courier.peers.lost_within(ALERT_SECONDS):
                await self._wait_for_request()
            await self._env.clock.sleep(self._period / 10)  # one read serves many requests

    async def _wait_for_request(self) -> None:
        waits = [
            asyncio.ensure_future(self._remotes.refresh_wanted.wait()),
            asyncio.ensure_future(self._env.clock.sleep(self._period)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def run_once(self) -> None:
        placement = await self._remotes.refresh()
        placement.refuse_elsewhere()
        if await self._end_lost_leases(placement):
            placement = await self._remotes.refresh()
        is_placed = self._lease.left > 0
        self._update_reachability(placement)
        lease = self._env.settings.lease_seconds
        term = await self._env.store.try_lead(self._env.worker, lease)
        if term is not None:
            wishes = self._decide(placement)
            if wishes and await self._env.store.wish(wishes, term):
                placement = await self._remotes.refresh()
                is_placed = self._lease.left > 0
        if self._env.stopping or self._lease.left <= 0 or not is_placed:
            return  # without a lease when the placement was read, others may have cut our intervals
        self._touch_lost_intervals(placement)
        await self._owned.change(self._take(placement))
        await self._owned.change(self._carry_out(placement))

    async def _end_lost_leases(self, placement: Placement) -> list[str]:
        """End leases of workers that are out of reach and hold their liveness lock no more.

        One sign is not enough: a link breaks with a network, a session when an operator ends it.
        """
        out_of_reach = set(self._courier.peers.down())
        suspects = [worker.id for worker in living(placement) if worker.id in out_of_reach]
        if not suspects:
            return []
        lost = await self._env.store.end_lost_leases(suspects)
        for worker in lost:
            self._env.log.warning(
                "worker_lost",
                peer=worker,
                what_it_means=(
                    "its process has ended without a farewell: no link leads to it, and its "
                    "liveness lock in the store is free. The others claim its intervals now"
                ),
            )
        return lost

    def _update_reachability(self, placement: Placement) -> None:
        """If workers cannot reach each other, all of them derive from the stored reports which ones
        continue.

        A new worker counts as out of touch until it has reached another one.
        """
        alive = living(placement)
        together = {worker.id for worker in in_touch(alive)}
        others = frozenset(together - {self._env.worker})
        left_out = self._env.worker in {worker.id for worker in alive} - together
        if left_out and not self._left_out:
            self._env.log.warning(
                "out_of_touch",
                others=sorted(worker[:8] for worker in others),
                what_it_means=(
                    "this worker and the other workers of the pipeline do not reach each "
                    "other: it hands its intervals over, and claims no more"
                ),
                what_to_do=(
                    "see link_down and stranger_refused in the logs of all workers: all need "
                    "the same secret, certificates that the others trust, and an address that the "
                    "others can connect to"
                ),
            )
        elif self._left_out and not left_out:
            self._env.log.info("in_touch_again", others=sorted(worker[:8] for worker in others))
        self._left_out = left_out
        is_new = not self._exchange.intervals and not any(map(self._courier.peers.reaches, others))
        self._remotes.out_of_touch = others if left_out or is_new else frozenset()

    def _touch_lost_intervals(self, placement: Placement) -> None:
        """Request commits of intervals that another worker has claimed since.

        The store refuses them, which ends the work. Without that, an interval with nothing to
        commit would stay here, and no worker would run it if it is wished back here.
        """
        rows = {row.id: row for row in placement.intervals}
        for interval in self._exchange.intervals:
            row = rows.get(interval.id)
            if row is not None and row.owner == self._env.worker:
                continue  # a higher sequencer comes from our own claim
            if row is None or row.sequencer > interval.commits.sequencer:
                interval.touch(urgent=True)

    async def _take(self, placement: Placement) -> None:
        await self._claim(
            {row.id: row.sequencer for row in placement.intervals if self._is_for_us(row)}
        )

    async def _claim(self, wanted: dict[int, int]) -> None:
        if wanted:
            try:
                taken = await self._owned.take(list(wanted), wanted)
            except Fenced:  # one was merged or removed right after the claim: read again
                self._remotes.request_refresh()
                return
            if taken:
                self._env.log.info("took", intervals=[interval.name for interval in taken])

    def _is_for_us(self, row: PlacedInterval) -> bool:
        if self._exchange.knows(row.id) or row.computation not in self._exchange.steps:
            return False
        if row.owner == self._env.worker:
            return True
        return row.wanted_by == self._env.worker and row.is_free and not self._remotes.out_of_touch

    # -- wishes -----------------------------------------------------------------------------

    async def _carry_out(self, placement: Placement) -> None:
        acts = self._hand_overs(placement)
        acts += await self._cuts(placement, {i for intervals, _ in acts for i in intervals})
        wished = {interval: None for intervals, _ in acts for interval in intervals}
        acts += self._keep(placement, wished.keys())
        begun = {i: self._owned.drain(i) for i in wished if not i.leaving}
        self._draining.update(wished)
        if begun:
            with contextlib.suppress(TimeoutError):
                await within(self._env.clock, self._period, asyncio.wait(begun.values()))
        for interval, drain in begun.items():
            if not drain.done():
                self._env.log.info("drains", interval=interval.name, keys=len(interval.backlog))
                drain.add_done_callback(lambda _: self._remotes.request_refresh())
        for intervals, act in acts:
            if all(map(self._owned.is_drained, intervals)):
                await act()

    def _hand_overs(self, placement: Placement) -> list[Act]:
        alive = {worker.id for worker in placement.workers if worker.lease_left > 0}
        return [
            ([interval], partial(self._hand_over, interval))
            for row in placement.intervals
            if row.owner == self._env.worker
            and row.wanted_by not in (None, self._env.worker)
            and row.wanted_by in alive
            and (self._left_out or self._courier.peers.reaches(row.wanted_by))
            and (interval := self._owned.held_or_draining(row.id)) is not None
        ]

    async def _hand_over(self, interval: Interval) -> None:
        self._env.log.info("hands_over", interval=interval.name)
        await self._owned.give_up(interval)

    def _keep(self, placement: Placement, wished: Set[Interval]) -> list[Act]:
        """Resume intervals with a withdrawn wish; one that cannot be resumed is given up, and
        claimed again if it is free."""
        draining = [i for i in self._owned.draining if i in self._draining]
        self._draining = set(draining)
        self._drained_since = {i: t for i, t in self._drained_since.items() if i in self._draining}
        rows = {row.id: (row.owner, row.sequencer) for row in placement.intervals}
        acts: list[Act] = []
        for interval in draining:
            if interval in wished:
                continue
            is_ours = rows.get(interval.id) == (self._env.worker, interval.commits.sequencer)
            if is_ours and interval.source_task is None:
                self._env.log.info("keeps", interval=interval.name)
                self._owned.keep(interval)
            else:
                acts.append(([interval], partial(self._give_up_and_take_back, interval)))
        return acts

    async def _give_up_and_take_back(self, interval: Interval) -> None:
        await self._owned.give_up(interval)
        await self._take_back({interval.id})

    # -- splits and merges --------------------------------------------------------------

    async def _cuts(self, placement: Placement, leaving: Set[Interval]) -> list[Act]:
        acts: list[Act] = []
        rows = {row.id: row for row in placement.intervals}
        for row in placement.intervals:
            interval = self._owned.held_or_draining(row.id)
            if (
                interval is None
                or interval in leaving
                or interval.commits.sequencer != row.sequencer
            ):
                continue
            if row.split_at is not None:
                acts.append(([interval], partial(self._split, interval, row.split_at)))
            elif row.merge_with is not None:
                upper = await self._to_merge_with(interval, rows.get(row.merge_with))
                if upper is not None and upper not in leaving:
                    acts.append(([interval, upper], partial(self._merge, interval, upper)))
        return acts

    async def _split(self, interval: Interval, at: int) -> None:
        if not _may_be_split(interval):
            await self._split_later(interval)
            return
        self._env.log.info("splits", interval=interval.name, at=at)
        concerned = {interval.id}
        if await self._owned.give_up(interval):
            try:
                concerned.add(
                    await self._env.patiently(
                        lambda: self._env.store.split(interval.id, interval.commits.sequencer, at)
                    )
                )
            except (Fenced, PlacementRefused) as error:
                self._env.log.warning("not_split", interval=interval.name, error=str(error))
        await self._take_back(concerned)

    async def _split_later(self, interval: Interval) -> None:
        now = self._env.clock.monotonic()
        if now < self._drained_since.setdefault(interval, now) + ACKNOWLEDGED_SECONDS:
            self._remotes.request_refresh()
            return
        reason = f"its readers did not acknowledge its records within {ACKNOWLEDGED_SECONDS:.0f} s"
        self._env.log.warning("not_split", interval=interval.name, error=reason)
        await self._env.store.wish([Lapse(interval.id, interval.commits.sequencer, reason)])

    async def _to_merge_with(self, lower: Interval, row: PlacedInterval | None) -> Interval | None:
        """The upper neighbour.

        None if it is not here yet, or if the wish was dropped: another worker owns and keeps the
        neighbour, or it was cut.
        """
        if row is None or self._env.worker not in (row.owner, row.wanted_by):
            reason = "its neighbour belongs to another worker, or was split or merged since"
            self._env.log.warning("not_merged", interval=lower.name, error=reason)
            await self._env.store.wish([Lapse(lower.id, lower.commits.sequencer, reason)])
            return None
        return self._owned.held_or_draining(row.id)

    async def _merge(self, lower: Interval, upper: Interval) -> None:
        self._env.log.info("merges", lower=lower.name, upper=upper.name)
        concerned = {lower.id, upper.id}
        done = await asyncio.gather(*map(self._owned.give_up, (lower, upper)))
        if all(done):
            sequencers = {part.id: part.commits.sequencer for part in (lower, upper)}
            try:
                concerned.add(
                    await self._env.patiently(
                        lambda: self._env.store.merge(lower.id, upper.id, sequencers)
                    )
                )
            except (Fenced, PlacementRefused) as error:
                self._env.log.warning("not_merged", interval=lower.name, error=str(error))
        await self._take_back(concerned)

    async def _take_back(self, concerned: set[int]) -> None:
        """Claims intervals that were given up for a cut, and the results, without a lease wait.

        If this worker ends before, others find free intervals.
        """
        placement = await self._remotes.refresh()
        if self._env.stopping or self._lease.left <= 0:
            return
        await self._claim(
            {
                row.id: row.sequencer
                for row in placement.intervals
                if row.id in concerned
                and row.owner is None
                and row.wanted_by in (None, self._env.worker)
            }
        )


class Pauses(Service):
    """Reads which injectors are paused, for a worker that has the pipeline to itself, and so no
    `Claiming`."""

    def __init__(self, env: Environment, paused: PausedInjectors) -> None:
        super().__init__(env.clock, env.settings.placement_seconds)
        self._env = env
        self._paused = paused

    async def run_once(self) -> None:
        placement = await self._env.store.read_placement()
        placement.refuse_elsewhere()
        self._paused.set(placement.paused)


class LeaseGuard(Service):
    def __init__(
        self, env: Environment, exchange: Exchange, owned: OwnedIntervals, lease: Lease
    ) -> None:
        super().__init__(env.clock, env.settings.lease_seconds / 50)
        self._env = env
        self._exchange = exchange
        self._owned = owned
        self._lease = lease

    async def run_once(self) -> None:
        if self._lease.left <= 0 and self._exchange.intervals:
            self._env.log.warning("lease_over", intervals=len(self._exchange.intervals))
            await self._owned.lose_all()


def _may_be_split(interval: Interval) -> bool:
    """Whether no record that it has sent can be overtaken by one that a part of it sends."""
    return interval.step.node.is_weak or interval.logs.are_drained
