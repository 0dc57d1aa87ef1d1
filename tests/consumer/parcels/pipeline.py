"""The pipeline."""

from __future__ import annotations

from datetime import datetime, timedelta

from millwheel import Console, Inbox, JsonLines, JsonLinesFiles, Park, Pipeline, Settings, Table
from millwheel.computations import FlatMap, IntervalJoin, Windowed, count
from millwheel.windows import Early, Pane, Session, Tumbling

from .model import (
    ALARMS,
    EARLY_SCANS,
    HANDLED,
    HEAVY,
    JOURNEYS,
    LIMITS,
    PARCELS,
    SCANS,
    Alarm,
    DepotHour,
    Journey,
    Parcel,
    Scan,
)
from .steps import HEAVIEST, Pager, Watch


def number_of(parcel: Parcel) -> str:
    return parcel.number


def parcel_of(scan: Scan) -> str:
    return scan.parcel


def sent_at(parcel: Parcel) -> datetime:
    return parcel.sent


def journey(parcel: Parcel, scan: Scan) -> Journey:
    return Journey(parcel.number, scan.depot, (scan.at - parcel.sent).total_seconds())


def early(scan: Scan) -> list[Scan]:
    return [scan] if scan.at.hour < 6 else []


def depot_hour(pane: Pane[int]) -> DepotHour:
    return DepotHour(str(pane.key), pane.start, pane.value)


def build(pager: Pager) -> Pipeline:
    made = Pipeline("parcels", settings=Settings(intervals=4, lease_seconds=10))
    made.inject(PARCELS, Inbox(), timestamp=sent_at, lateness=timedelta(minutes=5))
    made.inject(SCANS, JsonLines("scans.jsonl"), timestamp=lambda scan: scan.at)
    made.inject(LIMITS, Inbox(), idle_after=timedelta(seconds=1))

    made.add(
        Watch(),
        PARCELS.by(number_of),
        SCANS.by(parcel_of),
        LIMITS.broadcast(),
        retries=2,
        on_error="dead_letter",
    )
    joined = IntervalJoin(PARCELS, SCANS, after=timedelta(days=2), to=JOURNEYS, combine=journey)
    made.add(joined, PARCELS.by(number_of), SCANS.by(parcel_of))
    hours = Windowed(Tumbling(hours=1), count, to=HANDLED, early=Early(records=100))
    made.add(hours, SCANS.by(lambda scan: scan.depot), name="depot_hours")
    heaviest = Windowed(Session(gap=timedelta(minutes=30)), HEAVIEST, to=HEAVY, late="amend")
    by_depot = PARCELS.by(lambda parcel: parcel.depot)
    made.add(heaviest, by_depot, name="heaviest", on_error=Park(most_records=100))
    made.add(FlatMap(early, to=EARLY_SCANS), SCANS.spread(), productions="weak")

    made.sink(JOURNEYS, Table("journeys", Journey, key=("number",)))
    made.sink(HANDLED, Table("depot_hours", DepotHour, key=("depot", "begin")), row=depot_hour)
    made.sink(HEAVY, Console("heaviest: "), row=lambda pane: pane.value)
    made.sink(ALARMS, Table("alarms", Alarm, numbered=True))
    made.sink(ALARMS, pager)
    made.sink(EARLY_SCANS, JsonLinesFiles("early", by=parcel_of))
    return made


pipeline = build(Pager())
