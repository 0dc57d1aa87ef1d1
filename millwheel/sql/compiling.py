"""Turns queries into computations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.analysis import (
    Analyzed,
    ResultColumns,
    analyze,
    common_spreads,
    composed,
    settled,
)
from millwheel.sql.assigning import (
    columns_of,
    described_columns,
    for_table,
    listed,
    renamed,
    unified,
)
from millwheel.sql.conditions import columns_in, conjunction, conjuncts
from millwheel.sql.definitions import DefinedTable
from millwheel.sql.generated import Generated
from millwheel.sql.generating import Generator
from millwheel.sql.group_parts import GroupParts
from millwheel.sql.joining import JoinPlanner
from millwheel.sql.loops import (
    expansion_lines,
    of_record,
    select_source,
)
from millwheel.sql.planned import Assembly, Planned
from millwheel.sql.rank_planning import RankPlanner, rows_only
from millwheel.sql.ranking import ranking_of
from millwheel.sql.relations import JOINED, from_item, relation_of
from millwheel.sql.schemas import fields_of, struct_of
from millwheel.sql.steps import Loop
from millwheel.sql.window_tables import check_lines, window_lines
from millwheel.streams import Stream, StreamFacts
from millwheel.windows import rule_of


class Planner:
    """Plans one statement.

    Args:
        streams: the streams that it may read and write, by name.
        taken: the names of other steps.
    """

    def __init__(self, streams: Mapping[str, Stream[Any]], taken: Collection[str] = ()) -> None:
        self._streams = streams
        self._assembly = Assembly({*taken, *streams})
        self._of_queries: dict[int, Stream[Any]] = {}
        """The results of queries in FROM, by the identity of the query."""
        self._late_streams: list[Stream[Any]] = []
        self._unplanned: dict[str, Analyzed] = {}
        """Queries in FROM with rows that replace others, by the name of their stream: the query
        around one adds its columns, so that one step makes the rows, in their order."""
        self._ranks: dict[str, RankPlanner] = {}
        """First rows that replace others, likewise."""
        self._joins: dict[str, JoinPlanner] = {}
        """Joins, which make the rows of a query themselves if that cannot fail: otherwise a record
        would fail with all its pairs."""

    def insert(self, statement: s.Insert, table: DefinedTable | None = None) -> Planned:
        """Plan a statement.

        Args:
            table: the table that it writes, if it is defined in SQL.

        Raises:
            SqlError: it has no meaning, or is not available.
        """
        if statement.target is None:
            raise SqlError(
                "the query does not say where its rows go",
                statement.place,
                "Begin with INSERT INTO and the name of a stream",
            )
        has_names = table is not None or bool(statement.columns)
        parts = self._parts(statement.query, statement.target, is_named=not has_names)
        if table is not None:
            parts = [for_table(statement, part, table) for part in parts]
        columns = parts[0].columns if table is not None else renamed(statement, parts[0].columns)
        target = self._target(statement, columns, [part.columns for part in parts])
        for part in parts:
            named = part.with_columns(ResultColumns(columns.names, part.columns.values))
            self._plan(named, target)
        return Planned(self._assembly.steps, target, self._late_streams)

    # -- FROM -----------------------------------------------------------------------------------

    def _parts(self, query: s.Query, target: str, *, is_named: bool = True) -> list[Analyzed]:
        """The SELECTs of a query, with columns of the same types.

        Args:
            is_named: whether its columns need names of their own.
        """
        selects = query.parts if isinstance(query, s.Union) else [query]
        return unified(
            [
                self._analyzed(each, target, is_named=is_named and number == 0)
                for number, each in enumerate(selects)
            ]
        )

    def _analyzed(self, query: s.Select, target: str, *, is_named: bool) -> Analyzed:
        ranking = ranking_of(query, is_named=is_named)
        if ranking is None:
            return self._resolved(query, target, is_named=is_named)
        name = self._assembly.name(f"{target}_unranked")
        rows = self._resolved(ranking.rows, name, is_named=True)
        kept = rows_only(rows, ranking)
        unranked: Stream[Any] = Stream(name, struct_of(name, kept.columns.described()))
        self._plan(kept, unranked)
        planner = RankPlanner(self._assembly, ranking, rows, unranked)
        subquery = ranking.outer.source
        assert isinstance(subquery, s.Subquery)
        ranked = planner.plan(self._assembly.name(f"{target}_ranked"))
        if ranked.facts.is_updating:
            self._ranks[ranked.name] = planner
        self._of_queries[id(subquery.query)] = ranked
        try:
            return self._resolved(ranking.outer, target, is_named=is_named)
        finally:
            del self._of_queries[id(subquery.query)]

    def _resolved(self, query: s.Select, target: str, *, is_named: bool) -> Analyzed:
        if query.source is None:
            raise SqlError("a query reads a stream", query.place, "Add FROM")
        others = [join.right for join in query.joins]
        sources = [query.source, *(each for each in others if not isinstance(each, s.Unnested))]
        relation = relation_of(
            query, [from_item(each, self._source(each, target)) for each in sources]
        )
        found = analyze(query, relation, is_named=is_named)
        if relation.joined is not None:
            for item in relation.joined.items:
                self._plan_now(item.stream)
            used = set().union(*(columns_in(value, JOINED) for value in found.values))
            planner = JoinPlanner(self._assembly, relation.joined, used, target)
            stream, rest = planner.plan(conjuncts(found.where), query.emit.retain)
            self._joins[stream.name] = planner
            source = replace(relation, stream=stream)
            found = replace(found, source=source, where=conjunction(rest))
        assert found.source.stream is not None
        name = found.source.stream.name
        inner = self._unplanned.get(name)
        found = settled(query, found, is_made_there=inner is not None or name in self._ranks)
        return found if inner is None else composed(inner, found)

    def _plan_now(self, stream: Stream[Any]) -> None:
        """Add the steps of a query in FROM, if that has not been done."""
        query = self._unplanned.pop(stream.name, None)
        if query is not None:
            self._plan(query, stream)

    def _source(self, table: s.Source, target: str) -> Stream[Any]:
        """The stream of a table in FROM; a query in FROM gets one of its own."""
        if isinstance(table, s.WindowTable):
            table = table.table
        if isinstance(table, s.NamedStream):
            return self._stream(table)
        found = self._of_queries.get(id(table.query))
        if found is None:
            found = self._of_queries[id(table.query)] = self._of_query(table, target)
        return found

    def _of_query(self, table: s.Subquery, target: str) -> Stream[Any]:
        name = self._assembly.name(f"{target}_from")
        parts = self._parts(table.query, name)
        described = described_columns([part.columns for part in parts])
        inner: Stream[Any] = Stream(name, struct_of(name, described))
        if len(parts) == 1 and parts[0].updates:
            inner.facts = StreamFacts(is_updating=True)
            self._unplanned[name] = parts[0]
            return inner
        for part in parts:
            named = part.with_columns(ResultColumns(parts[0].columns.names, part.columns.values))
            self._plan(named, inner)
        return inner

    def _stream(self, table: s.NamedStream) -> Stream[Any]:
        found = self._streams.get(table.name)
        if found is None:
            known = ", ".join(sorted(self._streams)) or "none"
            advice = with_suggestion(f"The streams are: {known}", table.name, self._streams)
            raise SqlError(f'stream "{table.name}" does not exist', table.place, advice)
        return found

    # -- the result -----------------------------------------------------------------------------

    def _target(
        self, statement: s.Insert, columns: ResultColumns, results: Sequence[ResultColumns]
    ) -> Stream[Any]:
        assert statement.target is not None
        described = [
            (name, kind, nullable)
            for name, (_, kind, nullable) in zip(
                columns.names, described_columns(results), strict=True
            )
        ]
        declared = self._streams.get(statement.target)
        if declared is None:
            return Stream(statement.target, struct_of(statement.target, described))
        wanted = fields_of(declared.value_type) or []
        theirs = {field.name: (field.type, field.nullable) for field in wanted}
        fits = len(theirs) == len(described) and all(
            name in theirs and theirs[name][0] == kind.plain and (theirs[name][1] or not nullable)
            for name, kind, nullable in described
        )
        if not fits:
            raise SqlError(
                f'the columns of "{declared.name}" are not those of the query',
                statement.place,
                f"The stream has: {columns_of(declared)}. The query has: {listed(described)}",
            )
        return declared

    # -- steps ----------------------------------------------------------------------------------

    def _plan(self, query: Analyzed, target: Stream[Any]) -> None:
        source = query.source.stream
        assert source is not None
        ranks = self._ranks.get(source.name)
        owners = query.owners if ranks is None else ranks.make(query.columns, target)
        facts = StreamFacts(
            query.updates,
            owners,
            query.instants(source.facts.instants or {}),
            query.spreads(source.facts.spreads),
        )
        target.facts = facts if target.facts.instants is None else _of_both(target, facts, query)
        if ranks is not None:
            return
        if query.has_groups:
            self._grouped(query, source, target)
        else:
            self._stateless(query, source, target)

    def _stateless(self, query: Analyzed, source: Stream[Any], target: Stream[Any]) -> None:
        window, values, where = query.window, query.columns.values, query.where
        if window is not None and not window.is_tumbling:
            raise SqlError("HOP and SESSION need GROUP BY", window.place)
        columns = dict(zip(query.columns.names, values, strict=True))
        join = self._joins.get(source.name)
        if join is not None and _cannot_fail(query):
            join.make(columns, target)
            return
        generator = Generator(of_record)
        row = generator.row(target.value_type, columns)
        before = window_lines(window, [*values, where], generator)
        condition = "" if where is None else generator.truth(where)
        checks = check_lines(window.time, generator) if window is not None and before else []
        opened = expansion_lines(query.source.expansions, generator)
        code = select_source(checks, before, opened, condition, row)
        unnested = [each.meaning for each in query.source.expansions]
        written = [*map(t.written, (*values, where)), *unnested]
        meaning = "; ".join([*query.columns.names, *written])
        meaning += f" IN {rule_of(window.assigner)}" if window is not None and before else ""
        made = Generated("select", code, generator.names, meaning, generator.places)
        loop = Loop(made, target, query)
        self._assembly.add(loop, source.spread())

    def _grouped(self, query: Analyzed, source: Stream[Any], target: Stream[Any]) -> None:
        group = GroupParts(query, target)
        if query.emission.late_into == target.name:
            raise SqlError(
                f'"{target.name}" receives the rows of this query',
                query.place,
                "Give late records a stream of their own",
            )
        if query.emission.late_into is not None:
            self._grouped_by_record(query, source, group)
            return
        name = self._assembly.name(f"{target.name}_partials")
        partials: Stream[Any] = Stream(name, group.partial)
        self._assembly.add(Loop(group.loop, partials, query), source.spread())
        self._assembly.add(group.kept(), partials.by(group.key))

    def _grouped_by_record(self, query: Analyzed, source: Stream[Any], group: GroupParts) -> None:
        """As groups, with records that are not added up before, since late ones are sent on."""
        name = query.emission.late_into
        assert name is not None
        if query.source.expansions:
            raise SqlError("LATE INTO with unnest is not available", query.place)
        late: Stream[Any] = Stream(name, source.value_type)
        known = self._streams.get(name)
        if known is not None and known.value_type is not source.value_type:
            raise SqlError(
                f'"{name}" receives late records of "{source.name}", which have other columns',
                query.place,
                f"It has: {columns_of(known)}. They have: {columns_of(source)}",
            )
        late = known or late
        self._late_streams.append(late)
        kept: Stream[Any] = Stream(self._assembly.name(f"{name}_or_not"), source.value_type)
        generator = Generator(of_record)
        condition = "" if query.where is None else generator.truth(query.where)
        window = query.window
        assert window is not None
        code = select_source(check_lines(window.time, generator), (), (), condition, "record")
        loop = Loop(
            Generated("select", code, generator.names, t.written(query.where), generator.places),
            kept,
        )
        self._assembly.add(loop, source.spread())
        self._assembly.add(group.kept_by_record(late), kept.by(group.record_key))


def _cannot_fail(query: Analyzed) -> bool:
    """Whether each record has one row, of columns and constants."""
    return (
        query.where is None
        and not query.source.expansions
        and all(isinstance(v, (t.ColumnValue, t.ConstantValue)) for v in query.columns.values)
    )


def _of_both(target: Stream[Any], more: StreamFacts, query: Analyzed) -> StreamFacts:
    """Facts about a stream that several queries write.

    Raises:
        SqlError: rows of one replace others, in an order that none of the steps knows.
    """
    facts = target.facts
    if facts.is_updating or more.is_updating:
        raise SqlError(
            f'"{target.name}" gets rows of several queries, and rows of one replace others',
            query.place,
            "Give each query a table of its own",
        )
    known = facts.instants or {}
    instants = more.instants or {}
    common = {name: how for name, how in known.items() if instants.get(name) == how}
    spreads = common_spreads(facts.spreads, more.spreads)
    return StreamFacts(instants=common, spreads=spreads)
