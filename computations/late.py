"""Late records of a computation: sent to a stream of their own, or dropped."""

from __future__ import annotations

from typing import Any

import structlog

from millwheel import Context, Record, Stream
from millwheel.computations.timeline import LAST
from millwheel.context import call_of
from millwheel.core.redaction import shown_key

TAKE_THEM = (
    "give the computation a stream for them (late=, or late_left= and late_right= of a join), or "
    "its injector a greater lateness="
)


class LateRecords:
    def __init__(self, to: Stream[Any] | None) -> None:
        self.to = to
        self._warned: set[tuple[str, str]] = set()
        """The computations and streams of which a record was dropped, in this process."""

    def take(self, record: Record[Any], ctx: Context[Any]) -> None:
        """Send a record on, or drop it; count it (``late_sent``, ``late_dropped``)."""
        if self.to is not None:
            ctx.count("late_sent")
            ctx.produce(self.to, record.value, record.timestamp)
        else:
            self.drop(record, ctx)

    def drop(
        self,
        record: Record[Any],
        ctx: Context[Any],
        counter: str = "late_dropped",
        what_to_do: str = TAKE_THEM,
    ) -> None:
        """Count a record, which its caller drops, and log the first one of its stream."""
        ctx.count(counter)
        name = call_of(ctx).name
        place = name, record.stream
        if place in self._warned:
            return
        self._warned.add(place)
        watermark = ctx.low_watermark_micros
        structlog.get_logger().warning(
            "late_record_dropped",
            computation=name,
            stream=record.stream,
            key=shown_key(ctx.key),
            timestamp=record.timestamp.isoformat(),
            late_seconds=None if watermark >= LAST else (watermark - record.micros) / 1e6,
            what_it_means=(
                "it is older than the low watermark, so that its result is missing; later ones of "
                f"this stream are only counted ({counter} in `millwheel status`)"
            ),
            what_to_do=what_to_do,
        )
