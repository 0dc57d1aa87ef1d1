"""Limits the number of records of a key in a span of time."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, TypeVar

import msgspec

from millwheel import Computation, Context, MapState, Record, Stream, Timer
from millwheel.computations.late import LateRecords
from millwheel.computations.timeline import moment_of, written
from millwheel.errors import GraphError
from millwheel.windows import Tumbling, length

V = TypeVar("V")


class Counts(msgspec.Struct):
    """Passed records of a key: start of the window in microseconds -> number."""

    passed: MapState[int, int] = msgspec.field(default_factory=MapState)


class Throttle(Computation[V, Counts], Generic[V]):
    """Passes the first `at_most` records of a key in each window of event time of length `per`.

    ```python
    REST = Stream("rest", Order)
    once = Throttle(to=KEPT, at_most=1, per=timedelta(hours=1), rest=REST)
    pipeline.add(once, ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK, at=at(0))
        assert (harness.produced(KEPT), harness.produced(REST)) == ([TEA], [MILK])
    ```

    Windows are aligned to the epoch, as those of `Tumbling`; the first records are the first to
    arrive. The others are counted (``throttled``). A late record (its window's last microsecond is
    behind the low watermark, and the count removed) is counted too (``late_dropped``,
    ``late_sent``).

    Args:
        to: the stream of the records that pass.
        at_most: the maximum number of records of a key that pass in a window.
        per: the window's length.
        rest: the stream of the records that do not pass. None: they are dropped.
        late: the stream for late records. None: they are dropped.

    Raises:
        GraphError: `at_most` is below 1, or `per` zero or negative.
    """

    def __init__(
        self,
        *,
        to: Stream[V],
        at_most: int,
        per: timedelta,
        rest: Stream[V] | None = None,
        late: Stream[V] | None = None,
    ) -> None:
        if not isinstance(at_most, int) or at_most < 1:
            raise GraphError(
                f"Throttle: at_most must be a whole number, 1 or more, not {at_most!r}"
            )
        length("Throttle: per", per)
        self._at_most = at_most
        self.rules = {"at_most": at_most, "per": str(per)}
        self._windows = Tumbling(per)
        self._to = to
        self._rest = rest
        self._late = LateRecords(late)
        self.writes = written(to, rest, late)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    async def process_record(self, record: Record[V], ctx: Context[Counts]) -> None:
        span = self._windows.of(record.micros)
        if span.last < ctx.low_watermark_micros:
            self._late.take(record, ctx)
            return
        counts = ctx.state.passed
        passed = await counts.get(span.start)
        if passed is None:
            passed = 0
            ctx.set_timer(moment_of(span.last), tag=str(span.start))
        if passed < self._at_most:
            counts.put(span.start, passed + 1)
            ctx.produce(self._to, record.value)
            return
        ctx.count("throttled")
        if self._rest is not None:
            ctx.produce(self._rest, record.value)

    async def process_timer(self, timer: Timer, ctx: Context[Counts]) -> None:
        ctx.state.passed.remove(int(timer.tag))
