"""Move, pin, split and merge key intervals, as ``millwheel intervals`` does."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from millwheel.errors import NotCarriedOut, StoreError, StoreUnavailable, UsageError
from millwheel.services.interval_changes import Noted, operate, placement_of
from millwheel.services.operating import (
    Operator,
    carrier,
    choose_worker,
    find,
    merging,
    no_worker_lives,
    relocation,
    require_workers,
    short,
    splitting,
)
from millwheel.store.console.asking import Actor
from millwheel.store.port.placement import PlacedInterval, Placement
from millwheel.ui.verb import Asked, Foreseen, FormField, Further, Verb, VerbDesk

HAND_OVER = (
    "Its owner finishes the work that it has begun and commits it; records for the interval wait "
    "for that time, and none is lost."
)

WAIT_SECONDS = 3.0
"""A request is repeated for this time: a claim of the interval, by the balancer for example, takes
requests away."""

AT_ONCE = "No worker runs: it is done at once."


class MovedInterval(msgspec.Struct, frozen=True):
    interval: int
    to: str | None = None
    """Id of a worker, or a unique beginning of it."""


class FreedInterval(msgspec.Struct, frozen=True):
    interval: int


class CutInterval(msgspec.Struct, frozen=True):
    interval: int
    at: int | None = None
    """First slot of the upper part; None: the median of its load."""


class JoinedIntervals(msgspec.Struct, frozen=True):
    lower: int
    upper: int


INTERVAL = FormField("interval", "number", "its number on the page of workers")


# -- foreseen effects -----------------------------------------------------------------------------


def _foresee_move(desk: VerbDesk, form: MovedInterval) -> Foreseen:
    placement = _placement(desk)
    if form.to is None:
        row = find(placement, form.interval)
        require_workers(placement)
        choose = "Choose the worker that should have it"
        return Foreseen(
            [f"{_named(row)} is owned by {_owner(row)}. {choose}"],
            False,
            further=_choices(placement, row),
        )
    request = relocation(placement, form.interval, form.to)
    row, to = find(placement, form.interval), choose_worker(placement, form.to)
    stays = "It stays there, whatever the load is, for as long as that worker lives."
    if request.is_done(placement):
        return Foreseen([f"nothing would change: {_named(row)} is pinned to it already"], False)
    if row.owner == to.id:
        return Foreseen(
            [f"pins {_named(row)} to worker {short(to.id)}, which owns it already", stays]
        )
    return Foreseen(
        [
            f"moves {_named(row)} from {_owner(row)} to worker {short(to.id)} on "
            f"{to.host.split()[0]}, and pins it there",
            stays,
            HAND_OVER,
        ]
    )


def _choices(placement: Placement, row: PlacedInterval) -> tuple[Further, ...]:
    return tuple(
        Further(
            f"worker {short(each.id)} on {each.host.split()[0]}, process {each.pid}",
            "do/move_interval",
            {"interval": row.id, "to": each.id},
        )
        for each in placement.workers
        if each.lease_left > 0
    )


def _foresee_unpin(desk: VerbDesk, form: FreedInterval) -> Foreseen:
    row = find(_placement(desk), form.interval)
    if not row.pinned:
        return Foreseen([_not_pinned(row)], False)
    return Foreseen(
        [
            f"takes the pin of {_named(row)} to worker {short(row.wanted_by)} away",
            "The balancer may move it again, by the load of the workers.",
        ]
    )


def _foresee_split(desk: VerbDesk, form: CutInterval) -> Foreseen:
    placement = _placement(desk)
    at = splitting(placement, form.interval, form.at).at
    row = find(placement, form.interval)
    chosen = "" if form.at is not None else ", where its load has its median if that is known"
    return Foreseen(
        [
            f"cuts {_named(row)} in two: slots {row.slot_from} to {at - 1}, and {at} to "
            f"{row.slot_to - 1}{chosen}",
            _carried_out(placement, row),
        ],
        suggested={"at": str(at)},
    )


def _foresee_merge(desk: VerbDesk, form: JoinedIntervals) -> Foreseen:
    placement = _placement(desk)
    request = merging(placement, form.lower, form.upper)
    lower, upper = find(placement, form.lower), find(placement, form.upper)
    lines = [
        f"makes one interval of {_named(lower)} and {_named(upper)}: slots {request.slots[0]} to "
        f"{request.slots[1] - 1}",
        _carried_out(placement, lower),
    ]
    if not no_worker_lives(placement):
        request.wishes(placement)  # refuses if the upper one is pinned to another worker
        if (by := carrier(placement, lower)) not in (None, upper.owner):
            lines.append(f"The upper one moves from {_owner(upper)} to worker {short(by)} before.")
    return Foreseen(lines)


def _placement(desk: VerbDesk) -> Placement:
    with desk.inspecting() as inspection:
        inspection.require_owners(desk.pipeline)
    return placement_of(desk.url, desk.pipeline)


def _carried_out(placement: Placement, row: PlacedInterval) -> str:
    if no_worker_lives(placement):
        return AT_ONCE
    by = carrier(placement, row)
    if by is None or (by == row.owner and row.lease_over):
        return "Done by the worker that takes it next: its owner is gone."
    return f"Done by worker {short(by)}. {HAND_OVER}"


def _not_pinned(row: PlacedInterval) -> str:
    return f"nothing would change: {_named(row)} is not pinned"


def _named(row: PlacedInterval) -> str:
    return f"interval {row.id} of {row.name} ({slots_text(row)})"


def slots_text(row: PlacedInterval) -> str:
    if row.kind == "injector":
        return f"partition {row.slot_from}"
    return f"slots {row.slot_from} to {row.slot_to - 1}"


def _owner(row: PlacedInterval) -> str:
    if row.owner is None:
        return "no worker"
    return f"worker {short(row.owner)}" + (", which is gone," if row.lease_over else "")


# -- doing it -------------------------------------------------------------------------------------


def _move(desk: VerbDesk, actor: Actor, form: MovedInterval) -> Asked:
    if form.to is None:
        raise UsageError("name the worker that should have it")
    to = choose_worker(_placement(desk), form.to).id
    noted = Noted("move_interval", {"interval": form.interval, "to": to})
    return _changed(
        desk, actor, noted, lambda operator: operator.move(form.interval, to, WAIT_SECONDS)
    )


def _unpin(desk: VerbDesk, actor: Actor, form: FreedInterval) -> Asked:
    row = find(_placement(desk), form.interval)
    if not row.pinned:
        raise UsageError(_not_pinned(row))
    noted = Noted("move_interval", {"interval": form.interval, "to": None})
    return _changed(desk, actor, noted, lambda operator: operator.unpin(form.interval))


def _split(desk: VerbDesk, actor: Actor, form: CutInterval) -> Asked:
    noted = Noted("split_interval", {"interval": form.interval, "at": form.at})
    return _changed(
        desk, actor, noted, lambda operator: operator.split(form.interval, form.at, WAIT_SECONDS)
    )


def _merge(desk: VerbDesk, actor: Actor, form: JoinedIntervals) -> Asked:
    noted = Noted("merge_intervals", {"lower": form.lower, "upper": form.upper})
    return _changed(
        desk, actor, noted, lambda operator: operator.merge(form.lower, form.upper, WAIT_SECONDS)
    )


def _changed(
    desk: VerbDesk, actor: Actor, noted: Noted, work: Callable[[Operator], Awaitable[Any]]
) -> Asked:
    with desk.inspecting() as inspection:
        inspection.require_owners(desk.pipeline)
    try:
        with contextlib.suppress(NotCarriedOut):  # workers continue with it
            operate(desk.url, desk.pipeline, actor, noted, work)
    except StoreUnavailable:
        raise
    except StoreError as error:  # most often an operator's login: it may not place intervals
        raise UsageError(
            f"{error}\nIntervals are placed by the owner of the pipeline: start the pages with "
            "an owner's login in MILLWHEEL_UI_OPERATOR_STORE, or use millwheel intervals as one"
        ) from error
    return Asked(None, "workers")


MOVE = Verb(
    "move_interval",
    "Move an interval",
    MovedInterval,
    _foresee_move,
    _move,
    {
        "interval": INTERVAL,
        "to": FormField("to worker", hint="its id, or the beginning of it"),
    },
)
UNPIN = Verb(
    "unpin_interval",
    "Unpin an interval",
    FreedInterval,
    _foresee_unpin,
    _unpin,
    {"interval": INTERVAL},
)
SPLIT = Verb(
    "split_interval",
    "Split an interval",
    CutInterval,
    _foresee_split,
    _split,
    {
        "interval": INTERVAL,
        "at": FormField(
            "at slot", "number", "first slot of the upper part; empty: the median of its load"
        ),
    },
)
MERGE = Verb(
    "merge_intervals",
    "Merge two intervals",
    JoinedIntervals,
    _foresee_merge,
    _merge,
    {
        "lower": FormField("lower interval", "number"),
        "upper": FormField("upper interval", "number", "the next one on the ring"),
    },
)
