"""The rows between the operators of a query: records on their way to a step, and results on their
way to the sinks.

For Spark a row costs more than a record does: Python reads it cell by cell. So Spark's rows are
*parcels*, each with the records of one bucket that one task has made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from millwheel.core.model import EPOCH, MAX_TIME
from millwheel.errors import UserCodeError
from millwheel.sinks import Table
from millwheel.spark.engine.buckets import bucket_of
from millwheel.store.port.requests import DeadLetter

RESULT: Final = ""
TABLE, COUNTER, LETTER, CLOCK = "table", "counter", "letter", "clock"
"""Kinds of results. A clock has the watermark that the sources have promised, for Spark and the
store."""
BUNCHES = 16
"""Number of groups in which results continue."""

SCHEMA: Final = "receiver STRING, bucket INT, rows BINARY, mark TIMESTAMP"


class Parcel(NamedTuple):
    """A row of Spark."""

    receiver: str
    """Name of a step, or `RESULT`."""
    bucket: int
    """Bucket of the records' keys, or number of a bunch of results."""
    rows: bytes
    """Encoded `StreamRow` objects."""
    mark: datetime
    """The event time as Spark knows it: never behind its watermark."""


class StreamRow(msgspec.Struct, array_like=True, gc=False):
    """A record or a result."""

    key: bytes
    """Key as JSON; empty for a result."""
    stream: str
    """Stream of the record, or kind of the result."""
    value: bytes
    """JSON."""
    micros: int
    late: bool
    """The sender made the record after the low watermark had passed its timestamp."""
    seq: int
    """Place among the rows of the sender in this batch."""


class Packing:
    """Packs the rows that a task makes into parcels.

    Args:
        buckets: the number of buckets of a step.
    """

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._rows: dict[tuple[str, int], list[StreamRow]] = {}

    def add(self, receiver: str, slot: int, row: StreamRow) -> None:
        """Add a record for a step; `slot` is that of its key."""
        place = receiver, bucket_of(slot, self._buckets)
        self._rows.setdefault(place, []).append(row)

    def add_result(self, bunch: int, row: StreamRow) -> None:
        self._rows.setdefault((RESULT, bunch % BUNCHES), []).append(row)

    def take(self, mark: datetime) -> Iterator[Parcel]:
        """The parcels of all rows so far; leaves none."""
        rows, self._rows = self._rows, {}
        for (receiver, bucket), own in rows.items():
            yield Parcel(receiver, bucket, encode_rows(own), mark)


encode_rows = msgspec.msgpack.Encoder().encode
decode_rows = msgspec.msgpack.Decoder(list[StreamRow]).decode


def table_row(table: Table[Any], values: Sequence[Any]) -> bytes:
    """Name of the table, and the columns as Postgres reads them."""
    return msgspec.json.encode([table.name, [column_text(value) for value in values]])


def column_text(value: Any) -> str | None:
    """A column's value as Postgres reads it; `UserCodeError` if Postgres cannot store it."""
    if value is None or isinstance(value, str):
        if value is not None and "\0" in value:
            raise UserCodeError(f"a text for a table has a NUL character: {value!r:.80}")
        return value
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return str(value)


def counter_row(computation: str, name: str, by: int) -> bytes:
    return msgspec.json.encode([computation, name, by])


def letter_row(computation: str, letter: DeadLetter) -> bytes:
    found = letter._asdict()
    found["computation"] = computation
    found["record_id"] = None if letter.record_id is None else letter.record_id.hex()
    found["key"] = None if letter.key is None else letter.key.decode()
    return msgspec.json.encode(found)


# -- Spark's watermark: milliseconds since 1970 -------------------------------------------

LAST_MILLIS: Final = MAX_TIME // 1000


def mark_of(micros: int) -> datetime:
    """The event time that stands for a low watermark; Spark knows none before 1970."""
    return EPOCH + timedelta(milliseconds=max(1, micros // 1000))


def micros_of_watermark(millis: int) -> int | None:
    """The low watermark that Spark's watermark stands for; None: nothing is promised yet.

    Spark's is one millisecond behind the mark, because it takes an event time that equals it for
    late.
    """
    if millis <= 0:
        return None
    return MAX_TIME if millis >= LAST_MILLIS - 1 else (millis + 1) * 1000


def millis_of_timer(due: int) -> int:
    """When Spark must call for a timer that is due: as soon as the low watermark has passed it."""
    return max(1, min(due // 1000, LAST_MILLIS - 2))
