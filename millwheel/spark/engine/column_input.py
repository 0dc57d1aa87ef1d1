"""The sources of a pipeline that runs as Spark's SQL: records in columns.

Positions, batches and the promise are those of `millwheel.spark.engine.input`. A record is a row
with the columns that queries use, in a struct for its stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from millwheel.core.model import from_micros, to_micros
from millwheel.errors import UserCodeError
from millwheel.sources import Row
from millwheel.spark.engine.input import InjectedSource, InputReader, OpenPart, SourcePart
from millwheel.spark.engine.plan import SparkPlan, planned
from millwheel.spark.engine.stream_rows import mark_of
from millwheel.spark.queries.equivalents import TYPES
from millwheel.spark.queries.query_plan import QueryPlan, SourceRows
from millwheel.spark.queries.query_steps import EVENT, MARK, SEQ, STREAM

FORMAT = "millwheel_columns"
AS_SQL = "as_sql"
"""The part of an offset that says that the query runs as Spark's SQL."""
ARROW: dict[str, pa.DataType] = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(),
    "float8": pa.float64(), "text": pa.string(), "varchar": pa.string(), "date": pa.date32(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
"""Arrow's type for the values of each SQL type."""


@lru_cache(maxsize=4)
def queries_of(target: str) -> QueryPlan:
    """How the queries of a shipped target run, found once in each process."""
    return QueryPlan.of(planned(target).graph)


def column_schema(sources: Mapping[str, SourceRows]) -> str:
    """The schema of the rows: stream, place, event time, mark, and a struct for each stream."""
    parts = [f"{STREAM} STRING", f"{SEQ} BIGINT", f"{EVENT} TIMESTAMP", f"{MARK} TIMESTAMP"]
    for name, rows in sources.items():
        inner = ", ".join(f"`{column}`: {TYPES[kind]}" for column, kind in rows.kinds.items())
        parts.append(f"`{name}` STRUCT<{inner or '__none: BOOLEAN'}>")
    return ", ".join(parts)


class ColumnSource(InjectedSource):
    """The source of a query that runs as Spark's SQL; options as those of `InjectedSource`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return column_schema(queries_of(self.options["target"]).sources)

    def streamReader(self, schema: Any) -> InputReader:
        return ColumnReader(
            self.options["target"],
            int(self.options["rows"]),
            int(self.options["buckets"]),
            keep_open=self.options.get("keep_open") == "true",
            begins_with=json.loads(self.options.get("begins_with", "null")),
        )


class ColumnReader(InputReader):
    """Reads records into columns."""

    def initialOffset(self) -> dict[str, Any]:
        return {**super().initialOffset(), AS_SQL: True}

    def clock(self, plan: SparkPlan, mark: int) -> pa.RecordBatch:
        columns = [[""], [0], [None], [mark_of(mark)]]
        return column_batch(queries_of(self._target).sources, columns, "", {})

    def opened(self, plan: SparkPlan, part: SourcePart) -> OpenPart:
        return ColumnPart(plan, part, queries_of(self._target).sources)


class ColumnPart(OpenPart):
    """A part of a partition as columns."""

    def __init__(
        self, plan: SparkPlan, part: SourcePart, sources: Mapping[str, SourceRows]
    ) -> None:
        super().__init__(plan, part)
        self._sources = sources
        self._own = sources[self._stream.name]
        self._values: list[Any] = []
        self._micros: list[int] = []
        self._offsets: list[int] = []

    def _pack(self, row: Row) -> None:
        if row.error is not None:
            self._give_up(row, row.error)
            return
        try:
            micros = self._rules.time_of(row)
        except Exception as wrong:
            self._give_up(row, self._rules.blame(row, wrong))
            return
        self._values.append(row.value)
        self._micros.append(micros)
        self._offsets.append(row.offset)

    def _taken(self) -> list[pa.RecordBatch]:
        values, micros, offsets = self._values, self._micros, self._offsets
        self._values, self._micros, self._offsets = [], [], []
        if not values:
            return []
        found = {name: [getattr(value, name) for value in values] for name in self._own.kinds}
        for name in self._own.times:
            check_event_times(found[name], micros, name)
        events = pa.array(micros, pa.int64()).cast(ARROW["timestamptz"])
        columns = [
            [self._stream.name] * len(values), offsets, events, [self._mark] * len(values)
        ]  # fmt: skip
        return [column_batch(self._sources, columns, self._stream.name, found)]


def check_event_times(values: Sequence[Any], micros: Sequence[int], column: str) -> None:
    """Refuse a column that is not the event time of its stream, and times that Spark's windows do
    not take.

    Raises:
        UserCodeError: a record has another time, or none, or one before 1970.
    """
    for value, at in zip(values, micros, strict=True):
        if value is None or to_micros(value) != at:
            raise UserCodeError(
                f"the windows are over column {column}, which is {value}, and the event time of "
                f"the record is {from_micros(at)}: windows follow the event time that the stream "
                "was given (timestamp= of inject)"
            )
        if at < 0:
            raise UserCodeError(
                f"Spark's windows begin in 1970, and a record is of {value}: run the pipeline by "
                "its classes (millwheel spark run --by-classes, with another checkpoint)"
            )


def column_batch(
    sources: Mapping[str, SourceRows],
    columns: Sequence[Any],
    stream: str,
    values: Mapping[str, Sequence[Any]],
) -> pa.RecordBatch:
    """Rows of one stream.

    Args:
        columns: their stream, place, event time and mark.
        stream: the name of the stream; empty: the row has the promise.
        values: by name, the values of the stream's columns.
    """
    kinds = [pa.string(), pa.int64(), ARROW["timestamptz"], ARROW["timestamptz"]]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    for name, rows in sources.items():
        fields = [pa.field(each, ARROW[kind]) for each, kind in rows.kinds.items()]
        fields = fields or [pa.field("__none", pa.bool_())]
        if name != stream:
            arrays.append(pa.nulls(len(arrays[0]), pa.struct(fields)))
            continue
        given = [values.get(each.name, [None] * len(arrays[0])) for each in fields]
        made = [pa.array(each, of.type) for each, of in zip(given, fields, strict=True)]
        arrays.append(pa.StructArray.from_arrays(made, fields=fields))
    names = [STREAM, SEQ, EVENT, MARK, *sources]
    return pa.RecordBatch.from_arrays(arrays, names=names)
