"""The last record of each burst."""

from __future__ import annotations

from datetime import timedelta
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
    moment_of,
    passed_by,
    stamp,
    wake,
    wake_for_next,
    waking_state,
    written,
)
from millwheel.windows import length

V = TypeVar("V")


class Burst(Waking):
    """The records of a key that may be the last of a burst: instant -> value."""

    values: MapState[str, Any] = msgspec.field(default_factory=MapState)


class Debounce(Computation[V, Burst], Generic[V]):
    """Passes on the last record of each burst of a key.

    ```python
    pipeline.add(Debounce(to=KEPT, quiet=timedelta(seconds=30)), ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, at=at(0))
        await harness.inject(ORDERS, MILK, at=at(10))
        await harness.advance(ORDERS, at(60))
        assert harness.produced(KEPT) == [MILK]
    ```

    A record is passed on, with the end of the quiet time as its timestamp, when the low watermark
    proves that its key has no other record within `quiet` (inclusive) of event time after it;
    otherwise it is dropped and counted (``debounced``). Of several records of one instant, the last
    one to arrive counts. A late record (older than the low watermark) is counted (``late_dropped``,
    ``late_sent``).

    Args:
        to: the stream of the records passed on.
        quiet: the time after a record in which the key must have no other record.
        late: the stream for late records. None: they are dropped.

    Raises:
        GraphError: `quiet` is zero or negative.
    """

    def __init__(self, *, to: Stream[V], quiet: timedelta, late: Stream[V] | None = None) -> None:
        self._quiet = length("Debounce: quiet", quiet)
        self.rules = {"quiet": str(quiet)}
        self._to = to
        self._late = LateRecords(late)
        self.writes = written(to, late)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        return waking_state("Burst", values=self._to.value_type)

    async def process_record(self, record: Record[V], ctx: Context[Burst]) -> None:
        if record.micros < ctx.low_watermark_micros:
            self._late.take(record, ctx)
            return
        values = ctx.state.values
        entry = stamp(record.micros)
        if await values.contains(entry):
            ctx.count("debounced")
        values.put(entry, record.value)
        wake(ctx, record.micros + self._quiet)

    async def process_timer(self, timer: Timer, ctx: Context[Burst]) -> None:
        values = ctx.state.values
        # A record stays until its own quiet time is over, even if another one has followed it: a
        # record that arrives later may be earlier than both, and is then followed by this one.
        due = await between(values, FIRST, passed_by(ctx, self._quiet), limit=BATCH)
        following = [micros for _, micros, _ in due[1:]]
        if due:
            following.append(await first_instant(values, since=due[-1][1] + 1))  # type: ignore[arg-type]
        for (entry, micros, value), after in zip(due, following, strict=True):
            if after is None or after > micros + self._quiet:
                ctx.produce(self._to, value, moment_of(micros + self._quiet))
            else:
                ctx.count("debounced")
            values.remove(entry)
        first = await first_instant(values)
        wake_for_next(ctx, None if first is None else first + self._quiet)
