"""The rows between the operators of a query: records on their way to a step, and results on their
way to the sinks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from millwheel.core.model import EPOCH, MAX_TIME
from millwheel.errors import UserCodeError
from millwheel.sinks import Table
from millwheel.store.port.requests import DeadLetter

RESULT: Final = ""
TABLE, COUNTER, LETTER, CLOCK = "table", "counter", "letter", "clock"
"""Kinds of results. A clock has the watermark that the sources have promised, for Spark and the
store."""
BUNCHES = 16
"""Number of groups in which the results of a task continue."""

SCHEMA: Final = (
    "receiver STRING, key STRING, stream STRING, value STRING, micros BIGINT, late BOOLEAN, seq "
    "BIGINT, mark TIMESTAMP"
)


class StreamRow(NamedTuple):
    receiver: str
    """Name of a step, or `RESULT`."""
    key: str
    """Key as JSON, or number of a result's group."""
    stream: str
    """Stream of the record, or kind of the result."""
    value: str
    """JSON."""
    micros: int
    late: bool
    """The sender made the record after the low watermark had passed its timestamp."""
    seq: int
    """Place among the rows of the sender in this batch."""
    mark: datetime
    """The event time as Spark knows it: never behind its watermark."""


def table_row(table: Table[Any], values: Sequence[Any]) -> str:
    """Name of the table, and the columns as Postgres reads them."""
    return msgspec.json.encode([table.name, [column_text(value) for value in values]]).decode()


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


def counter_row(computation: str, name: str, by: int) -> str:
    return msgspec.json.encode([computation, name, by]).decode()


def letter_row(computation: str, letter: DeadLetter) -> str:
    found = letter._asdict()
    found["computation"] = computation
    found["record_id"] = None if letter.record_id is None else letter.record_id.hex()
    found["key"] = None if letter.key is None else letter.key.decode()
    return msgspec.json.encode(found).decode()


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
