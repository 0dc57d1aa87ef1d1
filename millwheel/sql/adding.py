"""Adds the statements of a text to a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from millwheel.errors import SqlError
from millwheel.graph.node import Node, OnFailure
from millwheel.sinks import Sink
from millwheel.sources import Source
from millwheel.sql import syntax as s
from millwheel.sql.compiling import Planner
from millwheel.sql.connectors import source_of
from millwheel.sql.definitions import DefinedTable, event_time, stream_of, table_of
from millwheel.sql.statement_parsing import parse
from millwheel.streams import Input, Stream


class Extensible(Protocol):
    """A pipeline."""

    def inject(
        self,
        stream: Stream[Any],
        source: Source,
        *,
        timestamp: Callable[[Any], datetime] | None = None,
        lateness: timedelta = timedelta(0),
    ) -> None: ...

    def add(
        self,
        computation: Any,
        *inputs: Input[Any],
        name: str | None = None,
        on_error: OnFailure = "fail",
    ) -> None: ...

    def sink(self, stream: Stream[Any], sink: Sink) -> None: ...

    @property
    def nodes(self) -> Mapping[str, Node]: ...


class Adding:
    """Adds statements, each of which may use the definitions of those before it.

    Args:
        streams: streams that are not in the pipeline yet.
    """

    def __init__(
        self, pipeline: Extensible, streams: Sequence[Stream[Any]], on_error: OnFailure
    ) -> None:
        self._pipeline = pipeline
        self._streams = {stream.name: stream for stream in streams}
        self._tables: dict[str, DefinedTable] = {}
        self._written: set[str] = set()
        self._on_error = on_error

    def add(self, statement: s.Statement) -> Stream[Any] | None:
        """Add a statement; gives the stream that it writes, or reads from a source.

        Raises:
            SqlError: it cannot be compiled.
        """
        if isinstance(statement, s.CreateSource):
            return self._source(statement)
        if isinstance(statement, s.CreateTable):
            if statement.name in {**self._known(), **self._tables}:
                raise SqlError(f'"{statement.name}" exists already', statement.place)
            self._tables[statement.name] = table_of(statement)
            return None
        return self._insert(statement)

    def _known(self) -> dict[str, Stream[Any]]:
        return {**streams_of(self._pipeline), **self._streams}

    def _source(self, statement: s.CreateSource) -> Stream[Any]:
        if statement.name in {**self._known(), **self._tables}:
            raise SqlError(f'"{statement.name}" exists already', statement.place)
        stream, source, time = stream_of(statement), source_of(statement), event_time(statement)
        if time is None:
            self._pipeline.inject(stream, source)
        else:
            self._pipeline.inject(stream, source, timestamp=time.timestamp, lateness=time.lateness)
        self._streams[stream.name] = stream
        return stream

    def _insert(self, statement: s.Insert) -> Stream[Any]:
        table = self._tables.get(statement.target or "")
        known = self._known()
        if table is not None and statement.target not in known:
            stream: Stream[Any] = Stream(table.sink.name, table.row_type)
            known[stream.name] = self._streams[stream.name] = stream
        planned = Planner(known).insert(statement, table)
        for step in planned.steps:
            self._pipeline.add(
                step.computation, step.input, name=step.name, on_error=self._on_error
            )
        self._streams[planned.result.name] = planned.result
        if table is not None and planned.result.name not in self._written:
            self._written.add(planned.result.name)
            self._pipeline.sink(planned.result, table.sink)
        return planned.result


def streams_of(pipeline: Extensible) -> dict[str, Stream[Any]]:
    """The streams that are read or written, by name."""
    found: dict[str, Stream[Any]] = {}
    for node in pipeline.nodes.values():
        for stream in (*(input_.stream for input_ in node.inputs), *node.writes):
            found[stream.name] = stream
    return found


def add_queries(
    pipeline: Extensible,
    text: str,
    streams: Sequence[Stream[Any]],
    *,
    on_error: OnFailure = "fail",
) -> list[Stream[Any]]:
    """Add the statements of a text, in their order; gives the streams that they define.

    Raises:
        SqlError: one cannot be compiled.
    """
    adding = Adding(pipeline, streams, on_error)
    found = [adding.add(statement) for statement in parse(text)]
    return [stream for stream in found if stream is not None]
