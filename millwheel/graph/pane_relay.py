"""The step of a table that is fed by panes and has a key: a row never goes back to an older
pane."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from millwheel.computation import Computation
from millwheel.context import Context
from millwheel.core.codec import Migration
from millwheel.core.model import Record, Timer, from_micros
from millwheel.streams import Stream
from millwheel.windows import Pane, PaneOrder


class LastPane(msgspec.Struct):
    """The newest pane that a row shows."""

    key: str | int | tuple[str | int, ...] | None = None
    place: tuple[int, ...] = ()
    """See `PaneOrder.place`."""
    superseded_after: int | None = None
    """See `PaneOrder.superseded_after`."""
    wakes_at: int | None = None
    """The time for which the timer is set, in microseconds."""


class PaneRelay(Computation[Pane[Any], LastPane]):
    """Passes panes on, but drops a pane after a newer one of its key: of a later window, or with a
    higher number.

    Panes of several keys that write one row have no order: the last one to arrive counts. The state
    of a row is forgotten once no older pane can come; never for count windows, panes that are
    amended for ever, and panes that no `Windowed` has made.
    """

    version = 2
    migrations: ClassVar[dict[int, Migration]] = {1: lambda _: {}}
    """Version 1 knew a pane's number, but not its window."""

    def __init__(self, to: Stream[Any], order: PaneOrder) -> None:
        self.writes = (to,)
        self._to = to
        self._order = order

    async def process_record(self, record: Record[Pane[Any]], ctx: Context[LastPane]) -> None:
        pane, last, order = record.value, ctx.state, self._order
        place = order.place(pane)
        if pane.key == last.key and place < last.place:
            ctx.count("panes_overtaken")
            return
        last.key, last.place = pane.key, place
        last.superseded_after = order.superseded_after(pane.end, record.micros)
        if last.wakes_at is None and last.superseded_after is not None:
            self._wake(last.superseded_after, ctx)
        ctx.produce(self._to, pane)

    async def process_timer(self, timer: Timer, ctx: Context[LastPane]) -> None:
        # Moving the timer with each pane would write a row for each.
        after = ctx.state.superseded_after
        if after is None or after <= timer.micros:
            ctx.state = LastPane()
        else:
            self._wake(after, ctx)

    def _wake(self, at: int, ctx: Context[LastPane]) -> None:
        ctx.state.wakes_at = at
        ctx.set_timer(from_micros(at))
