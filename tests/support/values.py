"""The items that most tests send, what is counted of them, and their streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from millwheel import Stream

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    """An instant of event time."""
    return EPOCH + timedelta(seconds=second)


class Item(msgspec.Struct, frozen=True):
    """What most tests send."""

    key: str
    number: int
    second: float = 0


class Counted(msgspec.Struct):
    """What `Tally` says of an item: it was the `count`-th of its key."""

    key: str
    number: int
    count: int


class Count(msgspec.Struct):
    """How many."""

    count: int = 0


ITEMS = Stream("items", Item)

TALLY = Stream("tally", Counted)


def key_of(item: Item) -> str:
    return item.key


def time_of(item: Item) -> datetime:
    return at(item.second)


def items(*numbers: int, key: str = "a", second: float = 0) -> list[Item]:
    return [Item(key, number, second) for number in numbers]


def tally_of(values: Sequence[Item]) -> dict[str, list[tuple[int, int]]]:
    """What `World.tallied` gives when each value is counted once and in order."""
    expected: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for value in values:
        expected[value.key].append((value.number, len(expected[value.key]) + 1))
    return dict(expected)
