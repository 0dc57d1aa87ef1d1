"""The forms in which aggregates are called, and the aggregates that Postgres does not have."""

from __future__ import annotations

from millwheel.sql import syntax as s
from millwheel.sql.place import fail

ENDS = ("first", "last")
"""Aggregates that Postgres does not have."""

ORDERED_SETS = ("mode", "percentile_cont", "percentile_disc")
"""Aggregates with ``WITHIN GROUP``."""

_RANKS = ("rank", "dense_rank", "percent_rank", "cume_dist")
"""Aggregates that tell the rank of a row that is not there."""

NEVER_NULL = ("count", "regr_count")


def check_form(node: s.FunctionCall) -> None:
    """Refuse an aggregate with a part that it does not have.

    Raises:
        SqlError: a part is missing, or there is one too many.
    """
    name = node.function
    if node.star and name != "count":
        fail(node.place, f"{name}(*) does not exist", f"Write a column: {name}(x)")
    if name in _RANKS or name.startswith("json"):
        fail(
            node.place,
            f"the aggregate {name} exists in Postgres and is not available here",
            "Count the rows before the value: count(*) FILTER (WHERE x < value)"
            if name in _RANKS
            else "array_agg keeps the values as an array",
        )
    if name in ORDERED_SETS:
        _check_ordered_set(node)
    elif node.within:
        fail(
            node.within[0].value.place,
            f"{name} has no WITHIN GROUP",
            f"Write the order in the call: {name}(x ORDER BY ...)",
        )
    if name in ENDS:
        if node.distinct:
            fail(node.place, f"{name} has no DISTINCT", "Leave it out")
        if not node.order:
            fail(
                node.place,
                f"{name} needs an order",
                f"Add one: {name}(x ORDER BY a column). With a column of event time, it is the "
                f"value of the {'newest' if name == 'last' else 'oldest'} record",
            )


def _check_ordered_set(node: s.FunctionCall) -> None:
    name = node.function
    example = "mode()" if name == "mode" else f"{name}(0.5)"
    advice = f"As in {example} WITHIN GROUP (ORDER BY x)"
    if not node.within:
        fail(node.place, f"WITHIN GROUP is missing after {name}", advice)
    if node.distinct or node.order:
        part = "DISTINCT" if node.distinct else "ORDER BY"
        fail(node.place, f"{name} has no {part} besides WITHIN GROUP", advice)
    if len(node.within) > 1:
        fail(node.within[1].value.place, f"{name} sorts by one value", advice)
