"""Slots of an accumulator, and the plans that fill them by lines of Python.

A *slot* is a field of the accumulator. The loop over a chunk adds each record to the slots of its
group; two accumulators of one group can be merged, so that groups are sent in place of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from millwheel.sql import typed as t
from millwheel.sql.generating import Generator

SlotName = Callable[[int], str]
"""The Python for a slot, by its number."""

ZERO = Decimal(0)

SET, LIST = "set()", "[]"

_BEGIN = {"None": None, "False": False, "0": 0, "0.0": 0.0, "ZERO": ZERO}
_COPIED = {SET: set, LIST: list}


@dataclass(frozen=True)
class Slot:
    type: Any
    initial: str
    """The Python for its value in an empty group: one of `_BEGIN`, `SET` or `LIST`."""

    @property
    def default(self) -> Any:
        """That value, as the default of a struct's field."""
        if self.initial in _COPIED:
            return msgspec.field(default_factory=_COPIED[self.initial])
        return _BEGIN[self.initial]

    def copied(self, slot: str) -> str:
        """The Python for a copy of its value, which a merge may change."""
        found = _COPIED.get(self.initial)
        return slot if found is None else f"{found.__name__}({slot})"


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

    def places(self, slot: SlotName) -> list[str]:
        """The Python for each of its slots."""
        return [slot(self.first + number) for number in range(len(self.slots))]


class ListPlan(AggregatePlan):
    """An aggregate with one slot, which is a list."""

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        return [f"{slot(self.first)} += {other(self.first)}"]


def assigned(
    generator: Generator, values: Sequence[t.Typed], needed: int | None = None
) -> tuple[list[str], list[str], str]:
    """Assign values to interim names.

    Args:
        needed: the number of the first values that must not be NULL; None: all.

    Returns:
        The lines, the names, and the test that no value that is needed is NULL; empty if none may
        be.
    """
    names = [generator.local() for _ in values]
    lines = [
        f"{name} = {generator.value(value)}" for name, value in zip(names, values, strict=True)
    ]
    tested = zip(names[:needed], values[:needed], strict=True)
    test = " and ".join(f"{name} is not None" for name, value in tested if value.nullable)
    return lines, names, test


def guarded(test: str, lines: Sequence[str]) -> list[str]:
    """Lines that run if a test is true; always, if it is empty."""
    return [f"if {test}:", *(f"    {line}" for line in lines)] if test else [*lines]
