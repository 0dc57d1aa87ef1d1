"""The common part of all kinds of windows: late records, and the times and contents of panes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from millwheel import Context, Record, Stream
from millwheel.computations.folds import Fold
from millwheel.computations.late import LateRecords
from millwheel.windows import LAST_INSTANT, Early, Pane, PaneOrder, Span, instant

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

Late = Literal["drop", "amend"] | Stream[V]


class WindowState(msgspec.Struct, Generic[A]):
    accumulator: A
    panes: int = 0
    fresh: int = 0


class PaneKind(NamedTuple):
    """The part of a pane that says why it is sent."""

    early: bool = False
    late: bool = False
    final: bool | None = None
    """None: unless early or amended."""
    retracted: bool = False


ON_TIME = PaneKind()
EARLY = PaneKind(early=True)


class Panes(Generic[V, A, R]):
    """Makes the panes of one `Windowed`; an argument `name` is a window's name in its key's state.

    Timestamps (I7): an on-time pane has its window's last microsecond, held by the timer that
    closes the window; a late pane the output watermark; an early pane its record's timestamp, but
    at least the output watermark, which that timer keeps within the window. So no pane is late at
    its reader, and all but late panes are inside the window.
    """

    def __init__(
        self,
        fold: Fold[V, A, R],
        to: Stream[Pane[R]],
        late: Late[V],
        allowed_lateness: timedelta | None,
        early: Early | None,
        accumulate: bool,
    ) -> None:
        self.fold = fold
        self.early = early
        self.accumulate = accumulate
        self.amends = late == "amend" or allowed_lateness is not None
        self._to = to
        self.row: Callable[[Pane[R]], Any] | None = None
        """Makes the value that is sent of a pane; None: the pane is sent."""
        self._late = LateRecords(late if isinstance(late, Stream) else None)
        self._allowed = (
            None if allowed_lateness is None else allowed_lateness // timedelta(microseconds=1)
        )

    def order(self, *, by_number: bool) -> PaneOrder:
        return PaneOrder(by_number, self._allowed if self.amends else 0)

    # -- late records; watermarks are in microseconds -----------------------------------

    def may_amend(self, end: int, watermark: int) -> bool:
        if not self.amends or self._allowed is None:
            return self.amends
        return min(end + self._allowed, LAST_INSTANT) >= watermark

    def amendable_from(self, watermark: int) -> int | None:
        """The least end of a window that still accepts records; None: there is no limit."""
        return None if self._allowed is None else watermark - self._allowed

    def set_expiry(self, name: int, end: int, ctx: Context[Any]) -> None:
        """Set the timer that removes a window after the allowed lateness, if that is limited."""
        if self._allowed is not None:
            ctx.set_timer(instant(end + self._allowed), tag=f"expire {name}")

    def leave_out(self, record: Record[V], ctx: Context[Any]) -> None:
        """Drop a record that no window accepts, or send it to the stream for late records."""
        self._late.take(record, ctx)

    # -- panes ---------------------------------------------------------------------------

    def add(self, window: WindowState[A], record: Record[V]) -> None:
        window.accumulator = self.fold.add(window.accumulator, record.value)
        window.fresh += 1

    def add_all(self, window: WindowState[A], values: Sequence[V]) -> None:
        """As `add` for each value."""
        window.accumulator = self.fold.added(window.accumulator, values)
        window.fresh += len(values)

    def send_early_if_due(
        self, name: int, span: Span, window: WindowState[A], record: Record[V], ctx: Context[Any]
    ) -> None:
        """After a record, send an early pane if it is due, or set the timer for one."""
        early = self.early
        if early is None:
            return
        if early.records is not None and window.fresh >= early.records:
            self._send(span, window, ctx, max(record.timestamp, ctx.output_watermark), EARLY)
        elif early.seconds is not None and window.fresh == 1:
            at = ctx.now + timedelta(seconds=early.seconds)
            ctx.set_timer(at, tag=f"early {name}", kind="wall")

    def send_early(self, span: Span, window: WindowState[A], ctx: Context[Any]) -> None:
        """Send a pane after `Early.seconds`, if there are records since the last pane."""
        if window.fresh:
            # Not the timer's time, which is wall time.
            at = max(instant(span.start), ctx.output_watermark)
            self._send(span, window, ctx, at, EARLY)

    def send_on_time(
        self, name: int, span: Span, window: WindowState[A], ctx: Context[Any]
    ) -> None:
        """Send the pane at the watermark, unless panes show only new records and there are none."""
        if self.accumulate or window.fresh:
            self._send(span, window, ctx, instant(span.last))
        self.cancel_early(name, ctx)

    def send_late(self, span: Span, window: WindowState[A], ctx: Context[Any]) -> None:
        self._send(span, window, ctx, ctx.output_watermark, PaneKind(late=True))

    def send_complete(
        self, name: int, span: Span, window: WindowState[A], ctx: Context[Any]
    ) -> None:
        """Send the pane of a window that is full, independent of the watermark."""
        at = max(instant(span.last), ctx.output_watermark)
        self._send(span, window, ctx, at, PaneKind(final=True))
        self.cancel_early(name, ctx)

    def retract(self, span: Span, window: WindowState[A], ctx: Context[Any], *, late: bool) -> None:
        """Retract the window's panes, if it has sent any that accumulate."""
        if window.panes and self.accumulate:
            kind = PaneKind(late=late, final=True, retracted=True)
            self._send(span, window, ctx, ctx.output_watermark, kind)

    def cancel_early(self, name: int, ctx: Context[Any]) -> None:
        if self.early is not None and self.early.seconds is not None:
            ctx.cancel_timer(f"early {name}", kind="wall")

    def _send(
        self,
        span: Span,
        window: WindowState[A],
        ctx: Context[Any],
        at: datetime,
        kind: PaneKind = ON_TIME,
    ) -> None:
        final = kind.final
        if final is None:
            final = not kind.early and not self.amends
        pane = Pane(
            ctx.key,
            instant(span.start),
            instant(span.end),
            self.fold.result(window.accumulator),
            window.panes,
            kind.late,
            final,
            kind.early,
            kind.retracted,
        )
        window.panes += 1
        window.fresh = 0
        if not self.accumulate:
            window.accumulator = self.fold.init()
        value = pane if self.row is None else self.row(pane)
        if value is not None:
            ctx.produce(self._to, value, timestamp=at)
