"""Aggregates that keep one value, or a sum and a number."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millwheel.sql import typed as t
from millwheel.sql.accumulating.plans import AggregatePlan, Slot, SlotName, assigned, guarded
from millwheel.sql.generating import Generator
from millwheel.sql.schemas import python_type
from millwheel.sql.types import SqlType


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
        lines, (name,), test = assigned(generator, self.node.arguments)
        return lines + guarded(test, self._taken(slot(self.first), name))

    def _taken(self, slot: str, name: str) -> list[str]:
        combined = self._combined.format(slot, name)
        return [f"{slot} = {name} if {slot} is None else {combined}"]

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        mine, theirs = slot(self.first), other(self.first)
        return guarded(f"{theirs} is not None", self._taken(mine, theirs))

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
        kind = python_type(_kept(node.arguments[0].type), nullable=False)
        self.slots = (sum_slot(node.arguments[0].type, kind), Slot(int, "0"))

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, (name,), test = assigned(generator, self.node.arguments)
        total, number = self.places(slot)
        return lines + guarded(test, [f"{total} = {self._sum(total, name)}", f"{number} += 1"])

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        (total, number), (more, others) = self.places(slot), self.places(other)
        return [f"{total} = {self._sum(total, more)}", f"{number} += {others}"]

    def _sum(self, a: str, b: str) -> str:
        is_decimal = self.slots[0].type is Decimal
        return f"numeric_add({a}, {b})" if is_decimal else f"{a} + {b}"

    def result(self, generator: Generator, slot: SlotName) -> str:
        total, number = self.places(slot)
        name = generator.name("divided", self._divided)
        return f"(None if not {number} else {name}({total}, {number}))"


def sum_slot(kind: SqlType, type_: Any) -> Slot:
    """The slot of a sum that begins with zero."""
    return Slot(type_, {"numeric": "ZERO", "float4": "0.0", "float8": "0.0"}.get(kind.name, "0"))


def _kept(kind: SqlType) -> SqlType:
    """The type in which values of a type are kept: sums of whole numbers are whole numbers."""
    return kind.plain
