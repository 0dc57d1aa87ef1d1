"""Pipelines for the engine and for Spark, over the files that the environment names.

Spark's workers make a pipeline from MODULE:PIPELINE, so each is a function of this module.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import msgspec

import examples.flights
from examples.flights import FLIGHTS, query, trips
from examples.flights.replay import Flight
from examples.nexmark.options import Options
from examples.nexmark.q3 import build as build_q3
from examples.nexmark.q5 import build as build_q5
from examples.nexmark.q8 import build as build_q8
from examples.nexmark.q11 import build as build_q11
from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table, Timer
from millwheel.computations import Debounce, FlatMap, Windowed, count
from millwheel.files import JsonLines
from millwheel.windows import Pane, Session, Tumbling

FILE = "MILLWHEEL_TEST_FILE"
"""The variable with the path of the input."""
HOURS = "origin, hour, flights, cancelled, delay_minutes, delayed_15"
FINAL = {
    "hours": {"airport_hour": HOURS},
    "hours_by_query": {"airport_hour": HOURS},
    "legs": {"trips": "*"},
    "rested": {"rested": "*"},
    "words": {"word_sessions": "*"},
    "bids_q3": {"q3": "*"},
    "bids_q5": {"q5": "*"},
    "bids_q8": {"q8": "*"},
    "bids_q11": {"q11": "*"},
}
"""By pipeline, the tables whose final rows depend on the input alone, and their columns that do."""


def path() -> Path:
    return Path(os.environ[FILE])


def hours() -> Pipeline:
    """Flights by airport and hour, and what Spark's aggregates follow."""
    return examples.flights.build(path())


def hours_by_query() -> Pipeline:
    """The same table of a query with amendments."""
    return query.build(path())


def legs() -> Pipeline:
    """Trips of aircraft: sessions."""
    return trips.build(path())


RESTED = Stream("rested", Flight)


class Rest(msgspec.Struct):
    """The last flight before an aircraft rests."""

    tailnum: str
    flight: int
    row: int


def rested() -> Pipeline:
    """Debounce: state with a map that is read by range, and timers."""
    pipeline = Pipeline("rested")
    pipeline.inject(
        FLIGHTS,
        JsonLines(path()),
        timestamp=lambda flight: flight.scheduled_at,
        seen=lambda flight: flight.seen_at,
        lateness=timedelta(days=2),
    )
    pipeline.add(
        Debounce(to=RESTED, quiet=timedelta(hours=2)),
        FLIGHTS.by(lambda flight: flight.tailnum or ""),
    )
    pipeline.sink(
        RESTED,
        Table("rested", Rest),
        row=lambda flight: Rest(flight.tailnum or "", flight.flight, flight.row),
    )
    return pipeline


class Line(msgspec.Struct):
    """A line of text, said at a second."""

    at: int
    text: str


class Word(msgspec.Struct):
    """A word of a line."""

    word: str


class WordSession(msgspec.Struct):
    """How often a word was said in a session."""

    word: str
    first: int
    last: int
    times: int


LINES = Stream("lines", Line)
WORDS = Stream("words", Word)
SAID = Stream("said", Pane[int])


def words() -> Pipeline:
    """Word count with sessions; lines of an injector with ids, a third of them twice."""
    pipeline = Pipeline("words", settings=Settings())
    pipeline.inject(
        LINES,
        JsonLines(path()),
        timestamp=lambda line: datetime.fromtimestamp(line.at, UTC),
        lateness=timedelta(seconds=20),
        id=lambda line: (line.at, line.text),
    )
    pipeline.add(
        FlatMap(lambda line: [Word(word) for word in line.text.split()], to=WORDS),
        LINES.spread(),
    )
    pipeline.add(
        Windowed(Session(timedelta(seconds=30)), count, to=SAID, late="amend"),
        WORDS.by(lambda word: word.word),
    )
    pipeline.sink(
        SAID,
        Table("word_sessions", WordSession, key=("word", "first")),
        row=lambda pane: WordSession(
            str(pane.key), int(pane.start.timestamp()), int(pane.end.timestamp()), pane.value
        ),
    )
    return pipeline


def bids_q3() -> Pipeline:
    return build_q3(Options.from_environment())


def bids_q5() -> Pipeline:
    return build_q5(Options.from_environment())


def bids_q8() -> Pipeline:
    return build_q8(Options.from_environment())


def bids_q11() -> Pipeline:
    return build_q11(Options.from_environment())


HOURLY = Stream("hourly", Pane[int])
LATE_PANES = Stream("late_panes", Pane[int])


def stacked() -> Pipeline:
    """Minutes in which a word was said, by hour: the windows of one level are records of the next;
    late ones go to a stream."""
    pipeline = Pipeline("stacked")
    pipeline.inject(
        LINES, JsonLines(path()), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(Windowed(Tumbling(minutes=1), count, to=SAID), LINES.by(lambda line: line.text))
    pipeline.add(
        Windowed(Tumbling(hours=1), count, to=HOURLY, late=LATE_PANES),
        SAID.by(lambda pane: str(pane.key)),
    )
    for stream, table in ((HOURLY, "hours"), (LATE_PANES, "late")):
        pipeline.sink(
            stream,
            Table(table, KeyRow),
            row=lambda pane: KeyRow(str(pane.key), pane.value, True),
        )
    return pipeline


class Seen(msgspec.Struct):
    """What a key has seen."""

    lines: int = 0
    newest: int = 0
    is_sorted: bool = True
    timers: int = 0


class KeyRow(msgspec.Struct):
    """A row of `seen`."""

    key: str
    lines: int
    is_sorted: bool


ROWS = Stream("rows", KeyRow)


class Trouble(Computation[Line, Seen]):
    """Counts the lines of a word, whether they come in order, and fails on some; every text reaches
    Postgres."""

    writes = (ROWS,)
    tries: ClassVar[int] = 0

    async def process_record(self, record: Record[Line], ctx: Context[Seen]) -> None:
        state = ctx.state
        state.lines += 1
        state.is_sorted &= record.value.at >= state.newest
        state.newest = record.value.at
        ctx.set_timer(record.timestamp + timedelta(seconds=1))
        ctx.count("counted")
        if "bad" in record.value.text:
            Trouble.tries += 1
            raise ValueError("a bad line")
        if record.value.text == "awaits":
            await asyncio.sleep(0)

    async def process_timer(self, timer: Timer, ctx: Context[Seen]) -> None:
        ctx.state.timers += 1
        assert isinstance(ctx.key, str)
        ctx.produce(ROWS, KeyRow(ctx.key, ctx.state.lines, ctx.state.is_sorted))


def trouble() -> Pipeline:
    """Lines that fail in user code, and lines that are none."""
    pipeline = Pipeline("trouble")
    pipeline.inject(
        LINES,
        JsonLines(path()),
        timestamp=lambda line: datetime.fromtimestamp(line.at, UTC),
        on_error="dead_letter",
    )
    pipeline.add(Trouble(), LINES.by(lambda line: line.text[:5]), on_error="dead_letter", retries=2)
    pipeline.sink(ROWS, Table("seen", KeyRow, key=("key",)))
    pipeline.sink(ROWS, Table("seen_log", KeyRow, numbered=True))
    return pipeline


def strict() -> Pipeline:
    """As `trouble`, and an error ends it."""
    pipeline = Pipeline("strict")
    pipeline.inject(
        LINES, JsonLines(path()), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(Trouble(), LINES.by(lambda line: line.text[:5]))
    pipeline.sink(ROWS, Table("seen", KeyRow, key=("key",)))
    return pipeline


def identified() -> Pipeline:
    """As `trouble`, of lines with ids; and the last line of each word, straight from the source."""
    pipeline = Pipeline("identified")
    pipeline.inject(
        LINES,
        JsonLines(path()),
        timestamp=lambda line: datetime.fromtimestamp(line.at, UTC),
        id=lambda line: (line.at, line.text),
        on_error="dead_letter",
    )
    pipeline.add(Trouble(), LINES.by(lambda line: line.text[:5]), on_error="dead_letter")
    pipeline.sink(ROWS, Table("seen", KeyRow, key=("key",)))
    pipeline.sink(LINES, Table("line_log", Line, numbered=True))
    pipeline.sink(LINES, Table("last_line", Line, key=("text",)))
    return pipeline


class Hidden(Computation[Line, None]):
    """Does what cannot run on Spark in helpers, so that only the call shows it."""

    writes = (ROWS,)

    async def process_record(self, record: Record[Line], ctx: Context[None]) -> None:
        _helpers[record.value.text](ctx)

    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None: ...


_helpers: dict[str, Callable[[Context[None]], None]] = {
    "wall": lambda c: c.set_timer(c.now, kind="wall"),
    "hold": lambda c: c.hold_watermark(c.now),
    "execute": lambda c: c.execute("SELECT 1"),
}


def hidden() -> Pipeline:
    pipeline = Pipeline("hidden")
    pipeline.inject(
        LINES, JsonLines(path()), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(Hidden(), LINES.by(lambda line: line.text), on_error="dead_letter")
    pipeline.sink(ROWS, Table("seen", KeyRow, key=("key",)))
    return pipeline


class Keeping(Computation[Line, Seen]):
    """Keeps the context of its first call, and uses it in the call for another key."""

    writes = (ROWS,)
    kept: ClassVar[list[Context[Seen]]] = []

    async def process_record(self, record: Record[Line], ctx: Context[Seen]) -> None:
        self.kept.append(ctx)
        self.kept[0].produce(ROWS, KeyRow(record.value.text, 1, True))


def keeping() -> Pipeline:
    pipeline = Pipeline("keeping")
    pipeline.inject(
        LINES, JsonLines(path()), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(Keeping(), LINES.by(lambda line: line.text))
    pipeline.sink(ROWS, Table("seen", KeyRow, key=("key",)))
    return pipeline


class Both(msgspec.Struct):
    """The order in which a key's records and timers ran."""

    ran: list[str] = []


class Ordered(Computation[Line, Both]):
    """Sets timers for the past: one by a record, and one by that timer."""

    writes = (ROWS,)

    async def process_record(self, record: Record[Line], ctx: Context[Both]) -> None:
        ctx.state.ran.append(f"record {record.value.at}")
        ctx.set_timer(record.timestamp - timedelta(hours=1), tag=f"first {record.value.at}")
        if record.value.text == "last":
            ctx.produce(ROWS, KeyRow(" ".join(ctx.state.ran), len(ctx.state.ran), True))

    async def process_timer(self, timer: Timer, ctx: Context[Both]) -> None:
        ctx.state.ran.append(timer.tag)
        if timer.tag.startswith("first"):
            ctx.set_timer(timer.at - timedelta(hours=1), tag=timer.tag.replace("first", "second"))


def ordered() -> Pipeline:
    """All lines have one key."""
    pipeline = Pipeline("ordered")
    pipeline.inject(
        LINES, JsonLines(path()), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(Ordered(), LINES.by(lambda line: "key"))
    pipeline.sink(ROWS, Table("seen", KeyRow))
    return pipeline


LATE = Stream("late", Word)


def two_levels() -> Pipeline:
    """Words of lines, counted a minute at a time one level above; late ones go to a stream."""
    pipeline = Pipeline("two_levels")
    pipeline.inject(
        LINES, JsonLines(path()), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(
        FlatMap(lambda line: [Word(word) for word in line.text.split()], to=WORDS),
        LINES.by(lambda line: line.at),
    )
    pipeline.add(
        Windowed(Tumbling(minutes=1), count, to=SAID, late=LATE), WORDS.by(lambda word: word.word)
    )
    pipeline.sink(
        SAID,
        Table("minutes", WordSession),
        row=lambda pane: WordSession(
            str(pane.key), int(pane.start.timestamp()), int(pane.end.timestamp()), pane.value
        ),
    )
    pipeline.sink(LATE, Table("late_words", Word))
    return pipeline
