"""Chooses how the steps of a pipeline run on Spark: as Spark's own SQL, or as classes.

A pipeline runs as SQL if all its steps can: rows in columns would have to be encoded for a class
that reads them, which costs more than the class does by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from millwheel.graph.labels import INJECTED
from millwheel.graph.node import Node
from millwheel.graph.order import Graph
from millwheel.graph.relays import Relay
from millwheel.sinks import SinkUse, Table
from millwheel.spark.queries.equivalents import COLUMNS
from millwheel.spark.queries.grouping import grouping
from millwheel.spark.queries.query_steps import Projection, Step
from millwheel.spark.queries.translating import NotTheSame, Translator
from millwheel.sql import typed as t
from millwheel.sql.analysis import Analyzed
from millwheel.sql.schemas import fields_of
from millwheel.sql.scopes import WINDOW
from millwheel.sql.steps import Loop, QueryJoin
from millwheel.sql.types import shown
from millwheel.streams import Stream
from millwheel.windows import Sliding, Tumbling

Origins = dict[str, frozenset[tuple[str, str]]]
"""By column, the columns of sources that it is without a change."""


@dataclass
class KnownColumns:
    """Facts about the columns of a stream.

    Args:
        kinds: SQL types of the columns, by name.
        origins: where columns come from, if they are columns of sources as they are.
        may_fail: whether a value in it may raise an error.
        is_grouped: whether its rows come from groups.
    """

    kinds: dict[str, str]
    origins: Origins
    may_fail: bool = False
    is_grouped: bool = False

    def united(self, other: KnownColumns) -> KnownColumns:
        """Of the stream of UNION ALL."""
        return KnownColumns(
            self.kinds,
            {
                name: self.origins[name] | other.origins[name]
                for name in self.origins.keys() & other.origins.keys()
            },
            self.may_fail or other.may_fail,
            self.is_grouped or other.is_grouped,
        )


@dataclass
class SourceRows:
    """The columns of a source's stream that queries use."""

    kinds: dict[str, str] = field(default_factory=dict)
    """Names and SQL types."""
    times: set[str] = field(default_factory=set)
    """KnownColumns that must have the event time of their row."""


@dataclass(frozen=True)
class TableWrite:
    """Rows of a stream that go to a table; `writer` is the step whose commits would write them."""

    stream: str
    writer: str
    place: int
    """Number of the table among those of the writer."""


@dataclass
class QueryPlan:
    """The steps of a pipeline as Spark's SQL.

    Args:
        reasons: by step, why it runs as a class by itself.
    """

    steps: dict[str, Step] = field(default_factory=dict)
    sources: dict[str, SourceRows] = field(default_factory=dict)
    writes: list[TableWrite] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all of the pipeline runs as SQL."""
        return not self.reasons

    def lines(self) -> Iterator[str]:
        """For each step, how it runs, and its SQL."""
        for name, step in self.steps.items():
            how = "Spark's SQL" if self.is_whole else "a class, since others are"
            yield f"-- {name}: {how}\n{step.text}\n"
        for name, reason in self.reasons.items():
            yield f"-- {name}: a class, since Spark has not the same: {reason}\n"

    @classmethod
    def of(cls, graph: Graph) -> QueryPlan:
        return _Planning(graph).plan


def written_tables(node: Node) -> list[tuple[Stream[object], SinkUse]]:
    """The sinks of a node, each with its stream."""
    streams = {stream.name: stream for stream in node.writes}
    return [(streams[name], use) for name, uses in node.sinks.items() for use in uses]


class _Planning:
    """Looks at the steps of a graph, in their order."""

    def __init__(self, graph: Graph) -> None:
        self.plan = QueryPlan()
        self._known: dict[str, KnownColumns] = {}
        self._rows_of = _rows_of_partials(graph)
        self._kept: set[str] = set()
        """Streams of partial sums whose groups Spark keeps."""
        for node in graph.nodes:
            try:
                self._look_at(node)
            except NotTheSame as reason:
                self.plan.reasons[node.name] = str(reason)
        if not self.plan.writes and not self.plan.reasons:
            self.plan.reasons[graph.name] = "a pipeline without tables"

    def _look_at(self, node: Node) -> None:
        if node.on_error != "fail":
            raise NotTheSame(f"on_error={node.on_error!r}")
        read = node.inputs[0].stream.name if node.inputs else ""
        if node.kind == "injector":
            self._inject(node)
        elif isinstance(node.computation, Loop):
            if node.computation.query is None:
                raise NotTheSame("a part of a join, of first rows, or of LATE INTO")
            self._query(node, node.computation.query)
        elif isinstance(node.computation, QueryJoin):
            raise NotTheSame("a join")
        elif read in self._kept:
            self._write(node, self._rows_of[read])
        elif read in self._rows_of:
            raise NotTheSame("groups of a query that is a class")
        elif type(node.computation) is Relay and not node.named and node.sinks:
            self._write(node, read)
        else:
            raise NotTheSame("a class of the user, or a part of the engine")

    # -- sources and tables -----------------------------------------------------------------------

    def _inject(self, node: Node) -> None:
        assert node.injection is not None
        stream = node.writes[0]
        if node.injection.on_error != "fail":
            raise NotTheSame("inject(on_error=...)")
        if stream.name.endswith(INJECTED):
            raise NotTheSame("inject(id=...)")
        kinds = {
            each.name: each.type.name
            for each in fields_of(stream.value_type) or []
            if each.type is not None and each.type.name in COLUMNS
        }
        _check_names(kinds)
        origins = {name: frozenset([(stream.name, name)]) for name in kinds}
        self.plan.sources.setdefault(stream.name, SourceRows())
        self._known[stream.name] = KnownColumns(kinds, origins)
        self._write(node, stream.name)

    def _write(self, node: Node, stream: str) -> None:
        for place, (_, use) in enumerate(written_tables(node)):
            if not isinstance(use.sink, Table):
                raise NotTheSame(f"a sink {type(use.sink).__name__}")
            if use.sink.producer_key:
                raise NotTheSame("a table with producer_key=")
            if stream not in self._known or stream in self.plan.sources:
                raise NotTheSame("a table of rows that no query makes")
            self.plan.writes.append(TableWrite(stream, node.name, place))

    # -- queries ----------------------------------------------------------------------------------

    def _query(self, node: Node, query: Analyzed) -> None:
        source, made = query.source.name, node.writes[0].name
        known = self._known.get(source)
        if known is None:
            raise NotTheSame(f"{source}, its input, comes from a class")
        if known.may_fail:
            raise NotTheSame(
                f"values of {source}, its input, may fail, and Spark computes those that it needs"
            )
        if query.source.expansions:
            raise NotTheSame("unnest")
        _check_names(query.columns.names)
        reading = _UsedColumns(known, self.plan.sources.get(source))
        step, may_fail = (
            self._grouped(query, known, reading, self._rows_of[made])
            if query.has_groups
            else _projected(query, reading, made)
        )
        self._note(query, known, step, may_fail=may_fail)
        self.plan.steps[node.name] = step
        if query.has_groups:
            self._kept.add(made)
        else:
            self._write(node, made)

    def _grouped(
        self, query: Analyzed, known: KnownColumns, reading: _UsedColumns, target: str
    ) -> tuple[Step, bool]:
        size, slide = _window(query)
        assert query.window is not None
        if known.is_grouped or query.window.time is None:
            raise NotTheSame("windows over the rows of windows")
        times = known.origins.get(query.window.time)
        if times is None:
            raise NotTheSame(f"the event time {query.window.time}, which is computed")
        found = grouping(query, reading, target, size, slide)
        for source, column in times:
            rows = self.plan.sources[source]
            rows.kinds[column] = "timestamptz"
            rows.times.add(column)
        return found

    def _note(self, query: Analyzed, known: KnownColumns, step: Step, *, may_fail: bool) -> None:
        """Note facts about the columns of a result; a stream may have several parts."""
        named = list(zip(query.columns.names, query.columns.values, strict=True))
        made = KnownColumns(
            {name: value.type.name for name, value in named},
            {
                name: known.origins[value.name]
                for name, value in named
                if isinstance(value, t.ColumnValue) and value.name in known.origins
                and not query.has_groups
            },
            may_fail,
            query.has_groups or known.is_grouped,
        )  # fmt: skip
        other = self._known.get(step.target)
        self._known[step.target] = made if other is None else made.united(other)


class _UsedColumns:
    """The columns that a query reads, as Spark's SQL.

    Args:
        rows: notes the columns that are used, if the input is a source's.
    """

    def __init__(self, known: KnownColumns, rows: SourceRows | None) -> None:
        self._known = known
        self._rows = rows

    def __call__(self, node: t.ColumnValue) -> str:
        kind = self._known.kinds.get(node.name)
        if kind is None or node.table == WINDOW:
            raise NotTheSame(f"the column {node.name}, of type {shown(node.type)}")
        if self._rows is not None:
            self._rows.kinds[node.name] = kind
        return f"`{node.name}`"


def _projected(query: Analyzed, reading: _UsedColumns, target: str) -> tuple[Step, bool]:
    if query.window is not None:
        raise NotTheSame("windows without GROUP BY")
    translator = Translator(reading)
    where = None if query.where is None else translator.truth(query.where)
    columns = [
        (name, translator.value(value))
        for name, value in zip(query.columns.names, query.columns.values, strict=True)
    ]
    return Projection(query.source.name, target, where, columns), translator.may_fail


def _window(query: Analyzed) -> tuple[int, int]:
    """Size and slide of the windows of a query."""
    emission = query.emission
    if query.window is None:
        raise NotTheSame("groups without windows")
    if emission.on_update or emission.amends:
        raise NotTheSame("EMIT ON UPDATE" if emission.on_update else "ALLOWED LATENESS")
    windows = query.window.assigner
    pieces = windows.slices if isinstance(windows, Sliding) else windows
    if not isinstance(pieces, Tumbling):
        raise NotTheSame("SESSION, which joins records that are just a gap apart, and months")
    if pieces.offset or pieces.is_local:
        raise NotTheSame("windows with an offset, or of a time zone")
    number = windows.number if isinstance(windows, Sliding) else 1
    return pieces.size * number, pieces.size


def _check_names(names: Iterable[str]) -> None:
    """Refuse names that are one name for Spark, which ignores case."""
    lower = [name.lower() for name in names]
    for name in lower:
        if lower.count(name) > 1:
            raise NotTheSame(f"columns {name} that differ in upper and lower case")


def _rows_of_partials(graph: Graph) -> dict[str, str]:
    """By the stream of partial sums of a query with groups, the stream of its rows."""
    partials = {
        node.writes[0].name
        for node in graph.nodes
        if isinstance(node.computation, Loop)
        and node.computation.query is not None
        and node.computation.query.has_groups
    }
    return {
        node.inputs[0].stream.name: node.writes[0].name
        for node in graph.nodes
        if node.inputs and node.inputs[0].stream.name in partials
    }
