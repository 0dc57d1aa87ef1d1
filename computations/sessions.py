"""Session windows: records of a key that follow each other within a gap.

Sessions are found by *places*, spans of time as long as the gap. Two records in one place are less
than the gap apart, so a place belongs to at most one session, and the sessions next to a record are
in its place or the two adjacent ones: three look-ups, however many or long the sessions are. A
record writes its session's entry, and its place's if it is the first record there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec

from millwheel import Context, MapState, Record, Timer
from millwheel.computations.grouping import one_by_one
from millwheel.computations.panes import Panes, WindowState
from millwheel.windows import LAST_INSTANT, Session, Span, instant

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class SessionState(WindowState[A], Generic[A]):
    first: int = 0
    last: int = 0


Named = tuple[int, SessionState[A]]
"""A session and its name, the timestamp of the record that opened it, which it always contains."""


class Sessions(Generic[V, A, R]):
    """Timers: ``NAME`` closes a session, ``expire NAME`` removes it, ``early NAME`` sends a pane.

    A growing session does not move its timer, which would be a write per record: a timer that fires
    too early is set again for the session's present end.
    """

    def __init__(self, windows: Session, panes: Panes[V, A, R]) -> None:
        self._gap = windows.gap
        self._panes = panes

    @property
    def state_type(self) -> Any:
        """Name -> session, and place -> name."""
        session = SessionState[self._panes.fold.accumulator]  # type: ignore[name-defined]
        return msgspec.defstruct(
            "Sessions",
            [
                ("open", MapState[int, session], msgspec.field(default_factory=MapState)),
                ("places", MapState[int, int], msgspec.field(default_factory=MapState)),
            ],
        )

    def _span(self, session: SessionState[A]) -> Span:
        return self._bounds(session.first, session.last)

    def _bounds(self, first: int, last: int) -> Span:
        return Span(first, min(last + self._gap, LAST_INSTANT + 1))

    def _takes(self, span: Span, watermark: int) -> bool:
        return span.last >= watermark or self._panes.may_amend(span.end, watermark)

    async def process_record(self, record: Record[V], ctx: Context[Any]) -> None:
        panes = self._panes
        at = record.micros
        watermark = ctx.low_watermark_micros
        joined = await self._neighbours(at, at, watermark, ctx)
        first = min([at, *(session.first for _, session in joined)])
        last = max([at, *(session.last for _, session in joined)])
        span = self._bounds(first, last)
        if not self._takes(span, watermark):
            panes.leave_out(record, ctx)
            return
        late = span.last < watermark
        name, session = at, SessionState(panes.fold.init(), first=at, last=at)
        was_open = False
        if joined:
            name, session = max(joined, key=lambda named: named[1].last - named[1].first)
            was_open = self._span(session).last >= watermark
            session = await self._join(joined, name, first, late, ctx)
        session.first, session.last = first, last
        panes.add(session, record)
        ctx.state.places.put(at // self._gap, name)
        if late:
            ctx.count("late_amended")
            panes.send_late(span, session, ctx)
            if not joined:
                panes.set_expiry(name, span.end, ctx)
        else:
            if not was_open:
                ctx.set_timer(instant(span.last), tag=str(name))
                if joined:  # the session had closed, and will close again
                    ctx.cancel_timer(f"expire {name}")
            panes.send_early_if_due(name, span, session, record, ctx)
        ctx.state.open.put(name, session)

    async def process_group(self, records: Sequence[Record[V]], ctx: Context[Any]) -> None:
        """As `process_record` for each. Records that extend one session go into it together."""
        named = await self._one_session([record.micros for record in records], ctx)
        if named is None:
            await one_by_one(self.process_record, records, ctx)
            return
        name, session = named
        self._panes.add_all(session, [record.value for record in records])
        for place in dict.fromkeys(record.micros // self._gap for record in records):
            ctx.state.places.put(place, name)
        ctx.state.open.put(name, session)

    async def _one_session(self, times: list[int], ctx: Context[Any]) -> Named[A] | None:
        """The open session, extended, or the new one that takes all of some times.

        Returns:
            None: not all are on time and in order, or they open or join several.
        """
        first, last, gap = times[0], times[-1], self._gap
        watermark = ctx.low_watermark_micros
        if self._bounds(first, first).last < watermark:
            return None
        if not all(one <= other < one + gap for one, other in pairwise(times)):
            return None
        joined = await self._neighbours(first, last, watermark, ctx)
        if not joined:
            session = SessionState(self._panes.fold.init(), first=first, last=last)
            ctx.set_timer(instant(self._span(session).last), tag=str(first))
            return first, session
        name, session = joined[0]
        span = self._span(session)
        if len(joined) > 1 or not span.start <= first < span.end or span.last < watermark:
            return None
        session.last = max(session.last, last)
        return name, session

    async def _neighbours(
        self, first: int, last: int, watermark: int, ctx: Context[Any]
    ) -> list[Named[A]]:
        """The sessions that records from `first` to `last` belong to, earliest first; they join
        several into one."""
        places = range(first // self._gap - 1, last // self._gap + 2)
        names = [await ctx.state.places.get(place) for place in places]
        found: list[Named[A]] = []
        for name in dict.fromkeys(names):
            session = None if name is None else await ctx.state.open.get(name)
            if session is not None:
                span = self._span(session)
                near = span.start < last + self._gap and first < span.end
                if near and self._takes(span, watermark):
                    found.append((name, session))
        return sorted(found, key=lambda named: named[1].first)

    async def _join(
        self, joined: list[Named[A]], name: int, first: int, late: bool, ctx: Context[Any]
    ) -> SessionState[A]:
        """Join the sessions `joined` into one, with the name `name` and the start `first`.

        Panes of a session with another start are retracted: a reader that stores them by key and
        start would keep them for ever.
        """
        panes = self._panes
        assert panes.fold.merge is not None
        for _, session in joined:
            if session.first != first:
                accumulator, fresh = session.accumulator, session.fresh
                panes.retract(self._span(session), session, ctx, late=late)
                session.accumulator, session.fresh = accumulator, fresh
        whole: SessionState[A] = SessionState(
            reduce(panes.fold.merge, [session.accumulator for _, session in joined]),
            max(session.panes for _, session in joined),
            sum(session.fresh for _, session in joined),
        )
        for other, session in joined:
            if other != name:
                await self._forget(other, session, ctx, successor=name)
                ctx.cancel_timer(str(other))
                ctx.cancel_timer(f"expire {other}")
                panes.cancel_early(other, ctx)
        return whole

    async def _forget(
        self, name: int, session: SessionState[A], ctx: Context[Any], successor: int | None = None
    ) -> None:
        """Remove a session, and give its places to `successor`, if one is given."""
        ctx.state.open.remove(name)
        places: MapState[int, int] = ctx.state.places
        for place in range(session.first // self._gap, session.last // self._gap + 1):
            if await places.get(place) == name:
                if successor is None:
                    places.remove(place)
                else:
                    places.put(place, successor)

    async def process_timer(self, timer: Timer, ctx: Context[Any]) -> None:
        panes = self._panes
        watermark = ctx.low_watermark_micros
        what, _, text = timer.tag.rpartition(" ")
        name = int(text)
        session: SessionState[A] | None = await ctx.state.open.get(name)
        if session is None:
            return
        span = self._span(session)
        if what == "early":
            panes.send_early(span, session, ctx)
            ctx.state.open.put(name, session)
        elif what == "expire":
            if panes.may_amend(span.end, watermark):
                panes.set_expiry(name, span.end, ctx)
            else:
                await self._forget(name, session, ctx)
        elif span.last >= watermark:
            ctx.set_timer(instant(span.last), tag=timer.tag)
        else:
            panes.send_on_time(name, span, session, ctx)
            if panes.amends:
                ctx.state.open.put(name, session)
                panes.set_expiry(name, span.end, ctx)
            else:
                await self._forget(name, session, ctx)
