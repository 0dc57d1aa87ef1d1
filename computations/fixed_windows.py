"""Fixed windows, which do not depend on the records: tumbling, calendar, global, and a user's own.

A record writes the state entries of its windows, which are named by the window's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from millwheel import Context, MapState, Record, Timer
from millwheel.computations.grouping import by_window, one_by_one
from millwheel.computations.panes import Panes, WindowState
from millwheel.windows import Assigner, Months, Span, Tumbling, instant

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class FixedWindows(Generic[V, A, R]):
    """Timers: ``START`` closes a window, ``expire START`` removes it, ``early START`` sends a
    pane."""

    def __init__(self, windows: Assigner, panes: Panes[V, A, R]) -> None:
        self._windows = windows
        self._panes = panes

    @property
    def state_type(self) -> Any:
        """The windows of a key, start in microseconds -> state."""
        window = WindowState[self._panes.fold.accumulator]  # type: ignore[name-defined]
        return msgspec.defstruct(
            "Windows",
            [("open", MapState[int, window], msgspec.field(default_factory=MapState))],
        )

    async def process_record(self, record: Record[V], ctx: Context[Any]) -> None:
        watermark = ctx.low_watermark_micros
        taken = amended = False
        for span in self._windows.spans(record.micros):
            if span.last >= watermark:
                taken = True
                await self._take(span, record, ctx)
            elif self._panes.may_amend(span.end, watermark):
                amended = True
                await self._amend(span, record, ctx)
        if amended:
            ctx.count("late_amended")
        elif not taken:
            self._panes.leave_out(record, ctx)

    async def process_group(self, records: Sequence[Record[V]], ctx: Context[Any]) -> None:
        values = None
        if isinstance(self._windows, (Tumbling, Months)):
            values = by_window(self._windows, records, ctx.low_watermark_micros)
        if values is None:
            await one_by_one(self.process_record, records, ctx)
            return
        for span, of_window in values.items():
            self._panes.add_all(await self._opened(span, ctx), of_window)

    async def _opened(self, span: Span, ctx: Context[Any]) -> WindowState[A]:
        """The state of a window that is not closed; the first record of it sets its timer."""
        windows: MapState[int, WindowState[A]] = ctx.state.open
        window = await windows.get(span.start)
        if window is None:
            window = WindowState(self._panes.fold.init())
            windows.put(span.start, window)
            ctx.set_timer(instant(span.last), tag=str(span.start))
        return window

    async def _take(self, span: Span, record: Record[V], ctx: Context[Any]) -> None:
        window = await self._opened(span, ctx)
        self._panes.add(window, record)
        self._panes.send_early_if_due(span.start, span, window, record, ctx)

    async def _amend(self, span: Span, record: Record[V], ctx: Context[Any]) -> None:
        panes = self._panes
        window: WindowState[A] | None = await ctx.state.open.get(span.start)
        if window is None:
            window = WindowState(panes.fold.init())
            panes.set_expiry(span.start, span.end, ctx)
        panes.add(window, record)
        panes.send_late(span, window, ctx)
        ctx.state.open.put(span.start, window)

    async def process_timer(self, timer: Timer, ctx: Context[Any]) -> None:
        panes = self._panes
        what, _, start = timer.tag.rpartition(" ")
        span = self._windows.at(int(start))
        window: WindowState[A] | None = await ctx.state.open.get(span.start)
        if window is None:
            return
        if what == "early":
            panes.send_early(span, window, ctx)
            ctx.state.open.put(span.start, window)
        elif what == "expire":
            ctx.state.open.remove(span.start)
        else:
            panes.send_on_time(span.start, span, window, ctx)
            if panes.amends:
                ctx.state.open.put(span.start, window)
                panes.set_expiry(span.start, span.end, ctx)
            else:
                ctx.state.open.remove(span.start)
