"""The records of each key in order of time."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from millwheel import Computation, Context, MapState, Record, Stream, Timer
from millwheel.computations.late import LateRecords
from millwheel.computations.timeline import (
    BATCH,
    FIRST,
    Waking,
    between,
    first_instant,
    hold,
    moment_of,
    passed_by,
    wake,
    wake_for_next,
    waking_state,
    written,
)

V = TypeVar("V")


class Queue(Waking):
    """Records that wait for the low watermark: instant -> value."""

    values: MapState[str, Any] = msgspec.field(default_factory=MapState)


class InOrder(Computation[V, Queue], Generic[V]):
    """Passes the records of each key on in the order of their timestamps.

    ```python
    RETURNS = Stream("returns", Order)
    pipeline.inject(RETURNS, Inbox())
    pipeline.add(InOrder(to=KEPT), ORDERS.by(customer), RETURNS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, MILK, at=at(20))
        await harness.inject(RETURNS, TEA, at=at(10))
        await harness.advance(ORDERS, at(60))
        await harness.advance(RETURNS, at(60))
        assert harness.produced(KEPT) == [TEA, MILK]
    ```

    Each record waits until the low watermark has passed it, so that no earlier one can follow.
    Records of one instant keep their order of arrival; timestamps do not change. A reader of `to`
    by the same key gets the records of each key in order, by another key in no order. A late record
    (older than the low watermark) is counted (``late_dropped``, ``late_sent``).

    Args:
        to: the stream of the records in order.
        late: the stream for late records. None: they are dropped.
    """

    def __init__(self, *, to: Stream[V], late: Stream[V] | None = None) -> None:
        self._to = to
        self._late = LateRecords(late)
        self.writes = written(to, late)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        return waking_state("Queue", values=self._to.value_type)

    async def process_record(self, record: Record[V], ctx: Context[Queue]) -> None:
        if record.micros < ctx.low_watermark_micros:
            self._late.take(record, ctx)
            return
        hold(ctx, ctx.state.values, record.micros, record.value)
        wake(ctx, record.micros)

    async def process_timer(self, timer: Timer, ctx: Context[Queue]) -> None:
        values = ctx.state.values
        for entry, micros, value in await between(values, FIRST, passed_by(ctx), limit=BATCH):
            ctx.produce(self._to, value, moment_of(micros))
            values.remove(entry)
        wake_for_next(ctx, await first_instant(values))
