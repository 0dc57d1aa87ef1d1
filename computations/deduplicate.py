"""One record of each key within a stretch of time."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, TypeVar

import msgspec

from millwheel import Computation, Context, MapState, Record, Stream, Timer
from millwheel.computations.timeline import (
    BATCH,
    FIRST,
    Waking,
    between,
    first_instant,
    micros_of,
    passed_by,
    set_aside,
    stamp,
    wake,
    wake_for_next,
    written,
)
from millwheel.windows import length

V = TypeVar("V")


class Passed(Waking):
    """Where records of a key passed that still keep others away."""

    instants: MapState[str, bool] = msgspec.field(default_factory=MapState)


class Deduplicate(Computation[V, Passed], Generic[V]):
    """Passes a record on unless one of its key passed less than `horizon` earlier or later, in
    event time. The key, chosen where it is added, is what makes two records the same.

    ::

        pipeline.add(Deduplicate(to=UNIQUE, horizon=timedelta(hours=1)),
                     CLICKS.by(lambda click: click.id))

    Of two such records the one that comes first passes; the others are counted
    (``duplicates``). (That the engine processes each record once is another matter: here two
    different records say the same.)

    A late record (older than the low watermark) may be a copy of one that is forgotten: it is
    dropped, or sent to `late`, and counted (``late_dropped``, ``late_sent``).

    Held per key: the instants of the records that passed, until the low watermark is `horizon`
    behind them.

    Args:
        to: the stream of what passes.
        horizon: how far apart two records of a key are both let through.
        late: the stream for late records. None: they are dropped.

    Raises:
        GraphError: the horizon is zero or negative.
    """

    def __init__(self, *, to: Stream[V], horizon: timedelta, late: Stream[V] | None = None) -> None:
        self._horizon = length("Deduplicate: horizon", horizon)
        self._to = to
        self._late = late
        self.writes = written(to, late)

    @property
    def name(self) -> str:
        """Called after the stream it makes."""
        return f"make_{self._to.name}"

    async def process_record(self, record: Record[V], ctx: Context[Passed]) -> None:
        at = record.micros
        if at < micros_of(ctx.low_watermark):
            set_aside(record, ctx, self._late)
            return
        instants = ctx.state.instants
        around = self._horizon - 1
        async for _ in between(instants, at - around, at + around, limit=1):
            ctx.count("duplicates")
            return
        instants.put(stamp(at), True)
        wake(ctx, at + around)
        ctx.produce(self._to, record.value)

    async def process_timer(self, timer: Timer, ctx: Context[Passed]) -> None:
        instants = ctx.state.instants
        around = self._horizon - 1
        async for entry, _, _ in between(instants, FIRST, passed_by(ctx, around), limit=BATCH):
            instants.remove(entry)
        first = await first_instant(instants)
        wake_for_next(ctx, None if first is None else first + around)
