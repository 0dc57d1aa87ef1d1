"""Count windows, which close at their n-th record, not by time: no record is ever late."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from millwheel import Context, MapState, Record, Timer
from millwheel.computations.panes import Panes, WindowState
from millwheel.windows import Count, Span

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

OPEN = 0


class CountState(WindowState[A], Generic[A]):
    """The open window: its number of records so far, and their least and greatest time."""

    records: int = 0
    first: int = 0
    last: int = 0


class Counted(Generic[V, A, R]):
    """Numbers the panes per key, because count windows have no bounds that identify them."""

    def __init__(self, windows: Count, panes: Panes[V, A, R]) -> None:
        self._number = windows.number
        self._panes = panes

    @property
    def state_type(self) -> Any:
        """The number of panes sent so far, and the open window."""
        window = CountState[self._panes.fold.accumulator]  # type: ignore[name-defined]
        return msgspec.defstruct(
            "CountWindows",
            [
                ("panes", int, 0),
                ("open", MapState[int, window], msgspec.field(default_factory=MapState)),
            ],
        )

    async def process_record(self, record: Record[V], ctx: Context[Any]) -> None:
        panes = self._panes
        at = record.micros
        window: CountState[A] | None = await ctx.state.open.get(OPEN)
        if window is None:
            window = CountState(panes.fold.init(), ctx.state.panes, first=at, last=at)
        panes.add(window, record)
        window.records += 1
        window.first, window.last = min(window.first, at), max(window.last, at)
        span = Span(window.first, window.last + 1)
        if window.records >= self._number:
            panes.send_complete(OPEN, span, window, ctx)
            ctx.state.open.remove(OPEN)
        else:
            panes.send_early_if_due(OPEN, span, window, record, ctx)
            ctx.state.open.put(OPEN, window)
        ctx.state.panes = window.panes

    async def process_timer(self, timer: Timer, ctx: Context[Any]) -> None:
        window: CountState[A] | None = await ctx.state.open.get(OPEN)
        if window is not None:
            self._panes.send_early(Span(window.first, window.last + 1), window, ctx)
            ctx.state.open.put(OPEN, window)
            ctx.state.panes = window.panes
