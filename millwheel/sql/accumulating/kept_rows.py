"""Aggregates over rows that are kept: sorted by ``ORDER BY``, or with ``DISTINCT``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from millwheel.sql import typed as t
from millwheel.sql.accumulating.names import NAMES
from millwheel.sql.accumulating.plans import (
    LIST,
    SET,
    AggregatePlan,
    ListPlan,
    Slot,
    SlotName,
    assigned,
    guarded,
)
from millwheel.sql.accumulating.row_order import RowOrder, check_ordered, in_order
from millwheel.sql.generated import compiled
from millwheel.sql.generating import Generator
from millwheel.sql.schemas import check_held, python_type

PlanMaker = Callable[[t.AggregateValue], AggregatePlan]


class KeptRows:
    """The values of a record that an aggregate keeps, each once.

    Args:
        needed: values without which a record is left out: none of them is NULL in a row.
        others: more values.
    """

    def __init__(self, needed: Iterable[t.Typed], others: Iterable[t.Typed] = ()) -> None:
        self.values: list[t.Typed] = []
        self._take(needed)
        self.needed = len(self.values)
        """The number of the first values, which are those that are needed."""
        self._take(others)

    def _take(self, values: Iterable[t.Typed]) -> None:
        for value in values:
            if value not in self.values:
                check_held(value.type, value.place)
                self.values.append(value)

    @property
    def types(self) -> list[Any]:
        return [
            python_type(value.type.plain, nullable=self.may_be_null(number))
            for number, value in enumerate(self.values)
        ]

    @property
    def list_type(self) -> Any:
        """The type of a list of them."""
        types = self.types
        return list[types[0]] if len(types) == 1 else list[tuple[*types]]  # type: ignore[valid-type]

    def may_be_null(self, number: int) -> bool:
        return self.values[number].nullable and number >= self.needed

    def order_of(
        self, order: Iterable[tuple[t.Typed, bool, bool]], *, always_tuples: bool = False
    ) -> RowOrder:
        """An order by some of the values, by their places."""
        is_single = len(self.values) == 1 and not always_tuples
        return tuple(
            (None if is_single else self.values.index(value), descending, nulls_first)
            for value, descending, nulls_first in order
        )


def row_of(names: Sequence[str]) -> str:
    """The Python for a row: a value, or a tuple of several."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def uses_columns(value: t.Typed) -> bool:
    return any(isinstance(part, t.ColumnValue) for part in t.walk(value))


def folded(plan: AggregatePlan, row: str) -> Callable[[Sequence[Any]], Any]:
    """A function of rows that gives the result of an aggregate over them.

    Args:
        row: the names of the columns of a row, which the aggregate's arguments use.
    """
    generator = Generator(lambda column: column.name)
    generator.names.update(NAMES)

    def slot(number: int) -> str:
        return f"slots[{number}]"

    lines = [
        f"slots = [{', '.join(each.initial for each in plan.slots)}]",
        f"for {row} in rows:",
        *(f"    {line}" for line in plan.add(generator, slot)),
        f"return {plan.result(generator, slot)}",
    ]
    body = "".join(f"    {line}\n" for line in lines)
    return compiled("fold", f"def fold(rows):\n{body}", generator.names)


class SortedPlan(ListPlan):
    """An aggregate with ``ORDER BY``: it keeps its arguments and the values to sort by.

    Args:
        needed: the number of the first arguments with which the aggregate skips NULL.
        plan: makes the plan of the aggregate without an order.
    """

    def __init__(self, node: t.AggregateValue, first: int, needed: int, plan: PlanMaker) -> None:
        super().__init__(node, first)
        for key, _, _ in node.order:
            check_ordered(key)
        others = filter(uses_columns, node.arguments[needed:])
        keys = (key for key, _, _ in node.order)
        self._rows = KeptRows(node.arguments[:needed], (*others, *keys))
        self._order = self._rows.order_of(node.order)
        self.slots = (Slot(self._rows.list_type, LIST),)
        inner = replace(
            node, arguments=tuple(map(self._column, node.arguments)), order=(), filter=None
        )
        columns = ", ".join(f"c{number}" for number in range(len(self._rows.values)))
        self._fold = folded(plan(inner), columns)

    def _column(self, value: t.Typed) -> t.Typed:
        """The column of a row with an argument; one without columns stays as it is."""
        if value not in self._rows.values:
            return value
        number = self._rows.values.index(value)
        nullable = self._rows.may_be_null(number)
        return t.ColumnValue(value.type, nullable, value.place, "", f"c{number}")

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        rows = self._rows
        lines, names, test = assigned(generator, rows.values, rows.needed)
        return lines + guarded(test, [f"{slot(self.first)}.append({row_of(names)})"])

    def result(self, generator: Generator, slot: SlotName) -> str:
        fold, sort = generator.name("fold", self._fold), generator.name("in_order", in_order)
        return f"{fold}({sort}({slot(self.first)}, {self._order!r}))"


class DistinctPlan(AggregatePlan):
    """An aggregate with ``DISTINCT``: the values of its first argument, and whether NULL is one.

    The other arguments are constant. Postgres sorts the values, so the aggregate takes them in
    order.

    Args:
        takes_null: whether NULL is a value to the aggregate.
        plan: makes the plan of the aggregate without ``DISTINCT``.
    """

    def __init__(
        self, node: t.AggregateValue, first: int, takes_null: bool, plan: PlanMaker
    ) -> None:
        super().__init__(node, first)
        value, *others = node.arguments
        check_held(value.type, value.place)
        check_ordered(value)
        self._takes_null = takes_null and value.nullable
        order = ((each, *rest) for each, *rest in node.order if each == value)
        _, self._descends, self._nulls_first = next(order, (value, False, False))
        kind = python_type(value.type.plain, nullable=False)
        self.slots = (Slot(set[kind], SET),)  # type: ignore[valid-type]
        if self._takes_null:
            self.slots = (*self.slots, Slot(bool, "False"))
        column = t.ColumnValue(value.type, self._takes_null, value.place, "", "c0")
        inner = replace(node, arguments=(column, *others), distinct=False, order=(), filter=None)
        self._fold = folded(plan(inner), "c0")

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, (name,), test = assigned(generator, self.node.arguments[:1])
        found, *null = self.places(slot)
        lines += guarded(test, [f"{found}.add({name})"])
        return [*lines, "else:", f"    {null[0]} = True"] if null else lines

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        (mine, *null), (theirs, *others) = self.places(slot), self.places(other)
        lines = [f"{mine} |= {theirs}"]
        return [*lines, f"{null[0]} |= {others[0]}"] if null else lines

    def result(self, generator: Generator, slot: SlotName) -> str:
        found, *null = self.places(slot)
        if self.node.signature.name == "count":
            return f"len({found})"
        sort, fold = generator.name("in_order", in_order), generator.name("fold", self._fold)
        order = ((None, self._descends, self._nulls_first),)
        rows = f"[*{found}, None] if {null[0]} else {found}" if null else found
        return f"{fold}({sort}({rows}, {order!r}))"
