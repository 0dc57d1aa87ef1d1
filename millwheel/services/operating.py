"""What an operator asks of a pipeline's intervals: wished in the store, waited for, told.

Workers carry wishes out, the command only writes them: it does what the balancer does, and may
end at any time (decision 25). An errand says at each look what is still to be wished, so a wish
that a claim has ended is simply made again. Without any worker a released interval is cut here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from millwheel.clock import Clock
from millwheel.errors import NotCarriedOut, UsageError
from millwheel.placement import IntervalLoad, ReportedLoad, split_at
from millwheel.store.port import (
    MergeWish,
    PlacedInterval,
    PlacedWorker,
    Placement,
    PlacementChange,
    SplitWish,
    Store,
    Unpin,
    Wish,
)

LOOK_SECONDS = 0.2
"""Between two looks at what became of a wish."""

REASON = "an operator wants it"


class Errand(Protocol):
    """Something an operator wants, as seen in one look at the store.

    Each method raises a `UsageError` if what is there by now makes it impossible.
    """

    def is_done(self, placement: Placement) -> bool: ...

    def wishes(self, placement: Placement) -> list[PlacementChange]:
        """What has to be wished for it; what is wished already may be among it."""
        ...

    def waits_for(self, placement: Placement) -> str: ...


@dataclass(frozen=True)
class Relocation:
    """An interval is to be at a worker, and to stay there."""

    interval_id: int
    worker: str

    def is_done(self, placement: Placement) -> bool:
        row = find(placement, self.interval_id)
        return (row.owner, row.wanted_by, row.pinned) == (self.worker, self.worker, True)

    def wishes(self, placement: Placement) -> list[PlacementChange]:
        row = find(placement, self.interval_id)
        find_worker(placement, self.worker)
        return [Wish(row.id, row.sequencer, self.worker, REASON, pinned=True)]

    def waits_for(self, placement: Placement) -> str:
        return _waits_for_owner(find(placement, self.interval_id), self.worker)


@dataclass(frozen=True)
class Splitting:
    """An interval is to become two."""

    interval_id: int
    computation: int
    at: int

    def is_done(self, placement: Placement) -> bool:
        return any(
            (row.computation, row.slot_from) == (self.computation, self.at)
            for row in placement.intervals
        )

    def wishes(self, placement: Placement) -> list[PlacementChange]:
        row = find(placement, self.interval_id)
        check_slot(row, self.at)
        return [SplitWish(row.id, row.sequencer, self.at, REASON)]

    def waits_for(self, placement: Placement) -> str:
        return _waits_for_cut(find(placement, self.interval_id), placement)


@dataclass(frozen=True)
class Merging:
    """Two neighbours are to become one, where the lower one is or is going to be."""

    lower_id: int
    upper_id: int
    computation: int
    slots: tuple[int, int]
    """What both have together."""

    def is_done(self, placement: Placement) -> bool:
        return any(
            (row.computation, row.slot_from, row.slot_to) == (self.computation, *self.slots)
            for row in placement.intervals
        )

    def wishes(self, placement: Placement) -> list[PlacementChange]:
        lower, upper = find(placement, self.lower_id), find(placement, self.upper_id)
        check_neighbours(lower, upper)
        target = self._target(placement, lower)
        wishes: list[PlacementChange] = []
        if target is not None and target not in (upper.wanted_by, upper.owner):
            if upper.pinned and _is_alive(placement, upper.wanted_by):
                raise UsageError(
                    f"interval {upper.id} is pinned to worker {short(upper.wanted_by)}, and "
                    f"interval {lower.id} is at {short(target)}. Let it go first: "
                    f"millwheel intervals move {upper.id} --anywhere"
                )
            wishes.append(Wish(upper.id, upper.sequencer, target, REASON))
        wishes.append(MergeWish(lower.id, lower.sequencer, upper.id, REASON))
        return wishes

    def _target(self, placement: Placement, lower: PlacedInterval) -> str | None:
        return lower.wanted_by if _is_alive(placement, lower.wanted_by) else lower.owner

    def waits_for(self, placement: Placement) -> str:
        lower, upper = find(placement, self.lower_id), find(placement, self.upper_id)
        target = self._target(placement, lower)
        if target is not None and upper.owner != target:
            return _waits_for_owner(upper, target)
        return _waits_for_cut(lower, placement)


class Operator:
    """Somebody at a command line.

    Args:
        tell: gets a line whenever something else is waited for.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._tell = tell

    async def move(self, interval_id: int, worker: str, seconds: float | None) -> None:
        """Give an interval to a worker, named by the beginning of its id, and pin it there.

        Args:
            seconds: how long to wait until it is done; None: not at all.

        Raises:
            UsageError: it cannot be.
            NotCarriedOut: it was not done in time; the wish stands.
        """
        placement = await self._look()
        _require_workers(placement)
        find(placement, interval_id)
        await self._carry_out(Relocation(interval_id, choose_worker(placement, worker).id), seconds)

    async def unpin(self, interval_id: int) -> bool:
        """Let the balancer have an interval again; False: it was not pinned.

        Raises:
            UsageError: there is no such interval.
        """
        row = find(await self._look(), interval_id)
        while row.pinned and not await self._store.wish([Unpin(row.id, row.sequencer, REASON)]):
            row = find(await self._look(), interval_id)  # claimed in between
        return row.pinned

    async def split(self, interval_id: int, at: int | None, seconds: float | None) -> int:
        """Split an interval, where its load has its median if no slot is given; gives the slot.

        Raises:
            UsageError: it cannot be.
            NotCarriedOut: it was not done in time; the wish stands.
        """
        placement = await self._look()
        row = find(placement, interval_id)
        self._require_slots(row)
        at = self._median(row, placement) if at is None else at
        check_slot(row, at)
        if _nobody_is_there(placement):
            _require_released(row)
            await self._store.split(row.id, row.sequencer, at, reason=REASON)
        else:
            _require_workers(placement)
            await self._carry_out(Splitting(row.id, row.computation, at), seconds)
        return at

    def _median(self, row: PlacedInterval, placement: Placement) -> int:
        owner = next((worker for worker in placement.workers if worker.id == row.owner), None)
        load = ReportedLoad.read({} if owner is None else owner.load).of(row.id)
        at = split_at(
            IntervalLoad(
                row.id, row.name, row.kind, row.slot_from, row.slot_to, grain=row.grain,
                histogram=load.histogram,
            )
        )  # fmt: skip
        if at is None:
            raise UsageError(
                f"interval {row.id} has a single slot, or one key has nearly all of its load: a "
                "split would not relieve its owner. Spread the key over several "
                "(millwheel.computations.Spread), or say --at which slot to split all the same"
            )
        return at

    async def merge(self, lower_id: int, upper_id: int, seconds: float | None) -> None:
        """Make two neighbours one, at the owner of the lower one.

        Raises:
            UsageError: it cannot be.
            NotCarriedOut: it was not done in time; the wishes stand.
        """
        placement = await self._look()
        lower, upper = find(placement, lower_id), find(placement, upper_id)
        for row in (lower, upper):
            self._require_slots(row)
        check_neighbours(lower, upper)
        if _nobody_is_there(placement):
            for row in (lower, upper):
                _require_released(row)
            sequencers = {row.id: row.sequencer for row in (lower, upper)}
            await self._store.merge(lower_id, upper_id, sequencers, reason=REASON)
        else:
            _require_workers(placement)
            slots = (lower.slot_from, upper.slot_to)
            await self._carry_out(Merging(lower_id, upper_id, lower.computation, slots), seconds)

    async def _look(self) -> Placement:
        return await self._store.read_placement()

    async def _carry_out(self, errand: Errand, seconds: float | None) -> None:
        """Wish it, as often as somebody has claimed the interval anew, and wait until it is done."""
        deadline = self._clock.monotonic() + (seconds or 0.0)
        told = ""
        while not errand.is_done(placement := await self._look()):
            await self._store.wish(errand.wishes(placement))
            if seconds is None:
                return
            waits_for = errand.waits_for(placement)
            if waits_for != told:
                self._tell(f"waiting for {waits_for}")
                told = waits_for
            if self._clock.monotonic() >= deadline:
                raise NotCarriedOut(
                    f"not done within {seconds:g} s: still waiting for {waits_for}. The wish "
                    "stands, and is carried out when that is over; `millwheel intervals list "
                    "--events 10` shows what happens"
                )
            await self._clock.sleep(LOOK_SECONDS)

    def _require_slots(self, row: PlacedInterval) -> None:
        if row.kind == "injector":
            raise UsageError(
                f"interval {row.id} is partition {row.slot_from} of the injector {row.name!r}, which "
                "is read as a whole: it can be moved, not split or merged. Give the injector more "
                "partitions instead"
            )


def find(placement: Placement, interval_id: int) -> PlacedInterval:
    """An interval by its id.

    Raises:
        UsageError: there is none.
    """
    for row in placement.intervals:
        if row.id == interval_id:
            return row
    raise UsageError(
        f"there is no interval {interval_id}; it may have been merged. `millwheel intervals list` "
        "shows those there are"
    )


def find_worker(placement: Placement, id_: str) -> PlacedWorker:
    """A worker that is alive.

    Raises:
        UsageError: it is gone.
    """
    for worker in placement.workers:
        if worker.id == id_ and worker.lease_left > 0:
            return worker
    raise UsageError(f"worker {short(id_)} is gone: its lease is over. {_who_is_there(placement)}")


def choose_worker(placement: Placement, prefix: str) -> PlacedWorker:
    """The worker whose id begins so.

    Raises:
        UsageError: there is none, or there are several, or it is gone.
    """
    found = [worker for worker in placement.workers if worker.id.startswith(prefix.lower())]
    if not prefix or not found:
        raise UsageError(f"no worker's id begins with {prefix!r}. {_who_is_there(placement)}")
    if len(found) > 1:
        names = ", ".join(worker.id for worker in found)
        raise UsageError(f"the ids of several workers begin with {prefix!r}: {names}")
    return find_worker(placement, found[0].id)


def check_slot(row: PlacedInterval, at: int) -> None:
    """Whether an interval can be split at a slot.

    Raises:
        UsageError: that leaves nothing on one side, or cuts what must stay together.
    """
    if at % row.grain:
        below = at // row.grain * row.grain
        raise UsageError(
            f"interval {row.id} of {row.name!r}, which reads a broadcast, is cut between cells of "
            f"{row.grain} slots only: at {below} or {below + row.grain}, not at {at}"
        )
    if not row.slot_from < at < row.slot_to:
        raise UsageError(
            f"interval {row.id} has the slots from {row.slot_from} to {row.slot_to - 1}: it can be "
            + (
                f"split at {row.slot_from + 1} to {row.slot_to - 1}, not at {at}"
                if row.slot_to - row.slot_from > 1
                else "split nowhere"
            )
        )


def check_neighbours(lower: PlacedInterval, upper: PlacedInterval) -> None:
    """Whether two intervals can be merged.

    Raises:
        UsageError: they do not meet.
    """
    if lower.computation != upper.computation or lower.slot_to != upper.slot_from:
        hint = (
            f". The other way round they are: millwheel intervals merge {upper.id} {lower.id}"
            if lower.computation == upper.computation and upper.slot_to == lower.slot_from
            else ""
        )
        raise UsageError(
            f"intervals {lower.id} and {upper.id} are not the lower and the upper neighbour in one "
            f"computation{hint}"
        )


def short(worker: str | None) -> str:
    """As much of a worker's id as people read."""
    return "nobody" if worker is None else worker[:8]


def _is_alive(placement: Placement, id_: str | None) -> bool:
    return any(worker.id == id_ and worker.lease_left > 0 for worker in placement.workers)


def _nobody_is_there(placement: Placement) -> bool:
    return not any(worker.lease_left > 0 for worker in placement.workers)


def _who_is_there(placement: Placement) -> str:
    alive = [worker.id for worker in placement.workers if worker.lease_left > 0]
    return f"There are: {', '.join(alive)}" if alive else "No worker runs this pipeline"


def _require_workers(placement: Placement) -> None:
    """Somebody has to be there who carries wishes out."""
    alive = [worker for worker in placement.workers if worker.lease_left > 0]
    if not alive:
        raise UsageError("no worker runs this pipeline: start one first")
    alone = [worker for worker in alive if not worker.address]
    if alone:
        raise UsageError(
            f"process {alone[0].pid} on {alone[0].host.split()[0]!r} runs this pipeline by itself "
            "(millwheel run), and has all intervals until it ends. Stop it, and start workers"
        )


def _require_released(row: PlacedInterval) -> None:
    """Without workers only what was handed over in order can be cut."""
    if row.owner is not None:
        raise UsageError(
            f"the last owner of interval {row.id}, worker {short(row.owner)}, is gone and did not "
            "hand it over, so it may not be folded. Start a worker, which takes it over and folds "
            "it, and say it again"
        )


def _waits_for_owner(row: PlacedInterval, worker: str) -> str:
    """Before a worker has an interval."""
    if row.is_free:
        return f"worker {short(worker)} to take interval {row.id}"
    if row.owner == worker:
        return f"worker {short(worker)} to keep interval {row.id}"
    return (
        f"worker {short(row.owner)} to finish what it has begun in interval {row.id} and hand it "
        f"over to {short(worker)}"
    )


def _waits_for_cut(row: PlacedInterval, placement: Placement) -> str:
    """Before an interval is cut."""
    if row.is_free:
        return f"a worker to take interval {row.id}"
    if row.wanted_by not in (None, row.owner) and _is_alive(placement, row.wanted_by):
        assert row.wanted_by is not None
        return _waits_for_owner(row, row.wanted_by)
    return f"worker {short(row.owner)} to finish what it has begun in interval {row.id} and cut it"
