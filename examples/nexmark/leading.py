"""A custom fold: the values with the greatest score of a window, including ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millwheel.computations import Fold

V = TypeVar("V")


def leading(by: Callable[[V], int], kind: type[V]) -> Fold[V, list[V], list[V]]:
    """The values with the greatest score, including ties; `top` would choose among ties.

    Args:
        by: returns a value's score.
        kind: the values' type.
    """

    def merge(one: list[V], other: list[V]) -> list[V]:
        if not one or not other:
            return one or other
        ahead = by(one[0]) - by(other[0])
        if ahead == 0:
            return one + other
        return one if ahead > 0 else other

    return Fold(
        list,
        lambda kept, value: merge(kept, [value]),
        lambda kept: kept,
        list[kind],  # type: ignore[valid-type]
        merge,
    )
