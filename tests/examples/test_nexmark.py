"""The Nexmark queries against batch SQL: same events, same answers."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import examples.nexmark as nexmark
from examples.nexmark import q0, q1, q2, q3, q4, q5, q5_sql, q6, q7, q8, q9, q11, q12
from examples.nexmark.generator import Kind
from examples.nexmark.model import Auction, Bid, Person, from_milliseconds, to_milliseconds
from examples.nexmark.options import Options
from examples.nexmark.q0 import by_auction
from examples.nexmark.q3 import LOCAL_ITEMS
from examples.nexmark.q4 import MEANS
from examples.nexmark.q5 import HOT_ITEMS
from examples.nexmark.q6 import SELLER_PRICES
from examples.nexmark.q7 import ROWS
from examples.nexmark.q8 import NEW_SELLERS
from examples.nexmark.q9 import WINNERS
from examples.nexmark.q11 import SESSIONS, by_bidder
from examples.nexmark.sources import (
    AUCTIONS,
    BIDS,
    FILES,
    LATE_BIDS,
    PEOPLE,
    in_order_of_emission,
    keep_late,
    write,
)
from examples.nexmark.sources import inject as inject_events
from millwheel import Pipeline, Settings, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.errors import DeployRefused
from millwheel.store.console.migrate import migrate
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from millwheel.testing.script import ScriptStep
from millwheel.windows import Pane, Session, Sliding, Tumbling
from tests.support.drawing import chosen
from tests.support.forked_commands import parent
from tests.support.nexmark_oracle import QUERIES, Oracle, Row
from tests.support.store_sites import Schema
from tests.support.worlds import World

ROOT = Path(__file__).resolve().parents[2]
PIPELINES: dict[str, Callable[[], Pipeline]] = {
    "q0": q0, "q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5, "q5_sql": q5_sql, "q6": q6,
    "q7": q7, "q8": q8, "q9": q9, "q11": q11, "q12": q12,
}  # fmt: skip
ANSWERS = [query for query in QUERIES if query != "q12"]
"""What depends on the events alone; ``q4_sql`` is the other table of Q4."""
QUICK = ("q3", "q5", "q11")
"""A join, sliding windows in two steps, and sessions."""
EVENTS = Options(events=8_000, rate=100)
"""Eighty seconds of event time. Fewer events would mean few bids on any auction but the hot one."""
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    directory = tmp_path_factory.mktemp("events")
    write(directory, EVENTS)
    return Oracle(directory)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[Options], None]:
    """Sets the variables that mean these options."""

    def put(options: Options) -> None:
        for name, value in msgspec.structs.asdict(options).items():
            if value is None:
                continue
            name = "DIR" if name == "directory" else name.upper()
            if isinstance(value, timedelta):
                value = value.total_seconds()
            monkeypatch.setenv(f"NEXMARK_{name}", str(value))

    return put


def normal(row: Row) -> Row:
    """A row with its times in milliseconds."""
    return tuple(to_milliseconds(v) if isinstance(v, datetime) else v for v in row)


async def answer(query: str, pipeline: Pipeline | None = None) -> Counter[Row]:
    """What a query comes to, with the options of the environment."""
    made = pipeline or PIPELINES["q4" if query == "q4_sql" else query]()
    world = World(made)
    await world.run(close_at_end=True)
    assert world.letters() == []
    return Counter(map(normal, world.rows(query)))


def in_small_steps(pipeline: Pipeline, records: int = 20) -> Pipeline:
    """With many commits, so that the watermark moves as the input is read."""
    pipeline.settings = Settings(
        chunk_records=records,
        bundle_records=records,
        max_unacked_records=2 * records,
    )
    return pipeline


# --------------------------------------------------------------------- generated events


@pytest.mark.parametrize(
    "query",
    [pytest.param(q, marks=[] if q == "q4_sql" else pytest.mark.soak) for q in ANSWERS],
)
async def test_events_in_order(
    query: str, oracle: Oracle, environment: Callable[[Options], None]
) -> None:
    """`make test` has them out of order, except for the query that the next test leaves out."""
    environment(EVENTS)
    expected = Counter(oracle.answer(query))
    assert await answer(query) == expected
    assert expected, "there is something to compare"


OUT_OF_ORDER = msgspec.structs.replace(EVENTS, group=1300)
"""Shuffled within 13 s: a window's length and more."""
LATE = msgspec.structs.replace(EVENTS, late=0.1)
"""Every tenth up to 3 s late, and the watermark 3 s behind: allowed."""
TOO_LATE = msgspec.structs.replace(LATE, lateness=timedelta(0))
"""The same, and the watermark does not wait."""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(OUT_OF_ORDER, id="out of order", marks=pytest.mark.soak),
        pytest.param(LATE, id="late"),
    ],
)
@pytest.mark.parametrize("query", chosen(ANSWERS, *QUICK))
async def test_events_out_of_order(
    query: str, options: Options, oracle: Oracle, environment: Callable[[Options], None]
) -> None:
    """The same answers, and nothing is left out."""
    environment(options)
    world = World(PIPELINES["q4" if query == "q4_sql" else query]())
    await world.run(close_at_end=True)
    expected = Counter(oracle.answer(query))
    assert Counter(map(normal, world.rows(query))) == expected
    assert expected, "there is something to compare"
    assert too_late(world) == ({}, 0)


def too_late(world: World) -> tuple[dict[str, Counter[Row]], int]:
    """What came too late: the rows of each table of it, and how many were counted."""
    tables = {use.sink.name for _, use in world.pipeline.sinks if isinstance(use.sink, Table)}
    late = {table for table in tables if table.startswith("late_")}
    counted = sum(
        world.counter(name, counter)
        for name in world.pipeline.nodes
        for counter in ("late_sent", "late_dropped")
    )
    rows = {table: Counter(map(normal, world.rows(table))) for table in late}
    return {table: found for table, found in rows.items() if found}, counted


@pytest.mark.parametrize("query", chosen(["q4", "q8"], "q4"))
async def test_several_generators(
    query: str, tmp_path: Path, environment: Callable[[Options], None]
) -> None:
    options = msgspec.structs.replace(EVENTS, generators=3, group=7, late=0.05)
    write(tmp_path, options)
    environment(options)
    assert await answer(query) == Counter(Oracle(tmp_path).answer(query))


@pytest.mark.parametrize("query", ["q3", "q6"])
async def test_events_from_files(
    query: str, tmp_path: Path, oracle: Oracle, environment: Callable[[Options], None]
) -> None:
    options = msgspec.structs.replace(EVENTS, generators=1, group=100, late=0.1)
    write(tmp_path, options)
    environment(msgspec.structs.replace(options, directory=tmp_path))
    assert await answer(query) == Counter(oracle.answer(query))


LATE_TABLES: dict[Kind, str] = {
    Person: "late_people",
    Auction: "late_auctions",
    Bid: "late_bids",
}


@pytest.mark.parametrize("query", chosen(["q5", "q7", "q8", "q9", "q11"], "q9"))
async def test_what_is_later_than_allowed_goes_to_the_late_stream(
    query: str, tmp_path: Path, oracle: Oracle, environment: Callable[[Options], None]
) -> None:
    """It is counted, and the answer is that to what is left. Files have no watermark of their own,
    so that what is shuffled there is late."""
    options = msgspec.structs.replace(OUT_OF_ORDER, directory=tmp_path, lateness=timedelta(0))
    write(tmp_path, options)
    environment(options)
    world = World(in_small_steps(PIPELINES[query](), 50))
    await world.run(close_at_end=True)
    late, counted = too_late(world)
    assert sum(found.total() for found in late.values()) == counted > 10
    found = Counter(map(normal, world.rows(query)))
    assert found != Counter(oracle.answer(query))
    leave_out(late, tmp_path)
    rest = Oracle(tmp_path)
    if query == "q5":  # a bid may be too late for one of its windows only
        assert {row[1] for row in found} == {row[1] for row in rest.answer(query)}
    elif query == "q11":  # a session that was told is not joined to another one any more
        assert sum(row[3] for row in found) == rest.rows("SELECT count(*) FROM bid")[0][0]
    else:
        assert found == Counter(rest.answer(query))


def leave_out(late: dict[str, Counter[Row]], directory: Path) -> None:
    """Take what came too late out of the files."""
    for kind, table in LATE_TABLES.items():
        rows = Counter(late.get(table, Counter()))
        file = directory / FILES[kind]
        kept = []
        for line in file.read_text().splitlines():
            row = tuple(json.loads(line).values())
            if rows[row]:
                rows[row] -= 1
            else:
                kept.append(line + "\n")
        assert not +rows, "only events come too late"
        file.write_text("".join(kept))


# ------------------------------------------------------ late, and amended after all


class Amended(msgspec.Struct, frozen=True):
    """A window's last pane."""

    key: int
    start: datetime
    end: datetime
    bids: int
    retracted: bool


AMENDED = Stream("amended", Pane[int])
FEWER_TOO_LATE = msgspec.structs.replace(TOO_LATE, events=6500)
"""Not too few: a `java.util.Random` of a small seed draws much the same, and nobody is late."""


def amending(windows: Any, key: Callable[[Bid], int], allowed: timedelta) -> Pipeline:
    """Bids in windows whose rows are corrected for some time; what comes later is kept apart."""
    pipeline = in_small_steps(Pipeline("amending"), 80)
    inject_events(pipeline, FEWER_TOO_LATE, BIDS)
    windowed = Windowed(windows, count, to=AMENDED, late=LATE_BIDS, allowed_lateness=allowed)
    pipeline.add(windowed, BIDS.by(key))
    pipeline.sink(AMENDED, Table("amended", Amended, key=("key", "start")), row=last_pane)
    keep_late(pipeline, LATE_BIDS)
    return pipeline


def last_pane(pane: Pane[int]) -> Amended:
    assert isinstance(pane.key, int)
    return Amended(pane.key, pane.start, pane.end, pane.value, pane.retracted)


COUNTED = """
    SELECT auction, start, start + {size}, count(*)
    FROM bid, LATERAL (
        SELECT unnest(range(date_time - date_time % {slide}, date_time - {size}, -{slide})) AS start
    ) slide
    GROUP BY auction, start
"""


@pytest.mark.parametrize(
    ("windows", "key", "batch"),
    [
        pytest.param(
            Tumbling(seconds=1),
            by_auction,
            COUNTED.format(size=1000, slide=1000),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            Sliding(2 * SECOND, SECOND),
            by_auction,
            COUNTED.format(size=2000, slide=1000),
            marks=pytest.mark.soak,
        ),
        (Session(SECOND), by_bidder, QUERIES["q11"].replace("10000", "1000")),
    ],
    ids=["tumbling", "sliding", "session"],
)
async def test_amended_within_the_allowed_lateness_the_table_is_the_batch_answer(
    windows: Any, key: Callable[[Bid], int], batch: str, tmp_path: Path
) -> None:
    """The watermark waits for nobody; windows take what is up to 3 s late. If they take it for half
    a second only, the rest is in the late stream, and in no window."""
    write(tmp_path, FEWER_TOO_LATE)
    for allowed in (3 * SECOND, SECOND / 2):
        world = World(amending(windows, key, allowed))
        await world.run(close_at_end=True)
        late, counted = too_late(world)
        assert world.counter("make_amended", "late_amended") > 10
        rows = Counter(row[:4] for row in map(normal, world.rows("amended")) if not row[4])
        if allowed == 3 * SECOND:
            assert (late, counted) == ({}, 0)
            assert rows == Counter(Oracle(tmp_path).rows(batch))
        else:
            assert late["late_bids"].total() == counted > 10
            if isinstance(windows, Tumbling):  # the others may take a part of what is late
                leave_out(late, tmp_path)
                assert rows == Counter(Oracle(tmp_path).rows(batch))


@pytest.mark.parametrize("query", chosen(["q5", "q6", "q8"], "q6"))
async def test_a_crash_changes_nothing(
    query: str, oracle: Oracle, environment: Callable[[Options], None]
) -> None:
    """Killed five times on the way; what was not acknowledged is made again, and is the same."""
    environment(msgspec.structs.replace(EVENTS, group=100, late=0.1))
    world = World(in_small_steps(PIPELINES[query]()))
    for _ in range(5):
        killed = len(world.commits)
        engine = await world.start(close_at_end=True)
        await world.until(lambda: len(world.commits) > killed + 10)  # noqa: B023
        await engine.kill()
    assert not engine.done.is_set()
    await world.run(close_at_end=True)
    assert Counter(map(normal, world.rows(query))) == Counter(oracle.answer(query))


async def test_other_options_are_refused(environment: Callable[[Options], None]) -> None:
    environment(Options(events=1000))
    world = World(q0())
    await world.run(close_at_end=True)
    environment(Options(events=2000))
    with pytest.raises(
        DeployRefused, match=r"another source under the name \(events: 1000 → 2000\)"
    ):
        await world.start(q0())


# --------------------------------------------------------------------- events by hand


def few_events(seed: int) -> dict[type, list[dict[str, Any]]]:
    """Events of few ids and prices at few times: ties, borders, bids before and after, nobody's."""
    draw = random.Random(seed)
    second, base = 1000, 1_436_918_400_000

    def time() -> int:
        steps = draw.randrange(9) * 5 * second
        return base + steps + draw.choice([-1, 0, 0, 0, 1, 2_500])

    people = [
        {
            "id": id_,
            "name": f"name {id_}",
            "email": "e",
            "credit_card": "c",
            "city": "city",
            "state": draw.choice(["OR", "ID", "CA", "WA"]),
            "date_time": time(),
        }
        for id_ in range(1, 7)
    ]
    auctions = [
        {
            "id": id_,
            "item_name": "item",
            "description": "d",
            "initial_bid": 1,
            "reserve": draw.choice([1, 2, 4]),
            "date_time": (opens := time()),
            "expires": opens + draw.choice([1, 5000, 10_000, 12_500]),
            "seller": draw.randrange(1, 8),
            "category": draw.choice([10, 10, 11]),
        }
        for id_ in range(119, 127)
    ]
    bids = [
        {
            "auction": draw.randrange(118, 128),
            "bidder": draw.randrange(1, 5),
            "price": draw.choice([1, 2, 3, 4, 5]),
            "date_time": time(),
            "extra": draw.choice(["x", "y"]),
        }
        for _ in range(draw.choice([5, 60, 60]))
    ]
    return {Person: people, Auction: auctions, Bid: bids}


@pytest.mark.parametrize("query", chosen(ANSWERS, *QUICK))
def test_ties_and_borders(
    query: str, tmp_path: Path, environment: Callable[[Options], None]
) -> None:
    found = 0
    for seed in range(8):
        directory = tmp_path / str(seed)
        directory.mkdir()
        for kind, rows in few_events(seed).items():
            random.Random(seed).shuffle(rows)
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (directory / FILES[kind]).write_text(text)
        environment(Options(directory=directory, lateness=timedelta(seconds=60)))
        expected = Counter(Oracle(directory).answer(query))
        assert asyncio.run(answer(query)) == expected, f"seed {seed}"
        found += len(expected)
    assert found > 8


OUTPUTS: dict[str, Stream[Any]] = {
    "q3": LOCAL_ITEMS,
    "q4": MEANS,
    "q5": HOT_ITEMS,
    "q6": SELLER_PRICES,
    "q7": ROWS,
    "q8": NEW_SELLERS,
    "q9": WINNERS,
    "q11": SESSIONS,
}


@pytest.mark.parametrize("query", chosen(OUTPUTS, *QUICK))
async def test_whatever_happens_each_answer_comes_once(query: str, tmp_path: Path) -> None:
    """Bundled or record by record, everything twice, crashes and takeovers."""
    pipeline, output = PIPELINES[query](), OUTPUTS[query]
    read = {node.injected for node in pipeline.nodes.values() if node.injection is not None}
    steps: list[ScriptStep[Any]] = []
    for stream in (AUCTIONS, PEOPLE, BIDS):
        rows = few_events(1)[stream.value_type]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / FILES[stream.value_type]).write_text(text)
        if stream.name in read:
            steps += [inject(stream, value_of(stream.value_type, row)) for row in rows]
    random.Random(1).shuffle(steps)
    for stream in (AUCTIONS, PEOPLE, BIDS):
        if stream.name in read:
            steps.append(advance(stream, at(1000)))
    answer = Oracle(tmp_path).answer(query)
    if query in ("q4", "q11"):
        expected = [pane_of(row) for row in answer]
    else:
        names = output.value_type.__struct_fields__
        found = [dict(zip(names, row, strict=True)) for row in answer]
        expected = [value_of(output.value_type, row) for row in found]
    assert expected
    await assert_exactly_once(pipeline, steps, {output: expected}, max_crashes=5)


def value_of(kind: Any, row: dict[str, Any]) -> Any:
    """A value of its fields, times in milliseconds."""
    times = {field.name for field in msgspec.structs.fields(kind) if field.type is datetime}
    return kind(**{n: from_milliseconds(v) if n in times else v for n, v in row.items()})


def pane_of(row: Row) -> Pane[Any]:
    """The pane that a row is made of."""
    key, start, end, value = row
    return Pane(key, from_milliseconds(start), from_milliseconds(end), value, final=True)


def at(second: float) -> datetime:
    return datetime.fromisoformat("2015-07-15T00:00:00Z") + timedelta(seconds=second)


def auction(
    id_: int, opens: float, expires: float, *, reserve: int = 1, seller: int = 1
) -> Auction:
    return Auction(id_, "item", "d", 1, reserve, at(opens), at(expires), seller, 10)


async def test_a_bid_on_the_border_is_in_one_window() -> None:
    async with Harness(q7()) as harness:
        await harness.inject(
            BIDS, Bid(1, 1, 5, at(9.999)), Bid(1, 2, 5, at(10)), Bid(2, 2, 5, at(3))
        )
        assert harness.rows("q7") == [], "the window is open"
        await harness.advance(BIDS, at(10))
        rows = sorted(row[:4] for row in harness.rows("q7"))
        assert rows == [(at(0), 1, 1, 5), (at(0), 2, 2, 5)]
        await harness.advance(BIDS, at(20))
        rows = sorted(row[:4] for row in harness.rows("q7"))
        assert rows == [(at(0), 1, 1, 5), (at(0), 2, 2, 5), (at(10), 1, 2, 5)]


async def test_the_winner_is_the_highest_then_the_earliest_and_decided_at_expiry() -> None:
    async with Harness(q9()) as harness:
        await harness.inject(
            BIDS,
            Bid(7, 1, 50, at(2)),  # before the auction is there
            Bid(7, 2, 50, at(1)),  # the earliest of the highest, though it comes second
            Bid(7, 3, 49, at(0)),
            Bid(7, 4, 99, at(10)),  # when it expires is too late
            Bid(8, 1, 9, at(3)),  # does not reach the reserve
        )
        await harness.inject(AUCTIONS, auction(7, 1.5, 10), auction(8, 0, 5, reserve=10))
        await harness.advance(BIDS, at(11))
        assert harness.rows("q9") == [], "other auctions' openings may still come"
        await harness.advance(AUCTIONS, at(10))
        assert harness.rows("q9") == [], "a bid just before may still come"
        await harness.advance(AUCTIONS, at(10.001))
        assert harness.rows("q9") == [(7, 1, 10, 1, at(10), 2, 50, at(1))]
        await harness.inject(BIDS, Bid(7, 9, 1000, at(12)))
        await harness.advance(BIDS, at(100_000))
        await harness.advance(AUCTIONS, at(100_000))
        assert len(harness.rows("q9")) == 1
        assert harness.state("close_auctions", 7) == {}
        assert harness.counters("close_auctions")["bids_on_closed_auctions"] == 1


async def test_bids_on_what_is_never_opened_are_forgotten() -> None:
    async with Harness(q9()) as harness:
        await harness.inject(BIDS, Bid(7, 1, 50, at(2)), Bid(7, 1, 50, at(1)))
        assert harness.state("close_auctions", 7)
        for stream in (AUCTIONS, BIDS):
            await harness.advance(stream, at(602.001))
        assert harness.state("close_auctions", 7) == {}


async def test_the_mean_is_of_ten_prices_not_of_eleven() -> None:
    async with Harness(q6()) as harness:
        await harness.inject(AUCTIONS, *[auction(n, 0, 100 - n) for n in range(12)])
        await harness.inject(BIDS, *[Bid(n, 1, 10 * n + 1, at(1)) for n in range(12)])
        for stream in (AUCTIONS, BIDS):
            await harness.advance(stream, at(200))
        rows = sorted(harness.rows("q6"), key=lambda row: row[2])
        assert [row[1] for row in rows] == list(range(11, -1, -1)), (
            "in the order in which they close"
        )
        prices = [10 * n + 1 for n in range(11, -1, -1)]
        means = [sum(p) / len(p) for n in range(12) if (p := prices[max(0, n - 9) : n + 1])]
        assert [row[3] for row in rows] == means


async def test_an_auction_waits_ten_minutes_for_its_seller() -> None:
    def person(id_: int, second: float) -> Person:
        return Person(id_, f"name {id_}", "e", "c", "city", "ID", at(second))

    async with Harness(q3()) as harness:
        await harness.inject(AUCTIONS, auction(1, 0, 5, seller=1), auction(2, 0, 5, seller=2))
        await harness.inject(AUCTIONS, auction(3, 500, 505, seller=2))
        for stream in (AUCTIONS, PEOPLE):
            await harness.advance(stream, at(1000))
        assert harness.state("join_sellers", 1) == {}, "given up 600 s after its last event"
        await harness.inject(PEOPLE, person(1, 1000), person(2, 1000))
        assert sorted(row[3] for row in harness.rows("q3")) == [2, 3]
        for stream in (AUCTIONS, PEOPLE):
            await harness.advance(stream, at(100_000))
        await harness.inject(AUCTIONS, auction(4, 100_000, 100_001, seller=1))
        assert sorted(row[3] for row in harness.rows("q3")) == [2, 3, 4], "people are kept"


async def test_a_late_bid_joins_two_sessions() -> None:
    async with Harness(q11()) as harness:
        bids = [Bid(1, 5, 1, at(second)) for second in (0, 18, 9, 28, 45)]
        await harness.inject(BIDS, *bids)
        await harness.advance(BIDS, at(60))
        rows = [(start, end, count) for _, start, end, count in sorted(harness.rows("q11"))]
        assert rows == [(at(0), at(28), 3), (at(28), at(38), 1), (at(45), at(55), 1)]


# ----------------------------------------------------------------------- processing time


async def test_windows_of_processing_time(tmp_path: Path) -> None:
    """Bids arrive as the clock moves; the oracle hears when."""
    options = Options(events=1000, rate=100)
    write(tmp_path, options)
    bids = [event for event in in_order_of_emission(options) if isinstance(event, Bid)]
    arrivals: list[tuple[int, int]] = []
    async with Harness(q12()) as harness:
        while bids:
            now = harness.clock.now()
            batch, bids = bids[:90], bids[90:]
            await harness.inject(BIDS, *batch)
            arrivals += [(bid.bidder, now // 1000) for bid in batch]
            await harness.sleep(3.4)
        await harness.sleep(10)
        oracle = Oracle(tmp_path)
        oracle.arrive(arrivals)
        expected = Counter(oracle.answer("q12"))
        assert Counter(map(normal, harness.rows("q12"))) == expected
        assert len({row[1] for row in expected}) >= 3
        assert harness.state("count_arrivals", bids[0].bidder if bids else 1001) == {}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(EVENTS, id="in order", marks=pytest.mark.soak),
        pytest.param(OUT_OF_ORDER, id="out of order", marks=pytest.mark.soak),
        pytest.param(TOO_LATE, id="late"),
    ],
)
async def test_the_last_window_of_processing_time_ends_with_the_input(
    options: Options, oracle: Oracle, environment: Callable[[Options], None]
) -> None:
    """Whatever the bids' own times: nothing is late by the clock."""
    environment(options)
    world = World(q12())
    await world.run(close_at_end=True)
    counted: Counter[int] = Counter()
    for bidder, start, end, bids in world.rows("q12"):
        assert end - start == timedelta(seconds=10)
        counted[bidder] += bids
    assert counted == dict(oracle.rows("SELECT bidder, count(*) FROM bid GROUP BY bidder"))


# --------------------------------------------------------------------- the command line


def test_every_query_is_there() -> None:
    assert set(PIPELINES) == set(nexmark.__all__)
    for query, make in PIPELINES.items():
        pipeline = make()
        tables = {use.sink.name for _, use in pipeline.sinks if hasattr(use.sink, "name")}
        assert pipeline.name == f"nexmark_{query}"
        assert query in tables
        assert query in (nexmark.__doc__ or "")


def run(store: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """``millwheel ARGUMENTS`` in the project's directory; how it ended, and what it wrote."""
    others = {n: v for n, v in os.environ.items() if not n.startswith(("NEXMARK", "MILLWHEEL"))}
    process = parent().start([*arguments, "--store", store], ROOT, others | environment)
    stdout, stderr = process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout, stderr


def test_a_query_on_postgres(new_schema: Callable[[int], Schema], oracle: Oracle) -> None:
    store = new_schema(18).url
    migrate(store, "nexmark_q5")
    options = {"NEXMARK_EVENTS": "8000", "NEXMARK_RATE": "100", "NEXMARK_GROUP": "100"}
    code, _, told = run(store, "run", "examples.nexmark:q5", **options)
    assert code == 0, told
    with psycopg.connect(store) as connection:
        rows = connection.execute("SELECT * FROM nexmark_q5.q5").fetchall()
    assert Counter(map(normal, rows)) == Counter(oracle.answer("q5"))
    _, shown, _ = run(store, "run", "examples.nexmark:q5", **options)
    assert "complete, nothing to do" in shown
    code, _, told = run(store, "run", "examples.nexmark:q5", **options | {"NEXMARK_RATE": "50"})
    assert code != 0
    assert "another source under the name (rate: 100 → 50)" in told
