"""Joins of two streams: each record waits as long as a partner may still arrive.

A record is joined at once with the partners that are held, and then held itself until the low
watermark proves that no partner on time can follow. Each side is a map ordered by time: a record
reads and writes only its partners, however many records are held.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

import msgspec

from millwheel import Computation, Context, Input, MapState, Record, Stream, Timer
from millwheel.computations.late import LateRecords
from millwheel.computations.timeline import (
    BATCH,
    FIRST,
    LAST,
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
from millwheel.core.functions import check_function
from millwheel.errors import GraphError
from millwheel.windows import Months, Tumbling, length, rule_of

V = TypeVar("V")
L = TypeVar("L")
R = TypeVar("R")
O = TypeVar("O")  # noqa: E741 - the output, beside L and R


class Held(msgspec.Struct, Generic[V], omit_defaults=True):
    value: V
    matched: bool = False
    """Whether it had a partner; set only if a record without a partner has an output."""


class JoinState(Waking, Generic[L, R]):
    """The records of a key that may still get partners: instant -> record."""

    left: MapState[str, Held[L]] = msgspec.field(default_factory=MapState)
    right: MapState[str, Held[R]] = msgspec.field(default_factory=MapState)


Buffer = MapState[str, Held[Any]]


class Side(Generic[V, O]):
    def __init__(
        self, stream: Stream[V], unmatched: Callable[[V], O] | None, late: Stream[V] | None
    ) -> None:
        self.stream = stream
        self.unmatched = unmatched
        self.late = LateRecords(late)


def check_pair(
    join: Computation[Any, Any], inputs: tuple[Input[Any], ...], *streams: Stream[Any]
) -> None:
    """Check that a join reads its two streams, by keys of the same type.

    Raises:
        GraphError: it reads other streams, or keys of different types.
    """
    subject = type(join).__name__
    first, second = (stream.name for stream in streams)
    if sorted(i.stream.name for i in inputs) != sorted([first, second]):
        read = " and ".join(repr(i.stream.name) for i in inputs)
        raise GraphError(
            f"{subject} joins {first!r} and {second!r}, but is added to read {read}: give it "
            f"{first}.by(...) and {second}.by(...)"
        )
    kinds = {i.stream.name: i.key_type for i in inputs}
    if None not in kinds.values() and kinds[first] != kinds[second]:
        raise GraphError(
            f"{subject} would never find a partner: {first!r} is read by keys of type "
            f"{kinds[first]}, {second!r} by keys of type {kinds[second]}, and keys of different "
            "types are never equal (1 is not '1'). Give both key extractors the same type"
        )


def check_apart(what: str, first: Stream[Any], second: Stream[Any]) -> None:
    """
    Raises:
        GraphError: the two streams are one.
    """
    if first.name == second.name:
        raise GraphError(
            f"{what} joins two streams, but both are {first.name!r}; to join a stream with "
            "itself, send one side through a FlatMap to a stream of another name"
        )


def check_pair_functions(kind: str, combine: object, on: object = None) -> None:
    """Refuse a `combine` or `on` that is no function of two values."""
    pair = "left, right"
    check_function(
        combine, f"{kind}: combine=", "makes one value of a pair", takes=pair, gives="(left, right)"
    )
    if on is not None:
        check_function(
            on, f"{kind}: on=", "says whether two values match", takes=pair, gives="left == right"
        )


class _Join(Computation[L | R, JoinState[L, R]], Generic[L, R, O]):
    def __init__(
        self,
        left: Side[L, O],
        right: Side[R, O],
        to: Stream[O],
        combine: Callable[[L, R], O],
        on: Callable[[L, R], bool] | None,
    ) -> None:
        kind = type(self).__name__
        check_apart(kind, left.stream, right.stream)
        check_pair_functions(kind, combine, on)
        self._left = left
        self._right = right
        self._to = to
        self._combine = combine
        self._on = on
        self.writes = written(to, left.late.to, right.late.to)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        return waking_state(
            "JoinState",
            left=Held[self._left.stream.value_type],  # type: ignore[name-defined]
            right=Held[self._right.stream.value_type],  # type: ignore[name-defined]
        )

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        check_pair(self, inputs, self._left.stream, self._right.stream)

    # -- differences between the kinds of join; instants are in microseconds -----------

    def _partners(self, micros: int, *, of_left: bool) -> tuple[int, int]:
        """The first and last instant of a record's possible partners."""
        raise NotImplementedError

    def _due(self, micros: int, *, of_left: bool) -> int | None:
        """The last instant of a partner that may still arrive; None: there is none."""
        raise NotImplementedError

    def _settled(self, ctx: Context[JoinState[L, R]], *, of_left: bool) -> int:
        """The last instant of records that can have no further partners."""
        raise NotImplementedError

    def _is_late(self, micros: int, watermark: int) -> bool:
        raise NotImplementedError

    def _meeting(self, one: int, other: int) -> int:
        raise NotImplementedError

    # -- the common part -----------------------------------------------------------------

    async def process_record(self, record: Record[L | R], ctx: Context[JoinState[L, R]]) -> None:
        of_left = record.stream == self._left.stream.name
        own: Side[Any, O] = self._left if of_left else self._right
        other: Side[Any, O] = self._right if of_left else self._left
        if self._is_late(record.micros, ctx.low_watermark_micros):
            own.late.take(record, ctx)
            return
        state = ctx.state
        sides = (state.left, state.right) if of_left else (state.right, state.left)
        held, partners = cast("tuple[Buffer, Buffer]", sides)
        value = record.value
        matched = False
        first, last = self._partners(record.micros, of_left=of_left)
        on, combine = self._on, self._combine
        for _, micros, partner in await between(partners, first, last):
            pair = (value, partner.value) if of_left else (partner.value, value)
            left, right = cast("tuple[L, R]", pair)
            if on is not None and not on(left, right):
                continue
            ctx.produce(
                self._to, combine(left, right), moment_of(self._meeting(record.micros, micros))
            )
            matched = True
            if other.unmatched is not None:
                partner.matched = True
        hold(ctx, held, record.micros, Held(value, matched=matched and own.unmatched is not None))
        due = self._due(record.micros, of_left=of_left)
        if due is not None:
            wake(ctx, due)

    async def process_timer(self, timer: Timer, ctx: Context[JoinState[L, R]]) -> None:
        state = ctx.state
        await self._remove_settled(state.left, self._left, ctx, of_left=True)
        await self._remove_settled(state.right, self._right, ctx, of_left=False)
        left, right = await first_instant(state.left), await first_instant(state.right)
        wake_for_next(
            ctx,
            None if left is None else self._due(left, of_left=True),
            None if right is None else self._due(right, of_left=False),
        )

    async def _remove_settled(
        self,
        held: Buffer,
        side: Side[Any, O],
        ctx: Context[JoinState[L, R]],
        *,
        of_left: bool,
    ) -> None:
        """Remove records that can have no further partners, with an output for those without
        any."""
        settled = self._settled(ctx, of_left=of_left)
        for entry, micros, item in await between(held, FIRST, settled, limit=BATCH):
            if side.unmatched is not None and not item.matched:
                due = self._due(micros, of_left=of_left)
                at = moment_of(micros if due is None else due)
                ctx.produce(self._to, side.unmatched(item.value), at)
            held.remove(entry)


class IntervalJoin(_Join[L, R, O]):
    """Joins each record of `left` with the records of `right` of the same key and about the same
    time.

    ```python
    PAYMENTS, PAID = Stream("payments", Order), Stream("paid", str)
    join = IntervalJoin(
        ORDERS, PAYMENTS, after=timedelta(minutes=10), to=PAID, combine=lambda order, _: order.item
    )
    pipeline.inject(PAYMENTS, Inbox())
    pipeline.add(join, ORDERS.by(customer), PAYMENTS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, at=at(0))
        await harness.inject(PAYMENTS, TEA, at=at(60))
        assert harness.produced(PAID) == ["tea"]
    ```

    A pair is sent when its second record arrives, with the later of the two timestamps. With
    `unmatched_left` it is a left join, with `unmatched_right` a right join, with both an outer
    join: a record without a partner is sent when the low watermark proves that none can arrive,
    with the last instant of a possible partner as its timestamp. A late record (older than the low
    watermark, so that partners may have been removed) is not joined, and counted (``late_dropped``,
    ``late_sent``).

    State per key: the records of `left` until the watermark is `after` past them, those of `right`
    until it is `before` past them.

    Args:
        left: one stream.
        right: the other stream.
        before: how much earlier than the left record a right one may be, inclusive; None: not at
            all.
        after: how much later than the left record a right one may be, inclusive; None: not at all.
        to: the stream of results.
        combine: returns the result of a pair.
        on: whether two records of a key and of such times are partners. None: they are.
        unmatched_left: returns the result of a left record without a partner. None: no result.
        unmatched_right: returns the result of a right record without a partner. None: no result.
        late_left: the stream for late left records. None: they are dropped.
        late_right: the stream for late right records. None: they are dropped.

    Raises:
        GraphError: a bound is zero or negative, or both are left out; the streams are one.
    """

    def __init__(
        self,
        left: Stream[L],
        right: Stream[R],
        *,
        before: timedelta | None = None,
        after: timedelta | None = None,
        to: Stream[O],
        combine: Callable[[L, R], O],
        on: Callable[[L, R], bool] | None = None,
        unmatched_left: Callable[[L], O] | None = None,
        unmatched_right: Callable[[R], O] | None = None,
        late_left: Stream[L] | None = None,
        late_right: Stream[R] | None = None,
    ) -> None:
        if before is None and after is None:
            raise GraphError(
                "IntervalJoin needs before=..., after=... or both: how far apart two records may be"
            )
        self._before = 0 if before is None else _bound("before", before)
        self._after = 0 if after is None else _bound("after", after)
        self.rules = {"before": str(before), "after": str(after)}
        super().__init__(
            Side(left, unmatched_left, late_left),
            Side(right, unmatched_right, late_right),
            to,
            combine,
            on,
        )

    def _partners(self, micros: int, *, of_left: bool) -> tuple[int, int]:
        if of_left:
            return micros - self._before, micros + self._after
        return micros - self._after, micros + self._before

    def _due(self, micros: int, *, of_left: bool) -> int:
        return micros + (self._after if of_left else self._before)

    def _settled(self, ctx: Context[JoinState[L, R]], *, of_left: bool) -> int:
        return passed_by(ctx, self._after if of_left else self._before)

    def _is_late(self, micros: int, watermark: int) -> bool:
        return micros < watermark

    def _meeting(self, one: int, other: int) -> int:
        return max(one, other)


def _bound(name: str, duration: timedelta) -> int:
    if duration == timedelta(0):
        raise GraphError(
            f"IntervalJoin: {name} must be above zero; leave it out if a right record may not be "
            f"{'earlier' if name == 'before' else 'later'} than its left one"
        )
    return length(f"IntervalJoin: {name}", duration)


class WindowJoin(_Join[L, R, O]):
    """Joins each record of `left` with the records of `right` of the same key and window.

    ```python
    from millwheel.windows import Tumbling

    PAYMENTS, PAID = Stream("payments", Order), Stream("paid", str)
    join = WindowJoin(
        ORDERS, PAYMENTS, Tumbling(hours=1), to=PAID, combine=lambda order, _: order.item
    )
    pipeline.inject(PAYMENTS, Inbox())
    pipeline.add(join, ORDERS.by(customer), PAYMENTS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, at=at(0))
        await harness.inject(PAYMENTS, TEA, at=at(60))
        assert harness.produced(PAID) == ["tea"]
    ```

    A pair is sent when its second record arrives; a record without a partner when the low watermark
    closes the window, if there is a function for its side. All results have the window's last
    microsecond as their timestamp, as panes do. A late record (that microsecond is behind the low
    watermark) is not joined, and counted (``late_dropped``, ``late_sent``).

    Args:
        left: one stream.
        right: the other stream.
        windows: the windows of both streams.
        to: the stream of results.
        combine: returns the result of a pair.
        on: whether two records of a key and of such times are partners. None: they are.
        unmatched_left: returns the result of a left record without a partner. None: no result.
        unmatched_right: returns the result of a right record without a partner. None: no result.
        late_left: the stream for late left records. None: they are dropped.
        late_right: the stream for late right records. None: they are dropped.

    Raises:
        GraphError: the streams are one; windows that are not `Tumbling` or `Months`.
    """

    def __init__(
        self,
        left: Stream[L],
        right: Stream[R],
        windows: Tumbling | Months,
        *,
        to: Stream[O],
        combine: Callable[[L, R], O],
        on: Callable[[L, R], bool] | None = None,
        unmatched_left: Callable[[L], O] | None = None,
        unmatched_right: Callable[[R], O] | None = None,
        late_left: Stream[L] | None = None,
        late_right: Stream[R] | None = None,
    ) -> None:
        if not isinstance(windows, (Tumbling, Months)):
            raise GraphError(
                f"WindowJoin takes Tumbling windows or Months, not {windows!r}: each record must "
                "belong to one window, known from its time alone. For records that are near each "
                "other, use IntervalJoin"
            )
        self._windows = windows
        self.rules = {"windows": rule_of(windows)}
        super().__init__(
            Side(left, unmatched_left, late_left),
            Side(right, unmatched_right, late_right),
            to,
            combine,
            on,
        )

    def _partners(self, micros: int, *, of_left: bool) -> tuple[int, int]:
        span = self._windows.of(micros)
        return span.start, span.last

    def _due(self, micros: int, *, of_left: bool) -> int:
        return self._windows.of(micros).last

    def _settled(self, ctx: Context[JoinState[L, R]], *, of_left: bool) -> int:
        passed = passed_by(ctx)
        span = self._windows.of(passed)
        return passed if passed == span.last or passed == LAST else span.start - 1

    def _is_late(self, micros: int, watermark: int) -> bool:
        return self._windows.of(micros).last < watermark

    def _meeting(self, one: int, other: int) -> int:
        return self._windows.of(one).last


class LastingJoin(_Join[L, R, O]):
    """Joins each record of `left` with all records of `right` of the same key, of whatever time.

    ```python
    from millwheel.computations import LastingJoin

    PAYMENTS, PAID = Stream("payments", Order), Stream("paid", str)
    join = LastingJoin(ORDERS, PAYMENTS, to=PAID, combine=lambda order, _: order.item)
    pipeline.inject(PAYMENTS, Inbox())
    pipeline.add(join, ORDERS.by(customer), PAYMENTS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, at=at(0))
        await harness.inject(PAYMENTS, TEA, at=at(10**9))
        assert harness.produced(PAID) == ["tea"]
    ```

    A pair is sent when its second record arrives, with the later of the two timestamps. No record
    is late.

    State per key: all records of both streams, for ever.

    Args:
        left: one stream.
        right: the other stream.
        to: the stream of results.
        combine: returns the result of a pair.
        on: whether two records of a key are partners. None: they are.

    Raises:
        GraphError: the streams are one.
    """

    def __init__(
        self,
        left: Stream[L],
        right: Stream[R],
        *,
        to: Stream[O],
        combine: Callable[[L, R], O],
        on: Callable[[L, R], bool] | None = None,
    ) -> None:
        super().__init__(Side(left, None, None), Side(right, None, None), to, combine, on)

    def _partners(self, micros: int, *, of_left: bool) -> tuple[int, int]:
        return FIRST, LAST

    def _due(self, micros: int, *, of_left: bool) -> int | None:
        return None

    def _is_late(self, micros: int, watermark: int) -> bool:
        return False

    def _meeting(self, one: int, other: int) -> int:
        return max(one, other)
