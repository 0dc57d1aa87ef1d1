"""Aggregates that list values, in the order in which records arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.sql import typed as t
from millwheel.sql.accumulating.kept_rows import KeptRows, row_of, uses_columns
from millwheel.sql.accumulating.plans import (
    LIST,
    ListPlan,
    Slot,
    SlotName,
    assigned,
    guarded,
)
from millwheel.sql.generating import Generator
from millwheel.sql.schemas import python_type


class ArrayPlan(ListPlan):
    """``array_agg``: the values, also NULL."""

    def __init__(self, node: t.AggregateValue, first: int) -> None:
        super().__init__(node, first)
        self.slots = (Slot(KeptRows((), node.arguments).list_type, LIST),)

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        return [f"{slot(self.first)}.append({generator.value(self.node.arguments[0])})"]

    def result(self, generator: Generator, slot: SlotName) -> str:
        # A copy, because later records change the state.
        return f"([*{slot(self.first)}] or None)"


class TextPlan(ListPlan):
    """``string_agg``: the texts but NULL, with their delimiters if these are not constant."""

    def __init__(self, node: t.AggregateValue, first: int) -> None:
        super().__init__(node, first)
        text, self._delimiter = node.arguments
        self._kept = [text, self._delimiter] if uses_columns(self._delimiter) else [text]
        kind: Any = python_type(text.type.plain, nullable=False)
        if len(self._kept) > 1:
            delimiter: Any = python_type(self._delimiter.type.plain, nullable=True)
            kind = tuple[kind, delimiter]
        self.slots = (Slot(list[kind], LIST),)

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, names, test = assigned(generator, self._kept, needed=1)
        return lines + guarded(test, [f"{slot(self.first)}.append({row_of(names)})"])

    def result(self, generator: Generator, slot: SlotName) -> str:
        values, empty = slot(self.first), generator.value(_empty(self._delimiter))
        if len(self._kept) == 1:
            delimiter = generator.value(self._delimiter)
            return f"(({delimiter} or {empty}).join({values}) if {values} else None)"
        return f"({generator.name('joined', joined)}({values}, {empty}) if {values} else None)"


def _empty(delimiter: t.Typed) -> t.Typed:
    value: str | bytes = b"" if delimiter.type.name == "bytea" else ""
    return t.ConstantValue(delimiter.type, False, delimiter.place, value)


def joined(rows: Sequence[tuple[Any, Any]], empty: Any) -> Any:
    """Texts, each but the first after its own delimiter."""
    parts = [part or empty for text, delimiter in rows for part in (delimiter, text)]
    return empty.join(parts[1:])
