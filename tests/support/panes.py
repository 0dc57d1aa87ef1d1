"""Panes of a minute as rows of a table, and their batch answer."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from millwheel.windows import Pane
from tests.support.values import Item, at


def batch(values: list[Item]) -> dict[tuple[str, datetime], int]:
    counts: Counter[tuple[str, datetime]] = Counter()
    for value in values:
        counts[value.key, at(value.second // 60 * 60)] += 1
    return dict(counts)


class Row(msgspec.Struct):
    """A pane with a key for a column."""

    key: str
    start: datetime
    value: int
    number: int


def text_key(found: Pane[int]) -> Row:
    return Row(str(found.key), found.start, found.value, found.number)
