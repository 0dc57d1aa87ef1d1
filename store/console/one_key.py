"""One key: its place, state, timers, pending records, and whether it is parked.

The cost does not grow with the number of keys: the primary keys begin with the slot. Of the entries
of the key one page is read; they are counted up to `MOST_COUNTED`."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import errors

from millwheel.core.codec import encode_key
from millwheel.core.model import Key
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError
from millwheel.store.console.snapshot import iso_text
from millwheel.store.postgres.statements import Statements


class TimerPlace(NamedTuple):
    """A timer's place in the order of the timers of its key."""

    due: int
    """Microseconds."""
    kind: str
    tag: str


class KeyPart(NamedTuple):
    """The part of the entries and timers of a key that is read."""

    limit: int = 100
    skip: int = 0
    after: str = ""
    """Only entries after this one."""
    after_timer: TimerPlace | None = None
    """Only timers after this one."""


FIRST_PART = KeyPart()

MOST_PENDING = 100

MOST_COUNTED = 100_000
"""Entries of a key are counted up to here: a page looks again each second."""


class KeyTimer(msgspec.Struct, frozen=True):
    """A pending timer, or a hold of the watermark. Times are ISO times, or infinity, or
    -infinity."""

    kind: str
    tag: str
    due: str
    hold: str
    set_at: str


class KeyRecord(msgspec.Struct, frozen=True):
    sender: str
    stream: str
    id: str
    value: msgspec.Raw
    timestamp: str
    produced_at: str


class StoppedKey(msgspec.Struct, frozen=True):
    """Why a key stands still (``on_error="park"``)."""

    since: str
    waiting: int
    """Records and timers that wait behind the one that has failed."""
    letter: int | None
    """Number of the dead letter that stops the key; None: waiting records are being processed."""
    error: str | None


class KeyStatus(msgspec.Struct, frozen=True, kw_only=True):
    computation: str
    key: Any
    slot: int
    interval: int
    owner: str | None
    """Owner of the interval; None: it has no owner, or a dead one."""
    state: msgspec.Raw | None
    """JSON."""
    version: int | None
    """Version of the state's type when it was written."""
    entries: dict[str, msgspec.Raw]
    """JSON by field/entry."""
    entries_total: int | None
    """None: more than `MOST_COUNTED`."""
    next_entry: str | None
    """`KeyPart.after` of the next page; None: these are the last entries."""
    timers: list[KeyTimer]
    """The soonest first."""
    timers_total: int
    next_timer: TimerPlace | None
    """`KeyPart.after_timer` of the next page; None: these are the last timers."""
    pending: list[KeyRecord]
    """The oldest records, at most `MOST_PENDING`."""
    parked: StoppedKey | None
    """None: it is not parked."""
    slot_from: int
    """First slot of the interval."""
    slot_to: int
    """One past the last slot of the interval."""
    host: str | None
    """Machine of the owner."""
    pid: int | None
    """Process of the owner."""


class KeyPlace(NamedTuple):
    """Where the rows of a key are."""

    computation_id: int
    interval_id: int | None
    """None: no interval has its slot."""
    slot_from: int | None
    slot_to: int | None
    owner: str | None
    is_alive: bool
    """Whether the owner has a valid lease."""
    host: str | None
    pid: int | None


class SoughtKey:
    """The rows of one key, on a connection with a snapshot.

    Raises:
        UsageError: there is no such computation.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], pipeline: str, computation: str, key: Key
    ) -> None:
        text, slot = encode_key(key)
        self._connection = connection
        self._statements = Statements(pipeline)
        self.slot = slot
        self._params: dict[str, Any] = {
            "computation": computation, "key": text.decode(), "slot": slot,
        }  # fmt: skip
        try:
            (found,) = self.rows("key_place", sought_key="sought_key")
        except errors.RaiseException as error:
            told, hint = error.diag, error.diag.message_hint or ""
            known = hint.removeprefix("It has ").split(", ")
            message = f"{told.message_primary}. {hint}".rstrip(". ")
            raise UsageError(with_suggestion(message, computation, known)) from error
        self.place = KeyPlace(*found)
        self._params |= {
            "computation_id": self.place.computation_id,
            "interval_id": self.place.interval_id,
        }

    def rows(
        self, name: str, params: dict[str, Any] | None = None, **functions: str
    ) -> list[tuple[Any, ...]]:
        """Rows of a statement about the key, whatever further parameters it takes."""
        text = self._statements.get(name, **functions)
        return self._connection.execute(text, self._params | (params or {})).fetchall()


def look_at_key(
    connection: psycopg.Connection[Any],
    pipeline: str,
    computation: str,
    key: Key,
    part: KeyPart = FIRST_PART,
) -> KeyStatus:
    """Read one key, on a connection with a snapshot. `UsageError` if there is no such
    computation."""
    sought = SoughtKey(connection, pipeline, computation, key)
    place = sought.place
    which = {"limit": part.limit, "skip": part.skip, "after": part.after}
    state = sought.rows("key_state", {**which, "most_counted": MOST_COUNTED})
    due, kind, tag = part.after_timer or (None, "", "")
    after_timer = {"due_after": due, "kind_after": kind, "tag_after": tag}
    timers = sought.rows("key_timers", which | after_timer, micros_to_time="micros_to_time")
    pending = sought.rows("key_pending", {"most_pending": MOST_PENDING}, pending_of="pending_of")
    parked = sought.rows("key_parked", micros_to_time="micros_to_time")
    total, timers_total = state[0][-1], timers[0][-1]
    timers = [row for row in timers if row[0] is not None]
    plain = next(((value, version) for entry, value, version, _ in state if entry == ""), None)
    entries = {entry: msgspec.Raw(value.encode()) for entry, value, *_ in state if entry}
    more = len(entries) > part.limit
    if more:
        entries.popitem()
    return KeyStatus(
        computation=computation,
        key=key,
        slot=sought.slot,
        interval=place.interval_id or 0,
        owner=place.owner if place.is_alive else None,
        state=None if plain is None else msgspec.Raw(plain[0].encode()),
        version=None if plain is None else plain[1],
        entries=entries,
        entries_total=total if total <= MOST_COUNTED else None,
        next_entry=[*entries][-1] if more else None,
        timers=[KeyTimer(kind, tag, *map(_time, times))
                for kind, tag, _, *times, _ in timers[: part.limit]],
        timers_total=timers_total,
        next_timer=_timer_place(timers[part.limit - 1]) if len(timers) > part.limit else None,
        pending=[
            KeyRecord(sender, stream, id_, msgspec.Raw(value.encode()), *map(_time, times))
            for sender, stream, id_, value, *times in pending
        ],
        parked=next(
            (StoppedKey(_time(since), *rest) for since, *rest in parked), None
        ),
        slot_from=place.slot_from or 0,
        slot_to=place.slot_to or 0,
        host=place.host.split()[0] if place.host else None,
        pid=place.pid,
    )  # fmt: skip


def due_of_timer(
    connection: psycopg.Connection[Any],
    pipeline: str,
    computation: str,
    key: Key,
    timer: tuple[str, str],
) -> int | None:
    """When a pending timer of a key is due, in microseconds; None: there is no such timer.

    Args:
        timer: its kind and its tag.

    Raises:
        UsageError: there is no such computation.
    """
    sought = SoughtKey(connection, pipeline, computation, key)
    kind, tag = timer
    params = {"computation": sought.place.computation_id, "kind": kind, "tag": tag}
    found = sought.rows("key_timer", params)
    return found[0][0] if found else None


def _timer_place(row: tuple[Any, ...]) -> TimerPlace:
    kind, tag, due, *_ = row
    return TimerPlace(due, kind, tag)


def _time(text: str) -> str:
    return iso_text(text) or ""
