"""Computations, a fold and a sink of the project's own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from millwheel import Bundles, Computation, Context, Key, Record, Timer
from millwheel.computations import Fold
from millwheel.context import BundleContext

from .model import ALARMS, Alarm, Limit, Limits, Parcel, Scan, Waiting


class Watch(Computation[Parcel | Scan, Waiting, Limit, Limits]):
    """Sends an alarm for a parcel that no depot scans within the hours of its limit."""

    writes = (ALARMS,)

    async def process_broadcast(self, record: Record[Limit], shared: Limits) -> None:
        shared.hours[record.value.depot] = record.value.hours

    async def process_record(
        self, record: Record[Parcel | Scan], ctx: Context[Waiting, Limits]
    ) -> None:
        value = record.value
        if isinstance(value, Parcel):
            hours = ctx.shared.hours.get(value.depot, 24)
            ctx.state.depot, ctx.state.since = value.depot, value.sent
            ctx.set_timer(value.sent + timedelta(hours=hours), tag="late")
        else:
            ctx.cancel_timer(tag="late")
            times = await ctx.state.seen.get(value.depot)
            ctx.state.seen.put(value.depot, (times or 0) + 1)
            ctx.count("scans")

    async def process_timer(self, timer: Timer, ctx: Context[Waiting, Limits]) -> None:
        state = ctx.state
        ctx.produce(ALARMS, Alarm(str(ctx.key), state.depot, state.since), timer.at)


HEAVIEST: Fold[Parcel, int, int] = Fold(
    init=lambda: 0,
    add=lambda grams, parcel: max(grams, parcel.grams),
    result=lambda grams: grams,
    accumulator=int,
    merge=max,
)


class Pager:
    """A sink outside the store, which recognises a bundle that comes again."""

    bundles = Bundles(records=10)

    def __init__(self) -> None:
        self.paged: list[str] = []
        self._last: dict[int, int] = {}

    def key(self, alarm: Alarm) -> Key:
        return alarm.depot

    def describe(self) -> dict[str, str]:
        return {"pager": "alarms"}

    async def deliver(
        self, records: Sequence[Record[Alarm]], ctx: BundleContext[None, None]
    ) -> None:
        bundle = ctx.bundle_id
        if self._last.get(bundle.scope, 0) < bundle.number:
            self.paged += [record.value.number for record in records]
            self._last[bundle.scope] = bundle.number

    async def close(self) -> None: ...
