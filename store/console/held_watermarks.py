"""The roots of held low watermarks, as fields, and the timers that fire next.

The view ``watermark_holders`` gives a root in words. Their ends have a fixed form, so no key or
tag, which stand before, can be taken for a part of it.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from millwheel.core.codec import encode_key
from millwheel.store.console.inspection import (
    END_OF_TIME,
    Holder,
    Inspection,
    PipelineStatus,
    time_text,
)
from millwheel.store.postgres.statements import Statements

RootKind = Literal[
    "timer", "hold", "record", "parked", "row", "paused", "transaction", "inbox", "source"
]

RECORD = re.compile(r": record of stream (\S+) for (\S+), not acknowledged, id ([0-9a-f-]{36})\Z")
LETTER = re.compile(r": dead letter ([0-9]+)\Z")
ROW = re.compile(r"\Arow (\S+) of (.*), not acknowledged\Z", re.DOTALL)
TRANSACTION = ": waits for the open transaction of "
LAST_LOOK = ": time of the last look"

WINDOW_TAG = re.compile(r"[0-9]{15,16}\Z")
"""The tag of a window's timer: the time at which the window begins, in microseconds."""

DUE_READ = 1000
"""Timers that are read and counted."""
DUE_SHOWN = 10


class HolderRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The last holder of a low watermark, upstream. Times are ISO times, infinity or -infinity."""

    kind: RootKind
    """timer or hold: set by user code; record: sent and not acknowledged; parked: a key that stands
    still; row: read and not acknowledged; paused: an injector; transaction: an open one, for which
    an inbox waits; inbox: its last look; source: the newest time that it has shown."""
    step: str
    """The step that has it; of a record on its way, the one that reads it."""
    what: str
    """In words."""
    key: Any = None
    tag: str = ""
    """Of a timer or a hold."""
    due: str | None = None
    """When its timer fires."""
    stream: str | None = None
    """Of a record."""
    sender: str | None = None
    """The step that has sent the record."""
    record_id: str | None = None
    letter: int | None = None
    """Number of the dead letter that stops a parked key."""
    row: str | None = None
    """Number of the row in its partition."""
    source: str | None = None
    """The row's partition."""
    is_owned: bool = True
    """Whether a live worker has the key's interval."""


class DueTimers(msgspec.Struct, frozen=True):
    """Timers of a step that fire at the same moment of event time."""

    due: str
    timers: int
    """Of the soonest `DUE_READ`."""
    key: Any
    """Of one of them."""
    tag: str
    window_from: str | None
    """The window of that one begins then; None: its tag is not a window's."""
    window_to: str | None
    """The window ends then, exclusive: its timer is due at its last microsecond."""
    set_at: str


class DueNext(msgspec.Struct, frozen=True):
    moments: list[DueTimers]
    """The soonest first, at most `DUE_SHOWN`."""
    read: int
    """Number of timers that were counted; `DUE_READ`: there may be more."""


def root_of(inspection: Inspection, status: PipelineStatus, step: str) -> HolderRoot | None:
    """The root that holds the low watermark of a step; None: nothing does.

    Args:
        status: of the same look.
    """
    steps = {one.name: one for one in status.computations}
    holder = steps[step].holder
    if holder is None or steps[step].low_watermark == END_OF_TIME:
        return None
    last = holder.path[-1] if holder.path else step
    own = steps[last].holder if last in steps else None
    if own is None:
        own = Holder("source", holder.root, None, holder.at)
    return _root(inspection, status, last, own)


def _root(inspection: Inspection, status: PipelineStatus, step: str, holder: Holder) -> HolderRoot:
    what, key = holder.what, holder.key
    if holder.kind in ("timer", "state"):
        return _with_timer(inspection, status.name, step, holder)
    if holder.kind == "record" and (sent := RECORD.search(what)) is not None:
        stream, receiver, record_id = sent.groups()
        return HolderRoot(
            kind="record", step=receiver, what=what, key=key, stream=stream, sender=step,
            record_id=record_id, is_owned=_is_owned(inspection, status.name, receiver, key),
        )  # fmt: skip
    if holder.kind == "parked":
        letter = LETTER.search(what)
        number = None if letter is None else int(letter[1])
        return HolderRoot(kind="parked", step=step, what=what, key=key, letter=number)
    paused = any(one.name == step and one.paused for one in status.computations)
    if (row := ROW.match(what)) is not None:
        return HolderRoot(kind="row", step=step, what=what, row=row[1], source=row[2])
    if paused:
        return HolderRoot(kind="paused", step=step, what=what)
    if TRANSACTION in what:
        return HolderRoot(kind="transaction", step=step, what=what)
    return HolderRoot(kind="inbox" if what.endswith(LAST_LOOK) else "source", step=step, what=what)


def _with_timer(inspection: Inspection, pipeline: str, step: str, holder: Holder) -> HolderRoot:
    kind: Literal["timer", "hold"] = "hold" if holder.kind == "state" else "timer"
    stored = "hold" if kind == "hold" else "watermark"
    rows = _of_key(inspection, pipeline, "holding_timer", step, holder.key, kind=stored)
    tag, due = rows[0] if rows else ("", None)
    return HolderRoot(
        kind=kind,
        step=step,
        what=holder.what,
        key=holder.key,
        tag=tag,
        due=None if kind == "hold" or due is None else time_text(due),
        is_owned=_is_owned(inspection, pipeline, step, holder.key),
    )


def _is_owned(inspection: Inspection, pipeline: str, step: str, key: Any) -> bool:
    ((is_owned,),) = _of_key(inspection, pipeline, "slot_is_owned", step, key)
    return bool(is_owned)


def _of_key(
    inspection: Inspection, pipeline: str, statement: str, step: str, key: Any, **params: str
) -> list[tuple[Any, ...]]:
    text, slot = encode_key(tuple(key) if isinstance(key, list) else key)
    given = {"computation": step, "key": text.decode(), "slot": slot, **params}
    return inspection.connection.execute(Statements(pipeline).get(statement), given).fetchall()


def due_next(inspection: Inspection, pipeline: str, step: str) -> DueNext:
    """The timers of a step that fire next by event time; of windows, those that close next."""
    rows = inspection.connection.execute(
        Statements(pipeline).get("soonest_timers"),
        {"computation": step, "read": DUE_READ, "limit": DUE_SHOWN},
    ).fetchall()
    return DueNext([_due(*row[:-1]) for row in rows], int(rows[0][-1]) if rows else 0)


def _due(due: int, timers: int, key: str, tag: str, set_at: int) -> DueTimers:
    is_window = WINDOW_TAG.match(tag) is not None and int(tag) <= due
    return DueTimers(
        due=time_text(due),
        timers=timers,
        key=msgspec.json.decode(key),
        tag=tag,
        window_from=time_text(int(tag)) if is_window else None,
        window_to=time_text(due + 1) if is_window else None,
        set_at=time_text(set_at),
    )
