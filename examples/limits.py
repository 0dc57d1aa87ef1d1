"""Checks sensors' readings against limits that change: one stream is spread, another one broadcast.

Sensors of many kinds send lines of text. Parsing a line needs no key, so `Parse` reads the lines
spread. The limits are a separate stream, with a few a day, and apply to all sensors of a kind:
`Watch` reads them by broadcast, and the readings by sensor. It reports a reading above the limit
*at the reading's own instant*, however late the limit or the reading arrives: it keeps readings
until the low watermark has passed them, and by then it has every limit up to that instant.

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
    """A line as a sensor sent it."""

    at: datetime
    text: str
    """The sensor and the value, as in ``boiler/3 71.5``."""


class Reading(msgspec.Struct, frozen=True):
    """A parsed line."""

    at: datetime
    sensor: str
    kind: str
    value: float


class Limit(msgspec.Struct, frozen=True):
    """From `since` on, no sensor of a kind may be above `most`."""

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
    """The shared table: all limits of each kind, by the time from which they apply."""

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
    """Parses lines. A line that it cannot parse becomes a dead letter (see `build`)."""

    writes = (READINGS,)

    async def process_record(self, record: Record[Line], ctx: Context[None]) -> None:
        line = record.value
        sensor, value = line.text.split()
        kind, _, number = sensor.partition("/")
        if not number:
            raise ValueError(f"{sensor!r} is not a sensor's name, such as boiler/3")
        ctx.produce(READINGS, Reading(line.at, sensor, kind, float(value)))


class Watch(Computation[Reading, Recent, Limit, Limits]):
    """Reports readings above the limit at their own instant."""

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
    """Write the 2,500 lines of a day, every hundredth of them malformed, and five limits."""
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    lines = [
        Line(
            begin + timedelta(seconds=32 * n),
            "out of order" if n % 100 == 99 else f"{('boiler', 'pump')[n % 2]}/{n % 20} {n % 97}",
        )
        for n in range(2_500)
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
