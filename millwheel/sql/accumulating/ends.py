"""``first`` and ``last``, which Postgres does not have: the value of one row by an order."""

from __future__ import annotations

from millwheel.sql import typed as t
from millwheel.sql.accumulating.kept_rows import KeptRows
from millwheel.sql.accumulating.plans import AggregatePlan, Slot, SlotName, assigned
from millwheel.sql.accumulating.row_order import check_ordered
from millwheel.sql.generating import Generator


class EndPlan(AggregatePlan):
    """One row: the value, and those to sort by.

    Of equal rows, `first` takes the one that arrived first, and `last` the one that arrived last.
    """

    def __init__(self, node: t.AggregateValue, first: int) -> None:
        super().__init__(node, first)
        for key, _, _ in node.order:
            check_ordered(key)
        keys = [key for key, _, _ in node.order]
        self._rows = KeptRows((), [*node.arguments, *keys])
        self._order = self._rows.order_of(node.order, always_tuples=True)
        self._is_last = node.signature.name == "last"
        self._is_simple = len(keys) == 1 and not keys[0].nullable
        types = self._rows.types
        self.slots = (Slot(tuple[*types] | None, "None"),)  # type: ignore[valid-type]

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, names, _ = assigned(generator, self._rows.values, needed=0)
        kept, row = slot(self.first), generator.local()
        return [
            *lines,
            f"{row} = ({', '.join(names)},)",
            f"if {kept} is None or {self._replaces(row, kept)}:",
            f"    {kept} = {row}",
        ]

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        kept, row = slot(self.first), other(self.first)
        test = f"{kept} is None or {self._replaces(row, kept)}"
        return [f"if {row} is not None and ({test}):", f"    {kept} = {row}"]

    def _replaces(self, row: str, kept: str) -> str:
        """The Python for whether a later row takes the place of one that is kept."""
        if self._is_simple:
            ((place, descends, _),) = self._order
            sign = "<" if descends == self._is_last else ">"
            equal = "=" if self._is_last else ""
            return f"{row}[{place}] {sign}{equal} {kept}[{place}]"
        before = f"precedes({row}, {kept}, {self._order!r})"
        return f"not {before}" if self._is_last else before

    def result(self, generator: Generator, slot: SlotName) -> str:
        return f"(None if {slot(self.first)} is None else {slot(self.first)}[0])"
