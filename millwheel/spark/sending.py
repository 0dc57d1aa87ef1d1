"""``df.write.format("millwheel")``: rows become records of a stream that takes records (`millwheel.Inbox`).

Options: ``store``, ``pipeline``, ``stream``, ``id`` (names of the columns that together identify a record, with commas) and
``timestamp`` (a column with the event time; without it, records have the time of sending).

Each row is sent with an id, made of the columns named by ``id``. A task that runs twice, a batch that is repeated and a
job that is started again send the same ids, and a repeated id has no second effect for as long as the Inbox remembers it.
The same id with other values is an error. Records are sent in transactions of `SENT_TOGETHER` rows, since the stream's low
watermark waits for open transactions; a job that fails has sent a part of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as spark
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millwheel.errors import StatementError, UsageError, UserCodeError
from millwheel.spark.connection import Connection, writing

SENT_TOGETHER = 2_000
"""Most rows of one transaction."""

ENCODER = msgspec.json.Encoder(decimal_format="number")

TIMES = ("timestamp",)


class SparkSender:
    """Sends rows of Spark to a stream.

    Raises:
        UsageError: a column that an option names does not exist, or is no time.
    """

    def __init__(
        self,
        store: str,
        pipeline: str,
        stream: str,
        schema: spark.StructType,
        *,
        id: str,
        timestamp: str | None,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._stream = stream
        self._id = [name.strip() for name in id.split(",") if name.strip()]
        self._timestamp = timestamp
        if not self._id:
            raise UsageError(
                "the option 'id' of format 'millwheel' is missing: name the columns that identify a record, so that a "
                "task that runs twice sends it once"
            )
        names = schema.fieldNames()
        for name in (*self._id, *([timestamp] if timestamp else ())):
            if name not in names:
                raise UsageError(f"there is no column {name!r}; there are {', '.join(names)}")
        if timestamp and schema[timestamp].dataType.typeName() not in TIMES:
            raise UsageError(
                f"the column {timestamp!r} is {schema[timestamp].dataType.simpleString()}, not timestamp"
            )
        self._fields = [name for name in names if name != timestamp]

    def send(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Send rows; returns how many are new.

        Raises:
            StatementError: the stream takes no records, or an id was sent with another value.
            UserCodeError: a value has no JSON.
        """
        text = sql.SQL(
            "SELECT count(*) FILTER (WHERE x) FROM unnest({}(%s, %s::text[]::jsonb[], %s::text[], %s::timestamptz[])) AS x"
        ).format(sql.Identifier(self._pipeline, "send_all"))
        new = 0
        with writing(self._store, autocommit=True) as connection:
            for batch in batches:
                for first in range(0, batch.num_rows, SENT_TOGETHER):
                    rows = batch.slice(first, SENT_TOGETHER).to_pylist()
                    new += self._send(connection, text, rows)
        return new

    def _send(
        self,
        connection: Connection,
        text: sql.Composed,
        rows: Sequence[dict[str, Any]],
    ) -> int:
        values = [self._json({name: row[name] for name in self._fields}) for row in rows]
        ids = [self._json([row[name] for name in self._id]) for row in rows]
        times = [row[self._timestamp] for row in rows] if self._timestamp else None
        try:
            (found,) = connection.execute(text, [self._stream, values, ids, times]).fetchall()
        except psycopg.errors.Error as error:
            if connection.broken:
                raise
            hint = error.diag.message_hint
            raise StatementError(
                f"stream {self._stream!r} of pipeline {self._pipeline!r} refused records: "
                f"{error.diag.message_primary or error}" + (f". {hint}" if hint else "")
            ) from error
        return int(found[0])

    def _json(self, value: Any) -> str:
        if _has_no_number(value):
            raise UserCodeError(
                f"a row for stream {self._stream!r} has NaN or an infinity, which JSON does not have: {value!r:.200}"
            )
        return ENCODER.encode(value).decode()


def _has_no_number(value: Any) -> bool:
    """Whether a value has NaN or an infinity in it."""
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(map(_has_no_number, value.values()))
        case list():
            return any(map(_has_no_number, value))
    return False


class SendingWriter(DataSourceArrowWriter):
    """Sends the rows of a DataFrame."""

    def __init__(self, sender: SparkSender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._sender.send(iterator)
        return WriterCommitMessage()


class StreamSendingWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a streaming query, batch by batch."""

    def __init__(self, sender: SparkSender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._sender.send(iterator)
        return WriterCommitMessage()
