"""Aggregates over sorted values: ``percentile_cont``, ``percentile_disc``, ``mode``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.accumulating.kept_rows import KeptRows, uses_columns
from millwheel.sql.accumulating.plans import (
    LIST,
    ListPlan,
    Slot,
    SlotName,
    assigned,
    guarded,
)
from millwheel.sql.accumulating.row_order import check_ordered
from millwheel.sql.functions import ValueRefused
from millwheel.sql.generated import compiled
from millwheel.sql.generating import Generator


def most_frequent(values: Sequence[Any], _: None) -> Any:
    """The value that is there most often, of several the first; None: there are no values."""
    found, most = None, 0
    last, count = None, 0
    for value in values:
        count = count + 1 if count and value == last else 1
        if count == 1:
            last = value
        if count > most:
            found, most = last, count
    return found


def discrete(values: Sequence[Any], fraction: float | None) -> Any:
    """The first value with a rank of at least that fraction."""
    if not values or fraction is None:
        return None
    return values[max(math.ceil(fraction * len(values)), 1) - 1]


def continuous(values: Sequence[float], fraction: float | None) -> float | None:
    """The value at that fraction of the way from the first to the last."""
    if not values or fraction is None:
        return None
    place = fraction * (len(values) - 1)
    below, above = values[math.floor(place)], values[math.ceil(place)]
    return below if above == below else below + (place - math.floor(place)) * (above - below)


def _each(
    of: Callable[[Sequence[Any], float | None], Any],
) -> Callable[[Sequence[Any], Sequence[float | None] | None], Any]:
    """The function for an array of fractions."""

    def results(values: Sequence[Any], fractions: Sequence[float | None] | None) -> Any:
        if not values or fractions is None:
            return None
        return [of(values, fraction) for fraction in fractions]

    return results


_FUNCTIONS: dict[tuple[str, bool], Callable[..., Any]] = {
    ("mode", False): most_frequent,
    ("percentile_disc", False): discrete, ("percentile_disc", True): _each(discrete),
    ("percentile_cont", False): continuous, ("percentile_cont", True): _each(continuous),
}  # fmt: skip
"""By name, and whether there are several fractions."""


class PercentilePlan(ListPlan):
    """All values but NULL."""

    def __init__(self, node: t.AggregateValue, first: int) -> None:
        super().__init__(node, first)
        *fractions, self._value = node.arguments
        check_ordered(self._value)
        self._fraction = _constant(fractions[0], node.signature.name) if fractions else None
        self._function = _FUNCTIONS[node.signature.name, isinstance(self._fraction, list)]
        _, self._descends, _ = node.order[0]
        self.slots = (Slot(KeptRows([self._value]).list_type, LIST),)

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, (name,), test = assigned(generator, [self._value])
        return lines + guarded(test, [f"{slot(self.first)}.append({name})"])

    def result(self, generator: Generator, slot: SlotName) -> str:
        function = generator.name(self.node.signature.name, self._function)
        values = f"sorted({slot(self.first)}, reverse={self._descends})"
        return f"{function}({values}, {self._fraction!r})"


def _constant(value: t.Typed, name: str) -> Any:
    """The fraction, or several of them.

    Raises:
        SqlError: it is not constant, or not between 0 and 1.
    """
    if uses_columns(value):
        raise SqlError(
            f"the fraction of {name} is not constant",
            value.place,
            "Write a number, as in percentile_cont(0.5)",
        )
    generator = Generator(lambda column: column.name)
    source = f"def fraction():\n    return {generator.value(value)}\n"
    try:
        found = compiled("fraction", source, generator.names)()
    except ValueRefused as error:
        raise SqlError(str(error), value.place) from error
    for each in found if isinstance(found, list) else [found]:
        if each is not None and not 0 <= each <= 1:
            raise SqlError(
                f"percentile value {each:g} is not between 0 and 1",
                value.place,
                "The median is 0.5",
            )
    return found
