"""The last record of each burst."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar

import msgspec

from millwheel import Computation, Context, MapState, Record, Stream, Timer
from millwheel.computations.timeline import (
    BATCH,
    FIRST,
    Waking,
    between,
    first_instant,
    micros_of,
    moment_of,
    passed_by,
    set_aside,
    stamp,
    wake,
    wake_for_next,
    waking_state,
    written,
)
from millwheel.windows import length

V = TypeVar("V")


class Burst(Waking):
    """The records of a key that may be the last of their burst: instant -> value."""

    values: MapState[str, Any] = msgspec.field(default_factory=MapState)


class Debounce(Computation[V, Burst], Generic[V]):
    """Passes a record on once its key has been quiet for `quiet` of event time after it: when
    the low watermark proves that no other record of the key came up to then.

    ::

        pipeline.add(Debounce(to=SETTLED, quiet=timedelta(seconds=30)),
                     READINGS.by(lambda reading: reading.sensor))

    What is passed on carries the end of the quiet time as its timestamp. Of records of one
    instant the one that came last counts; what is followed by another within `quiet`, that
    bound included, is counted (``debounced``).

    A late record (older than the low watermark) is dropped, or sent to `late`, and counted
    (``late_dropped``, ``late_sent``).

    Args:
        to: the stream of what is passed on.
        quiet: how long after a record no other may come.
        late: the stream for late records. None: they are dropped.

    Raises:
        GraphError: `quiet` is zero or negative.
    """

    def __init__(self, *, to: Stream[V], quiet: timedelta, late: Stream[V] | None = None) -> None:
        self._quiet = length("Debounce: quiet", quiet)
        self._to = to
        self._late = late
        self.writes = written(to, late)

    @property
    def name(self) -> str:
        """Called after the stream it makes."""
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        """Values of the stream's type."""
        return waking_state("Burst", values=self._to.value_type)

    async def process_record(self, record: Record[V], ctx: Context[Burst]) -> None:
        if record.micros < micros_of(ctx.low_watermark):
            set_aside(record, ctx, self._late)
            return
        values = ctx.state.values
        entry = stamp(record.micros)
        if await values.contains(entry):
            ctx.count("debounced")
        values.put(entry, record.value)
        wake(ctx, record.micros + self._quiet)

    async def process_timer(self, timer: Timer, ctx: Context[Burst]) -> None:
        values = ctx.state.values
        # A record stays until its own quiet time is over, even if another has followed it: one
        # that is still to come may stand before both, and is followed by this one.
        due = [f async for f in between(values, FIRST, passed_by(ctx, self._quiet), limit=BATCH)]
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
