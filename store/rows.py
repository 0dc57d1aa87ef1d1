"""Rows of a commit as Postgres takes them: binary COPY for many, JSON for few (decision 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

from msgspec import Raw

from millwheel.model import Delivery
from millwheel.store.port import Commit, DeadLetter, IntervalCommit, StateRow, TimerChange

Row = dict[str, Any]
"""By column, as JSON."""

COPY_ROWS = 100
"""From this many rows of one table on, COPY is used."""

COPY_BYTES = 1 << 18
"""From so many bytes of values on as well: JSON has to quote them."""

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


def bytes_of(commit: Commit) -> int:
    """What the values of changed states and productions take."""
    states = sum(len(value) for *_, value, _ in commit.states if value is not None)
    return states + sum(len(production.encoded) for production in commit.productions)


def link_rows(parts: Iterable[IntervalCommit], stamp: int) -> list[Row]:
    """Rows of ``fence_and_record.sql``."""
    return [
        {
            "interval_id": part.interval_id,
            "n": part.n,
            "sequencer": part.sequencer,
            "stamp": stamp,
            "input_watermark": part.input_watermark,
            "low_watermark": part.low_watermark,
            "floor": part.floor,
            "acked": Raw(part.acked),
            "position": None if part.position is None else Raw(part.position),
            "counters": Raw(part.counters),
            "percentiles": part.percentiles or None,
        }
        for part in parts
    ]


def seen_rows(seen: Iterable[tuple[int, int, bytes]]) -> list[Row]:
    """Rows of ``insert_seen.sql``."""
    return [
        {"slot": slot, "computation": computation, "id": id_.hex()}
        for slot, computation, id_ in seen
    ]


def state_rows(states: Iterable[StateRow]) -> list[Row]:
    """Rows of ``insert_states.sql``."""
    return [
        {
            "interval_id": interval_id,
            "n": n,
            "computation": computation,
            "slot": slot,
            "key": key.decode(),
            "entry": entry,
            "value": None if value is None else value.decode(),
            "version": version,
        }
        for interval_id, n, computation, slot, key, entry, value, version in states
    ]


def timer_rows(timers: Iterable[TimerChange], stamp: int) -> list[Row]:
    """Rows of ``insert_timers.sql``."""
    return [{**timer._asdict(), "key": timer.key.decode(), "set_at": stamp} for timer in timers]


def straggler_rows(
    found: Sequence[Delivery[Any]], streams: Mapping[str, tuple[int, int]], stamp: int
) -> list[Row]:
    """Rows of ``insert_stragglers.sql``; `stamp` is that of the commit."""
    return [
        {**row, "id": d.id.hex(), "origin": d.origin, "place": d.stamp, "stamp": stamp}
        for d, row in zip(found, production_rows(found, streams), strict=True)
    ]


def production_rows(
    found: Iterable[Delivery[Any]], streams: Mapping[str, tuple[int, int]]
) -> list[Row]:
    """Rows of ``insert_productions.sql``."""
    return [
        {
            "log": d.log,
            "seq": d.seq,
            "stream": streams[d.stream][0],
            "receiver": d.receiver,
            "slot": d.slot,
            "key": d.key_text.decode(),
            "value": d.encoded.decode(),
            "version": streams[d.stream][1],
            "ts": d.micros,
            "hold": d.hold,
            "stamp": d.stamp,
        }
        for d in found
    ]


def letter_rows(letters: Iterable[DeadLetter]) -> list[Row]:
    """Rows of ``insert_dead_letters.sql``."""
    return [
        {
            **letter._asdict(),
            "record_id": None if letter.record_id is None else letter.record_id.hex(),
            "key": None if letter.key is None else letter.key.decode(),
        }
        for letter in letters
    ]
