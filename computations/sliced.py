"""Sliding windows by slices: a record writes one entry, however many windows contain it.

Each `slide` of time with records has an accumulator. When a window closes, its pane is the merge of
its slices. Windows themselves have no state, unless late records may amend them: then the number of
panes that each has sent is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from millwheel import Context, MapState, Record, Timer
from millwheel.computations.grouping import by_window, one_by_one
from millwheel.computations.panes import Panes, WindowState
from millwheel.windows import Sliding, Span, instant

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

FEW_SLICES = 64
"""Up to this number of slices per window, they are read one by one; with more, by a scan of the
key."""


class Slice(msgspec.Struct, Generic[A]):
    accumulator: A


class Sliced(Generic[V, A, R]):
    """Timers: ``START`` closes the window that starts there, ``expire START`` removes it.

    The first of consecutive slices sets the timer of the first open window that contains it. When
    that window closes, it sets the timer of the next one, as long as slices follow. A slice is
    removed with the last window that contains it, which has the same start.
    """

    def __init__(self, windows: Sliding, panes: Panes[V, A, R]) -> None:
        self._windows = windows
        self._slices = windows.slices
        self._panes = panes

    @property
    def state_type(self) -> Any:
        """Slice start -> accumulator, and window start -> number of panes sent."""
        piece = Slice[self._panes.fold.accumulator]  # type: ignore[name-defined]
        return msgspec.defstruct(
            "Slices",
            [
                ("slices", MapState[int, piece], msgspec.field(default_factory=MapState)),
                ("sent", MapState[int, int], msgspec.field(default_factory=MapState)),
            ],
        )

    async def process_record(self, record: Record[V], ctx: Context[Any]) -> None:
        panes = self._panes
        watermark = ctx.low_watermark_micros
        place = self._slices.of(record.micros)
        newest = self._windows.at(place.start)
        """The last window with the record; if it does not accept the record, no window does."""
        is_open = newest.last >= watermark
        if not is_open and not panes.may_amend(newest.end, watermark):
            panes.leave_out(record, ctx)
            return
        piece = await self._opened(place, newest, ctx)
        piece.accumulator = panes.fold.add(piece.accumulator, record.value)
        if place.last < watermark and panes.amends:
            await self._amend(place, newest, watermark, ctx)

    async def process_group(self, records: Sequence[Record[V]], ctx: Context[Any]) -> None:
        values = by_window(self._slices, records, ctx.low_watermark_micros)
        if values is None:
            await one_by_one(self.process_record, records, ctx)
            return
        fold = self._panes.fold
        for place, of_slice in values.items():
            piece = await self._opened(place, self._windows.at(place.start), ctx)
            piece.accumulator = fold.added(piece.accumulator, of_slice)

    async def _opened(self, place: Span, newest: Span, ctx: Context[Any]) -> Slice[A]:
        """A slice; the first record of it sees to the timer of the first open window with it.

        Args:
            newest: the last window with the slice.
        """
        watermark = ctx.low_watermark_micros
        slices: MapState[int, Slice[A]] = ctx.state.slices
        piece = await slices.get(place.start)
        if piece is not None:
            return piece
        piece = Slice(self._panes.fold.init())
        slices.put(place.start, piece)
        if newest.last >= watermark:
            last = place if place.last >= watermark else self._slices.of(watermark)
            window = self._windows.ending(last)
            before = self._slices.of(place.start - 1).start
            # The windows of the slice before reach this slice, one closing after the other.
            if before < window.start or not await slices.contains(before):
                ctx.set_timer(instant(window.last), tag=str(window.start))
        return piece

    async def _amend(self, place: Span, newest: Span, watermark: int, ctx: Context[Any]) -> None:
        """Send the closed windows that contain the slice `place` again, from the first that accepts
        records."""
        panes = self._panes
        least = panes.amendable_from(watermark)
        last = place if least is None or place.end >= least else self._slices.of(least - 1)
        window = self._windows.ending(last)
        amended = False
        while window.last < watermark and window.start <= newest.start:
            amended = True
            found = [piece async for _, piece in self._in(window, ctx)]
            sent = await ctx.state.sent.get(window.start)
            state = WindowState(self._merged(found), sent or 0)
            panes.send_late(window, state, ctx)
            ctx.state.sent.put(window.start, state.panes)
            if sent is None:
                panes.set_expiry(window.start, window.end, ctx)
            window = self._windows.at(self._slices.of(window.start).end)
        if amended:
            ctx.count("late_amended")

    async def process_timer(self, timer: Timer, ctx: Context[Any]) -> None:
        what, _, start = timer.tag.rpartition(" ")
        window = self._windows.at(int(start))
        if what == "expire":
            ctx.state.slices.remove(window.start)
            ctx.state.sent.remove(window.start)
            return
        await self._close(window, ctx)

    async def _close(self, window: Span, ctx: Context[Any]) -> None:
        """Send the pane of a window, and of the following windows that have closed as well.

        They are sent at once, not by a timer each: otherwise a late record that arrives in between
        would be counted in windows for which it is too late.
        """
        panes = self._panes
        watermark = ctx.low_watermark_micros
        while True:
            found = [(at, piece) async for at, piece in self._in(window, ctx)]
            if not found:
                return
            sent = await ctx.state.sent.get(window.start) if panes.amends else None
            state = WindowState(self._merged([piece for _, piece in found]), sent or 0)
            panes.send_on_time(window.start, window, state, ctx)
            if panes.amends:
                ctx.state.sent.put(window.start, state.panes)
                panes.set_expiry(window.start, window.end, ctx)
            else:
                ctx.state.slices.remove(window.start)
            if found[-1][0] == window.start:
                return
            window = self._windows.at(self._slices.of(window.start).end)
            if window.last >= watermark:
                ctx.set_timer(instant(window.last), tag=str(window.start))
                return
            ctx.cancel_timer(str(window.start))  # these slices now follow the ones before

    async def _in(self, window: Span, ctx: Context[Any]) -> AsyncIterator[tuple[int, Slice[A]]]:
        slices: MapState[int, Slice[A]] = ctx.state.slices
        if self._windows.number > FEW_SLICES:
            inside = [
                (start, piece)
                async for start, piece in slices.items()
                if window.start <= start < window.end
            ]
            for found in sorted(inside, key=lambda found: found[0]):
                yield found
            return
        start = window.start
        while start < window.end:
            piece = await slices.get(start)
            if piece is not None:
                yield start, piece
            start = self._slices.of(start).end

    def _merged(self, pieces: list[Slice[A]]) -> A:
        merge = self._panes.fold.merge
        assert merge is not None
        merged = pieces[0].accumulator
        for piece in pieces[1:]:
            merged = merge(merged, piece.accumulator)
        return merged
