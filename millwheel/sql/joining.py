"""Turns joins into computations.

Each table of a join passes a loop that keeps the parts that the query uses: the rows that can have
a partner and the columns that are read, with the parts of the key that are no columns. So a join
holds little for each record, and a stream can be joined with itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.conditions import (
    columns_in,
    conjunction,
    conjuncts,
)
from millwheel.sql.generated import Generated
from millwheel.sql.generating import Generator
from millwheel.sql.join_pairs import JoinPair
from millwheel.sql.join_sides import JoinSide
from millwheel.sql.keys import check_key, key_of
from millwheel.sql.loops import of_record, select_source
from millwheel.sql.planned import Assembly
from millwheel.sql.relations import JOINED, JoinedTables
from millwheel.sql.schemas import Field, fields_of, struct_of
from millwheel.sql.steps import Loop
from millwheel.sql.types import SqlType
from millwheel.sql.window_tables import check_lines, window_lines
from millwheel.streams import Input, Stream, StreamFacts
from millwheel.windows import rule_of


class JoinPlanner:
    """Plans the joins of a SELECT.

    Args:
        tables: the streams.
        used: the attributes that the rest of the query uses.
        where: conditions of all rows, which the joins may take over.
        retain: the bound at the end of the query.
        target: the stream of the query, after which streams are named.
    """

    def __init__(
        self, assembly: Assembly, tables: JoinedTables, used: Collection[str], target: str
    ) -> None:
        self._assembly = assembly
        self._tables = tables
        self._used = set(used)
        self._target = target
        self._pushed: list[list[t.Typed]] = [[] for _ in tables.items]
        """Conditions of the result that rows of one table have to fulfil."""

    def plan(self, where: Sequence[t.Typed], retain: Any) -> tuple[Stream[Any], list[t.Typed]]:
        """Add the steps.

        Args:
            where: conditions of the rows of the result.
            retain: the bound at the end of the query, for joins without a bound.

        Returns:
            The stream of joined records, and the conditions that are still to be tested.
        """
        rest = list(where)
        steps = self._tables.steps
        conditions = [conjuncts(step.on) for step in steps]
        if all(step.kind == "INNER" for step in steps):
            rest = self._distribute(rest, conditions)
        rest = [value for value in rest if not self._push(value)]
        left = self._side_of_item(0)
        for number, step in enumerate(steps):
            right = self._side_of_item(number + 1)
            later = [*rest, *(part for each in conditions[number + 1 :] for part in each)]
            later += [step.as_of for step in steps[number + 1 :] if step.as_of is not None]
            needed = self._used.union(*(columns_in(value, JOINED) for value in later))
            pair = JoinPair(step, left, right, conditions[number], step.retain or retain)
            if pair.later and any(each.keeps_right for each in steps[number + 1 :]):
                raise SqlError(
                    "a condition with AS OF is tested after all joins, and an outer join follows",
                    pair.later[0].place,
                    "Join AS OF in a query of its own: CREATE STREAM ... AS SELECT",
                )
            rest += pair.later
            needed.update(*(columns_in(value, JOINED) for value in pair.later))
            left = self._joined(pair, needed, number + 1)
        return left.stream, rest

    def _distribute(self, where: list[t.Typed], conditions: list[list[t.Typed]]) -> list[t.Typed]:
        """Give each condition to the first join that has its columns; returns the others."""
        rest = []
        for condition in where:
            used = columns_in(condition, JOINED)
            columns = set(self._tables.attributes[0].values())
            for number, of_join in enumerate(conditions):
                columns |= set(self._tables.attributes[number + 1].values())
                if used and used <= columns and len(_tables_of(condition)) == 1:
                    of_join.append(condition)
                    break
            else:
                rest.append(condition)
        return rest

    def _push(self, condition: t.Typed) -> bool:
        """Test a condition before the joins, if it is about rows that always are in the result."""
        used = columns_in(condition, JOINED)
        for number, attributes in enumerate(self._tables.attributes):
            if used and used <= set(attributes.values()) and _tables_of(condition) == {JOINED}:
                is_version = number > 0 and self._tables.steps[number - 1].as_of is not None
                # Not of versions: an older one that fits would take the place of the newest one.
                if is_version or self._tables.nullable(number, len(self._tables.steps)):
                    return False
                self._pushed[number].append(condition)
                return True
        return False

    def _side_of_item(self, number: int) -> JoinSide:
        item, attributes = self._tables.items[number], self._tables.attributes[number]
        names = {attribute: name for name, attribute in attributes.items()}
        return JoinSide(item.stream, item.alias, set(names), item, names, self._pushed[number])

    # -- steps ----------------------------------------------------------------------------------

    def _joined(self, pair: JoinPair, needed: Collection[str], upto: int) -> JoinSide:
        """Add the steps of a join; returns the stream of its results as a side of the next one."""
        left, right = pair.left, pair.right
        columns = (left.columns | right.columns) & set(needed)
        used = columns | pair.used
        prepared = [self._prepared(side, used, pair) for side in (left, right)]
        fields = [f for stream in prepared for f in fields_of(stream.value_type) or []]
        fields = [
            Field(f.name, f.type, f.nullable or self._is_optional(f.name, upto), f.shown)
            for f in fields
            if f.name in columns
        ]
        name = self._assembly.name(f"{self._target}_joined")
        stream: Stream[Any] = Stream(name, struct_of(name, _described(fields)))
        join = pair.computation(prepared[0], prepared[1], stream, columns)
        join.rules = {**join.rules, "query": pair.meaning}
        inputs: list[Input[Any]] = [
            Input(prepared_stream, key_of(side.key_columns, pair.meaning))
            for prepared_stream, side in zip(prepared, (left, right), strict=True)
        ]
        self._assembly.add(join, *inputs)
        stream.facts = StreamFacts(
            instants={a: how for a, how in pair.instants.items() if a in columns},
            spreads={a: near for a, near in pair.spreads().items() if a in columns},
        )
        names = {f.name: f.name for f in fields}
        return JoinSide(stream, "joined", columns, None, names, delay=pair.delay)

    def _is_optional(self, attribute: str, upto: int) -> bool:
        for number, attributes in enumerate(self._tables.attributes):
            if attribute in attributes.values():
                return self._tables.nullable(number, upto)
        return False

    def _prepared(self, side: JoinSide, used: Collection[str], pair: JoinPair) -> Stream[Any]:
        """Add the loop that keeps the columns that a join uses of one side."""
        columns = sorted(side.columns & set(used), key=list(side.names).index)
        values = [self._column(side, name) for name in columns]
        for key, column in zip(side.keys, side.key_columns, strict=True):
            check_key(key)
            if column is not key:
                columns.append(column.name)
                values.append(side.of_item(key))
        name = self._assembly.name(f"{self._target}_{_as_name(side.label)}")
        fields = [
            Field(column, value.type, value.nullable, "")
            for column, value in zip(columns, values, strict=True)
        ]
        stream: Stream[Any] = Stream(name, struct_of(name, _described(fields)))
        where = conjunction([side.of_item(value) for value in side.kept])
        self._assembly.add(self._loop(side, stream, columns, values, where), side.stream.spread())
        return stream

    def _column(self, side: JoinSide, name: str) -> t.Typed:
        item = side.item
        fields = (
            {f.name: f for f in item.all_fields}
            if item is not None
            else {f.name: f for f in fields_of(side.stream.value_type) or []}
        )
        found = fields[side.names[name]]
        assert found.type is not None
        place = self._tables.steps[0].place
        column = t.ColumnValue(found.type, found.nullable, place, JOINED, name)
        return side.of_item(column)

    def _loop(
        self,
        side: JoinSide,
        stream: Stream[Any],
        columns: Sequence[str],
        values: Sequence[t.Typed],
        where: t.Typed | None,
    ) -> Loop:
        generator = Generator(of_record)
        row = generator.name("Row", stream.value_type)
        made = ", ".join(
            f"{column}={generator.value(value)}"
            for column, value in zip(columns, values, strict=True)
        )
        window = None if side.item is None else side.item.window
        before = window_lines(window, [*values, where], generator)
        times = {side.names[time] for time in side.times}
        if window is not None and window.time is not None:
            times.add(window.time)
        checks = [line for time in sorted(times) for line in check_lines(time, generator)]
        condition = "" if where is None else generator.truth(where)
        source = select_source(checks, before, (), condition, f"{row}({made})")
        meaning = "; ".join([*columns, *map(t.written, values)])
        meaning += "" if where is None else f" WHERE {t.written(where)}"
        meaning += "" if window is None else f" IN {rule_of(window.assigner)}"
        return Loop(Generated("select", source, generator.names, meaning, generator.places), stream)


def _tables_of(value: t.Typed) -> set[str]:
    return {part.table for part in t.walk(value) if isinstance(part, t.ColumnValue)}


def _as_name(label: str) -> str:
    """An alias as a part of a stream's name."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in label.lower())
    return kept.strip("_") or "side"


def _described(fields: Sequence[Field]) -> list[tuple[str, SqlType, bool]]:
    return [(f.name, f.type, f.nullable) for f in fields if f.type is not None]
