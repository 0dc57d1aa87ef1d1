"""What all kinds of windows share: what is late, when panes go out, and what they carry."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeVar

import msgspec

from millwheel import Context, Record, Stream
from millwheel.computations.folds import Fold
from millwheel.windows import LAST_INSTANT, Early, Pane, Span, instant

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

Late = Literal["drop", "amend"] | Stream[V]


class WindowState(msgspec.Struct, Generic[A]):
    """One open (or amendable) window of a key."""

    accumulator: A
    panes: int = 0
    """How many panes were sent."""
    fresh: int = 0
    """Records that no pane has shown yet."""


class Panes(Generic[V, A, R]):
    """How the panes of one `Windowed` are made; `name` is a window's in its key's state.

    Timestamps (I7): an on-time pane carries its window's last microsecond, which the timer that
    closes it has held. A late pane carries what is promised. An early one carries its record's
    timestamp, but at least what is promised, which the same timer keeps within the window: so
    no pane of a window is late at its reader, and all but the late ones stand inside it.
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
        self._late = late
        self._allowed = (
            None if allowed_lateness is None else allowed_lateness // timedelta(microseconds=1)
        )

    # -- what is late: watermarks in microseconds ---------------------------------------

    def may_amend(self, end: int, watermark: int) -> bool:
        """Whether a closed window that ends there still takes records."""
        if not self.amends or self._allowed is None:
            return self.amends
        return min(end + self._allowed, LAST_INSTANT) >= watermark

    def amendable_from(self, watermark: int) -> int | None:
        """The least end of a window that still takes records; None: there is none."""
        return None if self._allowed is None else watermark - self._allowed

    def set_expiry(self, name: int, end: int, ctx: Context[Any]) -> None:
        """Forget the window when it is past what is allowed; never, if that has no end."""
        if self._allowed is not None:
            ctx.set_timer(instant(end + self._allowed), tag=f"expire {name}")

    def leave_out(self, record: Record[V], ctx: Context[Any]) -> None:
        """What becomes of a record that no window takes any more."""
        if isinstance(self._late, Stream):
            ctx.count("late_sent")
            ctx.produce(self._late, record.value)
        else:
            ctx.count("late_dropped")

    # -- panes ---------------------------------------------------------------------------

    def add(self, window: WindowState[A], record: Record[V]) -> None:
        """One more record for a window."""
        window.accumulator = self.fold.add(window.accumulator, record.value)
        window.fresh += 1

    def send_early_if_due(
        self, name: int, span: Span, window: WindowState[A], record: Record[V], ctx: Context[Any]
    ) -> None:
        """After a record: a pane if enough are fresh, or a timer for one."""
        early = self.early
        if early is None:
            return
        if early.records is not None and window.fresh >= early.records:
            self._send(span, window, ctx, max(record.timestamp, ctx.output_watermark), early=True)
        elif early.seconds is not None and window.fresh == 1:
            at = ctx.now + timedelta(seconds=early.seconds)
            ctx.set_timer(at, tag=f"early {name}", kind="wall")

    def send_early(self, span: Span, window: WindowState[A], ctx: Context[Any]) -> None:
        """When `Early.seconds` have passed: a pane, if anything is fresh."""
        if window.fresh:
            # Not the timer's time, which is the wall's.
            at = max(instant(span.start), ctx.output_watermark)
            self._send(span, window, ctx, at, early=True)

    def send_on_time(
        self, name: int, span: Span, window: WindowState[A], ctx: Context[Any]
    ) -> None:
        """The pane at the watermark. When panes tell only what is new, none for nothing."""
        if self.accumulate or window.fresh:
            self._send(span, window, ctx, instant(span.last))
        self.cancel_early(name, ctx)

    def send_late(self, span: Span, window: WindowState[A], ctx: Context[Any]) -> None:
        """An amendment."""
        self._send(span, window, ctx, ctx.output_watermark, late=True)

    def send_complete(
        self, name: int, span: Span, window: WindowState[A], ctx: Context[Any]
    ) -> None:
        """The pane of a window that has all it can get, whatever the watermark says."""
        at = max(instant(span.last), ctx.output_watermark)
        self._send(span, window, ctx, at, final=True)
        self.cancel_early(name, ctx)

    def retract(self, span: Span, window: WindowState[A], ctx: Context[Any], *, late: bool) -> None:
        """Take the window's panes back, if it has sent any that tell everything."""
        if window.panes and self.accumulate:
            self._send(
                span, window, ctx, ctx.output_watermark, late=late, final=True, retracted=True
            )

    def cancel_early(self, name: int, ctx: Context[Any]) -> None:
        """No more early panes for a window that has closed."""
        if self.early is not None and self.early.seconds is not None:
            ctx.cancel_timer(f"early {name}", kind="wall")

    def _send(
        self,
        span: Span,
        window: WindowState[A],
        ctx: Context[Any],
        at: datetime,
        *,
        early: bool = False,
        late: bool = False,
        final: bool | None = None,
        retracted: bool = False,
    ) -> None:
        if final is None:
            final = not early and not self.amends
        pane = Pane(
            ctx.key,
            instant(span.start),
            instant(span.end),
            self.fold.result(window.accumulator),
            window.panes,
            late,
            final,
            early,
            retracted,
        )
        window.panes += 1
        window.fresh = 0
        if not self.accumulate:
            window.accumulator = self.fold.init()
        ctx.produce(self._to, pane, timestamp=at)
