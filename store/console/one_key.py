"""The cost does not grow with the number of keys: the primary keys begin with the slot. Of the
entries and timers of the key, one page is read, and the others are counted."""

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


class Page(NamedTuple):
    limit: int = 100
    skip: int = 0


FIRST_PAGE = Page()

MOST_PENDING = 100


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


class KeyStatus(msgspec.Struct, frozen=True):
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
    entries_total: int
    timers: list[KeyTimer]
    """The soonest first."""
    timers_total: int
    pending: list[KeyRecord]
    """The oldest records, at most `MOST_PENDING`."""


def look_at_key(
    connection: psycopg.Connection[Any],
    pipeline: str,
    computation: str,
    key: Key,
    page: Page = FIRST_PAGE,
) -> KeyStatus:
    """Read one key, on a connection with a snapshot. `UsageError` if there is no such
    computation."""
    text, slot = encode_key(key)
    statements = Statements(pipeline)
    params = {
        "computation": computation, "key": text.decode(), "slot": slot,
        "most_pending": MOST_PENDING,
        **page._asdict(),
    }  # fmt: skip

    def rows(name: str, **functions: str) -> list[tuple[Any, ...]]:
        return connection.execute(statements.get(name, **functions), params).fetchall()

    try:
        state = rows("key_state", state_of="state_of")
        timers = rows("key_timers", micros_to_time="micros_to_time")
        pending = rows("key_pending", pending_of="pending_of")
    except errors.RaiseException as error:
        found, hint = error.diag, error.diag.message_hint or ""
        known = hint.removeprefix("It has ").split(", ")
        message = f"{found.message_primary}. {hint}".rstrip(". ")
        raise UsageError(with_suggestion(message, computation, known)) from error
    owned = rows("key_interval_of")
    interval, owner, is_alive = owned[0] if owned else (0, None, False)
    plain = next(((value, version) for entry, value, version, _ in state if not entry), None)
    return KeyStatus(
        computation,
        key,
        slot,
        interval,
        owner if is_alive else None,
        None if plain is None else msgspec.Raw(plain[0].encode()),
        None if plain is None else plain[1],
        {entry: msgspec.Raw(value.encode()) for entry, value, *_ in state if entry},
        state[0][-1] if state else 0,
        [KeyTimer(kind, tag, *map(_time, times)) for kind, tag, *times, _ in timers],
        timers[0][-1] if timers else 0,
        [
            KeyRecord(sender, stream, id_, msgspec.Raw(value.encode()), *map(_time, times))
            for sender, stream, id_, value, *times in pending
        ],
    )


def _time(text: str) -> str:
    return iso_text(text) or ""
