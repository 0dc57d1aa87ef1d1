"""Adds the statements of a text to a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from millwheel.errors import SqlError
from millwheel.graph.labels import free_name
from millwheel.graph.node import Node, OnFailure
from millwheel.sinks import Sink
from millwheel.sources import Source
from millwheel.sql import syntax as s
from millwheel.sql.compiling import Planner
from millwheel.sql.connectors import sink_of, source_of
from millwheel.sql.definitions import DefinedTable, event_time, stream_of, table_of
from millwheel.sql.place import Place
from millwheel.sql.statement_parsing import parse
from millwheel.streams import Input, Stream, StreamFacts


class Extensible(Protocol):
    """A pipeline."""

    def inject(
        self,
        stream: Stream[Any],
        source: Source,
        *,
        timestamp: Callable[[Any], datetime] | None = None,
        lateness: timedelta = timedelta(0),
        name: str | None = None,
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
        streams: streams that are not in the pipeline yet, or that it has under other names, by the
            name that statements use.
        avoided: names of former steps and streams, which new ones do not get.
    """

    def __init__(
        self,
        pipeline: Extensible,
        streams: Mapping[str, Stream[Any]],
        on_error: OnFailure,
        avoided: Collection[str] = (),
    ) -> None:
        self._pipeline = pipeline
        self._streams = {**streams_of(pipeline), **streams}
        written = {stream.name for node in pipeline.nodes.values() for stream in node.writes}
        for stream in streams.values():
            if stream.name not in written:  # a query of another pipeline may have written it
                stream.facts = StreamFacts()
        self._names = {*pipeline.nodes, *avoided}
        self._avoided = frozenset(avoided)
        self.written: dict[str, Stream[Any]] = {}
        """The streams that statements write, or read from a source, by the name in the text."""
        self._tables: dict[str, DefinedTable] = {}
        self._unwritten: dict[str, Place] = {}
        """Tables without an INSERT so far, and where they are defined."""
        self._on_error = on_error
        self._actions: list[Callable[[], None]] = []

    def add(self, statement: s.Statement) -> Stream[Any] | None:
        """Compile a statement; gives the stream that it writes, or reads from a source.

        Raises:
            SqlError: it cannot be compiled.
        """
        if isinstance(statement, s.CreateSource):
            return self._source(statement)
        if isinstance(statement, s.CreateTable):
            self._check_new(statement)
            self._tables[statement.name] = table_of(statement)
            self._unwritten[statement.name] = statement.place
            return None
        if isinstance(statement, s.CreateSink):
            self._sink(statement)
            return None
        return self._insert(statement)

    def carry_out(self) -> None:
        """Change the pipeline, once all statements are compiled.

        Raises:
            SqlError: a table is defined and never written.
        """
        for name, place in self._unwritten.items():
            raise SqlError(f'nothing is inserted into the table "{name}"', place)
        for action in self._actions:
            action()

    def _check_new(self, statement: s.CreateSource | s.CreateTable) -> None:
        if statement.name in self._streams or statement.name in self._tables:
            raise SqlError(f'"{statement.name}" exists already', statement.place)

    def _source(self, statement: s.CreateSource) -> Stream[Any]:
        self._check_new(statement)
        named = replace(statement, name=self._free(statement.name))
        stream, source, time = stream_of(named), source_of(named), event_time(named)
        given: dict[str, Any] = {}
        if time is not None:
            given = {"timestamp": time.timestamp, "lateness": time.lateness}
        if self._avoided:
            given["name"] = free_name(f"{stream.name}_injector", self._names)
            self._names.add(given["name"])
        self._actions.append(partial(self._pipeline.inject, stream, source, **given))
        self._streams[statement.name] = self.written[statement.name] = stream
        return stream

    def _sink(self, statement: s.CreateSink) -> None:
        stream = self._streams.get(statement.stream.name)
        if stream is None:
            known = ", ".join(sorted(self._streams)) or "none"
            raise SqlError(
                f'stream "{statement.stream.name}" does not exist', statement.stream.place,
                f"The streams are: {known}",
            )  # fmt: skip
        sink = sink_of(statement, stream)
        self._actions.append(partial(self._pipeline.sink, stream, sink))

    def _free(self, name: str) -> str:
        """The name of a stream, which is not one to avoid."""
        return free_name(name, {*self._avoided, *self._streams}) if name in self._avoided else name

    def _insert(self, statement: s.Insert) -> Stream[Any]:
        name = statement.target or ""
        table = self._tables.get(name)
        if table is not None and name not in self._streams:
            self._streams[name] = Stream(self._free(name), table.row_type)
        if name and name not in self._streams:
            statement = replace(statement, target=self._free(name))
        planned = Planner(self._streams, self._names).insert(statement, table)
        for step in planned.steps:
            self._names.add(step.name)
            self._actions.append(
                partial(
                    self._pipeline.add, step.computation, *step.inputs, name=step.name,
                    on_error=self._on_error,
                )
            )  # fmt: skip
        result = planned.result
        self._streams[name] = self.written[name] = result
        self._streams.update({stream.name: stream for stream in planned.late})
        if table is not None and self._unwritten.pop(name, None) is not None:
            self._actions.append(partial(self._pipeline.sink, result, table.sink))
        return result


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
    adding = Adding(pipeline, {stream.name: stream for stream in streams}, on_error)
    return _added(adding, text)


def add_submitted(
    pipeline: Extensible,
    text: str,
    streams: Mapping[str, Stream[Any]],
    avoided: Collection[str],
    *,
    on_error: OnFailure,
) -> dict[str, Stream[Any]]:
    """Add a query that was submitted to a pipeline; gives the streams that it defines or writes, by
    the names in its text.

    Args:
        streams: those of other queries, by the names in their texts.
        avoided: names of former steps and streams, which new ones do not get.

    Raises:
        SqlError: a statement cannot be compiled.
    """
    adding = Adding(pipeline, streams, on_error, avoided)
    _added(adding, text)
    return adding.written


def _added(adding: Adding, text: str) -> list[Stream[Any]]:
    defined = [adding.add(statement) for statement in parse(text)]
    found = [stream for stream in defined if stream is not None]
    if not found:
        raise SqlError("there is no statement", Place(text, 0), "Write INSERT INTO ... SELECT")
    adding.carry_out()
    return found
