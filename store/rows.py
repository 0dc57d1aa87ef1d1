"""Rows of a commit as Postgres takes them: binary COPY for many, arrays for few.

COPY costs the server less than half of what ``INSERT … SELECT unnest`` does per row, but
two more round trips per table; the break-even measured here is about `COPY_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any
from uuid import UUID

from millwheel.model import Delivery
from millwheel.store.port import StateRow, TimerChange

COPY_ROWS = 24
"""From this many rows of one table on, COPY is used."""

_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"

_seen = Struct("!hiiihi16s").pack
_length = Struct("!i").pack
_state_head = Struct("!hiqiqihih").pack
_state_slot = Struct("!iii").pack
_production_head = Struct("!hiqihihihiq").pack
_production_numbers = Struct("!iqiiiqiqi").pack

SEEN_COLUMNS = ("slot", "computation", "id")
STATE_COLUMNS = ("interval_id", "n", "computation", "version", "slot", "key", "entry", "value")
STRAGGLER_COLUMNS = (
    "log", "seq", "id", "origin", "place", "stream", "receiver", "slot", "key", "value", "version",
    "ts", "hold", "stamp",
)  # fmt: skip
PRODUCTION_COLUMNS = (
    "log", "stream", "receiver", "version", "stamp", "seq", "slot", "ts", "hold", "key", "value",
)  # fmt: skip


def copy_seen(rows: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Binary COPY of `SEEN_COLUMNS`."""
    parts = [_HEADER]
    parts += [_seen(3, 4, slot, 2, computation, 16, id_) for slot, computation, id_ in rows]
    parts.append(_TRAILER)
    return b"".join(parts)


def copy_states(rows: Iterable[StateRow]) -> bytes:
    """Binary COPY of `STATE_COLUMNS`; jsonb is a version byte and the text.

    What the rows of one interval share is packed once.
    """
    parts = [_HEADER]
    last = None
    head = b""
    for interval_id, n, computation, slot, key, entry, value, version in rows:
        if last != interval_id:
            last = interval_id
            head = _state_head(8, 8, interval_id, 8, n, 2, computation, 2, version)
        name = entry.encode()
        parts += (head, _state_slot(4, slot, len(key)), key, _length(len(name)), name)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_length(len(value) + 1), b"\x01", value)
    parts.append(_TRAILER)
    return b"".join(parts)


def copy_productions(
    rows: Iterable[Delivery[Any]], streams: Mapping[str, tuple[int, int]]
) -> bytes:
    """Binary COPY of `PRODUCTION_COLUMNS`; `streams` gives each stream's id and version.

    What the rows of one log, stream and reader share is packed once.
    """
    parts = [_HEADER]
    last: tuple[int, str, int] | None = None
    head = b""
    for d in rows:
        key, value = d.key_text, d.encoded
        if last != (d.log, d.stream, d.receiver):
            last = (d.log, d.stream, d.receiver)
            stream, version = streams[d.stream]
            head = _production_head(11, 8, d.log, 2, stream, 2, d.receiver, 2, version, 8, d.stamp)
        parts += (
            head,
            _production_numbers(8, d.seq, 4, d.slot, 8, d.micros, 8, d.hold, len(key)),
            key,
            _length(len(value)),
            value,
        )
    parts.append(_TRAILER)
    return b"".join(parts)


def seen_arrays(rows: Iterable[tuple[int, int, bytes]]) -> dict[str, list[Any]]:
    """Parameters of ``insert_seen.sql``."""
    slots, computations, ids = zip(*rows, strict=True)
    return {
        "slot": list(slots),
        "computation": list(computations),
        "id": [UUID(bytes=id_) for id_ in ids],
    }


def state_arrays(rows: Iterable[StateRow]) -> dict[str, list[Any]]:
    """Parameters of ``insert_states.sql``."""
    names = ("interval_id", "n", "computation", "slot", "key", "entry", "value", "version")
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns[4] = [key.decode() for key in columns[4]]
    columns[6] = [None if value is None else value.decode() for value in columns[6]]
    return dict(zip(names, columns, strict=True))


def timer_arrays(rows: Iterable[TimerChange]) -> dict[str, list[Any]]:
    """Parameters of ``insert_timers.sql``."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns[4] = [key.decode() for key in columns[4]]
    return dict(zip(TimerChange._fields, columns, strict=True))


def straggler_arrays(
    rows: Iterable[Delivery[Any]], streams: Mapping[str, tuple[int, int]], stamp: int
) -> dict[str, list[Any]]:
    """Parameters of ``insert_stragglers.sql``; `stamp` is that of the commit."""
    found = list(rows)
    return {
        **production_arrays(found, streams),
        "id": [UUID(bytes=d.id) for d in found],
        "origin": [d.origin for d in found],
        "place": [d.stamp for d in found],
        "stamp": [stamp] * len(found),
    }


def production_arrays(
    rows: Iterable[Delivery[Any]], streams: Mapping[str, tuple[int, int]]
) -> dict[str, list[Any]]:
    """Parameters of ``insert_productions.sql``."""
    found = list(rows)
    return {
        "log": [d.log for d in found],
        "seq": [d.seq for d in found],
        "stream": [streams[d.stream][0] for d in found],
        "receiver": [d.receiver for d in found],
        "slot": [d.slot for d in found],
        "key": [d.key_text.decode() for d in found],
        "value": [d.encoded.decode() for d in found],
        "version": [streams[d.stream][1] for d in found],
        "ts": [d.micros for d in found],
        "hold": [d.hold for d in found],
        "stamp": [d.stamp for d in found],
    }
