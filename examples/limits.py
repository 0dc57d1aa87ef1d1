"""Sensors' readings against limits that change: a stream spread, and one by broadcast.

Lines of text come from sensors of many kinds. To take one apart needs no key, so `Parse` reads them
spread. The limits come as a stream of their own, a few a day, and hold for all sensors of a kind:
`Watch` reads them by broadcast, and the readings by sensor. It tells of a reading above the limit
*of its own instant*, however late the limit or the reading comes in: it keeps readings until the low
watermark has passed them, and by then has seen every limit up to there.

    python -m examples.limits            # writes limits-input/lines.jsonl and limits.jsonl
    millwheel run examples.limits:pipeline --store .millwheel
    millwheel sql 'SELECT * FROM alarm ORDER BY at' --store .millwheel --pipeline limits
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import (
    Computation,
    Context,
    JsonLines,
    MapState,
    Pipeline,
    Record,
    Stream,
    Table,
    Timer,
)

INPUT = Path("limits-input")


class Line(msgspec.Struct, frozen=True):
    """What a sensor sent, as it was received."""

    at: datetime
    text: str
    """Like ``boiler/3 71.5``."""


class Reading(msgspec.Struct, frozen=True):
    """What it means."""

    at: datetime
    sensor: str
    kind: str
    value: float


class Limit(msgspec.Struct, frozen=True):
    """From `since` on no sensor of a kind may be above `most`."""

    since: datetime
    kind: str
    most: float


class Alarm(msgspec.Struct, frozen=True):
    """A reading above its limit: a row of the table."""

    sensor: str
    at: datetime
    value: float
    most: float


class Limits(msgspec.Struct):
    """The shared table: of each kind all limits, by the time from which they hold."""

    of: dict[str, dict[datetime, float]] = msgspec.field(default_factory=dict)

    def at(self, kind: str, moment: datetime) -> float | None:
        """The limit of a kind at an instant."""
        known = self.of.get(kind, {})
        since = max((since for since in known if since <= moment), default=None)
        return None if since is None else known[since]


class Recent(msgspec.Struct):
    """A sensor's readings that the low watermark has not passed, by their instant (µs)."""

    readings: MapState[int, Reading] = msgspec.field(default_factory=MapState)


LINES = Stream("lines", Line)
READINGS = Stream("readings", Reading)
LIMITS = Stream("limits", Limit)
ALARMS = Stream("alarms", Alarm)


class Parse(Computation[Line, None]):
    """Takes lines apart. One that it cannot read is set aside (see `build`)."""

    writes = (READINGS,)

    async def process_record(self, record: Record[Line], ctx: Context[None]) -> None:
        line = record.value
        sensor, value = line.text.split()
        kind, _, number = sensor.partition("/")
        if not number:
            raise ValueError(f"{sensor!r} names no sensor, which is like boiler/3")
        ctx.produce(READINGS, Reading(line.at, sensor, kind, float(value)))


class Watch(Computation[Reading, Recent, Limit, Limits]):
    """Tells of readings above the limit of their own instant."""

    writes = (ALARMS,)

    async def process_broadcast(self, record: Record[Limit], shared: Limits) -> None:
        limit = record.value
        shared.of.setdefault(limit.kind, {})[limit.since] = limit.most

    async def process_record(self, record: Record[Reading], ctx: Context[Recent, Limits]) -> None:
        ctx.state.readings.put(record.micros, record.value)
        ctx.set_timer(record.timestamp, tag=str(record.micros))

    async def process_timer(self, timer: Timer, ctx: Context[Recent, Limits]) -> None:
        reading = await ctx.state.readings.get(timer.micros)
        assert reading is not None
        ctx.state.readings.remove(timer.micros)
        most = ctx.shared.at(reading.kind, reading.at)
        if most is not None and reading.value > most:
            ctx.produce(ALARMS, Alarm(reading.sensor, reading.at, reading.value, most))


def build(directory: Path = INPUT, name: str = "limits") -> Pipeline:
    """The pipeline over ``lines.jsonl`` and ``limits.jsonl`` of a directory."""
    made = Pipeline(name)
    made.inject(
        LINES,
        JsonLines(directory / "lines.jsonl"),
        timestamp=lambda line: line.at,
        lateness=timedelta(minutes=1),
    )
    made.inject(LIMITS, JsonLines(directory / "limits.jsonl"), timestamp=lambda limit: limit.since)
    made.add(Parse(), LINES.spread(), on_error="dead_letter")
    made.add(Watch(), READINGS.by(lambda reading: reading.sensor), LIMITS.broadcast())
    made.sink(ALARMS, Table("alarm", Alarm, key=("sensor", "at")))
    return made


def write(directory: Path = INPUT) -> None:
    """Ten thousand lines of a day, every hundredth of them not to be read, and five limits."""
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    lines = [
        Line(
            begin + timedelta(seconds=8 * n),
            "out of order" if n % 100 == 99 else f"{('boiler', 'pump')[n % 2]}/{n % 20} {n % 97}",
        )
        for n in range(10_000)
    ]
    limits = [
        Limit(begin + timedelta(hours=hours), kind, most)
        for hours, kind, most in [
            (0, "boiler", 90.0), (2, "pump", 80.0), (8, "boiler", 70.0), (12, "pump", 95.0),
            (20, "boiler", 90.0),
        ]
    ]  # fmt: skip
    directory.mkdir(exist_ok=True)
    for name, values in (("lines", lines), ("limits", limits)):
        rows = b"".join(msgspec.json.encode(value) + b"\n" for value in values)
        (directory / f"{name}.jsonl").write_bytes(rows)


pipeline = build()

if __name__ == "__main__":
    write()
