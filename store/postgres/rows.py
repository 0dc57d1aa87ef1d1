"""Rows of a commit as parameters of its statements: arrays for many rows, JSON for few (decision
5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from millwheel.core.chunk import Chunks, Columns
from millwheel.core.model import Delivery
from millwheel.store.port.commit import Commit, IntervalCommit
from millwheel.store.port.requests import DeadLetter, SettledRequest
from millwheel.store.port.seen import NumberRun
from millwheel.store.port.states import StateRow, TimerChange
from millwheel.store.postgres.arrays import (
    Packed,
    bigints,
    bits,
    integers,
    jsonbs,
    smallints,
    texts,
    uuids,
)

Row = dict[str, Any]

Params = dict[str, Packed]

ARRAY_ROWS = 32
"""Fewer rows of one table are sent as JSON."""

ARRAY_BYTES = 1 << 16
"""Fewer bytes of values are sent as JSON, which has to quote them."""


REMOVED = -(1 << 63)
"""The due time of a timer that has fired or was cancelled."""


def columns(found: Iterable[Any]) -> Sequence[Sequence[Any]]:
    return found.columns if isinstance(found, Columns) else list(zip(*found, strict=True))


def run_arrays(runs: Iterable[NumberRun]) -> Params:
    """Runs of seen numbers; those with gaps as bits from the first number on."""
    found = list(runs)
    return {
        "computation": smallints([run.computation for run in found]),
        "log": bigints([run.log for run in found]),
        "first": bigints([run.first for run in found]),
        "last": bigints([run.last for run in found]),
        "present": bits([None if run.is_whole else _as_bits(run) for run in found]),
    }


def _as_bits(run: NumberRun) -> tuple[int, bytes]:
    """Number of bits, and the bits."""
    length = run.last - run.first + 1
    found = bytearray((length + 7) // 8)
    for number in run.numbers:
        place = number - run.first
        found[place >> 3] |= 0x80 >> (place & 7)
    return length, bytes(found)


def seen_arrays(seen: Iterable[tuple[int, int, bytes]]) -> Params:
    slots, computations, ids = columns(seen)
    return {
        "slot": integers(slots),
        "computation": smallints(computations),
        "id": uuids(ids),
    }


def state_arrays(states: Iterable[StateRow]) -> Params:
    interval_ids, ns, computations, slots, keys, entries, values, versions = columns(states)
    return {
        "interval_id": bigints(interval_ids),
        "n": bigints(ns),
        "computation": smallints(computations),
        "slot": integers(slots),
        "key": texts(keys),
        "entry": texts(_names(entries)),
        "value": jsonbs(values),
        "version": smallints(versions),
    }


def _names(entries: Sequence[str]) -> Sequence[bytes]:
    """The plain part of a state, mostly the only entry, has an empty name."""
    return list(map(str.encode, entries)) if any(entries) else [b""] * len(entries)


def production_arrays(
    found: Sequence[Delivery[Any]], streams: Mapping[str, tuple[int, int]]
) -> Params:
    """`streams` gives each stream's id and version."""
    chunks = found if isinstance(found, Chunks) else Chunks.of(found)
    of = [(streams[chunk.stream], len(chunk)) for chunk in chunks.chunks]
    return {
        "log": bigints(chunks.constant("log")),
        "seq": bigints(chunks.column("numbers")),
        "stream": smallints([id_ for (id_, _), count in of for _ in range(count)]),
        "receiver": smallints(chunks.constant("receiver")),
        "slot": integers(chunks.column("slots")),
        "key": texts(chunks.column("key_texts")),
        "value": texts(chunks.column("encoded")),
        "version": smallints([version for (_, version), count in of for _ in range(count)]),
        "ts": bigints(chunks.column("micros")),
        "hold": bigints(chunks.column("holds")),
        "stamp": bigints(chunks.constant("stamp")),
    }


def bytes_of(commit: Commit) -> int:
    states = sum(len(value) for *_, value, _ in commit.states if value is not None)
    productions = commit.productions
    if isinstance(productions, Chunks):
        return states + sum(chunk.size for chunk in productions.chunks)
    return states + sum(len(production.encoded) for production in productions)


def link_rows(parts: Iterable[IntervalCommit], stamp: int) -> list[Row]:
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
            "table_rows": part.table_rows or None,
        }
        for part in parts
    ]


def seen_rows(seen: Iterable[tuple[int, int, bytes]]) -> list[Row]:
    return [
        {"slot": slot, "computation": computation, "id": id_.hex()}
        for slot, computation, id_ in seen
    ]


def state_rows(states: Iterable[StateRow]) -> list[Row]:
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
    return [
        {
            "interval_id": interval_id,
            "n": n,
            "computation": computation,
            "slot": slot,
            "key": key.decode(),
            "kind": kind,
            "tag": tag,
            "due": due,
            "hold": hold,
            "set_at": stamp,
        }
        for interval_id, n, computation, slot, key, kind, tag, due, hold in timers
    ]


def timer_arrays(timers: Iterable[TimerChange], stamp: int) -> dict[str, Any]:
    interval_ids, ns, computations, slots, keys, kinds, tags, dues, holds = columns(timers)
    return {
        "interval_id": bigints(interval_ids),
        "n": bigints(ns),
        "computation": smallints(computations),
        "slot": integers(slots),
        "key": texts(keys),
        "kind": texts(list(map(str.encode, kinds))),
        "tag": texts(list(map(str.encode, tags))),
        "due": bigints([REMOVED if due is None else due for due in dues]),
        "hold": bigints([REMOVED if hold is None else hold for hold in holds]),
        "set_at": stamp,
    }


def straggler_rows(
    found: Sequence[Delivery[Any]], streams: Mapping[str, tuple[int, int]], stamp: int
) -> list[Row]:
    """`stamp` is the commit's."""
    return [
        {**row, "id": d.id.hex(), "origin": d.origin, "place": d.stamp, "stamp": stamp}
        for d, row in zip(found, production_rows(found, streams), strict=True)
    ]


def production_rows(
    found: Iterable[Delivery[Any]], streams: Mapping[str, tuple[int, int]]
) -> list[Row]:
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


def settled_rows(settled: Iterable[SettledRequest]) -> list[Row]:
    return [{"id": one.id, "outcome": one.outcome, "detail": one.detail} for one in settled]


def failed_rows(settled: Iterable[SettledRequest]) -> list[Row]:
    return [
        {
            "id": one.letter,
            "attempts": one.failure.attempts,
            "error": one.failure.error,
            "traceback": one.failure.traceback,
            "stamp": one.failure.stamp,
        }
        for one in settled
        if one.letter is not None and one.failure is not None
    ]


def letter_rows(letters: Iterable[DeadLetter]) -> list[Row]:
    return [
        {
            **letter._asdict(),
            "record_id": None if letter.record_id is None else letter.record_id.hex(),
            "key": None if letter.key is None else letter.key.decode(),
        }
        for letter in letters
    ]
