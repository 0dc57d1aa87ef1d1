"""Aggregation over windows of event time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

import msgspec

from millwheel import Computation, Context, MapState, Record, Stream, Timer
from millwheel.computations.folds import Fold
from millwheel.windows import Pane, Span, Tumbling, instant

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class WindowState(msgspec.Struct, Generic[A]):
    """One open (or amendable) window of a key."""

    accumulator: A
    panes: int = 0
    """How many panes were sent; above 0 the window has closed."""


class Windows(msgspec.Struct):
    """The windows of a key: start in microseconds -> state."""

    open: MapState[int, Any] = msgspec.field(default_factory=MapState)


class Windowed(Computation[V, Windows], Generic[V, A, R]):
    """Folds the records of each key and window, and sends a pane when the watermark closes it.

    The on-time pane carries the window's last microsecond as its timestamp, so that hourly
    panes summed into days equal direct days. A record is late when its window's last
    microsecond is behind the low watermark.

    Args:
        windows: which window a record belongs to.
        fold: how values become a result.
        to: the stream of panes.
        late: what becomes of a late record: ``"drop"`` it; ``"amend"``: send the window's
            pane again with the record in it; or a stream to send its value to. Each is
            counted (``late_dropped``, ``late_amended``, ``late_sent``).
        allowed_lateness: with ``"amend"``, how long after its end a window can still be
            amended; then its state goes. None: for ever.
    """

    def __init__(
        self,
        windows: Tumbling,
        fold: Fold[V, A, R],
        to: Stream[Pane[R]],
        *,
        late: Literal["drop", "amend"] | Stream[V] = "drop",
        allowed_lateness: timedelta | None = None,
    ) -> None:
        if allowed_lateness is not None and (late != "amend" or allowed_lateness < timedelta(0)):
            raise ValueError(
                'allowed_lateness is a time of zero or more, and goes with late="amend"'
            )
        self._windows = windows
        self._fold = fold
        self._to = to
        self._late = late
        self._allowed_lateness = allowed_lateness
        self.writes = (to, late) if isinstance(late, Stream) else (to,)

    @property
    def name(self) -> str:
        """Called after the stream it makes."""
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        """Windows whose accumulators have the fold's type."""
        state = WindowState[self._fold.accumulator]  # type: ignore[name-defined]
        return msgspec.defstruct(
            "Windows",
            [("open", MapState[int, state], msgspec.field(default_factory=MapState))],
        )

    async def process_record(self, record: Record[V], ctx: Context[Windows]) -> None:
        span = self._windows.of(record.micros)
        if instant(span.last) < ctx.low_watermark:
            await self._take_late(record, span, ctx)
            return
        state = await ctx.state.open.get(span.start)
        if state is None:
            state = WindowState(self._fold.init())
            ctx.set_timer(instant(span.last), tag=str(span.start))
        state.accumulator = self._fold.add(state.accumulator, record.value)
        ctx.state.open.put(span.start, state)

    async def _take_late(self, record: Record[V], span: Span, ctx: Context[Windows]) -> None:
        late = self._late
        if isinstance(late, Stream):
            ctx.count("late_sent")
            ctx.produce(late, record.value)
            return
        state = await ctx.state.open.get(span.start) if late == "amend" else None
        expired = self._allowed_lateness is not None and (
            instant(span.end) + self._allowed_lateness < ctx.low_watermark
        )
        if late == "drop" or expired:
            ctx.count("late_dropped")
            return
        ctx.count("late_amended")
        if state is None:
            state = WindowState(self._fold.init())
            self._set_expiry(span, ctx)
        state.accumulator = self._fold.add(state.accumulator, record.value)
        self._send(span, state, ctx, late=True)
        ctx.state.open.put(span.start, state)

    async def process_timer(self, timer: Timer, ctx: Context[Windows]) -> None:
        expiry = timer.tag.startswith("expire ")
        span = self._windows.at(int(timer.tag.removeprefix("expire ")))
        state = await ctx.state.open.get(span.start)
        if expiry or state is None:
            ctx.state.open.remove(span.start)
            return
        self._send(span, state, ctx, late=False)
        if self._late == "amend":
            ctx.state.open.put(span.start, state)
            self._set_expiry(span, ctx)
        else:
            ctx.state.open.remove(span.start)

    def _set_expiry(self, span: Span, ctx: Context[Windows]) -> None:
        if self._allowed_lateness is not None:
            ctx.set_timer(instant(span.end) + self._allowed_lateness, tag=f"expire {span.start}")

    def _send(
        self, span: Span, state: WindowState[A], ctx: Context[Windows], *, late: bool
    ) -> None:
        pane = Pane(
            ctx.key,
            instant(span.start),
            instant(span.end),
            self._fold.result(state.accumulator),
            state.panes,
            late,
            self._late != "amend",
        )
        state.panes += 1
        ctx.produce(self._to, pane, timestamp=ctx.output_watermark if late else None)
