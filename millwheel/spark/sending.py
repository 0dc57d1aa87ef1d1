"""``df.write.format("millwheel")``: rows become records of a stream that takes records
(`millwheel.Inbox`).

Options: ``store``, ``pipeline``, ``stream``, ``id`` (names of the columns that together identify a
record, with commas) and ``timestamp`` (a column with the event time; without it, records have the
time of sending).

A task that runs twice, a batch that is repeated and a job that is started again send the same ids,
and a repeated id has no second effect for as long as the Inbox remembers it. The same id with other
values is an error. The types of the columns are compared with those of the stream before anything
is sent. A transaction sends `SENT_TOGETHER` rows, since the stream's low watermark waits for open
transactions; a job that fails has sent a part of its rows.
"""

from __future__ import annotations

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

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import StatementError, UsageError
from millwheel.spark.encoding import check_types, encoded, has_map, in_utc, values
from millwheel.spark.fitting import check_fit
from millwheel.spark.store_sessions import Connection, statement, writing

SENT_TOGETHER = 2_000
"""Most rows of one transaction."""

ENCODER = msgspec.json.Encoder(decimal_format="number")

TIMES = ("timestamp",)

HIDDEN = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
)
"""Errors of a login that may only send, and of a missing pipeline, which sending names better."""


class SparkSender:
    """`UsageError` if a column that an option names does not exist, or is no time; or if the
    columns do not fit the stream."""

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
                "the option 'id' of format 'millwheel' is missing: name the columns that identify "
                "a record, so that a task that runs twice sends it once"
            )
        names = schema.fieldNames()
        for name in (*self._id, *([timestamp] if timestamp else ())):
            if name not in names:
                message = f"there is no column {name!r}; there are {', '.join(names)}"
                raise UsageError(with_suggestion(message, name, names))
        if timestamp and schema[timestamp].dataType.typeName() not in TIMES:
            raise UsageError(
                f"the column {timestamp!r} is {schema[timestamp].dataType.simpleString()}, not "
                "timestamp"
            )
        self._fields = [name for name in names if name != timestamp]
        self._check_types(schema)

    def send(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Returns how many rows are new.

        Raises:
            StatementError: the stream takes no records, or an id was sent with another value.
            UserCodeError: a value has no JSON.
        """
        text = statement("reading/send_records", self._pipeline)
        new = 0
        with writing(self._store, autocommit=True) as connection:
            for batch in batches:
                for first in range(0, batch.num_rows, SENT_TOGETHER):
                    rows = values(in_utc(batch.slice(first, SENT_TOGETHER)))
                    new += self._send(connection, text, rows)
        return new

    def _send(
        self,
        connection: Connection,
        text: sql.Composed,
        rows: Sequence[dict[str, Any]],
    ) -> int:
        records = [self._json({name: row[name] for name in self._fields}) for row in rows]
        ids = [self._json([row[name] for name in self._id]) for row in rows]
        times = [row[self._timestamp] for row in rows] if self._timestamp else None
        try:
            sent = {"stream": self._stream, "records": records, "ids": ids, "times": times}
            (found,) = connection.execute(text, sent).fetchall()
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
        return encoded(value, ENCODER, f"stream {self._stream!r}")

    def _check_types(self, schema: spark.StructType) -> None:
        fields = [schema[name] for name in self._fields]
        check_types([*fields, *(schema[name] for name in self._id)], "a record")
        for name in self._id:
            if has_map(schema[name].dataType):
                raise UsageError(
                    f"the column {name!r} is {schema[name].dataType.simpleString()}, and the "
                    "members of a map are in no order: it cannot be a part of an id"
                )
        fingerprint = deployed_type(self._store, self._pipeline, self._stream)
        if fingerprint is not None:
            check_fit(fields, fingerprint, self._stream)


def deployed_type(store: str, pipeline: str, stream: str) -> dict[str, Any] | None:
    """The type of a stream's values, as deployed; None: there is no such stream, or this login may
    not look, and the pipeline that takes its rows compares them."""
    text = statement("reading/deployed_type", pipeline)
    try:
        with writing(store) as connection:
            found = connection.execute(text, {"stream": stream}).fetchone()
    except StatementError as error:
        if isinstance(error.__cause__, HIDDEN):
            return None
        raise
    return None if found is None else found[0]


class SendingWriter(DataSourceArrowWriter):
    def __init__(self, sender: SparkSender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._sender.send(iterator)
        return WriterCommitMessage()


class StreamSendingWriter(DataSourceStreamArrowWriter):
    def __init__(self, sender: SparkSender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._sender.send(iterator)
        return WriterCommitMessage()
