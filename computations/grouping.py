"""Records of one key by window, so that the state of a window is read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from millwheel import Record
from millwheel.windows import Months, Span, Tumbling

V = TypeVar("V")


def by_window(
    windows: Tumbling | Months, records: Sequence[Record[V]], watermark: int
) -> dict[Span, list[V]] | None:
    """The values of the records in each window, in their order; None: one of them is late."""
    times = [record.micros for record in records]
    first = windows.of(min(times))
    if first.last < watermark:
        return None
    if max(times) < first.end:
        return {first: [record.value for record in records]}
    values: dict[Span, list[V]] = {}
    for record in records:
        values.setdefault(windows.of(record.micros), []).append(record.value)
    return values
