"""An operator's requests about intervals: written to the store, awaited and reported.

The command writes *wishes* to the store, as the balancer does, and workers carry them out, so it
may end at any time (decision 25). A claim deletes the wishes of its interval, so missing wishes are
written again. When no worker is running, the command itself splits or merges released intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from millwheel.core.clock import Clock
from millwheel.errors import NotCarriedOut, UsageError
from millwheel.runtime.ownership.planner import IntervalLoad, ReportedLoad, split_at
from millwheel.store.port import Store
from millwheel.store.port.placement import (
    MergeWish,
    PlacedInterval,
    PlacedWorker,
    Placement,
    PlacementChange,
    SplitWish,
    Unpin,
    Wish,
)

POLL_SECONDS = 0.2
"""Time between two reads of the placement while waiting."""

REASON = "an operator wants it"


class Request(Protocol):
    """An operator's request, compared with the current placement.

    Each method raises a `UsageError` if the placement makes the request impossible.
    """

    def is_done(self, placement: Placement) -> bool: ...

    def wishes(self, placement: Placement) -> list[PlacementChange]:
        """The wishes that the request needs, including those already in the store."""
        ...

    def waits_for(self, placement: Placement) -> str: ...


@dataclass(frozen=True)
class Relocation:
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
    """Merge two adjacent intervals, on the worker that owns or is about to own the lower one."""

    lower_id: int
    upper_id: int
    computation: int
    slots: tuple[int, int]
    """First slot of the merged interval, and one past its last."""

    def is_done(self, placement: Placement) -> bool:
        return any(
            (row.computation, row.slot_from, row.slot_to) == (self.computation, *self.slots)
            for row in placement.intervals
        )

    def wishes(self, placement: Placement) -> list[PlacementChange]:
        lower, upper = find(placement, self.lower_id), find(placement, self.upper_id)
        check_neighbours(lower, upper)
        target = carrier(placement, lower)
        wishes: list[PlacementChange] = []
        if target is not None and target not in (upper.wanted_by, upper.owner):
            if upper.pinned and _is_alive(placement, upper.wanted_by):
                raise UsageError(
                    f"interval {upper.id} is pinned to worker {short(upper.wanted_by)}, and "
                    f"interval {lower.id} is at {short(target)}. Unpin it first: "
                    f"millwheel intervals move {upper.id} --anywhere"
                )
            wishes.append(Wish(upper.id, upper.sequencer, target, REASON))
        wishes.append(MergeWish(lower.id, lower.sequencer, upper.id, REASON))
        return wishes

    def waits_for(self, placement: Placement) -> str:
        lower, upper = find(placement, self.lower_id), find(placement, self.upper_id)
        target = carrier(placement, lower)
        if target is not None and upper.owner != target:
            return _waits_for_owner(upper, target)
        return _waits_for_cut(lower, placement)


class Operator:
    """Carries out requests from the command line.

    `report` is called whenever the reason for waiting changes. An impossible request is a
    `UsageError`. With `seconds`, the methods wait for completion, and raise `NotCarriedOut` after
    that time; the wish stays in the store. None: do not wait.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._report = report

    async def move(self, interval_id: int, worker: str, seconds: float | None) -> None:
        """Move an interval to a worker, given its id or a unique prefix, and pin it there."""
        await self._carry_out(relocation(await self._read(), interval_id, worker), seconds)

    async def unpin(self, interval_id: int) -> bool:
        """Returns false if the interval was not pinned."""
        row = find(await self._read(), interval_id)
        while row.pinned and not await self._store.wish([Unpin(row.id, row.sequencer, REASON)]):
            row = find(await self._read(), interval_id)  # it was claimed in between
        return row.pinned

    async def split(self, interval_id: int, at: int | None, seconds: float | None) -> int:
        """Split an interval and return the first slot of the upper part, `at` or the median of the
        load."""
        placement = await self._read()
        request = splitting(placement, interval_id, at)
        if no_worker_lives(placement):
            row = find(placement, interval_id)
            await self._store.split(row.id, row.sequencer, request.at, reason=REASON)
        else:
            await self._carry_out(request, seconds)
        return request.at

    async def merge(self, lower_id: int, upper_id: int, seconds: float | None) -> None:
        """Merge two adjacent intervals, on the owner of the lower one."""
        placement = await self._read()
        request = merging(placement, lower_id, upper_id)
        if no_worker_lives(placement):
            sequencers = {id_: find(placement, id_).sequencer for id_ in (lower_id, upper_id)}
            await self._store.merge(lower_id, upper_id, sequencers, reason=REASON)
        else:
            await self._carry_out(request, seconds)

    async def _read(self) -> Placement:
        return await self._store.read_placement()

    async def _carry_out(self, request: Request, seconds: float | None) -> None:
        """Write a request's wishes, again after each claim of the interval, until it is done."""
        deadline = self._clock.monotonic() + (seconds or 0.0)
        reported = ""
        while not request.is_done(placement := await self._read()):
            await self._store.wish(request.wishes(placement))
            if seconds is None:
                return
            waits_for = request.waits_for(placement)
            if waits_for != reported:
                self._report(f"waiting for {waits_for}")
                reported = waits_for
            if self._clock.monotonic() >= deadline:
                raise NotCarriedOut(
                    f"not done within {seconds:g} s: still waiting for {waits_for}. The request "
                    "stays in the store, and workers carry it out later; `millwheel intervals "
                    "list --events 10` shows the progress"
                )
            await self._clock.sleep(POLL_SECONDS)


def relocation(placement: Placement, interval_id: int, worker: str) -> Relocation:
    """The move of an interval to a worker, given its id or a unique prefix. `UsageError` if it is
    impossible."""
    require_workers(placement)
    find(placement, interval_id)
    return Relocation(interval_id, choose_worker(placement, worker).id)


def splitting(placement: Placement, interval_id: int, at: int | None) -> Splitting:
    """The split of an interval at a slot; None: at the median of its load. `UsageError` if it is
    impossible."""
    row = find(placement, interval_id)
    _require_slots(row)
    at = _median(row, placement) if at is None else at
    check_slot(row, at)
    _require_carriers(placement, row)
    return Splitting(row.id, row.computation, at)


def merging(placement: Placement, lower_id: int, upper_id: int) -> Merging:
    """`UsageError` if it is impossible."""
    lower, upper = find(placement, lower_id), find(placement, upper_id)
    for row in (lower, upper):
        _require_slots(row)
    check_neighbours(lower, upper)
    _require_carriers(placement, lower, upper)
    return Merging(lower_id, upper_id, lower.computation, (lower.slot_from, upper.slot_to))


def _median(row: PlacedInterval, placement: Placement) -> int:
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
            "split would not relieve its owner. Spread the key over several keys "
            "(millwheel.computations.Spread), or choose the slot with --at to split anyway"
        )
    return at


def _require_slots(row: PlacedInterval) -> None:
    if row.kind == "injector":
        raise UsageError(
            f"interval {row.id} is partition {row.slot_from} of the injector {row.name!r}. A "
            "partition can be moved, but not split or merged. Give the injector more "
            "partitions instead"
        )


def _require_carriers(placement: Placement, *rows: PlacedInterval) -> None:
    """`UsageError` if neither workers nor, without any, this process can cut intervals."""
    if no_worker_lives(placement):
        for row in rows:
            _require_released(row)
    else:
        require_workers(placement)


def find(placement: Placement, interval_id: int) -> PlacedInterval:
    """`UsageError` if there is no such interval."""
    for row in placement.intervals:
        if row.id == interval_id:
            return row
    raise UsageError(
        f"there is no interval {interval_id}; it may have been merged. `millwheel intervals list` "
        "shows the current intervals"
    )


def find_worker(placement: Placement, id_: str) -> PlacedWorker:
    """`UsageError` if its lease has expired, or there is none."""
    for worker in placement.workers:
        if worker.id == id_ and worker.lease_left > 0:
            return worker
    raise UsageError(f"worker {short(id_)} is gone: its lease has expired. {_workers(placement)}")


def choose_worker(placement: Placement, prefix: str) -> PlacedWorker:
    """`UsageError` if none or several match, or the worker's lease has expired."""
    found = [worker for worker in placement.workers if worker.id.startswith(prefix.lower())]
    if not prefix or not found:
        raise UsageError(f"no worker's id begins with {prefix!r}. {_workers(placement)}")
    if len(found) > 1:
        names = ", ".join(worker.id for worker in found)
        raise UsageError(f"the ids of several workers begin with {prefix!r}: {names}")
    return find_worker(placement, found[0].id)


def check_slot(row: PlacedInterval, at: int) -> None:
    """`UsageError` if one part would be empty, or the slot is inside a cell of a broadcast
    reader."""
    if at % row.grain:
        below = at // row.grain * row.grain
        raise UsageError(
            f"interval {row.id} of {row.name!r} reads a broadcast, so it can only be split between "
            f"cells of {row.grain} slots: at {below} or {below + row.grain}, not at {at}"
        )
    if not row.slot_from < at < row.slot_to:
        raise UsageError(
            f"interval {row.id} has the slots {row.slot_from} to {row.slot_to - 1}: it "
            + (
                f"can be split at {row.slot_from + 1} to {row.slot_to - 1}, not at {at}"
                if row.slot_to - row.slot_from > 1
                else "cannot be split"
            )
        )


def check_neighbours(lower: PlacedInterval, upper: PlacedInterval) -> None:
    """`UsageError` unless they are adjacent intervals of one computation, the lower one first."""
    if lower.computation != upper.computation or lower.slot_to != upper.slot_from:
        hint = (
            f". In reverse order they are: millwheel intervals merge {upper.id} {lower.id}"
            if lower.computation == upper.computation and upper.slot_to == lower.slot_from
            else ""
        )
        raise UsageError(
            f"intervals {lower.id} and {upper.id} are not the lower and the upper neighbour in one "
            f"computation{hint}"
        )


def carrier(placement: Placement, row: PlacedInterval) -> str | None:
    """The worker that is about to get an interval, or has it."""
    return row.wanted_by if _is_alive(placement, row.wanted_by) else row.owner


def short(worker: str | None) -> str:
    return "(none)" if worker is None else worker[:8]


def _is_alive(placement: Placement, id_: str | None) -> bool:
    return any(worker.id == id_ and worker.lease_left > 0 for worker in placement.workers)


def no_worker_lives(placement: Placement) -> bool:
    return not any(worker.lease_left > 0 for worker in placement.workers)


def _workers(placement: Placement) -> str:
    alive = [worker.id for worker in placement.workers if worker.lease_left > 0]
    return f"Running workers: {', '.join(alive)}" if alive else "No worker runs this pipeline"


def require_workers(placement: Placement) -> None:
    """`UsageError` if no worker can carry out wishes, or a ``millwheel run`` owns the pipeline."""
    alive = [worker for worker in placement.workers if worker.lease_left > 0]
    if not alive:
        raise UsageError("no worker runs this pipeline: start one first")
    alone = [worker for worker in alive if not worker.address]
    if alone:
        raise UsageError(
            f"process {alone[0].pid} on {alone[0].host.split()[0]!r} runs this pipeline by itself "
            "(millwheel run), and owns all intervals until it ends. Stop it, and start workers"
        )


def _require_released(row: PlacedInterval) -> None:
    """`UsageError` if the last owner did not release it in order: then it cannot be cut without a
    worker."""
    if row.owner is not None:
        raise UsageError(
            f"the last owner of interval {row.id}, worker {short(row.owner)}, is gone and did not "
            "hand it over, so it may not be folded. Start a worker, which takes it over and folds "
            "it, then repeat the command"
        )


def _waits_for_owner(row: PlacedInterval, worker: str) -> str:
    if row.is_free:
        return f"worker {short(worker)} to take interval {row.id}"
    if row.owner == worker:
        return f"worker {short(worker)} to keep interval {row.id}"
    return (
        f"worker {short(row.owner)} to finish its work in interval {row.id} and hand it over to "
        f"{short(worker)}"
    )


def _waits_for_cut(row: PlacedInterval, placement: Placement) -> str:
    if row.is_free:
        return f"a worker to take interval {row.id}"
    if row.wanted_by not in (None, row.owner) and _is_alive(placement, row.wanted_by):
        assert row.wanted_by is not None
        return _waits_for_owner(row, row.wanted_by)
    return f"worker {short(row.owner)} to finish its work in interval {row.id} and cut it"
