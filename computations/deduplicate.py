"""One record of each key within a span of time."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, TypeVar

import msgspec

from millwheel import Computation, Context, MapState, Record, Stream, Timer
from millwheel.computations.late import LateRecords
from millwheel.computations.timeline import (
    BATCH,
    FIRST,
    Waking,
    between,
    first_instant,
    passed_by,
    stamp,
    wake,
    wake_for_next,
    written,
)
from millwheel.windows import length

V = TypeVar("V")


class Passed(Waking):
    """The instants of passed records of a key that still block others."""

    instants: MapState[str, bool] = msgspec.field(default_factory=MapState)


class Deduplicate(Computation[V, Passed], Generic[V]):
    """Passes a record on unless another of its key passed less than `horizon` earlier or later.

    ```python
    pipeline.add(Deduplicate(to=KEPT, horizon=timedelta(hours=1)), ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK)
        assert harness.produced(KEPT) == [TEA]
    ```

    Two records are the same if they have the same key, and the horizon is in event time; the
    engine's exactly-once processing is independent of this. The first such record to arrive passes;
    the others are dropped and counted (``duplicates``). A late record (older than the low
    watermark) may be a copy of a forgotten one: it is dropped, or sent to `late`, and counted
    (``late_dropped``, ``late_sent``).

    State per key: the instants of passed records, until the low watermark is `horizon` past them.

    Args:
        to: the stream of the records that pass.
        horizon: the least distance in time at which two records of a key both pass.
        late: the stream for late records. None: they are dropped.

    Raises:
        GraphError: the horizon is zero or negative.
    """

    def __init__(self, *, to: Stream[V], horizon: timedelta, late: Stream[V] | None = None) -> None:
        self._horizon = length("Deduplicate: horizon", horizon)
        self.rules = {"horizon": str(horizon)}
        self._to = to
        self._late = LateRecords(late)
        self.writes = written(to, late)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    async def process_record(self, record: Record[V], ctx: Context[Passed]) -> None:
        at = record.micros
        if at < ctx.low_watermark_micros:
            self._late.take(record, ctx)
            return
        instants = ctx.state.instants
        around = self._horizon - 1
        if await between(instants, at - around, at + around, limit=1):
            ctx.count("duplicates")
            return
        instants.put(stamp(at), True)
        wake(ctx, at + around)
        ctx.produce(self._to, record.value)

    async def process_timer(self, timer: Timer, ctx: Context[Passed]) -> None:
        instants = ctx.state.instants
        around = self._horizon - 1
        for entry, _, _ in await between(instants, FIRST, passed_by(ctx, around), limit=BATCH):
            instants.remove(entry)
        first = await first_instant(instants)
        wake_for_next(ctx, None if first is None else first + around)
