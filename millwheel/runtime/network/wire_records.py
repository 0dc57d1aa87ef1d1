"""Records as they cross between workers: in rows or, a whole chunk, in columns (decision 74).

Whatever a peer can get wrong in a record is found here, as a `PeerError`, before the record counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from millwheel.core.addresses import cell_address
from millwheel.core.chunk import Chunk
from millwheel.core.codec import apply_migrations, decode_key, decode_keys, is_key, leads, reason
from millwheel.core.model import Delivery, Key, is_derived, log_of_tree, record_id
from millwheel.errors import PeerError
from millwheel.runtime.interval.step import Step
from millwheel.runtime.network.frames import (
    ID_BYTES,
    Deliver,
    DeliverChunk,
    Delivering,
    LooseRow,
    RecordRow,
    WireChunk,
)
from millwheel.streams import Stream

Streams: TypeAlias = Mapping[str, Stream[Any]]
Received: TypeAlias = Deliver | DeliverChunk
Type: TypeAlias = tuple[str, int]
"""A stream's name, and a version of its type."""
Decode: TypeAlias = Callable[[bytes], Any]
Header: TypeAlias = tuple[int, int, int, int, int, int]
"""The fields of a `Delivering`."""

_COLUMNS = ("numbers", "key_texts", "slots", "micros", "holds", "values")
_PLAIN = frozenset((str, int))


# -- to the wire ------------------------------------------------------------------------


def frame_of(
    header: Header, taken: Chunk | Sequence[Delivery[Any]], streams: Streams
) -> Delivering:
    if not isinstance(taken, Chunk):
        return Deliver(*header, [row_of(delivery, streams) for delivery in taken])
    chunk = WireChunk(
        taken.stream, streams[taken.stream].version, bool(taken.origin), taken.stamp,
        list(taken.numbers), taken.names, taken.key_texts, taken.slots, taken.micros, taken.holds,
        taken.encoded,
    )  # fmt: skip
    return DeliverChunk(*header, chunk)


def row_of(delivery: Delivery[Any], streams: Streams) -> RecordRow:
    return (
        delivery.seq, delivery.stream, delivery.key_text, delivery.slot, delivery.micros,
        delivery.hold, delivery.stamp, delivery.size,
        delivery.id if delivery.named or is_derived(delivery.id) else b"",
        delivery.named, delivery.encoded, streams[delivery.stream].version, delivery.origin,
    )  # fmt: skip


# -- from the wire ----------------------------------------------------------------------


def numbers_of(frame: Received) -> list[int]:
    if isinstance(frame, DeliverChunk):
        return frame.chunk.numbers
    return [row[0] for row in frame.records]


def slots_of(frame: Received) -> list[int]:
    if isinstance(frame, DeliverChunk):
        return frame.chunk.slots
    return [row[3] for row in frame.records]


def types_of(frame: Received) -> set[Type]:
    if isinstance(frame, DeliverChunk):
        return {(frame.chunk.stream, frame.chunk.version)}
    return types_of_rows(frame.records)


def types_of_rows(rows: Iterable[RecordRow]) -> set[Type]:
    return {(row[1], row[11]) for row in rows}


def unreadable(types: Iterable[Type], step: Step, streams: Streams) -> Type | None:
    """The first one that the step's code does not read."""
    for name, version in types:
        stream = streams.get(name) if name in step.codecs else None
        if stream is None or not leads(stream.migrations, version, stream.version):
            return name, version
    return None


def read(frame: Received, step: Step, streams: Streams) -> Chunk | list[Delivery[Any]]:
    """The records, with values of their own versions."""
    if isinstance(frame, DeliverChunk):
        return _read_chunk(frame.log, step, frame.chunk, streams)
    return [read_row(frame.log, step, row, streams) for row in frame.records]


def _read_chunk(log: int, step: Step, wire: WireChunk, streams: Streams) -> Chunk:
    columns = {len(getattr(wire, name)) for name in _COLUMNS} | {len(wire.names or wire.numbers)}
    if len(columns) > 1:
        raise PeerError(f"the columns of a chunk of stream {wire.stream[:100]!r} differ in length")
    chunk = Chunk(wire.stream, step.id, source=log if wire.of_source else 0)
    chunk.log, chunk.stamp = log, wire.stamp
    chunk.numbers, chunk.names = wire.numbers, wire.names
    chunk.keys = _read_keys(wire, step)
    chunk.key_texts, chunk.slots = wire.key_texts, wire.slots
    chunk.micros, chunk.holds = wire.micros, wire.holds
    chunk.values = _read_values(wire, _decoder(wire.stream, wire.version, streams))
    chunk.encoded = wire.values
    return chunk


def _read_keys(wire: WireChunk, step: Step) -> list[Key]:
    try:
        keys = decode_keys(wire.key_texts)
    except Exception:
        keys = []
    if keys and _PLAIN.issuperset(map(type, keys)):
        return keys
    addresses = zip(wire.key_texts, wire.slots, strict=True)
    return [_key(wire.stream, step, key_text, slot) for key_text, slot in addresses]


def _read_values(wire: WireChunk, decode: Decode) -> list[Any]:
    try:
        return list(map(decode, wire.values))
    except Exception:
        return [_value(wire.stream, decode, text) for text in wire.values]  # raises


def read_row(log: int, step: Step, row: RecordRow, streams: Streams) -> Delivery[Any]:
    seq, name, key_text, slot, ts, hold, stamp, _, id_, named, encoded, version, origin = row
    if id_ and len(id_) != ID_BYTES:
        raise PeerError(f"a record of stream {name[:100]!r} has an id of {len(id_)} bytes")
    key = _key(name, step, key_text, slot)
    value = _value(name, _decoder(name, version, streams), encoded)
    return Delivery(
        key, value, ts, name, key_text, slot, step.id, hold, len(encoded), encoded, log, seq,
        stamp, id_ or record_id(log, seq), 0, named, origin,
    )  # fmt: skip


def read_loose(rows: Iterable[LooseRow], step: Step, streams: Streams) -> list[Delivery[Any]]:
    return [read_row(log_of_tree(token), step, row, streams) for token, row in rows]


def _key(name: str, step: Step, key_text: bytes, slot: int) -> Key:
    subject = f"a record of stream {name[:100]!r} with the key {key_text[:100]!r}"
    try:
        key = decode_key(key_text)
    except Exception as error:
        raise PeerError(f"{subject}: {reason(error)[:200]}") from error
    if not is_key(key) and not _is_cell(step, key_text, slot):
        raise PeerError(f"{subject}, which is not a str, an int or a tuple of these")
    return key


def _is_cell(step: Step, key_text: bytes, slot: int) -> bool:
    grain = step.node.grain
    return step.node.cells > 0 and cell_address(slot // grain, grain)[1:] == (key_text, slot)


def _decoder(name: str, version: int, streams: Streams) -> Decode:
    """A value of another version is read as plain JSON, to be migrated."""
    stream = streams.get(name)
    if stream is not None and version == stream.version:
        return stream.codec.decode
    return msgspec.json.decode


def _value(name: str, decode: Decode, encoded: bytes) -> Any:
    try:
        return decode(encoded)
    except Exception as error:
        raise PeerError(
            f"a record of stream {name[:100]!r} with the value {encoded[:100]!r}: "
            f"{reason(error)[:200]}"
        ) from error


def migrate(frame: Received, records: Chunk | list[Delivery[Any]], streams: Streams) -> None:
    """Bring the values to the present versions of their types; `MigrationFailed`."""
    if not isinstance(frame, DeliverChunk):
        assert isinstance(records, list)
        migrate_rows(records, frame.records, streams)
        return
    assert isinstance(records, Chunk)
    wire = frame.chunk
    stream = streams[wire.stream]
    if wire.version != stream.version:
        records.encoded = [
            _migrated(text, wire.version, stream, key_text)
            for text, key_text in zip(wire.values, wire.key_texts, strict=True)
        ]
        records.values = list(map(stream.codec.decode, records.encoded))


def migrate_rows(
    deliveries: Iterable[Delivery[Any]], rows: Iterable[RecordRow], streams: Streams
) -> None:
    """As `migrate`."""
    for delivery, row in zip(deliveries, rows, strict=True):
        stream, version = streams[delivery.stream], row[11]
        if version != stream.version:
            delivery.encoded = _migrated(delivery.encoded, version, stream, delivery.key_text)
            delivery.value = stream.codec.decode(delivery.encoded)


def _migrated(encoded: bytes, version: int, stream: Stream[Any], key_text: bytes) -> bytes:
    subject = f"stream {stream.name!r}, key {key_text.decode()}"
    return apply_migrations(
        encoded, version, stream.version, stream.migrations, subject, stream.codec.decode
    )
