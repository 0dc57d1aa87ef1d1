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
from typing import TYPE_CHECKING

from millwheel.errors import Fenced, PlacementRefused, StoreUnavailable
from millwheel.placement import in_touch
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.ownership.balancer import living
from millwheel.runtime.process.service import Service
from millwheel.runtime.process.tasks import within
from millwheel.store.port import Lapse, PlacedInterval, Placement, PlacementChange

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

Act = tuple[list[Interval], Callable[[], Awaitable[None]]]
"""What is to be done about intervals as soon as they are drained."""

Decide = Callable[[Placement], list[PlacementChange]]
"""Who should own what, and what is to be cut, decided from what there is."""


class Placing(Service):
    """Claims, hands over, and decides if it is this worker's turn to.

    Args:
        decide: the balancer's decisions.
    """

    def __init__(self, engine: Engine, decide: Decide) -> None:
        super().__init__(engine.clock, engine.settings.placement_seconds)
        self._engine = engine
        self._decide = decide
        self._left_out = False
        """The others go on without this worker, by what all have said."""
        self._draining: set[Interval] = set()
        """What was wished to leave or to be cut, and may not be through yet."""

    async def run(self) -> None:
        """Work until cancelled; whoever asks for a look does not wait for its turn."""
        engine = self._engine
        while True:
            engine.neighbours.look_up_wanted.clear()
            with contextlib.suppress(StoreUnavailable):
                await self.run_once()
            waits = [
                asyncio.ensure_future(engine.neighbours.look_up_wanted.wait()),
                asyncio.ensure_future(engine.clock.sleep(self._period)),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                await engine.clock.sleep(self._period / 10)  # asked a hundred times, look once
            finally:
                for wait in waits:
                    wait.cancel()

    async def run_once(self) -> None:
        """Look, decide, take, hand over, cut."""
        engine = self._engine
        placement = await engine.neighbours.look_around()
        is_placed = engine.lease.left > 0
        self._notice_who_is_out_of_touch(placement)
        if await engine.store.try_lead(engine.settings.lease_seconds):
            wishes = self._decide(placement)
            if wishes and await engine.store.wish(wishes):
                placement = await engine.neighbours.look_around()
                is_placed = engine.lease.left > 0
        if engine.stopping or engine.lease.left <= 0 or not is_placed:
            return  # what was not placed, though the lease is renewed by now, may have been cut
        self._let_commits_tell(placement)
        await engine.change(self._take(placement))
        await engine.change(self._carry_out(placement))

    def _notice_who_is_out_of_touch(self, placement: Placement) -> None:
        """See whether this worker reaches the others, and say so when that changes.

        Who goes on if they do not reach each other is decided by what all have said in the store,
        so that all come to the same. One that is new has said nothing yet: it is out of touch
        until it has reached somebody.
        """
        engine = self._engine
        assert engine.courier is not None
        alive = living(placement)
        together = {worker.id for worker in in_touch(alive)}
        others = frozenset(together - {engine.worker})
        left_out = engine.worker in {worker.id for worker in alive} - together
        if left_out and not self._left_out:
            engine.log.warning(
                "out_of_touch",
                others=sorted(worker[:8] for worker in others),
                what_it_means="this worker and those who share the pipeline do not reach each "
                "other: it hands over what it has, and takes nothing",
                what_to_do="see link_down and stranger_refused, here and there: all need the same "
                "secret, certificates that the others trust, an address that they can call",
            )
        elif self._left_out and not left_out:
            engine.log.info("in_touch_again", others=sorted(worker[:8] for worker in others))
        self._left_out = left_out
        is_new = not engine.intervals and not any(map(engine.courier.reaches, others))
        engine.out_of_touch = others if left_out or is_new else frozenset()

    def _let_commits_tell(self, placement: Placement) -> None:
        """Have intervals commit that others have had meanwhile: that is refused, and ends work on them.

        One that has nothing to store would else be kept, and be nobody's if it is wished back here.
        """
        engine = self._engine
        rows = {row.id: row for row in placement.intervals}
        for interval in engine.intervals:
            row = rows.get(interval.id)
            if row is not None and row.owner == engine.worker:
                continue  # a higher sequencer is of a claim of our own
            if row is None or row.sequencer > interval.sequencer:
                interval.touch(urgent=True)

    async def _take(self, placement: Placement) -> None:
        await self._claim(
            {row.id: row.sequencer for row in placement.intervals if self._is_for_us(row)}
        )

    async def _claim(self, wanted: dict[int, int]) -> None:
        """Take intervals that are as they were seen, by their sequencers."""
        engine = self._engine
        if wanted:
            try:
                taken = await engine.holdings.take(list(wanted), wanted)
            except Fenced:  # one was merged or removed as soon as it was claimed: look again
                engine.neighbours.look_up()
                return
            if taken:
                engine.log.info("took", intervals=[interval.name for interval in taken])

    def _is_for_us(self, row: PlacedInterval) -> bool:
        engine = self._engine
        if engine.holdings.knows(row.id) or row.computation not in engine.steps:
            return False
        if row.owner == engine.worker:
            return True
        return row.wanted_by == engine.worker and row.is_free and not engine.out_of_touch

    # -- what is to leave or to be cut ----------------------------------------------------

    async def _carry_out(self, placement: Placement) -> None:
        """Hand over, split and merge what is drained, and let drain what is to be."""
        engine, holdings = self._engine, self._engine.holdings
        acts = self._hand_overs(placement)
        acts += await self._cuts(placement, {i for intervals, _ in acts for i in intervals})
        wished = {interval: None for intervals, _ in acts for interval in intervals}
        acts += self._keep(placement, wished.keys())
        begun = {i: holdings.drain(i) for i in wished if not i.leaving}
        self._draining.update(wished)
        if begun:
            with contextlib.suppress(TimeoutError):
                await within(engine.clock, self._period, asyncio.wait(begun.values()))
        for interval, drain in begun.items():
            if not drain.done():
                engine.log.info("drains", interval=interval.name, keys=len(interval.backlog))
                drain.add_done_callback(lambda _: engine.neighbours.look_up())
        for intervals, act in acts:
            if all(map(holdings.is_drained, intervals)):
                await act()

    def _hand_overs(self, placement: Placement) -> list[Act]:
        engine = self._engine
        assert engine.courier is not None
        alive = {worker.id for worker in placement.workers if worker.lease_left > 0}
        return [
            ([interval], partial(self._hand_over, interval))
            for row in placement.intervals
            if row.owner == engine.worker
            and row.wanted_by not in (None, engine.worker)
            and row.wanted_by in alive
            and (self._left_out or engine.courier.reaches(row.wanted_by))
            and (interval := engine.holdings.at_hand(row.id)) is not None
        ]

    async def _hand_over(self, interval: Interval) -> None:
        self._engine.log.info("hands_over", interval=interval.name)
        await self._engine.holdings.give_up(interval)

    def _keep(self, placement: Placement, wished: Set[Interval]) -> list[Act]:
        """Go on with what drains and is not wished away any more; what cannot be gone on with
        is given up, and taken back if it is free."""
        engine = self._engine
        draining = [i for i in engine.holdings.draining if i in self._draining]
        self._draining = set(draining)
        rows = {row.id: (row.owner, row.sequencer) for row in placement.intervals}
        acts: list[Act] = []
        for interval in draining:
            if interval in wished:
                continue
            is_ours = rows.get(interval.id) == (engine.worker, interval.sequencer)
            if is_ours and interval.source_task is None:
                engine.log.info("keeps", interval=interval.name)
                engine.holdings.keep(interval)
            else:
                acts.append(([interval], partial(self._give_up_and_take_back, interval)))
        return acts

    async def _give_up_and_take_back(self, interval: Interval) -> None:
        await self._engine.holdings.give_up(interval)
        await self._take_back({interval.id})

    # -- splits and merges --------------------------------------------------------------

    async def _cuts(self, placement: Placement, leaving: Set[Interval]) -> list[Act]:
        """What is wished to be split and merged, of intervals that are as they were when that was
        wished, and do not leave."""
        acts: list[Act] = []
        rows = {row.id: row for row in placement.intervals}
        for row in placement.intervals:
            interval = self._engine.holdings.at_hand(row.id)
            if interval is None or interval in leaving or interval.sequencer != row.sequencer:
                continue
            if row.split_at is not None:
                acts.append(([interval], partial(self._split, interval, row.split_at)))
            elif row.merge_with is not None:
                upper = await self._to_merge_with(interval, rows.get(row.merge_with))
                if upper is not None and upper not in leaving:
                    acts.append(([interval, upper], partial(self._merge, interval, upper)))
        return acts

    async def _split(self, interval: Interval, at: int) -> None:
        engine = self._engine
        engine.log.info("splits", interval=interval.name, at=at)
        concerned = {interval.id}
        if await engine.holdings.give_up(interval):
            try:
                concerned.add(
                    await engine.patiently(
                        lambda: engine.store.split(interval.id, interval.sequencer, at)
                    )
                )
            except (Fenced, PlacementRefused) as error:
                engine.log.warning("not_split", interval=interval.name, error=str(error))
        await self._take_back(concerned)

    async def _to_merge_with(self, lower: Interval, row: PlacedInterval | None) -> Interval | None:
        """The neighbour that an interval is to be merged with; None: it is on its way here, or
        will never be."""
        engine = self._engine
        if row is None or engine.worker not in (row.owner, row.wanted_by):
            reason = "its neighbour is another's, or was cut meanwhile"
            engine.log.warning("not_merged", interval=lower.name, error=reason)
            await engine.store.wish([Lapse(lower.id, lower.sequencer, reason)])
            return None
        return engine.holdings.at_hand(row.id)

    async def _merge(self, lower: Interval, upper: Interval) -> None:
        engine = self._engine
        engine.log.info("merges", lower=lower.name, upper=upper.name)
        concerned = {lower.id, upper.id}
        done = await asyncio.gather(*map(engine.holdings.give_up, (lower, upper)))
        if all(done):
            sequencers = {part.id: part.sequencer for part in (lower, upper)}
            try:
                concerned.add(
                    await engine.patiently(
                        lambda: engine.store.merge(lower.id, upper.id, sequencers)
                    )
                )
            except (Fenced, PlacementRefused) as error:
                engine.log.warning("not_merged", interval=lower.name, error=str(error))
        await self._take_back(concerned)

    async def _take_back(self, concerned: set[int]) -> None:
        """Claim at once what was given up to be cut, and what came of it; nobody waits for a
        lease. If this worker ends before, others find free intervals."""
        engine = self._engine
        placement = await engine.neighbours.look_around()
        if engine.stopping or engine.lease.left <= 0:
            return
        await self._claim(
            {
                row.id: row.sequencer
                for row in placement.intervals
                if row.id in concerned
                and row.owner is None
                and row.wanted_by in (None, engine.worker)
            }
        )


class Pauses(Service):
    """Sees which injectors are to rest, where this worker is alone and needs to see no more."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.clock, engine.settings.placement_seconds)
        self._engine = engine

    async def run_once(self) -> None:
        placement = await self._engine.store.read_placement()
        self._engine.pause(placement.paused)


class LeaseGuard(Service):
    """Lets go of everything when the lease is as good as over."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.clock, engine.settings.lease_seconds / 50)
        self._engine = engine

    async def run_once(self) -> None:
        engine = self._engine
        if engine.lease.left <= 0 and engine.intervals:
            engine.log.warning("lease_over", intervals=len(engine.intervals))
            await engine.let_go_of_all()
