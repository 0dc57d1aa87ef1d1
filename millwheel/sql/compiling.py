"""Turns queries into computations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from millwheel.computations import Expiring, Fold, Windowed
from millwheel.errors import SqlError
from millwheel.sql import accumulating as a
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.analysis import (
    Analyzed,
    ResultColumns,
    analyze,
    common_spreads,
    composed,
    is_window,
    settled,
)
from millwheel.sql.catalog import postgres
from millwheel.sql.conditions import columns_in, conjunction, conjuncts
from millwheel.sql.definitions import DefinedTable
from millwheel.sql.generated import Generated
from millwheel.sql.generating import Generator
from millwheel.sql.joining import JoinPlanner
from millwheel.sql.keys import check_key, key_maker
from millwheel.sql.loops import (
    GROUP,
    RESULT,
    GroupedRecords,
    GroupRow,
    adder,
    adding_loop,
    expansion_lines,
    fold_of,
    of_record,
    record_key,
    row_fold,
    row_maker,
    select_source,
    sums_of,
)
from millwheel.sql.planned import Assembly, Planned
from millwheel.sql.rank_planning import RankPlanner, rows_only
from millwheel.sql.ranking import ranking_of
from millwheel.sql.relations import JOINED, from_item, relation_of
from millwheel.sql.resolving import Resolver
from millwheel.sql.schemas import check_name, fields_of, python_type, struct_of
from millwheel.sql.scopes import WINDOW, NoScope
from millwheel.sql.steps import GroupTotals, Loop, NewGroups
from millwheel.sql.types import SqlType, shown
from millwheel.sql.window_tables import check_lines, window_lines
from millwheel.streams import Stream
from millwheel.windows import Early, rule_of


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
            parts = [_for_table(statement, part, table) for part in parts]
        columns = parts[0].columns if table is not None else _renamed(statement, parts[0].columns)
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
        return _unified(
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
        if ranked.is_updating:
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
        described = _described([part.columns for part in parts])
        inner: Stream[Any] = Stream(name, struct_of(name, described))
        if len(parts) == 1 and parts[0].updates:
            inner.is_updating = True
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
            raise SqlError(
                f'stream "{table.name}" does not exist', table.place, f"The streams are: {known}"
            )
        return found

    # -- the result -----------------------------------------------------------------------------

    def _target(
        self, statement: s.Insert, columns: ResultColumns, results: Sequence[ResultColumns]
    ) -> Stream[Any]:
        assert statement.target is not None
        described = [
            (name, kind, nullable)
            for name, (_, kind, nullable) in zip(columns.names, _described(results), strict=True)
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
                f"The stream has: {_columns_of(declared)}. The query has: {_listed(described)}",
            )
        return declared

    # -- steps ----------------------------------------------------------------------------------

    def _plan(self, query: Analyzed, target: Stream[Any]) -> None:
        source = query.source.stream
        assert source is not None
        is_first = target.instants is None
        instants = query.instants(source.instants or {})
        known = instants if target.instants is None else target.instants
        target.instants = {name: how for name, how in known.items() if instants.get(name) == how}
        spreads = query.spreads(source.spreads)
        target.spreads = spreads if is_first else common_spreads(target.spreads, spreads)
        if not is_first and (target.is_updating or query.updates):
            raise SqlError(
                f'"{target.name}" gets rows of several queries, and rows of one replace others',
                query.place,
                "Give each query a table of its own",
            )
        target.is_updating |= query.updates
        ranks = self._ranks.get(source.name)
        if ranks is not None:
            target.owners = ranks.make(query.columns, target)
            return
        target.owners = query.owners if is_first else None
        if query.has_groups:
            self._grouped(query, source, target)
        else:
            self._stateless(query, source, target)

    def _stateless(self, query: Analyzed, source: Stream[Any], target: Stream[Any]) -> None:
        window, values, where = query.window, query.columns.values, query.where
        if window is not None and not window.is_tumbling:
            raise SqlError("HOP and SESSION need GROUP BY", window.place)
        generator = Generator(of_record)
        row = generator.name("Row", target.value_type)
        fields = ", ".join(
            f"{name}={generator.value(value)}"
            for name, value in zip(query.columns.names, values, strict=True)
        )
        before = window_lines(window, [*values, where], generator)
        condition = "" if where is None else generator.truth(where)
        checks = check_lines(window.time, generator) if window is not None and before else []
        opened = expansion_lines(query.source.expansions, generator)
        code = select_source(checks, before, opened, condition, f"{row}({fields})")
        unnested = [each.meaning for each in query.source.expansions]
        written = [*map(_written, (*values, where)), *unnested]
        meaning = "; ".join([*query.columns.names, *written])
        meaning += f" IN {rule_of(window.assigner)}" if window is not None and before else ""
        made = Generated("select", code, generator.names, meaning, generator.places)
        loop = Loop(made, target, query)
        self._assembly.add(loop, source.spread())

    def _grouped(self, query: Analyzed, source: Stream[Any], target: Stream[Any]) -> None:
        group = _Group(query, target)
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

    def _grouped_by_record(self, query: Analyzed, source: Stream[Any], group: _Group) -> None:
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
                f"It has: {_columns_of(known)}. They have: {_columns_of(source)}",
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
            Generated("select", code, generator.names, _written(query.where), generator.places),
            kept,
        )
        self._assembly.add(loop, source.spread())
        self._assembly.add(group.kept_by_record(late), kept.by(group.record_key))


class _Group:
    """The parts of a query with groups."""

    def __init__(self, query: Analyzed, target: Stream[Any]) -> None:
        self._query = query
        self._target = target
        keys = query.keys
        for value in keys:
            check_key(value)
        grouping = _Grouping(keys)
        results = [grouping.of(value) for value in query.columns.values]
        having = None if query.having is None else grouping.of(query.having)
        self._plans = grouping.plans
        self._slots = [slot for plan in self._plans for slot in plan.slots]
        nodes = [plan.node for plan in self._plans]
        parts = [query.where, *keys, *nodes, *results, having]
        unnested = [each.meaning for each in query.source.expansions]
        self._meaning = "; ".join([*query.columns.names, *map(_written, parts), *unnested])
        self.partial = _partial(keys, self._slots)
        records = GroupedRecords(
            keys, self._plans, query.where, query.window, query.source.expansions
        )
        _check_windows(query, records)
        self.loop = adding_loop(records, self.partial, self._meaning)
        self.key = key_maker(keys, self._meaning)
        self.record_key = record_key(keys, self._meaning)
        row = GroupRow(query.columns.names, results, having, target)
        of_pane = query.window is not None
        self._row = row_maker(row, self._plans, keys, self._meaning, of_pane=of_pane)

    def kept_by_record(self, late: Stream[Any]) -> Any:
        """The computation that keeps groups with windows, given the records themselves."""
        fold = row_fold(self._plans, self._slots, self._meaning)
        return self._windowed(fold, late)

    def _windowed(self, fold: Fold[Any, Any, Any], late: Any) -> Any:
        emission, window = self._query.emission, self._query.window
        assert window is not None
        return Windowed(
            window.assigner,
            fold,
            to=self._target,
            late=late,
            allowed_lateness=emission.lateness,
            early=Early(records=1) if emission.on_update else None,
            row=self._row,
        )

    def kept(self) -> Any:
        """The computation that keeps the groups."""
        emission, window = self._query.emission, self._query.window
        if window is None and not self._query.has_aggregates:
            groups = NewGroups(self._row, self._target)
            return groups if emission.retain is None else Expiring(groups, after=emission.retain)
        if window is None:
            sums = sums_of(self._slots)
            totals = GroupTotals(sums, adder(self._plans, self._meaning), self._row, self._target)
            return totals if emission.retain is None else Expiring(totals, after=emission.retain)
        fold = fold_of(self._plans, self._slots, self._meaning)
        return self._windowed(fold, "amend" if emission.amends else "drop")


def _check_windows(query: Analyzed, records: GroupedRecords) -> None:
    """Refuse expressions over a record and its window where a record has several windows, or one
    that is not known yet.

    Raises:
        SqlError: there is one.
    """
    is_known = query.window is None or query.window.is_tumbling
    if is_known and query.emission.late_into is None:
        return
    for value in records.of_record:
        for part in t.walk(value):
            if is_window(part) and isinstance(part, t.ColumnValue):
                raise SqlError(
                    f"{part.name} is not known before the records are grouped",
                    part.place,
                    "In a condition on windows alone, use HAVING; or compute it in a query around "
                    "this one",
                )


class _Grouping:
    """Replaces groups and aggregates in result columns by their later names."""

    def __init__(self, keys: Sequence[t.Typed]) -> None:
        self._keys = keys
        self.plans: list[a.AggregatePlan] = []

    def of(self, value: t.Typed) -> t.Typed:
        """Raises:
        SqlError: a column is neither grouped nor in an aggregate.
        """
        return t.rewrite(value, self._change)

    def _change(self, node: t.Typed) -> t.Typed | None:
        if node in self._keys:
            name = str(self._keys.index(node))
            return t.ColumnValue(node.type, node.nullable, node.place, GROUP, name)
        if isinstance(node, t.AggregateValue):
            number = self._plan(node)
            return t.ColumnValue(node.type, node.nullable, node.place, RESULT, str(number))
        if isinstance(node, t.ColumnValue) and node.table not in (WINDOW, ""):
            raise SqlError(
                f'column "{node.name}" must appear in the GROUP BY clause or be used in an '
                "aggregate function",
                node.place,
                f"Write max({node.name}), say",
            )
        return None

    def _plan(self, node: t.AggregateValue) -> int:
        for number, plan in enumerate(self.plans):
            if plan.node == node:
                return number
        first = sum(len(plan.slots) for plan in self.plans)
        self.plans.append(a.plan_of(node, first))
        return len(self.plans) - 1


def _partial(keys: Sequence[t.Typed], slots: Sequence[a.Slot]) -> type[msgspec.Struct]:
    """The type of a group of records: the key's parts, and the slots of the aggregates."""
    fields = [
        (f"k{number}", python_type(key.type, nullable=key.nullable))
        for number, key in enumerate(keys)
    ]
    fields += [(f"s{number}", slot.type) for number, slot in enumerate(slots)]
    made: type[msgspec.Struct] = msgspec.defstruct("Partial", fields, gc=False)
    return made


def _described(parts: Sequence[ResultColumns]) -> list[tuple[str, SqlType, bool]]:
    """The columns of a union: NULL may occur if it may in one part."""
    return [
        (columns[0][0], columns[0][1], any(nullable for _, _, nullable in columns))
        for columns in zip(*(part.described() for part in parts), strict=True)
    ]


def _unified(parts: list[Analyzed]) -> list[Analyzed]:
    """Convert the columns of the parts of a union to common types."""
    if len(parts) == 1:
        return parts
    first = parts[0]
    for part in parts[1:]:
        if len(part.columns.names) != len(first.columns.names):
            raise SqlError("each UNION query must have the same number of columns", part.place)
    kinds = []
    for values in zip(*(part.columns.given for part in parts), strict=True):
        kind = postgres().common_type([value.type.name for value in values])
        if kind is None:
            names = " and ".join(sorted({shown(value.type) for value in values}))
            raise SqlError(
                f"UNION types {names} cannot be matched", values[-1].place, "Cast one of them"
            )
        kinds.append(SqlType(kind))
    converter = Resolver(NoScope())
    return [
        part.with_columns(
            ResultColumns(
                part.columns.names,
                [
                    converter.assigned(value, kind)
                    for value, kind in zip(part.columns.given, kinds, strict=True)
                ],
            )
        )
        for part in parts
    ]


def _for_table(statement: s.Insert, part: Analyzed, table: DefinedTable) -> Analyzed:
    """Convert the columns of a query to those of a table, as an assignment does."""
    names = list(statement.columns) or [name for name, _, _ in table.columns]
    values = part.columns.given
    has = ", ".join(f"{name} {shown(kind)}" for name, kind, _ in table.columns)
    if len(names) != len(values):
        raise SqlError(
            f"the query has {len(values)} columns, and {len(names)} are inserted",
            part.place,
            f'The columns of "{statement.target}" are: {has}',
        )
    given = dict(zip(names, values, strict=True))
    converter = Resolver(NoScope())
    found = []
    for name, kind, nullable in table.columns:
        value = given.pop(name, None) or t.ConstantValue(kind, True, part.place, None)
        if value.nullable and not nullable:
            raise SqlError(
                f'column "{name}" is NOT NULL, and the query may give NULL',
                value.place,
                "Write coalesce(..., a value), or leave NOT NULL out",
            )
        found.append(converter.assigned(value, kind))
    for name in given:
        raise SqlError(
            f'column "{name}" of "{statement.target}" does not exist',
            statement.place,
            f"Its columns are: {has}",
        )
    return part.with_columns(ResultColumns([name for name, _, _ in table.columns], found))


def _renamed(statement: s.Insert, columns: ResultColumns) -> ResultColumns:
    if not statement.columns:
        return columns
    if len(statement.columns) != len(columns.names):
        raise SqlError(
            f"INSERT has {len(statement.columns)} columns, and the query {len(columns.names)}",
            statement.place,
        )
    for number, name in enumerate(statement.columns):
        check_name(name, statement.columns[:number], statement.place)
    return ResultColumns(statement.columns, columns.values)


def _columns_of(stream: Stream[Any]) -> str:
    return _listed([(f.name, f.type, f.nullable) for f in fields_of(stream.value_type) or []])


def _listed(columns: Sequence[tuple[str, SqlType | None, bool]]) -> str:
    return ", ".join(
        f"{name} {'?' if kind is None else shown(kind)}{'' if nullable else ' NOT NULL'}"
        for name, kind, nullable in columns
    )


def _written(value: t.Typed | None) -> str:
    return "" if value is None else t.written(value)
