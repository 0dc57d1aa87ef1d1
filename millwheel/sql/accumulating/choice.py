"""The plan for each aggregate."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.accumulating.arithmetic import float_mean, numeric_mean
from millwheel.sql.accumulating.ends import EndPlan
from millwheel.sql.accumulating.kept_rows import DistinctPlan, SortedPlan
from millwheel.sql.accumulating.listed import ArrayPlan, TextPlan
from millwheel.sql.accumulating.percentiles import PercentilePlan
from millwheel.sql.accumulating.plans import AggregatePlan
from millwheel.sql.accumulating.spreads import (
    PAIRS,
    SPREADS,
    FloatSpreadPlan,
    NumericSpreadPlan,
    PairPlan,
)
from millwheel.sql.accumulating.sums import CountPlan, MeanPlan, ReducePlan
from millwheel.sql.aggregate_forms import ENDS, ORDERED_SETS
from millwheel.sql.functions.numbers.integers import LIMITS, int8
from millwheel.sql.schemas import check_held
from millwheel.sql.types import shown

_FLOATS = ("float4", "float8")
_EXACT = (*LIMITS, "numeric")

_COMBINED = {
    "bool_and": "({0} and {1})", "every": "({0} and {1})", "bool_or": "({0} or {1})",
    "bit_and": "({0} & {1})", "bit_or": "({0} | {1})", "bit_xor": "({0} ^ {1})",
    "any_value": "{0}",
}  # fmt: skip
"""The Python for two values."""

_SAME_WHEN_DISTINCT = frozenset((
    "min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "any_value",
))  # fmt: skip
_SAME_IN_ANY_ORDER = frozenset((
    "count", "min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor",
    "regr_count",
))  # fmt: skip


def plan_of(node: t.AggregateValue, first: int) -> AggregatePlan:
    """The way to compute an aggregate.

    Args:
        first: the number of its first slot.

    Raises:
        SqlError: it is not available.
    """
    name = node.signature.name
    plain = partial(_plain, first=0)
    if name in ENDS:
        return EndPlan(node, first)
    if name in ORDERED_SETS:
        _check_held(node)
        return PercentilePlan(node, first)
    if node.distinct and name not in _SAME_WHEN_DISTINCT:
        _check_distinct(node)
        return DistinctPlan(node, first, name == "array_agg", plain)
    if node.order and _depends_on_order(node):
        needed = {"array_agg": 0, "string_agg": 1}.get(name, len(node.arguments))
        return SortedPlan(node, first, needed, plain)
    return _plain(node, first)


def _check_held(node: t.AggregateValue) -> None:
    for argument in node.arguments:
        check_held(argument.type, argument.place)


def _check_distinct(node: t.AggregateValue) -> None:
    """Refuse DISTINCT over several arguments that depend on the record."""
    name = node.signature.name
    if name in PAIRS:
        raise SqlError(f"{name}(DISTINCT ...) is not available", node.place)
    for argument in node.arguments[1:]:
        if any(isinstance(part, t.ColumnValue) for part in t.walk(argument)):
            raise SqlError(
                f"{name}(DISTINCT ...) with a delimiter that is not constant is not available",
                argument.place,
                "Write the delimiter as a text",
            )


def _depends_on_order(node: t.AggregateValue) -> bool:
    """Whether another order of the records may give another result."""
    name = node.signature.name
    if name in ("array_agg", "string_agg", "any_value"):
        return True
    return name not in _SAME_IN_ANY_ORDER and any(
        argument.type.name in _FLOATS for argument in node.arguments
    )


def _plain(node: t.AggregateValue, first: int) -> AggregatePlan:
    """The plan without DISTINCT, or an order that makes a difference."""
    name = node.signature.name
    kind = node.arguments[0].type.name if node.arguments else ""
    if name == "count":
        return CountPlan(node, first)
    _check_held(node)
    if name in ("min", "max"):
        return _extreme(node, first)
    if name in _COMBINED:
        return ReducePlan(node, first, _COMBINED[name])
    if name in PAIRS:
        return PairPlan(node, first)
    maker = _ARITHMETIC.get((name, kind)) or _MAKERS.get(name)
    if maker is None:
        raise SqlError(
            f"the aggregate {name} exists in Postgres and is not available here", node.place
        )
    return maker(node, first)


def _extreme(node: t.AggregateValue, first: int) -> AggregatePlan:
    """The least or the greatest value; of equal ones, the last."""
    (argument,) = node.arguments
    kind = argument.type.element or argument.type
    if kind.name == "bpchar":
        raise SqlError(
            f"values of {shown(argument.type)} have no order here",
            argument.place,
            "Cast it: ::text",
        )
    sign = "<" if node.signature.name == "min" else ">"
    test = f"{{0}} {sign} {{1}}" if kind == argument.type else f"compared({{0}}, {{1}}) {sign} 0"
    return ReducePlan(node, first, f"({{0}} if {test} else {{1}})")


def _array(node: t.AggregateValue, first: int) -> AggregatePlan:
    if node.arguments[0].type.element is not None:
        raise SqlError("arrays of arrays are not available", node.place, "Use string_agg")
    return ArrayPlan(node, first)


_Maker = Callable[[t.AggregateValue, int], AggregatePlan]

_MAKERS: dict[str, _Maker] = {"array_agg": _array, "string_agg": TextPlan}

_ARITHMETIC: dict[tuple[str, str], _Maker] = {
    ("sum", "int2"): partial(ReducePlan, combined="{0} + {1}", finished=int8),
    ("sum", "int4"): partial(ReducePlan, combined="{0} + {1}", finished=int8),
    ("sum", "int8"): partial(ReducePlan, combined="{0} + {1}", finished=Decimal),
    ("sum", "numeric"): partial(ReducePlan, combined="numeric_add({0}, {1})"),
    ("sum", "float4"): partial(ReducePlan, combined="narrowed({0} + {1})"),
    ("sum", "float8"): partial(ReducePlan, combined="{0} + {1}"),
    **{("avg", kind): partial(MeanPlan, divided=numeric_mean) for kind in _EXACT},
    **{("avg", kind): partial(MeanPlan, divided=float_mean) for kind in _FLOATS},
    **{(name, kind): NumericSpreadPlan for name in SPREADS for kind in _EXACT},
    **{(name, kind): FloatSpreadPlan for name in SPREADS for kind in _FLOATS},
}
"""By the name of the aggregate and the type of its argument."""
