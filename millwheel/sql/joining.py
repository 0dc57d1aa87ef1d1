"""Turns joins into computations.

A join holds the parts of records that the query uses. It takes them itself of the records of a
stream, if all of these can have a partner, and the key is made of columns. Otherwise the stream
passes a loop that keeps the columns, of the rows that can have a partner, with the other parts of
the key: a loop drops rows in chunks, gives columns of windows, lets a stream be joined with itself,
and a record that has no key fails alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from millwheel.sql.loops import of_record, record_key, select_source
from millwheel.sql.place import Place
from millwheel.sql.planned import Assembly, PlannedStep
from millwheel.sql.relations import JOINED, JoinedTables
from millwheel.sql.schemas import Field, fields_of, struct_of
from millwheel.sql.steps import HeldPart, Loop, QueryJoin
from millwheel.sql.types import SqlType
from millwheel.sql.window_tables import check_lines, check_part_lines, window_lines
from millwheel.streams import Input, Stream, StreamFacts
from millwheel.windows import rule_of


@dataclass(frozen=True)
class _Taken:
    """A side of a join as the join takes it."""

    held: Stream[Any]
    """Of the parts that the join holds."""
    read: Input[Any]
    part: HeldPart | None = None
    """None: the join reads the stream of the parts."""


class _PlannedJoin:
    """A join with its sides."""

    def __init__(self, pair: JoinPair, sides: Sequence[_Taken]) -> None:
        self._pair = pair
        self._sides = sides
        self.step: PlannedStep

    def computation(self, to: Stream[Any], row: Mapping[str, t.Typed]) -> Any:
        """The join.

        Args:
            row: the columns of a result, as values of joined records.
        """
        left, right = (side.held for side in self._sides)
        join, functions = self._pair.computation(left, right, to, row)
        parts = {side.read.stream.name: side.part for side in self._sides if side.part is not None}
        return QueryJoin(join, parts, functions)


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
        self._last: _PlannedJoin

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

    def make(self, row: Mapping[str, t.Typed], target: Stream[Any]) -> None:
        """Let the last join make the rows of the query in place of joined records.

        Args:
            row: their columns, as values of joined records.
        """
        self._assembly.replace(self._last.step, self._last.computation(target, row))

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
        for key in (*left.keys, *right.keys):
            check_key(key)
        columns = (left.columns | right.columns) & set(needed)
        used = columns | pair.tested
        is_of_two = left.stream.name != right.stream.name
        taken = [
            self._part(side, used, pair.meaning)
            if side.is_whole and is_of_two
            else self._prepared(side, used, pair.meaning)
            for side in (left, right)
        ]
        fields = [f for each in taken for f in fields_of(each.held.value_type) or []]
        fields = [
            Field(f.name, f.type, f.nullable or self._is_optional(f.name, upto), f.shown)
            for f in fields
            if f.name in columns
        ]
        name = self._assembly.name(f"{self._target}_joined")
        stream: Stream[Any] = Stream(name, struct_of(name, _described(fields)))
        row = {f.name: _joined_column(f, pair.place) for f in fields}
        self._last = _PlannedJoin(pair, taken)
        join = self._last.computation(stream, row)
        self._last.step = self._assembly.add(join, *(each.read for each in taken))
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

    def _part(self, side: JoinSide, used: Collection[str], meaning: str) -> _Taken:
        """Let the join take the columns that it uses of one side."""
        columns, values = self._columns(side, used)
        keys = [side.of_item(key) for key in side.keys]
        held = self._stream_of(side, columns, values)
        generator = Generator(of_record)
        row = generator.row(held.value_type, dict(zip(columns, values, strict=True)))
        times = sorted(side.times)
        lines = [x for time in times for x in check_part_lines(side.names[time], generator)]
        body = "".join(f"    {line}\n" for line in [*lines, f"return {row}"])
        source = f"def part(record, at):\n{body}"
        written = "; ".join([*columns, *map(t.written, values)])
        part = Generated("part", source, generator.names, written, generator.places)
        return _Taken(held, Input(side.stream, record_key(keys, meaning)), HeldPart(held, part))

    def _prepared(self, side: JoinSide, used: Collection[str], meaning: str) -> _Taken:
        """Add the loop that keeps the columns that a join uses of one side."""
        of_key = {column.name for column in side.key_columns}
        columns, values = self._columns(side, {*used, *of_key})
        for key, column in zip(side.keys, side.key_columns, strict=True):
            if column is not key:
                columns.append(column.name)
                values.append(side.of_item(key))
        stream = self._stream_of(side, columns, values)
        where = conjunction([side.of_item(value) for value in side.kept])
        self._assembly.add(self._loop(side, stream, columns, values, where), side.stream.spread())
        return _Taken(stream, Input(stream, key_of(side.key_columns, meaning)))

    def _columns(self, side: JoinSide, used: Collection[str]) -> tuple[list[str], list[t.Typed]]:
        columns = sorted(side.columns & set(used), key=list(side.names).index)
        return columns, [self._column(side, name) for name in columns]

    def _stream_of(
        self, side: JoinSide, columns: Sequence[str], values: Sequence[t.Typed]
    ) -> Stream[Any]:
        name = self._assembly.name(f"{self._target}_{_as_name(side.label)}")
        fields = [
            Field(column, value.type, value.nullable, "")
            for column, value in zip(columns, values, strict=True)
        ]
        return Stream(name, struct_of(name, _described(fields)))

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
        row = generator.row(stream.value_type, dict(zip(columns, values, strict=True)))
        window = None if side.item is None else side.item.window
        before = window_lines(window, [*values, where], generator)
        times = {side.names[time] for time in side.times}
        if window is not None and window.time is not None:
            times.add(window.time)
        checks = [line for time in sorted(times) for line in check_lines(time, generator)]
        condition = "" if where is None else generator.truth(where)
        source = select_source(checks, before, (), condition, row)
        meaning = "; ".join([*columns, *map(t.written, values)])
        meaning += "" if where is None else f" WHERE {t.written(where)}"
        meaning += "" if window is None else f" IN {rule_of(window.assigner)}"
        return Loop(Generated("select", source, generator.names, meaning, generator.places), stream)


def _joined_column(field: Field, place: Place) -> t.ColumnValue:
    """A field of joined records."""
    assert field.type is not None
    return t.ColumnValue(field.type, field.nullable, place, JOINED, field.name)


def _tables_of(value: t.Typed) -> set[str]:
    return {part.table for part in t.walk(value) if isinstance(part, t.ColumnValue)}


def _as_name(label: str) -> str:
    """An alias as a part of a stream's name."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in label.lower())
    return kept.strip("_") or "side"


def _described(fields: Sequence[Field]) -> list[tuple[str, SqlType, bool]]:
    return [(f.name, f.type, f.nullable) for f in fields if f.type is not None]
