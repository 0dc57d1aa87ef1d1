"""Pipelines for the engine and for Spark, over the files that the environment names.

Spark's workers make a pipeline from MODULE:PIPELINE, so each is a function of this module.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

import examples.flights
from examples.flights import FLIGHTS, trips
from examples.flights.replay import Flight
from examples.nexmark.options import Options
from examples.nexmark.q3 import build as build_q3
from examples.nexmark.q5 import build as build_q5
from examples.nexmark.q8 import build as build_q8
from examples.nexmark.q11 import build as build_q11
from millwheel import Pipeline, Settings, Stream, Table
from millwheel.computations import Debounce, FlatMap, Windowed, count
from millwheel.files import JsonLines
from millwheel.windows import Pane, Session

FILE = "MILLWHEEL_TEST_FILE"
"""The variable with the path of the input."""
FINAL = {
    "hours": {"airport_hour": "origin, hour, flights, cancelled, delay_minutes, delayed_15"},
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
