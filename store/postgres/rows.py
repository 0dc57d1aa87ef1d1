"""Rows of a commit as parameters of its statements: arrays for many rows, JSON for few (decision
5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, TypeVar

from msgspec import Raw

from millwheel.core.chunk import Chunk, Chunks, Columns
from millwheel.core.model import Delivery
from millwheel.errors import InvariantBroken
from millwheel.store.port.commit import IntervalCommit
from millwheel.store.port.requests import DeadLetter, SettledRequest
from millwheel.store.port.seen import NumberRun
from millwheel.store.port.states import StateRun, TimerChange
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

Params = dict[str, Packed | None]

T = TypeVar("T")

ARRAY_ROWS = 32
"""Fewer rows of one table are sent as JSON."""

ARRAY_BYTES = 1 << 16
"""Fewer bytes of values are sent as JSON, which has to quote them."""

ROW_RECORDS = 1024
"""Most records, or entries of states, of one row of columns."""

ROW_BYTES = 1 << 20
"""Most bytes of values of one such row, unless one value is larger."""

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


def state_rows(runs: Sequence[StateRun]) -> list[Row]:
    return [
        {
            "interval_id": run.interval_id,
            "n": run.n,
            "computation": run.computation,
            "version": run.version,
            "slots": run.slots,
            "keys": [key.decode() for key in run.keys],
            "entries": run.entries,
            "values": [None if value is None else value.decode() for value in run.values],
        }
        for run in runs
    ]


def state_arrays(runs: Sequence[StateRun]) -> Params:
    """A row for each stretch of each run, and the entries of all rows in one array a column."""
    cut = [(run, begin, end) for run in runs for begin, end in stretches(run.values)]
    return {
        "interval_id": bigints([run.interval_id for run, _, _ in cut]),
        "n": bigints([run.n for run, _, _ in cut]),
        "computation": smallints([run.computation for run, _, _ in cut]),
        "version": smallints([run.version for run, _, _ in cut]),
        "stop": integers(_stops(cut)),
        "count": integers([end - begin for _, begin, end in cut]),
        "slots": integers(_joined([run.slots for run in runs])),
        "keys": texts(_joined([run.keys for run in runs])),
        "entries": _entries(runs),
        "values": jsonbs(_joined([run.values for run in runs])),
    }


def _entries(runs: Sequence[StateRun]) -> Packed | None:
    if all(run.entries is None for run in runs):
        return None
    names = (run.entries or repeat("", len(run.slots)) for run in runs)
    return texts(list(map(str.encode, chain.from_iterable(names))))


def chunks_of(found: Sequence[Delivery[Any]]) -> list[Chunk]:
    """Those of a commit.

    Raises:
        InvariantBroken: numbers of one are not consecutive, so that a row cannot hold it.
    """
    chunks = (found if isinstance(found, Chunks) else Chunks.of(found)).chunks
    for chunk in chunks:
        if chunk.numbers[-1] - chunk.numbers[0] + 1 != len(chunk):
            raise InvariantBroken("the numbers of productions of a commit are not consecutive")
    return chunks


def production_rows(chunks: Sequence[Chunk], streams: Mapping[str, tuple[int, int]]) -> list[Row]:
    """A row has consecutive numbers. `streams` gives each stream's id and version."""
    return [
        {
            "log": chunk.log,
            "first": chunk.numbers[0],
            "last": chunk.numbers[-1],
            "stream": streams[chunk.stream][0],
            "receiver": chunk.receiver,
            "version": streams[chunk.stream][1],
            "stamp": chunk.stamp,
            "slots": chunk.slots,
            "keys": [key.decode() for key in chunk.key_texts],
            "values": [value.decode() for value in chunk.encoded],
            "ts": chunk.micros,
            "holds": chunk.holds,
        }
        for chunk in chunks
    ]


def production_arrays(chunks: Sequence[Chunk], streams: Mapping[str, tuple[int, int]]) -> Params:
    """As `state_arrays` and `production_rows`."""
    cut = [(chunk, begin, end) for chunk in chunks for begin, end in stretches(chunk.encoded)]
    return {
        "log": bigints([chunk.log for chunk, _, _ in cut]),
        "first": bigints([chunk.numbers[begin] for chunk, begin, _ in cut]),
        "last": bigints([chunk.numbers[end - 1] for chunk, _, end in cut]),
        "stream": smallints([streams[chunk.stream][0] for chunk, _, _ in cut]),
        "receiver": smallints([chunk.receiver for chunk, _, _ in cut]),
        "version": smallints([streams[chunk.stream][1] for chunk, _, _ in cut]),
        "stamp": bigints([chunk.stamp for chunk, _, _ in cut]),
        "stop": integers(_stops(cut)),
        "count": integers([end - begin for _, begin, end in cut]),
        "slots": integers(_joined([chunk.slots for chunk in chunks])),
        "keys": texts(_joined([chunk.key_texts for chunk in chunks])),
        "values": texts(_joined([chunk.encoded for chunk in chunks])),
        "ts": bigints(_joined([chunk.micros for chunk in chunks])),
        "holds": bigints(_joined([chunk.holds for chunk in chunks])),
    }


def are_many(values: Iterable[Sequence[bytes | None]]) -> bool:
    """Whether the values of runs are better sent as arrays."""
    count = size = 0
    for of_run in values:
        count += len(of_run)
        if count >= ARRAY_ROWS:
            return True
        size += sum(map(len, filter(None, of_run)))
    return size >= ARRAY_BYTES


def stretches(values: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Places ``[from, to)`` of a run that go into one row each, within `ROW_RECORDS` and
    `ROW_BYTES`."""
    for begin in range(0, len(values), ROW_RECORDS):
        part = values[begin : begin + ROW_RECORDS]
        if sum(map(len, filter(None, part))) <= ROW_BYTES:
            yield begin, begin + len(part)
            continue
        first, size = begin, 0
        for place, value in enumerate(part, begin):
            more = 0 if value is None else len(value)
            if place > first and size + more > ROW_BYTES:
                yield first, place
                first, size = place, 0
            size += more
        yield first, begin + len(part)


def _stops(cut: Iterable[tuple[Any, int, int]]) -> list[int]:
    """Where each row's entries end in the arrays of all rows."""
    return list(accumulate(end - begin for _, begin, end in cut))


def _joined(columns: Sequence[Sequence[T]]) -> Sequence[T]:
    return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))


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
        {
            "id": d.id.hex(),
            "origin": d.origin,
            "place": d.stamp,
            "stamp": stamp,
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
