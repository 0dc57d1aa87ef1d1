"""A worker among others: it takes what it should own, and hands over what others should.

Nobody rules (decision 22). Each worker looks at the store every second, and sooner when somebody
was not who was thought to own an interval. Whoever holds the advisory lock also says who should own
what, and what is to be cut; that is written down as wishes, which the owners carry out, as they do
those of an operator (decision 25).

What is to leave or to be cut drains first. User code may keep it from that for as long as it likes, and
must not keep this worker from anything else::

    look ──> take ──> drain what is wished away or cut ──> all are through ────> release, cut, take back
      ^                   │                                or soon is over          (those that are)
      └───────────────────┴── an interval drains on beside the next looks; once it is
                              through it is looked for; if nobody wishes it any more, it is kept
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Set
from functools import partial

from millwheel.errors import Fenced, PlacementRefused, StoreUnavailable
from millwheel.placement import in_touch
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.ownership.balancer import living
from millwheel.runtime.ownership.owned_intervals import OwnedIntervals
from millwheel.runtime.process.lease import Lease
from millwheel.runtime.process.service import Service
from millwheel.runtime.process.tasks import within
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.store.port import Lapse, PlacedInterval, Placement, PlacementChange

Act = tuple[list[Interval], Callable[[], Awaitable[None]]]
"""What is to be done about intervals as soon as they are drained."""

Decide = Callable[[Placement], list[PlacementChange]]
"""Who should own what, and what is to be cut, decided from what there is."""


class Claiming(Service):
    """Claims, hands over, and decides if it is this worker's turn to.

    Args:
        decide: the balancer's decisions.
    """

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
        """The others go on without this worker, by what all have said."""
        self._draining: set[Interval] = set()
        """What was wished to leave or to be cut, and may not be through yet."""

    async def run(self) -> None:
        """Work until cancelled; whoever asks for a look does not wait for its turn."""
        while True:
            self._remotes.refresh_wanted.clear()
            with contextlib.suppress(StoreUnavailable):
                await self.run_once()
            waits = [
                asyncio.ensure_future(self._remotes.refresh_wanted.wait()),
                asyncio.ensure_future(self._env.clock.sleep(self._period)),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                await self._env.clock.sleep(self._period / 10)  # asked a hundred times, look once
            finally:
                for wait in waits:
                    wait.cancel()

    async def run_once(self) -> None:
        """Look, decide, take, hand over, cut."""
        placement = await self._remotes.refresh()
        is_placed = self._lease.left > 0
        self._notice_who_is_out_of_touch(placement)
        if await self._env.store.try_lead(self._env.settings.lease_seconds):
            wishes = self._decide(placement)
            if wishes and await self._env.store.wish(wishes):
                placement = await self._remotes.refresh()
                is_placed = self._lease.left > 0
        if self._env.stopping or self._lease.left <= 0 or not is_placed:
            return  # what was not placed, though the lease is renewed by now, may have been cut
        self._let_commits_tell(placement)
        await self._owned.change(self._take(placement))
        await self._owned.change(self._carry_out(placement))

    def _notice_who_is_out_of_touch(self, placement: Placement) -> None:
        """See whether this worker reaches the others, and say so when that changes.

        Who goes on if they do not reach each other is decided by what all have said in the store,
        so that all come to the same. One that is new has said nothing yet: it is out of touch
        until it has reached somebody.
        """
        alive = living(placement)
        together = {worker.id for worker in in_touch(alive)}
        others = frozenset(together - {self._env.worker})
        left_out = self._env.worker in {worker.id for worker in alive} - together
        if left_out and not self._left_out:
            self._env.log.warning(
                "out_of_touch",
                others=sorted(worker[:8] for worker in others),
                what_it_means="this worker and those who share the pipeline do not reach each "
                "other: it hands over what it has, and takes nothing",
                what_to_do="see link_down and stranger_refused, here and there: all need the same "
                "secret, certificates that the others trust, an address that they can call",
            )
        elif self._left_out and not left_out:
            self._env.log.info("in_touch_again", others=sorted(worker[:8] for worker in others))
        self._left_out = left_out
        is_new = not self._exchange.intervals and not any(map(self._courier.peers.reaches, others))
        self._remotes.out_of_touch = others if left_out or is_new else frozenset()

    def _let_commits_tell(self, placement: Placement) -> None:
        """Have intervals commit that others have had meanwhile: that is refused, and ends work on them.

        One that has nothing to store would else be kept, and be nobody's if it is wished back here.
        """
        rows = {row.id: row for row in placement.intervals}
        for interval in self._exchange.intervals:
            row = rows.get(interval.id)
            if row is not None and row.owner == self._env.worker:
                continue  # a higher sequencer is of a claim of our own
            if row is None or row.sequencer > interval.commits.sequencer:
                interval.touch(urgent=True)

    async def _take(self, placement: Placement) -> None:
        await self._claim(
            {row.id: row.sequencer for row in placement.intervals if self._is_for_us(row)}
        )

    async def _claim(self, wanted: dict[int, int]) -> None:
        """Take intervals that are as they were seen, by their sequencers."""
        if wanted:
            try:
                taken = await self._owned.take(list(wanted), wanted)
            except Fenced:  # one was merged or removed as soon as it was claimed: look again
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

    # -- what is to leave or to be cut ----------------------------------------------------

    async def _carry_out(self, placement: Placement) -> None:
        """Hand over, split and merge what is drained, and let drain what is to be."""
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
            and (interval := self._owned.at_hand(row.id)) is not None
        ]

    async def _hand_over(self, interval: Interval) -> None:
        self._env.log.info("hands_over", interval=interval.name)
        await self._owned.give_up(interval)

    def _keep(self, placement: Placement, wished: Set[Interval]) -> list[Act]:
        """Go on with what drains and is not wished away any more; what cannot be gone on with
        is given up, and taken back if it is free."""
        draining = [i for i in self._owned.draining if i in self._draining]
        self._draining = set(draining)
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
        """What is wished to be split and merged, of intervals that are as they were when that was
        wished, and do not leave."""
        acts: list[Act] = []
        rows = {row.id: row for row in placement.intervals}
        for row in placement.intervals:
            interval = self._owned.at_hand(row.id)
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

    async def _to_merge_with(self, lower: Interval, row: PlacedInterval | None) -> Interval | None:
        """The neighbour that an interval is to be merged with; None: it is on its way here, or
        will never be."""
        if row is None or self._env.worker not in (row.owner, row.wanted_by):
            reason = "its neighbour is another's, or was cut meanwhile"
            self._env.log.warning("not_merged", interval=lower.name, error=reason)
            await self._env.store.wish([Lapse(lower.id, lower.commits.sequencer, reason)])
            return None
        return self._owned.at_hand(row.id)

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
        """Claim at once what was given up to be cut, and what came of it; nobody waits for a
        lease. If this worker ends before, others find free intervals."""
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
    """Sees which injectors are to rest, where this worker is alone and needs to see no more."""

    def __init__(self, env: Environment, paused: PausedInjectors) -> None:
        super().__init__(env.clock, env.settings.placement_seconds)
        self._env = env
        self._paused = paused

    async def run_once(self) -> None:
        placement = await self._env.store.read_placement()
        self._paused.set(placement.paused)


class LeaseGuard(Service):
    """Lets go of everything when the lease is as good as over."""

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
