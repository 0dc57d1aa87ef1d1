"""States and timers of keys while a pipeline is moved: as rows of the store's tables, one for each
entry and timer, and as parts of Spark's buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from millwheel.core.codec import slot_of
from millwheel.spark.engine.buckets import KeptKey, bucket_of, keys_of

CELLS, TIMERS = "cells", "timers"
"""Kinds of rows: entries of state, and timers."""
START_COLUMNS: Final = ("receiver", "key", "kind", "name", "value", "version", "due")
"""The columns of the table ``spark_start``."""
COLUMNS: Final = (*START_COLUMNS, "slot")
"""Those of the staging table in which they go back."""
START_SCHEMA: Final = "receiver STRING, bucket INT, keys BINARY"
"""Parts of buckets to begin with."""
RETURN_SCHEMA: Final = (
    "receiver STRING, key STRING, kind STRING, name STRING, value STRING, version INT, due BIGINT, "
    "slot INT"
)
PACKED_ROWS: Final = 50_000
"""Rows that are packed together. The rows of a bucket come one after the other, so that most
buckets are in one or two parts."""

Batches = Iterator[pa.RecordBatch]

_START = pa.schema([("receiver", pa.string()), ("bucket", pa.int32()), ("keys", pa.binary())])
_RETURN = pa.schema(
    [
        ("receiver", pa.string()), ("key", pa.string()), ("kind", pa.string()),
        ("name", pa.string()), ("value", pa.string()), ("version", pa.int32()),
        ("due", pa.int64()), ("slot", pa.int32()),
    ]
)  # fmt: skip

encode_keys = msgspec.msgpack.Encoder().encode
decode_keys = msgspec.msgpack.Decoder(dict[bytes, KeptKey]).decode


def packing(buckets: int) -> Callable[[Batches], Batches]:
    """A function that packs rows of `START_COLUMNS` into parts of so many buckets of a step."""

    def packed(batches: Batches) -> Batches:
        found: dict[tuple[str, int], dict[bytes, KeptKey]] = {}
        rows = 0
        for batch in batches:
            _pack(batch, buckets, found)
            rows += batch.num_rows
            if rows >= PACKED_ROWS:
                yield _parts(found)
                found, rows = {}, 0
        if found:
            yield _parts(found)

    return packed


def _pack(
    batch: pa.RecordBatch, buckets: int, found: dict[tuple[str, int], dict[bytes, KeptKey]]
) -> None:
    columns = [batch.column(name).to_pylist() for name in START_COLUMNS]
    for receiver, key_text, kind, name, value, version, due in zip(*columns, strict=True):
        key = key_text.encode()
        part = found.setdefault((receiver, bucket_of(slot_of(key), buckets)), {})
        kept = part.setdefault(key, KeptKey())
        if kind == CELLS:
            kept.entries[name] = value.encode(), version
        else:
            kept.timers[name] = due


def _parts(found: dict[tuple[str, int], dict[bytes, KeptKey]]) -> pa.RecordBatch:
    columns = [
        [receiver for receiver, _ in found],
        [bucket for _, bucket in found],
        [encode_keys(part) for part in found.values()],
    ]
    return _batch(columns, _START)


def unpacked(batches: Batches) -> Batches:
    """Rows of `COLUMNS`, from the columns `receiver` and `content` of stored pages."""
    for batch in batches:
        receivers, contents = batch.column("receiver"), batch.column("content")
        for receiver, content in zip(receivers.to_pylist(), contents.to_pylist(), strict=True):
            rows = [row for key, kept in keys_of(content) for row in rows_of(receiver, key, kept)]
            yield _batch(zip(*rows, strict=True), _RETURN)


def rows_of(receiver: str, key: bytes, kept: KeptKey) -> Iterator[tuple[Any, ...]]:
    """The rows of a key, with `COLUMNS`."""
    own, slot = key.decode(), slot_of(key)
    for name, (value, version) in kept.entries.items():
        yield receiver, own, CELLS, name, value.decode(), version, None, slot
    for tag, due in kept.timers.items():
        yield receiver, own, TIMERS, tag, None, None, due, slot


def _batch(columns: Iterable[Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(column, of) for column, of in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
