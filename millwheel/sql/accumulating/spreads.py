"""Variances, standard deviations and regressions."""

from __future__ import annotations

from decimal import Decimal

from millwheel.sql import typed as t
from millwheel.sql.accumulating.arithmetic import float_spread, numeric_spread, pair_result
from millwheel.sql.accumulating.plans import AggregatePlan, Slot, SlotName, assigned, guarded
from millwheel.sql.generating import Generator

SPREADS = {
    "variance": (True, False), "var_samp": (True, False), "var_pop": (False, False),
    "stddev": (True, True), "stddev_samp": (True, True), "stddev_pop": (False, True),
}  # fmt: skip
"""Whether an aggregate is of a sample, and whether it is the root."""

PAIRS = frozenset((
    "corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept",
    "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy",
))  # fmt: skip
"""Aggregates of two arguments, Y and X."""


class NumericSpreadPlan(AggregatePlan):
    """Number, sum and sum of squares, which are exact."""

    def __init__(self, node: t.AggregateValue, first: int) -> None:
        super().__init__(node, first)
        self._is_decimal = node.arguments[0].type.name == "numeric"
        kind = Slot(Decimal, "ZERO") if self._is_decimal else Slot(int, "0")
        self.slots = (Slot(int, "0"), kind, kind)

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, (name,), test = assigned(generator, self.node.arguments)
        squared = f"square({name})" if self._is_decimal else f"{name} * {name}"
        return lines + guarded(test, self._more(slot, ("1", name, squared)))

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        return self._more(slot, self.places(other))

    def _more(self, slot: SlotName, values: tuple[str, ...] | list[str]) -> list[str]:
        number, *sums = self.places(slot)
        added = [f"{number} += {values[0]}"]
        for place, value in zip(sums, values[1:], strict=True):
            more = f"numeric_add({place}, {value})" if self._is_decimal else f"{place} + {value}"
            added.append(f"{place} = {more}")
        return added

    def result(self, generator: Generator, slot: SlotName) -> str:
        is_sample, is_root = SPREADS[self.node.signature.name]
        name = generator.name("spread", numeric_spread)
        return f"{name}({', '.join(self.places(slot))}, {is_sample}, {is_root})"


class FloatSpreadPlan(AggregatePlan):
    """Number, sum and squared differences from the mean."""

    slots = (Slot(int, "0"), Slot(float, "0.0"), Slot(float, "0.0"))

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, (name,), test = assigned(generator, self.node.arguments)
        mine = ", ".join(self.places(slot))
        return lines + guarded(test, [f"{mine} = with_value({mine}, {name})"])

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        mine, theirs = ", ".join(self.places(slot)), ", ".join(self.places(other))
        return [f"{mine} = combined({mine}, {theirs})"]

    def result(self, generator: Generator, slot: SlotName) -> str:
        is_sample, is_root = SPREADS[self.node.signature.name]
        number, _, squares = self.places(slot)
        name = generator.name("spread", float_spread)
        return f"{name}({number}, {squares}, {is_sample}, {is_root})"


class PairPlan(AggregatePlan):
    """Aggregates of pairs of floats."""

    slots = (Slot(int, "0"), *[Slot(float, "0.0")] * 5)

    def add(self, generator: Generator, slot: SlotName) -> list[str]:
        lines, names, test = assigned(generator, self.node.arguments)
        mine = ", ".join(self.places(slot))
        return lines + guarded(test, [f"{mine} = with_pair(({mine}), {', '.join(names)})"])

    def merge(self, slot: SlotName, other: SlotName) -> list[str]:
        mine, theirs = ", ".join(self.places(slot)), ", ".join(self.places(other))
        return [f"{mine} = combined_pairs(({mine}), ({theirs}))"]

    def result(self, generator: Generator, slot: SlotName) -> str:
        name = generator.name("pair_result", pair_result)
        return f"{name}({self.node.signature.name!r}, ({', '.join(self.places(slot))}))"
