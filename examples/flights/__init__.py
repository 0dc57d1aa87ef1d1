"""A year of departures from New York: hourly windows per airport, and a delay detector.

Run it with ``millwheel run examples.flights:pipeline``, or everything including the
report by Spark with ``python -m examples.flights``.

==================  ==========================================================================
``airport_hour``    departures of each hour and airport, amended as late flights leave
``pane_log``        every pane in the order in which the detector met it
``delay_alert``     hours far off an airport's habit (after Zeitgeist, MillWheel paper 2)
==================  ==========================================================================

The same flights with other kinds of time, each a pipeline of its own: sessions in
`examples.flights.trips`, sliding windows in `examples.flights.last_hours`, a temporal join in
`examples.flights.weather`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from examples.flights import replay
from examples.flights.model import DelayAlert, DelayModel, HourTotals, departures, watch
from examples.flights.replay import Flight
from millwheel import Computation, Context, JsonLines, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import Windowed
from millwheel.windows import Pane, Tumbling

LATENESS = timedelta(minutes=120)
LATEST = timedelta(days=1)
"""How long a closed window takes late flights, where that has an end. No flight of the year
left more than 1,301 minutes late, so that none comes after it."""
SETTINGS = Settings(bundle_records=50, chunk_records=50)
"""Small bundles: the watermark moves with each commit, and 50 departures are about an hour of
the year. With the default of 2,000 a window would wait for a day to pass at full speed, and
hardly a flight would find it closed."""


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
    """Logs each pane and tells when an hour is far off its airport's habit."""

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
    """The row that a pane replaces."""
    return AirportHour(str(pane.key), pane.start, **msgspec.structs.asdict(pane.value))


def origin_of(flight: Flight) -> str:
    """Departures are counted per airport."""
    return flight.origin


def airport_of(pane: Pane[HourTotals]) -> str:
    """The detector keeps one model per airport."""
    return str(pane.key)


def build(path: Path) -> Pipeline:
    """The pipeline over a replay file."""
    pipeline = Pipeline("flights", settings=SETTINGS)
    pipeline.inject(
        FLIGHTS,
        JsonLines(path),
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
    return pipeline


def pipeline() -> Pipeline:
    """The pipeline over the whole year; prepares the replay file the first time."""
    return build(replay.prepare())
