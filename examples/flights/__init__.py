"""A year of departures from New York: hourly windows per airport, and a delay detector.

Run it with ``millwheel run examples.flights:pipeline``, or everything including the
report by Spark with ``python -m examples.flights``.

==================  ==========================================================================
``airport_hour``    departures of each hour and airport, amended as late flights leave
``pane_log``        every pane in the order in which the detector processed it
``delay_alert``     hours far above an airport's usual delay (after Zeitgeist, MillWheel paper 2)
``airport_month``   departures of each month and airport (``millwheel spark aggregate``)
==================  ==========================================================================

The table of hours by a query in SQL: `examples.flights.query`.

Other pipelines over the same flights: sessions in `examples.flights.trips`, sliding windows in
`examples.flights.last_hours`, a temporal join in `examples.flights.weather`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from examples.flights import replay
from examples.flights.model import DelayAlert, DelayModel, HourTotals, departures, watch
from examples.flights.months import AirportMonth, by_month
from examples.flights.replay import Flight
from millwheel import Computation, Context, JsonLines, Pipeline, Record, Settings, Stream, Table
from millwheel.aggregates import months
from millwheel.computations import Windowed
from millwheel.windows import Pane, Tumbling

LATENESS = timedelta(minutes=120)
LATEST = timedelta(days=1)
"""Time for which a closed window accepts late flights, where that is limited. No flight of the year
left more than 1,301 minutes late, so none is later than this."""
SETTINGS = Settings(bundle_records=50, chunk_records=50)
"""Small commits: the watermark advances with each commit, and 50 departures are about an hour of
the year. With the default of 2,000, at full speed, a window would stay open for about a day, and
hardly any flight would find it closed."""


class AirportHour(msgspec.Struct, frozen=True):
    """A row of `airport_hour`."""

    origin: str
    hour: datetime
    flights: int
    cancelled: int
    delay_minutes: int
    delayed_15: int


class LoggedPane(msgspec.Struct, frozen=True):
    """A row of `pane_log`."""

    origin: str
    hour: datetime
    number: int
    late: bool
    flights: int
    cancelled: int
    delay_minutes: int
    delayed_15: int


FLIGHTS = Stream("flights", Flight)
HOURS = Stream("hours", Pane[HourTotals])
PANES = Stream("panes", LoggedPane)
ALERTS = Stream("alerts", DelayAlert)


class DetectDelays(Computation[Pane[HourTotals], DelayModel]):
    """Logs each pane, and reports hours far above their airport's usual delay."""

    writes = (PANES, ALERTS)

    async def process_record(
        self, record: Record[Pane[HourTotals]], ctx: Context[DelayModel]
    ) -> None:
        pane = record.value
        totals = msgspec.structs.asdict(pane.value)
        ctx.produce(PANES, LoggedPane(str(pane.key), pane.start, pane.number, pane.late, **totals))
        alert = watch(ctx.state, pane)
        if alert is not None:
            ctx.produce(ALERTS, alert)


def airport_hour(pane: Pane[HourTotals]) -> AirportHour:
    """The row of a pane, which replaces the row of the pane before."""
    return AirportHour(str(pane.key), pane.start, **msgspec.structs.asdict(pane.value))


def origin_of(flight: Flight) -> str:
    """The key of departures: the airport."""
    return flight.origin


def airport_of(pane: Pane[HourTotals]) -> str:
    """The key of the detector, which keeps one model per airport."""
    return str(pane.key)


def build(path: Path, *, follow: bool = False, settings: Settings = SETTINGS) -> Pipeline:
    """The pipeline over a replay file; `follow`: also over rows that are appended later."""
    pipeline = Pipeline("flights", settings=settings)
    pipeline.inject(
        FLIGHTS,
        JsonLines(path, follow=follow),
        timestamp=lambda flight: flight.scheduled_at,
        seen=lambda flight: flight.seen_at,
        lateness=LATENESS,
    )
    pipeline.add(
        Windowed(Tumbling(hours=1), departures, to=HOURS, late="amend"), FLIGHTS.by(origin_of)
    )
    pipeline.add(DetectDelays(), HOURS.by(airport_of))
    pipeline.sink(
        HOURS,
        Table("airport_hour", AirportHour, key=("origin", "hour"), producer_key=("origin",)),
        row=airport_hour,
    )
    pipeline.sink(PANES, Table("pane_log", LoggedPane, numbered=True))
    pipeline.sink(ALERTS, Table("delay_alert", DelayAlert))
    pipeline.spark(
        by_month,
        follows="pane_log",
        reads="airport_hour",
        group=("origin", months("hour")),
        to=Table("airport_month", AirportMonth, key=("origin", "month")),
    )
    return pipeline


def pipeline() -> Pipeline:
    """The pipeline over the whole year; prepares the replay file the first time."""
    return build(replay.prepare())
