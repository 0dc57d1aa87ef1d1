"""Records, states, rows and streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import Struct

from millwheel import MapState, Stream
from millwheel.windows import Pane

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Parcel(Struct, frozen=True):
    number: str
    depot: str
    sent: datetime
    grams: int


@dataclass(frozen=True)
class Scan:
    parcel: str
    depot: str
    at: datetime


class Limit(Struct):
    depot: str
    hours: int


class Journey(Struct):
    number: str
    depot: str
    seconds: float


class Alarm(Struct):
    number: str
    depot: str
    since: datetime


class DepotHour(Struct):
    depot: str
    begin: datetime
    parcels: int


@dataclass
class Waiting:
    """The state of a parcel."""

    depot: str = ""
    since: datetime = EPOCH
    seen: MapState[str, int] = field(default_factory=lambda: MapState[str, int]())


@dataclass
class Limits:
    """A table that all parcels share."""

    hours: dict[str, int] = field(default_factory=lambda: dict[str, int]())


PARCELS = Stream("parcels", Parcel)
SCANS = Stream("scans", Scan)
LIMITS = Stream("limits", Limit)
JOURNEYS = Stream("journeys", Journey)
ALARMS = Stream("alarms", Alarm)
HANDLED: Stream[Pane[int]] = Stream("handled", Pane[int])
HEAVY: Stream[Pane[int]] = Stream("heavy", Pane[int])
EARLY_SCANS = Stream("early_scans", Scan)
