"""Aggregates, as slots of an accumulator and the lines of Python that fill them.

A *slot* is a field of the accumulator. The loop over a chunk adds each record to the slots of its
group; two accumulators of one group can be merged, so that groups are sent in place of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.functions import FUNCTIONS
from millwheel.sql.functions.numbers.integers import int8
from millwheel.sql.generating import Generator
from millwheel.sql.schemas import check_held, python_type
from millwheel.sql.types import SqlType

SlotName = Callable[[int], str]
"""The Python for a slot, by its number."""


SET = "set()"


@dataclass(frozen=True)
class Slot:
    type: Any
    initial: str
    """The Python for its value in an empty group: `SET`, ``None``, ``0``, or ``ZERO``."""

    @property
    def begin(self) -> Any:
        """That value."""
        return {SET: set(), "None": None, "0": 0, "ZERO": ZERO}[self.initial]


ZERO = Decimal(0)


def numeric_add(a: Any, b: Any) -> Any:
    """The sum of two decimals, with all their digits."""
    function = FUNCTIONS["numeric_add(numeric,numeric)"].function
    assert function is not None
    return function(a, b)


NAMES = {"ZERO": ZERO, "numeric_add": numeric_add}
"""Names that the lines of all aggregates may use."""


class AggregatePlan:
    """How one aggregate is computed; `first` is the number of its first slot."""

    def __init__(self, node: t.AggregateValue, first: int) -> None:
        self.node = node
        self.first = first

    slots: Sequence[Slot]

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        """The lines that add a record, without its FILTER."""
        raise NotImplementedError

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        """The lines that add the slots of another accumulator to these."""
        raise NotImplementedError

    def result(self, generator: Generator, slot: SlotName) -> str:
        """The expression for the result."""
        raise NotImplementedError


class CountPlan(AggregatePlan):
    slots = (Slot(int, "0"),)

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        line = f"{slot(self.first)} += 1"
        if self.node.arguments and self.node.arguments[0].nullable:
            return [f"if {generator.value(self.node.arguments[0])} is not None:", f"    {line}"]
        return [line]

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        return [f"{slot(self.first)} += {other(self.first)}"]

    def result(self, generator: Generator, slot: SlotName) -> str:
        return slot(self.first)


class ReducePlan(AggregatePlan):
    """Aggregates that keep one value: sums, the least, the greatest, AND and OR."""

    def __init__(
        self, node: t.AggregateValue, first: int, combined: str, finished: Any = None
    ) -> None:
        super().__init__(node, first)
        self._combined = combined
        """The Python for two values, ``{0}`` and ``{1}``."""
        self._finished = finished
        """Makes the result of the value; None: it is the result."""
        kind = _kept(node.arguments[0].type)
        self.slots = (Slot(python_type(kind, nullable=True), "None"),)

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        (argument,) = self.node.arguments
        name = generator.local()
        lines = [f"{name} = {generator.value(argument)}"]
        taken = self._taken(slot(self.first), name)
        if argument.nullable:
            return [*lines, f"if {name} is not None:", *(f"    {line}" for line in taken)]
        return lines + taken

    def _taken(self, slot: str, name: str) -> list[str]:
        combined = self._combined.format(slot, name)
        return [f"{slot} = {name} if {slot} is None else {combined}"]

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        mine, theirs = slot(self.first), other(self.first)
        taken = self._taken(mine, theirs)
        return [f"if {theirs} is not None:", *(f"    {line}" for line in taken)]

    def result(self, generator: Generator, slot: SlotName) -> str:
        value = slot(self.first)
        if self._finished is None:
            return value
        name = generator.name("finished", self._finished)
        return f"(None if {value} is None else {name}({value}))"


class MeanPlan(AggregatePlan):
    """Sum and number."""

    def __init__(
        self, node: t.AggregateValue, first: int, divided: Callable[[Any, int], Any]
    ) -> None:
        super().__init__(node, first)
        self._divided = divided
        kind = _kept(node.arguments[0].type)
        self.slots = (Slot(python_type(kind, nullable=False), "0"), Slot(int, "0"))
        if kind.name == "numeric":
            self.slots = (Slot(Decimal, "ZERO"), Slot(int, "0"))

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        (argument,) = self.node.arguments
        name = generator.local()
        lines = [f"{name} = {generator.value(argument)}"]
        total, number = slot(self.first), slot(self.first + 1)
        taken = [f"{total} = {self._sum(total, name)}", f"{number} += 1"]
        if argument.nullable:
            return [*lines, f"if {name} is not None:", *(f"    {line}" for line in taken)]
        return lines + taken

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        total, more = slot(self.first), other(self.first)
        number = self.first + 1
        return [f"{total} = {self._sum(total, more)}", f"{slot(number)} += {other(number)}"]

    def _sum(self, a: str, b: str) -> str:
        is_decimal = self.slots[0].type is Decimal
        return f"numeric_add({a}, {b})" if is_decimal else f"{a} + {b}"

    def result(self, generator: Generator, slot: SlotName) -> str:
        total, number = slot(self.first), slot(self.first + 1)
        name = generator.name("divided", self._divided)
        return f"(None if not {number} else {name}({total}, {number}))"


class DistinctPlan(AggregatePlan):
    """COUNT(DISTINCT x): the values themselves."""

    def __init__(self, node: t.AggregateValue, first: int) -> None:
        super().__init__(node, first)
        kind = python_type(node.arguments[0].type, nullable=False)
        self.slots = (Slot(set[kind], SET),)  # type: ignore[valid-type]

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        (argument,) = self.node.arguments
        name = generator.local()
        lines = [f"{name} = {generator.value(argument)}"]
        line = f"{slot(self.first)}.add({name})"
        if argument.nullable:
            return [*lines, f"if {name} is not None:", f"    {line}"]
        return [*lines, line]

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        return [f"{slot(self.first)} |= {other(self.first)}"]

    def result(self, generator: Generator, slot: SlotName) -> str:
        return f"len({slot(self.first)})"


def _kept(kind: SqlType) -> SqlType:
    """The type in which values of a type are kept: sums of whole numbers are whole numbers."""
    return kind.plain


def _numeric_mean(total: Any, number: int) -> Decimal:
    divide = FUNCTIONS["numeric_div(numeric,numeric)"].function
    assert divide is not None
    found: Decimal = divide(Decimal(total), Decimal(number))
    return found


def _float_mean(total: float, number: int) -> float:
    return total / number


def _bigint(total: int) -> int:
    return int8(total)


def plan_of(node: t.AggregateValue, first: int) -> AggregatePlan:
    """The way to compute an aggregate.

    Raises:
        SqlError: it is not available.
    """
    name = node.signature.name
    if name != "count" or node.distinct:
        for argument in node.arguments:
            check_held(argument.type, argument.place)
    kind = node.arguments[0].type.name if node.arguments else ""
    if node.order:
        raise SqlError(f"{name} with ORDER BY is not available yet", node.place)
    if node.distinct:
        if name == "count":
            return DistinctPlan(node, first)
        if name not in ("min", "max", "bool_and", "bool_or", "every"):
            raise SqlError(f"{name}(DISTINCT ...) is not available yet", node.place)
    if name == "count":
        return CountPlan(node, first)
    if name == "sum" and kind in ("int2", "int4", "int8", "numeric"):
        finished = {"int2": _bigint, "int4": _bigint, "int8": Decimal}.get(kind)
        added = "numeric_add({0}, {1})" if kind == "numeric" else "{0} + {1}"
        return ReducePlan(node, first, added, finished)
    if name == "sum" and kind == "float8":
        return ReducePlan(node, first, "{0} + {1}")
    if name == "avg" and kind in ("int2", "int4", "int8", "numeric"):
        return MeanPlan(node, first, _numeric_mean)
    if name == "avg" and kind == "float8":
        return MeanPlan(node, first, _float_mean)
    if name in ("min", "max"):
        sign = "<" if name == "min" else ">"
        return ReducePlan(node, first, f"({{1}} if {{1}} {sign} {{0}} else {{0}})")
    if name in ("bool_and", "every", "bool_or"):
        word = "or" if name == "bool_or" else "and"
        return ReducePlan(node, first, f"({{0}} {word} {{1}})")
    raise SqlError(f"the aggregate {name} exists in Postgres and is not available here", node.place)
