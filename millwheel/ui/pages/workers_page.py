"""Workers, the intervals of each step on its ring, and how they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from millwheel.core.quantities import count_of
from millwheel.errors import UsageError
from millwheel.runtime.ownership.planner import ReportedIntervalLoad, ReportedLoad
from millwheel.store.console.inspection import (
    GenerationStatus,
    Inspection,
    OwnedInterval,
    PlacementEvent,
    WorkerStatus,
)
from millwheel.store.console.worker_ends import EndOfWorkers, ends_of_workers
from millwheel.ui.page import Page

LISTED = 50
"""Placement events on a page."""

LISTED_INTERVALS = 100
"""Of a step, unless only that step is shown."""

LISTED_CHANGES = 30

LISTED_ENDS = 20

UNFOLDED = 24
"""Intervals of all steps up to which their lists are open."""

LEAST_BAR_CPU = 0.1
"""With less, an idle pipeline would look busy."""

HOT_CPU = 0.05
"""CPU seconds per second: an interval with less is never marked as hot."""

HOT_TIMES = 2.0
"""An interval is hot if it has so many times the load of the average one of its step."""


class WorkersFilters(msgspec.Struct, frozen=True):
    step: str | None = None
    """Only the intervals of this step."""
    before: int | None = None
    """Only placement events with smaller numbers: the next page."""


class LetteredWorker(msgspec.Struct, frozen=True):
    letter: str
    """Its name in the strips."""
    number: int
    """Chooses colour and pattern."""
    in_words: str
    """Its state."""
    is_well: bool
    runs_alone: bool
    """A ``millwheel run``, which keeps all intervals."""
    status: WorkerStatus


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """An interval on the ring."""

    id: int
    slot_from: int
    slot_to: int
    """One past the last slot."""
    begin: float
    """Its begin on the ring, 0 to 1."""
    share: float
    """Its part of the ring, 0 to 1."""
    owner: str | None
    letter: str
    """Of its owner; empty: no live worker owns it."""
    number: int | None
    to_letter: str
    """Of its wanted owner."""
    is_moving: bool
    is_pinned: bool
    cut: float | None
    """Where it is to be split, 0 to 1 on the ring."""
    cpu: float | None
    """CPU seconds per second, from the last heartbeat of its owner."""
    records: float | None
    """Records per second."""
    queued: int | None
    is_hot: bool
    next_id: int | None
    """Its upper neighbour, with which it can be merged."""
    change: str
    """The pending change, in words."""
    in_words: str


class StepRing(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    label: str
    kind: str
    in_words: str
    """How many intervals each owner has."""
    segments: list[Segment]
    left_out: int
    """Intervals that the list leaves out; the strip has them."""


class IntervalChange(msgspec.Struct, frozen=True):
    step: str
    text: str


class Possession(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    deployed: bool
    complete: bool
    is_on_spark: bool
    workers: list[LetteredWorker]
    ends: list[EndOfWorkers]
    """Errors that have ended workers, the newest first."""
    generations: list[GenerationStatus]
    rings: list[StepRing]
    bar_cpu: float
    """CPU of the highest bar of a strip."""
    intervals: int
    unfolded: bool
    """Whether the lists of intervals are short enough to be open."""
    changes: list[IntervalChange]
    """Intervals without an owner first, then those that move, or are split or merged."""
    further_changes: int
    events: list[PlacementEvent]
    """Newest first."""
    next_before: int | None
    """`WorkersFilters.before` of the next page; None: this is the last one."""


class _Owners(NamedTuple):
    letters: Mapping[str, str]
    numbers: Mapping[str, int]

    def letter(self, worker: str | None) -> str:
        return "" if worker is None else self.letters.get(worker, worker[:8])


def look(inspection: Inspection, pipeline: str, filters: WorkersFilters) -> Possession:
    inspection.require_current(pipeline)
    status = inspection.placed(pipeline)
    born = sorted(status.workers, key=lambda one: (one.started_at, one.id))
    owners = _Owners(
        {one.id: letter_of(at) for at, one in enumerate(born)},
        {one.id: at for at, one in enumerate(born)},
    )
    labels = {one.name: one.label or one.name for one in status.computations}
    found = inspection.intervals(pipeline)
    if filters.step is not None:
        found = [one for one in found if one.computation == filters.step]
        if not found:
            raise UsageError(
                f"there are no intervals of {filters.step!r}; steps: {', '.join(labels) or 'none'}"
            )
    rings = [
        _ring(name, labels.get(name, name), list(rows), owners, shortened=filters.step is None)
        for name, rows in groupby(found, key=attrgetter("computation"))
    ]
    changes = [
        IntervalChange(ring.name, f"interval {one.id} of {ring.label}: {one.change}")
        for unowned in (True, False)
        for ring in rings
        for one in ring.segments
        if one.change and (one.letter == "") == unowned
    ]
    events = inspection.placement_events(pipeline, LISTED + 1, before=filters.before)
    return Possession(
        at=status.at,
        deployed=status.deployed,
        complete=status.complete,
        is_on_spark=status.on_spark is not None,
        workers=[_worker(one, owners) for one in born],
        ends=ends_of_workers(inspection.connection, pipeline, LISTED_ENDS),
        generations=status.generations,
        rings=rings,
        bar_cpu=max([LEAST_BAR_CPU, *(one.cpu or 0.0 for ring in rings for one in ring.segments)]),
        intervals=len(found),
        unfolded=len(found) <= UNFOLDED or filters.step is not None,
        changes=changes[:LISTED_CHANGES],
        further_changes=max(0, len(changes) - LISTED_CHANGES),
        events=events[:LISTED],
        next_before=events[LISTED - 1].id if len(events) > LISTED else None,
    )


def letter_of(number: int) -> str:
    """A to Z, then A2 to Z2, and so on."""
    turn, letter = divmod(number, 26)
    return chr(ord("A") + letter) + (str(turn + 1) if turn else "")


def _worker(status: WorkerStatus, owners: _Owners) -> LetteredWorker:
    alone = not status.address
    words = {
        "running": "runs" + (" alone: it keeps all intervals until it ends" if alone else ""),
        "silent": "silent: its lease is over, and others take its intervals",
        "dead": "its process has ended",
    }[status.state]
    return LetteredWorker(
        owners.letters[status.id],
        owners.numbers[status.id],
        words,
        status.state == "running",
        alone,
        status,
    )


def _ring(
    name: str, label: str, rows: Sequence[OwnedInterval], owners: _Owners, *, shortened: bool
) -> StepRing:
    first, end = rows[0].slot_from, max(row.slot_to for row in rows)
    loads = [_load(row) for row in rows]
    known = [load.cpu for load in loads if load is not None]
    hot = max(HOT_CPU, HOT_TIMES * sum(known) / len(known)) if len(known) > 1 else float("inf")
    segments = []
    for at, (row, load) in enumerate(zip(rows, loads, strict=True)):
        above = rows[at + 1] if at + 1 < len(rows) else None
        letter = owners.letter(row.owner) if row.owner_alive else ""
        is_hot = load is not None and load.cpu >= hot
        change = "; ".join(_changes(row, owners))
        segments.append(
            Segment(
                id=row.id,
                slot_from=row.slot_from,
                slot_to=row.slot_to,
                begin=(row.slot_from - first) / (end - first),
                share=(row.slot_to - row.slot_from) / (end - first),
                owner=row.owner,
                letter=letter,
                number=owners.numbers.get(row.owner or "") if letter else None,
                to_letter=owners.letter(row.wanted_by),
                is_moving=row.wanted_by not in (None, row.owner),
                is_pinned=row.pinned,
                cut=None if row.split_at is None else (row.split_at - first) / (end - first),
                cpu=None if load is None else load.cpu,
                records=None if load is None else load.records,
                queued=None if load is None else load.queue,
                is_hot=is_hot,
                next_id=(
                    above.id
                    if above is not None
                    and row.kind != "injector"
                    and above.slot_from == row.slot_to
                    else None
                ),
                change=change,
                in_words=_segment_words(row, letter, load, change, is_hot=is_hot),
            )
        )
    return StepRing(
        name=name,
        label=label,
        kind=rows[0].kind,
        in_words=_ring_words(segments, rows[0].kind),
        segments=segments,
        left_out=max(0, len(segments) - LISTED_INTERVALS) if shortened else 0,
    )


def _load(row: OwnedInterval) -> ReportedIntervalLoad | None:
    """None: its owner has reported none that can be decoded."""
    return ReportedLoad.read({"intervals": {row.id: row.load}}).intervals.get(row.id)


def _changes(row: OwnedInterval, owners: _Owners) -> Iterator[str]:
    wanted = None if row.wanted_by in (None, row.owner) else owners.letter(row.wanted_by)
    if row.owner is None or not row.owner_alive:
        yield (
            "no worker owns it, records for it wait"
            if row.owner is None
            else f"its owner {owners.letter(row.owner)} is gone, records for it wait"
        )
        if wanted:
            yield f"{wanted} is to take it"
    elif wanted:
        yield f"moves from {owners.letter(row.owner)} to {wanted}"
    if row.split_at is not None:
        yield f"is to be split at slot {row.split_at}"
    if row.merge_with is not None:
        yield f"is to be merged with interval {row.merge_with}"


def _segment_words(
    row: OwnedInterval, letter: str, load: ReportedIntervalLoad | None, change: str, *, is_hot: bool
) -> str:
    slots = (
        f"partition {row.slot_from}"
        if row.kind == "injector"
        else f"slots {row.slot_from} to {row.slot_to - 1}"
    )
    words = [f"interval {row.id}", slots, f"owner {letter}" if letter else ""]
    if load is not None:
        words.append(f"{load.cpu:.2f} CPU, {load.records:,.0f} records/s, {load.queue:,} queued")
    words += ["hot" if is_hot else "", "pinned" if row.pinned else "", change]
    return "; ".join(filter(None, words))


def _ring_words(segments: Sequence[Segment], kind: str) -> str:
    counts = Counter(one.letter for one in segments)
    unowned = counts.pop("", 0)
    what = "partition" if kind == "injector" else "interval"
    words = [count_of(len(segments), what)]
    words += [f"{letter} has {number:,}" for letter, number in sorted(counts.items())]
    if unowned:
        words.append(f"{unowned:,} without an owner")
    for name, number in (
        ("move", sum(one.is_moving for one in segments)),
        ("hot", sum(one.is_hot for one in segments)),
    ):
        if number:
            words.append(f"{number:,} {name}")
    return ", ".join(words)


WORKERS: Page[WorkersFilters] = Page(
    "workers", "Workers", "Who has what?", "workers.html", look, WorkersFilters
)
