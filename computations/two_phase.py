"""Two-phase aggregation, for a key with too much traffic (paper section 8.4).

A key belongs to one interval, and so to one core. `Spread` divides it into several partial keys,
`PreAggregate` aggregates each of them, and `merged` combines the partial results by the real key.
On-time panes equal those of a single phase: a partial result has its window's last microsecond, and
the first phase's timer at that instant holds its low watermark until the last one is produced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar
from zlib import crc32

import msgspec

from millwheel import Computation, Context, Input, Key, MapState, Record, Stream, Timer
from millwheel.computations.folds import Fold
from millwheel.computations.grouping import by_window, one_by_one
from millwheel.computations.timeline import MICROSECOND
from millwheel.errors import GraphError
from millwheel.windows import Span, Tumbling, instant, length, rule_of

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

_encode = msgspec.json.Encoder().encode

_OF_TUPLE = "tuple"
"""Distinguishes the partial keys of ``("a",)`` from those of ``"a"``."""

_ALL = "flush"


class Partial(msgspec.Struct, Generic[A], frozen=True, gc=False):
    """The aggregate of some records of one key and window.

    ```python
    PARTIALS = Stream("partials", Partial[int])
    assert real_key(Partial(key="ann", value=390, records=2)) == "ann"
    ```

    Attributes:
        key: the real key.
        value: the accumulator of the records.
        records: the number of records.
    """

    key: str | int | tuple[str | int, ...]
    value: A
    records: int


def real_key(partial: Partial[Any]) -> Key:
    """The key of the second phase.

    ```python
    PARTIALS = Stream("partials", Partial[int])
    by_customer = PARTIALS.by(real_key)
    ```
    """
    return partial.key


class Spread(Generic[V]):
    """A key extractor that spreads each key over `ways` partial keys.

    ```python
    spread = Spread(customer, ways=8)
    way, name = spread(TEA)
    assert name == "ann"
    assert way in range(8)
    ```

    The partial key depends on the value alone: a record that is read again gets the same one.

    Args:
        key: the extractor of the real key.
        ways: the number of partial keys; at least the number of cores to use.
        by: returns the part of a value that selects the partial key, if encoding the whole value
            for each record is too expensive.

    Raises:
        GraphError: `ways` is below 2.
    """

    def __init__(
        self, key: Callable[[V], Key], *, ways: int, by: Callable[[V], Key] | None = None
    ) -> None:
        if not isinstance(ways, int) or ways < 2:
            raise GraphError(f"Spread: ways must be a whole number, 2 or more, not {ways!r}")
        self._key = key
        self._ways = ways
        self._by = by
        name = getattr(key, "__qualname__", type(key).__name__)
        self.__qualname__ = f"{name}, spread"

    def __call__(self, value: V) -> tuple[str | int, ...]:
        """The partial key: (way, key)."""
        key = self._key(value)
        way = crc32(_encode(value if self._by is None else self._by(value))) % self._ways
        if type(key) is tuple:
            return (way, _OF_TUPLE, *key)
        return (way, key)  # type: ignore[return-value]


def _real_key(partial_key: Any) -> Key:
    if len(partial_key) == 2:
        key: Key = partial_key[1]
        return key
    return tuple(partial_key[2:])


def merged(fold: Fold[V, A, R], merge: Callable[[A, A], A]) -> Fold[Partial[A], A, R]:
    """The fold of the second phase.

    ```python
    import operator

    counts = merged(count, operator.add)
    assert counts.add(5, Partial("ann", 2, 2)) == 7
    ```

    Args:
        fold: the fold of the first phase.
        merge: combines two accumulators, in any order.
    """

    def add(accumulator: A, partial: Partial[A]) -> A:
        return merge(accumulator, partial.value)

    return Fold(fold.init, add, fold.result, fold.accumulator, merge, fold.version)


class Part(msgspec.Struct, Generic[A]):
    accumulator: A
    records: int = 0


class Parts(msgspec.Struct):
    """The windows of a partial key that are not sent: start in microseconds -> part."""

    open: MapState[int, Part[Any]] = msgspec.field(default_factory=MapState)
    flush_set: bool = False


class PreAggregate(Computation[V, Parts], Generic[V, A]):
    """The first phase: folds the records of each partial key and window into a partial result.

    ```python
    import operator

    from millwheel.windows import Pane, Tumbling

    HOUR = Tumbling(hours=1)
    PARTIALS, COUNTS = Stream("partials", Partial[int]), Stream("counts", Pane[int])
    pipeline.add(PreAggregate(HOUR, count, to=PARTIALS), ORDERS.by(Spread(customer, ways=8)))
    pipeline.add(Windowed(HOUR, merged(count, operator.add), to=COUNTS), PARTIALS.by(real_key))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK, at=at(0))
        await harness.advance(ORDERS, at(3600))
        assert [pane.value for pane in harness.produced(COUNTS)] == [2]
    ```

    It sends the result when the low watermark closes the window, and with `flush_records` or
    `flush_every` also before that; each partial result counts its own records only. So the second
    phase receives at most one record per partial key, window and flush. A late record (its window's
    last microsecond is behind the low watermark) is sent on at once as its own, late partial result
    (``late_passed_on``); the second phase decides how to treat it.

    Args:
        windows: the windows, the same as in the second phase.
        fold: the fold of values into an accumulator.
        to: the stream of partial results.
        flush_records: records of a window after which its result is sent.
        flush_every: wall time after the first unsent record of a key, after which results are sent.

    Raises:
        GraphError: windows that are not `Tumbling`; `flush_records` is below 1, or `flush_every`
            zero or negative; it is added to an input that is not read by `Spread`.
    """

    def __init__(
        self,
        windows: Tumbling,
        fold: Fold[V, A, Any],
        *,
        to: Stream[Partial[A]],
        flush_records: int | None = None,
        flush_every: timedelta | None = None,
    ) -> None:
        if not isinstance(windows, Tumbling):
            raise GraphError(
                f"PreAggregate takes Tumbling windows, not {windows!r}: the timestamp of a partial "
                "result is its window's last microsecond, which identifies the window in the "
                "second phase only if each record belongs to one window"
            )
        if flush_records is not None and (not isinstance(flush_records, int) or flush_records < 1):
            raise GraphError(
                "PreAggregate: flush_records must be a whole number, 1 or more, "
                f"not {flush_records!r}"
            )
        every = None if flush_every is None else length("PreAggregate: flush_every", flush_every)
        self._windows = windows
        self.state_rules = {"windows": rule_of(windows)}
        self.state_functions = {"fold": fold.functions}
        self._fold = fold
        self._to = to
        self._flush_records = flush_records
        self._flush_every = None if every is None else every * MICROSECOND
        self.wall_timers = flush_every is not None
        self.writes = (to,)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        part = Part[self._fold.accumulator]  # type: ignore[name-defined]
        return msgspec.defstruct(
            "Parts",
            [
                ("open", MapState[int, part], msgspec.field(default_factory=MapState)),
                ("flush_set", bool, False),
            ],
        )

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        for input_ in inputs:
            if not isinstance(input_.extractor, Spread):
                raise GraphError(
                    f"PreAggregate reads {input_.stream.name!r} by {input_.extractor_name}; it "
                    f"needs partial keys: {input_.stream.name}.by(Spread(..., ways=8))"
                )

    async def process_record(self, record: Record[V], ctx: Context[Parts]) -> None:
        span = self._windows.of(record.micros)
        if span.last < ctx.low_watermark_micros:
            ctx.count("late_passed_on")
            alone = self._fold.add(self._fold.init(), record.value)
            ctx.produce(self._to, Partial(_real_key(ctx.key), alone, 1), record.timestamp)
            return
        part = await self._opened(span, ctx)
        part.accumulator = self._fold.add(part.accumulator, record.value)
        part.records += 1
        if part.records == self._flush_records:
            self._send(span, part, ctx)

    async def process_group(self, records: Sequence[Record[V]], ctx: Context[Parts]) -> None:
        values = None
        if self._flush_records is None:
            values = by_window(self._windows, records, ctx.low_watermark_micros)
        if values is None:
            await one_by_one(self.process_record, records, ctx)
            return
        for span, of_window in values.items():
            part = await self._opened(span, ctx)
            part.accumulator = self._fold.added(part.accumulator, of_window)
            part.records += len(of_window)

    async def _opened(self, span: Span, ctx: Context[Parts]) -> Part[A]:
        """The part of an open window; its first record sets the timers."""
        state = ctx.state
        part = await state.open.get(span.start)
        if part is None:
            part = Part(self._fold.init())
            state.open.put(span.start, part)
            ctx.set_timer(instant(span.last), tag=str(span.start))
            if self._flush_every is not None and not state.flush_set:
                state.flush_set = True
                ctx.set_timer(ctx.now + self._flush_every, _ALL, "wall")
        return part

    async def process_timer(self, timer: Timer, ctx: Context[Parts]) -> None:
        opened = ctx.state.open
        if timer.kind == "watermark":
            start = int(timer.tag)
            part = await opened.get(start)
            if part is not None:  # None: it was flushed, and no record has arrived since
                self._send(self._windows.at(start), part, ctx)
            return
        ctx.state.flush_set = False
        async for start, part in opened.items():
            self._send(self._windows.at(start), part, ctx)

    def _send(self, span: Span, part: Part[A], ctx: Context[Parts]) -> None:
        found = Partial(_real_key(ctx.key), part.accumulator, part.records)
        ctx.produce(self._to, found, instant(span.last))
        ctx.state.open.remove(span.start)
