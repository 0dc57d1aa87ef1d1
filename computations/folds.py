"""Folds: how the values of a window become one result, one value at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class Fold(Generic[V, A, R]):
    """An incremental aggregation.

    Attributes:
        init: makes the accumulator of an empty window.
        add: the accumulator with one more value.
        result: what the window's pane carries.
        accumulator: the accumulator's type, which must be storable as JSON.
    """

    init: Callable[[], A]
    add: Callable[[A, V], A]
    result: Callable[[A], R]
    accumulator: Any


def _add_one(accumulator: int, value: object) -> int:
    return accumulator + 1


def _same(accumulator: int) -> int:
    return accumulator


count: Fold[Any, int, int] = Fold(int, _add_one, _same, int)
"""How many values."""


def total(of: Callable[[V], int]) -> Fold[V, int, int]:
    """The sum of a whole number taken from each value."""
    return Fold(int, lambda accumulator, value: accumulator + of(value), _same, int)
