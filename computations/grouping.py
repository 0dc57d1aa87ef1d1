"""Records of one key by window, so that the state of a window is read once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from millwheel import Context, Record
from millwheel.windows import Months, Span, Tumbling

V = TypeVar("V")


Process = Callable[[Record[V], Context[Any]], Coroutine[Any, Any, None]]


async def one_by_one(process: Process[V], records: Sequence[Record[V]], ctx: Context[Any]) -> None:
    """Process records in their order."""
    for record in records:
        await process(record, ctx)


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
