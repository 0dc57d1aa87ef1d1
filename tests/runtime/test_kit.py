"""The test kit: event time of live inputs, names that do not exist, statements of user code."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import Computation, Context, Inbox, JsonLines, Pipeline, Record, Stream, Table, Timer
from millwheel.errors import GraphError, UsageError, UserCodeError
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from tests.support.pipelines import Tally, script
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, TALLY, Counted, items, key_of, time_of

START = datetime(2024, 5, 1, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Order(msgspec.Struct):
    number: int


class Reminder(msgspec.Struct):
    number: int
    at: datetime


ORDERS, REMINDERS = Stream("orders", Order), Stream("reminders", Reminder)


class Remind(Computation[Order, None]):
    """Sets a timer a minute after each order's time; writes down both in a table of the user's."""

    writes = (REMINDERS,)

    async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
        ctx.set_timer(record.timestamp + MINUTE)
        ctx.execute("INSERT INTO noted VALUES (%s, %s)", (record.value.number, record.timestamp))

    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
        ctx.produce(REMINDERS, Reminder(int(str(ctx.key)), timer.at))
        ctx.execute("DELETE FROM noted WHERE number = %s", (ctx.key,))


def number_of(order: Order) -> int:
    return order.number


def shop(**injected: Any) -> Pipeline:
    pipeline = Pipeline("shop")
    pipeline.inject(ORDERS, Inbox(), **injected)
    pipeline.add(Remind(), ORDERS.by(number_of))
    pipeline.sink(REMINDERS, Table("reminders", Reminder, key=("number",)))
    return pipeline


def counting() -> Pipeline:
    pipeline = Pipeline("counting")
    pipeline.inject(ITEMS, script(ITEMS, items(1)), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("tallies", Counted, key=("key", "number")))
    return pipeline


# -- event time of live inputs -----------------------------------------------------------


async def test_a_record_of_an_inbox_has_the_time_that_the_test_gives() -> None:
    async with Harness(shop()) as harness:
        await harness.inject(ORDERS, Order(1), at=START)
        await harness.advance(ORDERS, START + 2 * MINUTE)
        assert harness.produced(REMINDERS) == [Reminder(1, START + MINUTE)]


async def test_without_a_time_it_has_that_of_the_clock() -> None:
    async with Harness(shop(), start=START) as harness:
        await harness.inject(ORDERS, Order(1))
        await harness.sleep(30)
        await harness.inject(ORDERS, Order(2))
        await harness.advance(ORDERS, START + 2 * MINUTE)
        assert harness.produced(REMINDERS) == [
            Reminder(1, START + MINUTE), Reminder(2, START + timedelta(seconds=90)),
        ]  # fmt: skip


async def test_an_inbox_is_tested_with_a_crash_at_each_commit() -> None:
    await assert_exactly_once(
        shop(),
        [inject(ORDERS, Order(1), at=START), inject(ORDERS, Order(2), at=START + MINUTE),
         advance(ORDERS, START + 5 * MINUTE)],
        {REMINDERS: [Reminder(1, START + MINUTE), Reminder(2, START + 2 * MINUTE)]},
    )  # fmt: skip
    await assert_exactly_once(shop(), [inject(ORDERS, Order(1))], {ORDERS: [Order(1)]})


async def test_a_time_that_would_have_no_effect_is_refused() -> None:
    step = inject(ORDERS, Order(1), at=START)
    with pytest.raises(GraphError, match=r"'orders': at= would have no effect.* has timestamp="):
        await assert_exactly_once(shop(timestamp=lambda order: START), [step], {})


@pytest.mark.parametrize(
    ("at", "error"),
    [(datetime(2024, 5, 1), "no time zone"), ("8:00", "must be an aware datetime")],
)
def test_a_time_without_a_zone_is_refused(at: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        inject(ORDERS, Order(1), at=at)


async def test_event_time_of_a_stream_with_two_injectors_advances() -> None:
    """Both have to: the low watermark of the stream is the least of theirs."""
    pipeline = shop()
    pipeline.inject(ORDERS, JsonLines("none"), timestamp=lambda order: START)
    expected = [Reminder(1, START + MINUTE)]
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, Order(1), at=START)
        assert harness.produced(REMINDERS) == []
        await harness.advance(ORDERS, START + 2 * MINUTE)
        assert harness.produced(REMINDERS) == expected
        assert harness.low_watermark("remind") == START + 2 * MINUTE
    steps = [inject(ORDERS, Order(1), at=START), advance(ORDERS, START + 2 * MINUTE)]
    await assert_exactly_once(pipeline, steps, {ORDERS: [Order(1)], REMINDERS: expected})


# -- values and numbers of another type --------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "stream 'orders': 3 is not a value of type Order: Expected `object`, got `int`"),
        (Order("x"), "is not a value of type Order: Expected `int`, got `str` - at `$.number`"),  # type: ignore[arg-type]
    ],
)
async def test_a_value_of_another_type_is_refused_where_it_is_given(
    value: Any, message: str
) -> None:
    async with Harness(shop()) as harness:
        with pytest.raises(UserCodeError) as refused:
            await harness.inject(ORDERS, value, at=START)
        assert message in str(refused.value)
        await harness.inject(ORDERS, Order(1), at=START)
        assert harness.produced(ORDERS) == [Order(1)]


@pytest.mark.parametrize("seconds", [timedelta(seconds=3), "3", None])
async def test_a_pause_that_is_no_number_is_refused(seconds: Any) -> None:
    async with Harness(shop()) as harness:
        with pytest.raises(UsageError, match=r"sleep\(.*give a number of seconds"):
            await harness.sleep(seconds)


async def test_counters_of_user_code_alone() -> None:
    class Counts(Computation[Order, None]):
        async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
            ctx.count("seen", record.value.number)

    pipeline = Pipeline("counts")
    pipeline.inject(ORDERS, Inbox())
    pipeline.add(Counts(), ORDERS.by(number_of))
    async with Harness(pipeline) as harness:
        assert harness.counted("counts") == {}
        await harness.inject(ORDERS, Order(2), Order(3))
        assert harness.counted("counts") == {"seen": 5}
        assert harness.counters("counts") == {"seen": 5, "processed": 2}
        with pytest.raises(UsageError, match=r"Did you mean counts\?"):
            harness.counted("count")


# -- names that do not exist -------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda h: h.rows("talies"),
         "has no table 'talies'; it has: tallies. Did you mean tallies?"),
        (lambda h: h.rows("x"), "has no table 'x'; it has: tallies"),
        (lambda h: h.state("taly", "a"),
         "has no computation 'taly'; it has: "),
        (lambda h: h.counters("taly"), "Did you mean tally?"),
        (lambda h: h.low_watermark("taly"), "Did you mean tally?"),
        (lambda h: h.shared("taly", "a"), "Did you mean tally?"),
        (lambda h: h.state("x", "a"),
         "has no computation 'x'; it has: items_injector, tally, tally_to_tallies"),
        (lambda h: h.shared("tally", "a"), "'tally' reads no stream by broadcast"),
        (lambda h: h.produced(Stream("taly", int)),
         "no computation of pipeline 'counting' writes stream 'taly'; it writes: items, tally. "
         "Did you mean tally?"),
    ],
)  # fmt: skip
async def test_a_wrong_name_is_an_error_with_the_right_one(
    look: Callable[[Harness], object], message: str
) -> None:
    async with Harness(counting()) as harness:
        with pytest.raises(UsageError) as refused:
            look(harness)
    assert message in str(refused.value)


async def test_a_right_name_without_anything_is_empty() -> None:
    async with Harness(counting()) as harness:
        assert harness.rows("tallies") == []
        assert harness.state("tally", "nothing") == {}
        assert harness.statements() == []


# -- statements --------------------------------------------------------------------------


async def test_statements_can_be_seen() -> None:
    async with Harness(shop()) as harness:
        await harness.inject(ORDERS, Order(1), Order(2), at=START)
        await harness.advance(ORDERS, START + 2 * MINUTE)
        assert harness.statements() == [
            ("INSERT INTO noted VALUES (%s, %s)", (1, START)),
            ("INSERT INTO noted VALUES (%s, %s)", (2, START)),
            ("DELETE FROM noted WHERE number = %s", (1,)),
            ("DELETE FROM noted WHERE number = %s", (2,)),
        ]


class Database:
    """A database with the user's table; all of it can be reset and read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.reset()

    def reset(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute("DROP TABLE IF EXISTS public.noted")
            connection.execute("CREATE TABLE public.noted (number int, at timestamptz)")

    def rows(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute("SELECT * FROM public.noted ORDER BY number").fetchall()


@pytest.fixture
def database(new_schema: Callable[[int], Schema]) -> Database:
    return Database(new_schema(18).url)


async def test_statements_run_in_a_database(database: Database) -> None:
    async with Harness(shop(), database=database.url) as harness:
        await harness.inject(ORDERS, Order(1), at=START)
        await harness.inject(ORDERS, Order(2), at=START + MINUTE)
        assert database.rows() == [(1, START), (2, START + MINUTE)]
        await harness.advance(ORDERS, START + MINUTE + timedelta(seconds=1))
        assert database.rows() == [(2, START + MINUTE)]


async def test_a_statement_that_postgres_refuses_names_its_line(database: Database) -> None:
    class Typo(Computation[Order, None]):
        async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
            ctx.execute("INSERT INTO noted VALUES (%s, now())", (record.value.number,))
            ctx.execute("INSERT INTO noted VALUE (1)")

    pipeline = Pipeline("shop")
    pipeline.inject(ORDERS, Inbox())
    pipeline.add(Typo(), ORDERS.by(number_of))
    with pytest.raises(
        UserCodeError, match=r'VALUE \(1\).*test_kit\.py:\d+.*syntax error at or near "VALUE"'
    ):
        async with Harness(pipeline, database=database.url) as harness:
            await harness.inject(ORDERS, Order(1))
    assert database.rows() == []


async def test_each_statement_has_its_effect_once_in_every_mode(database: Database) -> None:
    runs = []

    def check() -> None:
        runs.append(database.rows())
        assert runs[-1] == [(1, START), (2, START)]

    await assert_exactly_once(
        shop(),
        [inject(ORDERS, Order(1), at=START), inject(ORDERS, Order(2), at=START)],
        {},
        before_each=database.reset,
        after_each=check,
        database=database.url,
    )
    assert len(runs) > 6


async def test_a_database_that_does_not_answer_is_named() -> None:
    with pytest.raises(UsageError, match="the database of the test cannot be reached"):
        async with Harness(shop(), database="postgresql://127.0.0.1:1/nothing") as harness:
            await harness.inject(ORDERS, Order(1))


async def test_a_transaction_that_the_test_has_left_open_is_named(database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        connection.execute("LOCK TABLE public.noted")
        with pytest.raises(UsageError, match="Has the test left a transaction open"):
            async with Harness(shop(), database=database.url) as harness:
                await harness.inject(ORDERS, Order(1))
