"""The flights with other kinds of time: trips, sliding windows, weather; against batch answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from examples.flights import FLIGHTS, last_hours, replay, trips, weather
from examples.flights.last_hours import STRETCHES, last_three_hours
from examples.flights.model import HourTotals
from examples.flights.replay import Flight, Observation
from examples.flights.trips import PAUSE, TRIPS, Totals, trip
from examples.flights.weather import JOINED, WEATHER, with_weather, without_weather
from millwheel import Pipeline, Settings
from millwheel.services.run import Run, Summary
from millwheel.store.console.migrate import migrate
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from millwheel.testing.script import ScriptStep
from millwheel.windows import Pane
from tests.support import flights_oracle
from tests.support.flights_oracle import flights_of
from tests.support.flights_pages import PAGES, SLICE, STORM, Files, check, cut, day
from tests.support.worlds import World

MINUTE = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)
SMALL_STEPS = Settings(bundle_records=20, chunk_records=20, max_unacked_records=40)
"""The watermark follows every twenty flights: those over two hours late find windows closed."""


def at(hour: float, minute: int = 0) -> datetime:
    return datetime(2013, 7, 1, tzinfo=UTC) + timedelta(hours=hour, minutes=minute)


def observed(hour: float, temp: float | None) -> Observation:
    return Observation(at(hour), "JFK", temp, 7.5, 0.0, 10.0)


@pytest.fixture(scope="module")
def slice_(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return cut(SLICE, tmp_path_factory.mktemp("slice"))


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return cut(STORM, tmp_path_factory.mktemp("storm"))


@pytest.fixture
def on_postgres(postgres_url: Callable[[int], str]) -> Iterator[Callable[[Pipeline], Any]]:
    """Runs a pipeline to its end, as ``millwheel run`` does, in a schema that is dropped."""
    url, made = postgres_url(18), []

    async def run(pipeline: Pipeline) -> Summary:
        migrate(url, pipeline.name)
        made.append(pipeline.name)
        return await Run(pipeline, url).run()

    yield run
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        for name in made:
            connection.execute(
                sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
            )


def ask(url: str, pipeline: Pipeline, table: str) -> Counter[Any]:
    """What the table says to its readers."""
    query = sql.SQL(PAGES[table].query).format(sql.Identifier(pipeline.name, table))
    with psycopg.connect(url, options="-c timezone=UTC") as connection:
        return Counter(connection.execute(query).fetchall())


TABLES = [
    pytest.param(table, marks=() if table == "trips" else pytest.mark.soak) for table in PAGES
]
"""The tables of all pages; `make test` meets one of them, `make soak` all."""


# ------------------------------------------------------------------- real flights, on Postgres


@pytest.mark.soak
@pytest.mark.parametrize("table", TABLES)
async def test_a_slice_of_the_year_equals_the_batch_answer(
    table: str,
    slice_: Files,
    on_postgres: Callable[[Pipeline], Any],
    postgres_url: Callable[[int], str],
) -> None:
    page = PAGES[table]
    pipeline = page.build(slice_.flights, slice_.weather)
    pipeline.settings = SMALL_STEPS
    summary = await on_postgres(pipeline)
    expected = page.answer(flights_of(SLICE))
    check(ask(postgres_url(18), pipeline, table), expected)
    counters, flights = summary.counters, slice_.rows
    assert "late_dropped" not in counters
    if table == "trips":
        legs = sum(row[3] for row in expected)
        assert legs + counters["cancelled"] + counters["no_tail_number"] == flights
        assert min(counters["cancelled"], counters["no_tail_number"]) > 50
        assert counters["late_amended"] > 0
    elif table == "last_three_hours":
        assert counters["late_amended"] > 50, "of flights that find a window closed"
    else:
        assert sum(expected.values()) == flights
        ages = [row[2] - row[4] for row in expected]
        assert max(ages) > timedelta(days=1), "the weather ends a day before the flights"
        assert min(ages) == timedelta(0), "as of the very hour"


@pytest.mark.soak
@pytest.mark.parametrize("table", TABLES)
async def test_the_year_equals_the_batch_answer(
    table: str, on_postgres: Callable[[Pipeline], Any], postgres_url: Callable[[int], str]
) -> None:
    page = PAGES[table]
    pipeline = page.year()
    summary = await on_postgres(pipeline)
    found = ask(postgres_url(18), pipeline, table)
    check(found, page.answer(flights_of()))
    assert found.total() == page.rows
    assert "late_dropped" not in summary.counters


@pytest.mark.parametrize("table", TABLES)
async def test_kills_change_nothing(table: str, storm: Files) -> None:
    """Two days of storm, killed five times; what was not acknowledged is done again."""
    page = PAGES[table]
    pipeline = page.build(storm.flights, storm.weather)
    pipeline.settings = SMALL_STEPS
    world = World(pipeline)
    for _ in range(5):
        engine = await world.start(close_at_end=True)
        killed = len(world.commits)
        await world.until(lambda: len(world.commits) > killed + 30)  # noqa: B023
        await engine.kill()
    assert not engine.done.is_set()
    await world.run(close_at_end=True)
    rows = world.rows(table)
    if table == "trips":
        rows = [row[:-1] for row in rows if not row[-1]]
    check(Counter(rows), page.answer(flights_of(STORM)))


# ------------------------------------------------------------------------- flights by hand


def flight(
    row: int, planned: datetime, delay: int | None = 0, tailnum: str | None = "N1"
) -> Flight:
    return Flight(
        row=row,
        seen_at=planned + (delay or 0) * MINUTE,
        scheduled_at=planned,
        origin="JFK",
        dest="BOS",
        carrier="B6",
        flight=row,
        tailnum=tailnum,
        dep_delay=delay,
        cancelled=delay is None,
    )


NOWHERE = Path("nowhere")
"""Where the pipelines read nothing: the tests give them what they get."""


async def test_legs_six_hours_apart_are_one_trip_and_a_minute_more_are_two() -> None:
    flights = [
        flight(0, at(0), 10),
        flight(1, at(6), -3),
        flight(2, at(9), None),  # cancelled: does not prolong the trip
        flight(3, at(9), 7, tailnum=None),
        flight(4, at(12, 1), 5),
        flight(5, at(12, 1), 6, tailnum="N2"),
    ]
    end = PAUSE + MICROSECOND

    def told(tailnum: str, first: datetime, last: datetime, *found: int) -> Pane[Totals]:
        return Pane(tailnum, first, last + end, Totals(*found))

    await assert_exactly_once(
        trips.build(NOWHERE),
        inputs=[*(inject(FLIGHTS, each) for each in flights), advance(FLIGHTS, at(30))],
        expected={
            TRIPS: [
                told("N1", at(0), at(6), 2, 7),
                told("N1", at(12, 1), at(12, 1), 1, 5),
                told("N2", at(12, 1), at(12, 1), 1, 6),
            ]
        },
        max_crashes=5,
    )
    assert trip(told("N1", at(0), at(6), 2, 7)).last == at(6)


async def test_a_late_leg_takes_back_the_trips_that_it_makes_one() -> None:
    async with Harness(trips.build(NOWHERE)) as harness:
        await harness.inject(FLIGHTS, flight(0, at(5), 1), flight(1, at(14), 2))
        await harness.advance(FLIGHTS, at(21))
        before = [("N1", at(5), at(5), 1, 1, False), ("N1", at(14), at(14), 1, 2, False)]
        assert sorted(harness.rows("trips")) == before
        await harness.inject(FLIGHTS, flight(2, at(10), 720))
        whole = ("N1", at(5), at(14), 3, 723, False)
        taken_back = ("N1", at(14), at(14), 1, 2, True)
        assert sorted(harness.rows("trips")) == [whole, taken_back]
        await harness.inject(FLIGHTS, flight(3, at(0), 1301))
        assert sorted(harness.rows("trips")) == [
            ("N1", at(0), at(14), 4, 2024, False),
            ("N1", at(5), at(14), 3, 723, True),
            taken_back,
        ]


@pytest.mark.parametrize("seed", range(3))
async def test_any_delays_come_to_the_same_trips(seed: int, tmp_path: Path) -> None:
    """Two aircraft, delays of up to 21 hours: trips grow at both ends and become one."""
    draw = random.Random(seed)
    flights = [
        flight(row, at(0, 5 * draw.randrange(5000)), draw.choice([-40, 0, 5, 600, 1301]), tailnum)
        for row in range(150)
        for tailnum in (draw.choice(["N1", "N2"]),)
    ]
    flights.sort(key=lambda each: (each.seen_at, each.row))
    path = tmp_path / "flights.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, flights)))
    pipeline = trips.build(path)
    pipeline.settings = Settings(bundle_records=1, chunk_records=1, max_unacked_records=1)
    world = World(pipeline)
    await world.run(close_at_end=True)
    check(
        Counter(row[:-1] for row in world.rows("trips") if not row[-1]),
        Counter(
            flights_oracle.trips(
                flights_oracle.Flight(
                    each.row,
                    str(each.tailnum),
                    "JFK",
                    each.scheduled_at,
                    each.seen_at,
                    each.dep_delay,
                )
                for each in flights
            )
        ),
    )
    assert world.counter("make_trips", "late_amended") > 20
    assert any(row[-1] for row in world.rows("trips")), "something was taken back"
    assert world.counter("make_trips", "late_dropped") == 0


async def test_a_trip_takes_legs_for_a_day() -> None:
    async with Harness(trips.build(NOWHERE)) as harness:
        await harness.inject(FLIGHTS, flight(0, at(0)))
        await harness.advance(FLIGHTS, at(30))
        await harness.inject(FLIGHTS, flight(1, at(5)))
        assert harness.rows("trips") == [("N1", at(0), at(5), 2, 0, False)]
        await harness.advance(FLIGHTS, at(36))
        await harness.inject(FLIGHTS, flight(2, at(5)))
        assert harness.counters("make_trips")["late_dropped"] == 1
        assert harness.state("make_trips", "N1") == {}


async def test_a_flight_counts_in_the_twelve_windows_that_hold_it() -> None:
    flights = [flight(0, at(8), 20), flight(1, at(8, 14), None), flight(2, at(8, 15), -5)]
    both, late, all_three = (
        HourTotals(2, 1, 20, 1),
        HourTotals(1, 0, -5, 0),
        HourTotals(3, 1, 15, 1),
    )

    def told(until: datetime, totals: HourTotals) -> Pane[HourTotals]:
        return Pane("JFK", until - timedelta(hours=3), until, totals)

    quarters = [at(8, 15 * number) for number in range(1, 14)]
    await assert_exactly_once(
        last_hours.build(NOWHERE),
        inputs=[*(inject(FLIGHTS, each) for each in flights), advance(FLIGHTS, at(12))],
        expected={
            STRETCHES: [
                told(quarters[0], both),
                *(told(until, all_three) for until in quarters[1:-1]),
                told(quarters[-1], late),
            ]
        },
        max_crashes=5,
    )
    assert last_three_hours(told(at(8, 15), both)).until == at(8, 15)


async def test_a_late_flight_writes_over_the_windows_that_were_closed() -> None:
    async with Harness(last_hours.build(NOWHERE)) as harness:
        await harness.inject(FLIGHTS, flight(0, at(8), 20))
        await harness.advance(FLIGHTS, at(10))
        await harness.inject(FLIGHTS, flight(1, at(7), 200))
        await harness.advance(FLIGHTS, at(12))
        found = {row[1]: row[2:] for row in harness.rows("last_three_hours")}
        assert len(found) == len(harness.rows("last_three_hours")) == 16
        assert found[at(7, 15)] == (1, 0, 200, 1)
        assert found[at(8, 15)] == found[at(10)] == (2, 0, 220, 2)
        assert found[at(10, 15)] == (1, 0, 20, 1)


async def test_the_weather_is_of_the_departure_not_of_the_plan() -> None:
    early, sharp, late = flight(0, at(8), -1), flight(1, at(8)), flight(2, at(8), 75)
    first, cancelled = flight(3, at(6, 59)), flight(4, at(12, 30), None)
    seven, eight, nine = observed(7, 70.0), observed(8, None), observed(9, 74.0)
    steps: list[ScriptStep[Any]] = [
        *(inject(FLIGHTS, each) for each in (first, early, sharp, late, cancelled)),
        *(inject(WEATHER, each) for each in (seven, eight, nine)),
        inject(WEATHER, msgspec.structs.replace(seven, observed_at=at(6), origin="EWR")),
        advance(FLIGHTS, at(13)),
        advance(WEATHER, at(13)),
    ]
    await assert_exactly_once(
        weather.build(NOWHERE, NOWHERE),
        inputs=steps,
        expected={
            JOINED: [
                without_weather(first),
                with_weather(early, seven),
                with_weather(sharp, eight),
                with_weather(late, nine),
                with_weather(cancelled, nine),
            ]
        },
        max_crashes=5,
    )
    row = with_weather(cancelled, nine)
    assert (row.departed_at, row.dep_delay, row.observed_at, row.temp) == (
        at(12, 30), None, at(9), 74.0,
    )  # fmt: skip


# -------------------------------------------------------------------------- the weather's file


def test_observations_stand_in_the_order_of_time(tmp_path: Path) -> None:
    decode = msgspec.json.Decoder(Observation).decode
    path = replay.prepare_weather(tmp_path)
    found = [decode(line) for line in path.read_bytes().splitlines()]
    assert len(found) == 26_115
    places = [(seen.observed_at, seen.origin) for seen in found]
    assert places == sorted(set(places)), "one per airport and hour"
    assert (places[0][0], places[-1][0]) == (
        day(1, 1) + timedelta(hours=6),
        day(12, 30) + timedelta(hours=23),
    )
    five, six = (day(11, 3) + timedelta(hours=hour) for hour in (5, 6))
    twice = [seen.temp for seen in found if five <= seen.observed_at <= six]
    assert twice == [51.98, 53.96, 55.04, 50.0, 51.98, 53.96], "one o'clock, and one o'clock again"
    assert [
        sum(getattr(seen, name) is None for seen in found)
        for name in ("temp", "wind_speed", "precip", "visib")
    ] == [1, 4, 0, 0]
    assert replay.prepare_weather(tmp_path) == path
    assert list(tmp_path.iterdir()) == [path]
