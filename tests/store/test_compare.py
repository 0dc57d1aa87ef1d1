"""Two pipelines of a database compared row by row (`millwheel.store.compare`)."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table, Timer
from millwheel.computations import Windowed, count
from millwheel.core.clock import VirtualClock
from millwheel.core.model import to_micros
from millwheel.errors import SchemaBehind, StoreError, UsageError
from millwheel.services.run import Run
from millwheel.store.compare import (
    ComparedPart,
    CompareOptions,
    DifferingRow,
    PipelineComparison,
    compare,
    row_pages,
)
from millwheel.store.console.migrate import migrate
from millwheel.store.console.roles import make_roles
from millwheel.store.copies.forks import fork
from millwheel.store.copies.savepoints import make_savepoint
from millwheel.testing import inject
from millwheel.testing.script import Script, ScriptStep
from millwheel.windows import Pane, Tumbling
from tests.support.servers import VERSIONS
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

BLUE, GREEN = "blue", "green"
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
QUICK = Settings(intervals=2, idle_commit_seconds=0.0, watermark_commit_seconds=0.0)

ACCOUNTS = 7

Kind = Literal["only in a", "only in b", "differs"]
KINDS: tuple[Kind, ...] = ("only in a", "only in b", "differs")


class Paid(msgspec.Struct):
    at: datetime
    account: str
    cents: int


class Minute(msgspec.Struct):
    account: str
    minute: datetime
    payments: int


class Balance(msgspec.Struct):
    account: str = ""
    cents: int = 0


class Line(msgspec.Struct):
    account: str
    cents: int


PAID, MINUTES, BALANCES = (
    Stream("paid", Paid),
    Stream("minutes", Pane[int]),
    Stream("balances", Balance),
)


class AddUp(Computation[Paid, Balance]):
    """Keeps a balance, and a timer an hour after the last payment."""

    writes = (BALANCES,)

    async def process_record(self, record: Record[Paid], ctx: Context[Balance]) -> None:
        ctx.state.account = record.value.account
        ctx.state.cents += record.value.cents
        ctx.set_timer(record.timestamp + timedelta(hours=1), "idle")
        ctx.set_timer(ctx.now + timedelta(hours=1), "poll", kind="wall")
        ctx.produce(BALANCES, Balance(ctx.state.account, ctx.state.cents))

    async def process_timer(self, timer: Timer, ctx: Context[Balance]) -> None:
        """An account that rests."""


def payments(number: int) -> list[ScriptStep[Paid]]:
    """One a second, of seven accounts in turn."""
    return [
        inject(PAID, Paid(BEGIN + timedelta(seconds=n), f"account {n % ACCOUNTS}", n))
        for n in range(number)
    ]


def shop(name: str, steps: Sequence[ScriptStep[Paid]], lateness: timedelta | None) -> Pipeline:
    made = Pipeline(name, settings=QUICK)
    script = Script("payments", steps)
    script.end()
    made.inject(PAID, script, timestamp=lambda paid: paid.at)
    windowed = Windowed(
        Tumbling(minutes=1), count, to=MINUTES,
        late="drop" if lateness is None else "amend", allowed_lateness=lateness,
    )  # fmt: skip
    made.add(windowed, PAID.by(lambda paid: paid.account))
    made.add(AddUp(), PAID.by(lambda paid: paid.account))
    made.sink(
        MINUTES,
        Table("per_minute", Minute, key=("account", "minute")),
        row=lambda pane: Minute(str(pane.key), pane.start, pane.value),
    )
    made.sink(BALANCES, Table("balance", Balance, key=("account",)))
    made.sink(
        BALANCES,
        Table("line", Line, numbered=True),
        row=lambda balance: Line(balance.account, balance.cents),
    )
    return made


class Shops:
    """A database with two pipelines."""

    def __init__(self, schema: Schema) -> None:
        self.url = schema.url

    async def run(
        self,
        name: str,
        number: int,
        *,
        keep_open: bool = False,
        lateness: timedelta | None = None,
        clock: datetime = BEGIN,
    ) -> None:
        """Run a pipeline over the first payments."""
        migrate(self.url, name)
        pipeline = shop(name, payments(number), lateness)
        time = VirtualClock(to_micros(clock))
        await Run(pipeline, self.url, keep_open=keep_open, clock=time).run()

    def query(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text, params or None)
            return cursor.fetchall() if cursor.description else []

    def fold(self, name: str) -> None:
        """Move all states and timers to the folded tables, from where they can be changed."""
        self.query(f"""
            CREATE TEMP TABLE s AS
            SELECT v.slot, c.id, v.key::text, v.entry, v.value, v.version
            FROM {name}.states AS v JOIN {name}.computation AS c ON c.name = v.computation;
            CREATE TEMP TABLE t AS
            SELECT v.slot, c.id, v.key::text, v.kind, v.tag,
                extract(epoch FROM v.due) * 1000000 AS d, extract(epoch FROM v.hold) * 1000000 AS h,
                extract(epoch FROM v.set_at) * 1000000 AS a
            FROM {name}.timers AS v JOIN {name}.computation AS c ON c.name = v.computation;
            TRUNCATE {name}.state, {name}.timer;
            INSERT INTO {name}.state SELECT * FROM s;
            INSERT INTO {name}.timer SELECT * FROM t;
            UPDATE {name}.fold SET through = 1000000;
        """)

    def tables(self, definition: str, blue: str = "", green: str | None = None) -> None:
        """Make a table of a user's own in both, with rows."""
        for name, rows in ((BLUE, blue), (GREEN, blue if green is None else green)):
            if not self.query("SELECT to_regnamespace(%s)", name)[0][0]:
                migrate(self.url, name)
            self.query(f"SET search_path = {name}; CREATE TABLE {definition}; {rows}")

    def compare(self, a: str = BLUE, b: str = GREEN, **options: Any) -> PipelineComparison:
        return compare(self.url, a, b, CompareOptions(**options))


def part(comparison: PipelineComparison, title: str) -> ComparedPart:
    (found,) = [each for each in comparison.parts if each.title == title]
    return found


def differences(comparison: PipelineComparison) -> dict[str, tuple[int, int, int]]:
    """Counts by part, of those with any."""
    return {
        each.title: (each.only_in_a, each.only_in_b, each.differing)
        for each in comparison.parts
        if each.differences
    }


@pytest.fixture
def shops(new_schema: Callable[[int], Schema]) -> Shops:
    return Shops(new_schema(18))


# -- places ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_two_complete_runs_are_equal_whatever_is_folded(
    new_schema: Callable[[int], Schema], version: int
) -> None:
    shops = Shops(new_schema(version))
    await shops.run(BLUE, 300)
    await shops.run(GREEN, 300, clock=BEGIN + timedelta(hours=5))
    shops.fold(GREEN)
    shops.query("UPDATE green.line SET sender = sender + 100, sequence = sequence + 7")
    found = shops.compare()
    assert (found.verdict, found.same_place) == ("equal", True)
    assert "both are complete" in found.place
    assert part(found, "table per_minute").compared == 5 * ACCOUNTS
    assert part(found, "table line").compared == 300
    assert part(found, "states of add_up").compared == ACCOUNTS
    assert [each.left_out_a for each in found.parts if each.what == "table"] == [0, 0, 0]


async def test_runs_at_different_places_are_equal_below_the_common_low_watermark(
    shops: Shops,
) -> None:
    await shops.run(BLUE, 300, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    found = shops.compare()
    assert not found.same_place
    assert found.watermark == (BEGIN + timedelta(seconds=199)).isoformat()
    minutes = part(found, "table per_minute")
    assert minutes.below == (BEGIN + timedelta(seconds=139)).isoformat(), "a window before"
    assert (minutes.compared, minutes.left_out_a) == (3 * ACCOUNTS, ACCOUNTS)
    proofs = [each for each in found.parts if each.is_proof]
    assert {each.title for each in proofs} == {
        "table per_minute", "states of make_minutes", "timers of make_minutes", "timers of add_up",
    }  # fmt: skip
    assert sum(each.differences for each in proofs) == 0
    assert found.verdict == "undecided", "balances change with each payment"
    assert differences(found)["table balance"] == (0, 0, ACCOUNTS)
    assert differences(found)["states of add_up"] == (0, 0, ACCOUNTS)
    assert "no column of time" in part(found, "table balance").rule
    assert shops.compare(tables=["per_minute"]).verdict == "equal"


async def test_the_same_place_is_found_by_positions_and_watermarks(shops: Shops) -> None:
    await shops.run(BLUE, 200, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    found = shops.compare()
    assert (found.verdict, found.same_place) == ("equal", True)
    assert part(found, "states of make_minutes").compared == ACCOUNTS, "of open windows"
    assert part(found, "timers of make_minutes").compared == ACCOUNTS
    for change, place in (
        ("acked = '{}' WHERE position IS NOT NULL", "is not read equally far"),
        ("acked = '{}' WHERE position IS NULL", "records of green are on their way"),
        ("low_watermark = low_watermark - 1", "the low watermark of "),
    ):
        shops.query(
            "CREATE TABLE kept AS SELECT * FROM green.commit_record; "
            f"UPDATE green.commit_record SET {change}"
        )
        found = shops.compare()
        assert not found.same_place
        assert place in found.place
        shops.query(
            "UPDATE green.commit_record AS r SET acked = k.acked, low_watermark = k.low_watermark "
            "FROM kept AS k WHERE (r.interval_id, r.n) = (k.interval_id, k.n); DROP TABLE kept"
        )


async def test_a_copy_is_at_the_same_place_with_its_wall_timers(shops: Shops) -> None:
    await shops.run(BLUE, 200, keep_open=True)
    fork(shops.url, BLUE, GREEN)
    make_savepoint(shops.url, GREEN, "one")
    for a, b in ((BLUE, GREEN), (GREEN, "green@one")):
        found = shops.compare(a, b)
        assert found.verdict == "equal"
        assert "a copy of the other" in found.place
        assert part(found, "timers of add_up").compared == 2 * ACCOUNTS
    shops.fold(GREEN)
    shops.query(
        "UPDATE green.timer SET due = due + 1 WHERE kind = 'wall' AND key = '\"account 3\"'"
    )
    assert differences(shops.compare()) == {"timers of add_up": (0, 0, 1)}


async def test_a_pipeline_on_spark_has_the_low_watermark_of_its_query(shops: Shops) -> None:
    await shops.run(BLUE, 300, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    at = to_micros(BEGIN + timedelta(seconds=90))
    shops.query(
        "INSERT INTO green.spark_query (checkpoint, levels, sender, batch, low_watermark, "
        "output_watermark, counters, table_rows, began_at, changed_at) "
        "VALUES ('x', '{}', 0, 0, %s, %s, '{}', '{}', now(), now())", at, at
    )  # fmt: skip
    found = shops.compare()
    assert found.watermark == (BEGIN + timedelta(seconds=90)).isoformat()
    assert {each.what for each in found.parts} == {"table"}


async def test_slots_are_compared_page_by_page_with_their_unfolded_changes(
    shops: Shops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of changes that are folded already, the unfolded ones count."""
    await shops.run(BLUE, 200, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    shops.fold(GREEN)
    shops.query(
        "UPDATE green.fold SET through = 0; UPDATE green.state SET value = '0'; "
        "UPDATE green.timer SET due = 0"
    )
    monkeypatch.setattr(row_pages, "PAGE_BYTES", 1_000)
    found = shops.compare()
    assert found.verdict == "equal"
    monkeypatch.setattr(row_pages, "PAGE_BYTES", 1_000_000)
    shops.query(
        f"INSERT INTO green.state ({STATE}, value, version) "
        "SELECT n, computation, key, 'x', value, 0 "
        "FROM (SELECT * FROM green.state LIMIT 1) AS s, generate_series(0, 65535) AS n"
    )
    (planted,) = differences(shops.compare()).values()
    assert planted == (0, 65_536, 0), "one in each slot"
    assert part(found, "states of add_up").compared == ACCOUNTS
    assert part(found, "timers of add_up").compared == ACCOUNTS
    assert part(found, "timers of add_up").left_out_b == ACCOUNTS, "wall timers"


# -- planted differences --------------------------------------------------------------------

STATE = "slot, computation, key, entry"
PLANTED: Mapping[str, Mapping[Kind, str]] = {
    "table per_minute": {
        "only in a": "DELETE FROM green.per_minute WHERE account = 'account 2' "
        "AND minute = '2024-01-01T00:01Z'",
        "only in b": "INSERT INTO green.per_minute VALUES ('account x', '2024-01-01T00:01Z', 8)",
        "differs": "UPDATE green.per_minute SET payments = payments + 1 "
        "WHERE account = 'account 2' AND minute = '2024-01-01T00:01Z'",
    },
    "table line": {
        "only in a": "DELETE FROM green.line WHERE account = 'account 2' AND cents = 2",
        "only in b": "INSERT INTO green.line SELECT account, cents, 99, 99 FROM green.line LIMIT 1",
    },
    "states of add_up": {
        "only in a": "DELETE FROM green.state WHERE key = '\"account 2\"' AND entry = ''",
        "only in b": f"INSERT INTO green.state ({STATE}, value, version) "
        f"SELECT slot, computation, '\"other\"', entry, value, version FROM green.state "
        "WHERE key = '\"account 2\"' AND entry = '' LIMIT 1",
        "differs": "UPDATE green.state SET value = '{\"cents\": 1}' "
        "WHERE key = '\"account 2\"' AND entry = ''",
    },
    "timers of add_up": {
        "only in a": "DELETE FROM green.timer WHERE key = '\"account 2\"' AND tag = 'idle'",
        "only in b": "INSERT INTO green.timer SELECT slot, computation, key, kind, 'more', due, "
        "hold, set_at FROM green.timer WHERE key = '\"account 2\"' AND tag = 'idle'",
        "differs": "UPDATE green.timer SET due = due + 1 "
        "WHERE key = '\"account 2\"' AND tag = 'idle'",
    },
}
COUNTS = {"only in a": (1, 0, 0), "only in b": (0, 1, 0), "differs": (0, 0, 1)}


async def test_a_planted_row_is_found_of_each_kind_in_each_part(shops: Shops) -> None:
    await shops.run(BLUE, 200, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    shops.fold(GREEN)
    for title, statements in PLANTED.items():
        for kind, statement in statements.items():
            with psycopg.connect(shops.url) as connection:
                connection.execute(f"CREATE SCHEMA kept; {kept('green', 'kept')}")
                connection.execute(statement)
                connection.commit()
            found = shops.compare()
            assert found.verdict == "differs", (title, kind)
            assert differences(found) == {title: COUNTS[kind]}, (title, kind)
            (row,) = part(found, title).rows
            assert row.kind == kind
            if title == "timers of add_up":
                assert str((row.a or row.b or {})["due"]).startswith("2024-01-01T01:0")
            assert (row.a is None, row.b is None) == (kind == "only in b", kind == "only in a")
            shops.query(f"{kept('kept', 'green', again=True)}; DROP SCHEMA kept CASCADE")
    assert shops.compare().verdict == "equal"


def kept(source: str, target: str, *, again: bool = False) -> str:
    """Statements that copy the tables in which rows are planted."""
    names = ("per_minute", "line", "state", "timer")
    if again:
        return "; ".join(
            f"TRUNCATE {target}.{name}; INSERT INTO {target}.{name} SELECT * FROM {source}.{name}"
            for name in names
        )
    return "; ".join(f"CREATE TABLE {target}.{n} AS SELECT * FROM {source}.{n}" for n in names)


async def test_a_difference_is_shown_with_both_values_and_the_columns_that_differ(
    shops: Shops,
) -> None:
    shops.tables(
        "t (id int PRIMARY KEY, word text, number int, at timestamptz)",
        "INSERT INTO t VALUES (1, 'a', 1, '2024-01-01Z'), (2, 'b', NULL, '2024-01-01Z')",
        "INSERT INTO t VALUES (1, 'a', 1, '2024-01-01Z'), (2, 'c', 7, '2024-01-01Z')",
    )
    (row,) = part(shops.compare(), "table t").rows
    at = "2024-01-01 00:00:00+00"
    assert row == DifferingRow(
        "differs",
        {"id": "2"},
        {"word": "b", "number": None, "at": at},
        {"word": "c", "number": "7", "at": at},
        ["word", "number"],
    )


async def test_windows_that_late_records_may_amend_are_compared_once_they_are_closed(
    shops: Shops,
) -> None:
    lateness = timedelta(seconds=150)
    await shops.run(BLUE, 300, keep_open=True, lateness=lateness)
    await shops.run(GREEN, 200, keep_open=True, lateness=lateness)
    shops.fold(GREEN)
    found = part(shops.compare(), "states of make_minutes")
    assert found.differences == 0
    assert found.compared == ACCOUNTS, "closed at 199 s, and kept at 299 s: the window of 2:00"
    for minute, expected in ((1, 0), (2, ACCOUNTS), (3, 0)):
        start = to_micros(BEGIN + timedelta(minutes=minute))
        shops.query("DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT * FROM green.state")
        shops.query(
            "UPDATE green.state SET value = jsonb_set(value, '{accumulator}', '77') "
            "WHERE entry = %s", f"open/{start}"
        )  # fmt: skip
        found = part(shops.compare(), "states of make_minutes")
        assert found.differing == expected, minute
        shops.query("TRUNCATE green.state; INSERT INTO green.state SELECT * FROM kept")


async def test_a_closed_window_that_one_side_has_not_removed_is_found(shops: Shops) -> None:
    await shops.run(BLUE, 300, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    shops.fold(GREEN)
    shops.query(
        "UPDATE green.state SET entry = %s WHERE entry LIKE 'open/%%' AND key = '\"account 1\"'",
        f"open/{to_micros(BEGIN + timedelta(minutes=1))}",
    )
    found = part(shops.compare(), "states of make_minutes")
    assert (found.is_proof, found.only_in_b) == (True, 1)


async def test_a_timer_that_should_have_fired_is_found(shops: Shops) -> None:
    await shops.run(BLUE, 300, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    shops.fold(GREEN)
    shops.query(
        "UPDATE green.timer SET due = %s WHERE tag = 'idle' AND key = '\"account 1\"'",
        to_micros(BEGIN + timedelta(seconds=100)),
    )
    found = part(shops.compare(), "timers of add_up")
    assert (found.is_proof, found.differing, found.compared) == (True, 1, 1)


async def test_rows_are_compared_below_a_given_watermark(shops: Shops) -> None:
    await shops.run(BLUE, 300, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    shops.query("UPDATE green.per_minute SET payments = 0 WHERE minute = '2024-01-01T00:01Z'")
    below = BEGIN + timedelta(seconds=120)
    early, late = (shops.compare(tables=["per_minute"], at=at)
                   for at in (below, below + timedelta(microseconds=1)))  # fmt: skip
    assert (early.verdict, early.parts[0].compared) == ("equal", ACCOUNTS)
    assert (late.verdict, late.parts[0].differing) == ("differs", ACCOUNTS)
    with pytest.raises(UsageError, match="'green' is behind, at 2024-01-01T00:03:19"):
        shops.compare(at=BEGIN + timedelta(seconds=200))
    with pytest.raises(UsageError, match="has no time zone"):
        shops.compare(at=datetime(2024, 1, 1))


# -- tables ---------------------------------------------------------------------------------


def test_the_first_twenty_of_many_are_shown_and_all_are_counted(shops: Shops) -> None:
    rows = "INSERT INTO t SELECT n, n FROM generate_series(1, 5000) AS n"
    shops.tables(
        "t (id int PRIMARY KEY, v int)", rows, f"{rows}; UPDATE t SET v = -1 WHERE id % 9 = 0"
    )
    found = part(shops.compare(), "table t")
    assert (found.compared, found.differing) == (5000, 555)
    assert [row.key["id"] for row in found.rows] == [str(9 * n) for n in range(1, 21)]


WORDS = ["", "a", "A", "aa", "b", "é", "Z", "zz", "-", "\u4e00"]


def test_pages_count_as_arithmetic_does(shops: Shops, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables with holes anywhere, one of them empty, on pages of few rows."""
    chance = random.Random(7)
    tables: dict[str, list[dict[tuple[str, int], int]]] = {}
    for number in range(12):
        name = f"T {number}"
        keys = [(chance.choice(WORDS), chance.randrange(12)) for _ in range(100)]
        shares = (chance.random(), chance.random() if number else 0)
        tables[name] = [
            {key: chance.randrange(3) for key in keys if chance.random() < share}
            for share in shares
        ]
        shops.tables(f'"{name}" (w text, n int, v int, PRIMARY KEY (w, n))')
        for schema, side in zip((BLUE, GREEN), tables[name], strict=True):
            insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s)")
            with psycopg.connect(shops.url) as connection:
                connection.cursor().executemany(
                    insert.format(sql.Identifier(schema, name)),
                    [(*key, value) for key, value in side.items()],
                )
    for rows in (2, 7, 50):
        monkeypatch.setattr(row_pages, "LEAST_PAGE_ROWS", rows)
        monkeypatch.setattr(row_pages, "MOST_PAGE_ROWS", rows)
        for a, b in ((BLUE, GREEN), (GREEN, BLUE)):
            titles: list[str] = []
            comparison = compare(
                shops.url, a, b, show=lambda *shown, to=titles: to.append(shown[0])
            )
            begun_and_last = 2
            assert titles.count("table T 0") == len(tables["T 0"][0]) // rows + begun_and_last
            for name, sides in tables.items():
                left, right = sides if a == BLUE else reversed(sides)
                found = part(comparison, f"table {name}")
                assert found.compared == len(left.keys() | right.keys())
                assert found.only_in_a == len(left.keys() - right.keys())
                assert found.only_in_b == len(right.keys() - left.keys())
                both = left.keys() & right.keys()
                assert found.differing == sum(left[key] != right[key] for key in both)
                assert len(found.rows) == min(found.differences, 20)


VALUES = [
    ("numeric", "1.0", "1.00", True),
    ("numeric", "'NaN'", "'NaN'", True),
    ("numeric", "1", "1.01", False),
    ("float8", "'NaN'", "'NaN'", True),
    ("float8", "0.0", "-0.0", True),
    ("float8", "'NaN'", "1", False),
    ("int", "NULL", "NULL", True),
    ("int", "NULL", "0", False),
    ("text", "''", "NULL", False),
    ("text", "'a'", "'A'", False),
    ("varchar(9)", "'a'", "'a'", True),
    ("char(9)", "'a'", "'b'", False),
    ("jsonb", '\'{"a": 1, "b": 2}\'', '\'{"b": 2.0, "a": 1}\'', True),
    ("jsonb", "'[1, 2]'", "'[2, 1]'", False),
    ("json", "'[1]'", "'[1]'", True),
    ("json", "'[1]'", "'[2]'", False),
    ("json[]", "ARRAY['[1]'::json]", "ARRAY['[2]'::json]", False),
    ("point", "'(1, 2)'", "'(1, 2)'", True),
    ("point", "'(1, 2)'", "'(1, 3)'", False),
    ("text[]", "'{a, NULL}'", "'{a, NULL}'", True),
    ("text[]", "'{a, b}'", "'{a, c}'", False),
    ("int4range", "'[1, 3)'", "'[1, 2]'", True),
    ("bytea", "'\\x00'", "'\\x01'", False),
    ("timestamptz", "'infinity'", "'infinity'", True),
    ("public.word", "'a'", "'b'", False),
    ("public.mood", "'sad'", "'glad'", False),
    ("public.mood[]", "'{sad}'", "'{sad}'", True),
    ("public.pair", "ROW(1, '[1]')", "ROW(1, '[2]')", False),
]


def test_values_are_compared_as_postgres_does(shops: Shops) -> None:
    shops.query(
        "CREATE DOMAIN public.word AS text; "
        "CREATE TYPE public.mood AS ENUM ('sad', 'glad'); "
        "CREATE TYPE public.pair AS (n int, j json)"
    )
    for n, (kind, a, b, _) in enumerate(VALUES):
        make = f"t{n} (id int PRIMARY KEY, v {kind})"
        shops.tables(make, f"INSERT INTO t{n} VALUES (1, {a})", f"INSERT INTO t{n} VALUES (1, {b})")
        # Without a key, too.
        make = f"bag{n} (v {kind})"
        shops.tables(make, f"INSERT INTO bag{n} VALUES ({a})", f"INSERT INTO bag{n} VALUES ({b})")
    found = shops.compare()
    for n, (*values, is_equal) in enumerate(VALUES):
        assert (part(found, f"table t{n}").differing == 0) == is_equal, values
        assert (part(found, f"table bag{n}").differences == 0) == is_equal, values


def test_rows_without_a_key_are_counted_as_often_as_they_are_there(shops: Shops) -> None:
    rows = "INSERT INTO t SELECT n % 4, 'x' FROM generate_series(1, 40) AS n"
    shops.tables(
        "t (n int, w text)", rows,
        f"{rows}; INSERT INTO t VALUES (1, 'x'), (1, 'x'), (9, NULL); DELETE FROM t WHERE n = 2",
    )  # fmt: skip
    found = part(shops.compare(), "table t")
    assert (found.only_in_a, found.only_in_b, found.compared) == (10, 3, 43)
    assert [(row.kind, row.a or row.b, row.times) for row in found.rows] == [
        ("only in b", {"n": "1", "w": "x"}, 2),
        ("only in a", {"n": "2", "w": "x"}, 10),
        ("only in b", {"n": "9", "w": None}, 1),
    ]
    assert any("no key in common" in remark for remark in found.remarks)
    assert msgspec.to_builtins(found)["compared"] == 43, "a number in JSON"


def test_tables_of_other_shapes_are_compared_by_their_common_columns(shops: Shops) -> None:
    migrate(shops.url, BLUE)
    migrate(shops.url, GREEN)
    shops.query("""
        CREATE TABLE blue.t (id int, "When" text, n int, gone int, UNIQUE (id), v int NOT NULL,
            PRIMARY KEY (v));
        CREATE TABLE green.t (fresh int, n bigint, "When" text, v int NOT NULL, id int PRIMARY KEY);
        ALTER TABLE blue.t ALTER id SET NOT NULL;
        INSERT INTO blue.t VALUES (1, 'x', 5, 0, 7), (2, 'y', 6, 0, 8);
        INSERT INTO green.t VALUES (0, 5, 'x', 7, 1), (0, 6, 'z', 8, 2);
        CREATE TABLE blue.k (id int PRIMARY KEY, v int);
        CREATE TABLE green.k (id text PRIMARY KEY, v int);
        INSERT INTO blue.k SELECT n, n FROM generate_series(1, 30) AS n;
        INSERT INTO green.k SELECT n, n FROM generate_series(2, 30) AS n;
        CREATE TABLE blue.turned (a int, b int, PRIMARY KEY (a, b));
        CREATE TABLE green.turned (a int, b int, PRIMARY KEY (b, a));
        INSERT INTO blue.turned VALUES (1, 2), (2, 1);
        INSERT INTO green.turned VALUES (1, 2), (2, 2);
        CREATE TABLE blue.of_old_code (id int);
        CREATE TABLE green.of_new_code (id int);
        CREATE TABLE blue.parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE blue.parts_1 PARTITION OF blue.parts DEFAULT;
        CREATE TABLE green.parts (id int PRIMARY KEY);
        INSERT INTO blue.parts VALUES (1);
        INSERT INTO green.parts VALUES (1);
    """)
    found = shops.compare()
    assert found.only_in_a == ["table of_old_code"]
    assert found.only_in_b == ["table of_new_code"]
    assert differences(found) == {
        "table t": (0, 0, 1),
        "table k": (1, 0, 0),
        "table turned": (1, 1, 0),
    }
    assert "another order" in part(found, "table turned").remarks[0]
    of_t = part(found, "table t")
    assert (of_t.rows[0].key, of_t.rows[0].columns) == ({"id": "2"}, ["When"])
    assert of_t.remarks == [
        "not compared, since only blue has them: gone",
        "not compared, since only green has them: fresh",
        "compared as text: n is integer in blue, and bigint in green",
    ]
    assert any(
        "id is integer in blue, and text in green" in r for r in part(found, "table k").remarks
    )
    assert part(found, "table parts").compared == 1


async def test_the_column_of_time_is_the_one_with_an_end_or_in_the_key(shops: Shops) -> None:
    await shops.run(BLUE, 300, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    now = (BEGIN + timedelta(seconds=190)).isoformat()
    later = (BEGIN + timedelta(seconds=199)).isoformat()
    rows = f"INSERT INTO {{}} VALUES (1, '{now}', '{now}'), (2, '{later}', '{later}')"
    for name in ("ends", "keyed", "vague"):
        key = "PRIMARY KEY (id)" if name == "vague" else "PRIMARY KEY (id, a)"
        b = "window_end" if name == "ends" else "b"
        shops.tables(f"{name} (id int, a timestamptz, {b} timestamptz, {key})", rows.format(name))
    shops.query("UPDATE green.vague SET id = 3 WHERE id = 2")
    found = shops.compare()
    assert (part(found, "table ends").compared, part(found, "table ends").left_out_a) == (1, 1)
    assert part(found, "table keyed").left_out_a == 2, "a may be the start of a window"
    vague = part(found, "table vague")
    assert "several columns of time (a, b)" in vague.rule
    assert (vague.is_proof, vague.differences) == (False, 2)
    chosen = part(shops.compare(times={"vague": "b"}), "table vague")
    assert (chosen.is_proof, chosen.differences, chosen.left_out_b) == (True, 0, 2)
    with pytest.raises(UsageError, match="they have a, b"):
        shops.compare(times={"vague": "id"})


async def test_a_row_that_a_later_one_may_have_replaced_is_left_out(shops: Shops) -> None:
    await shops.run(BLUE, 300, keep_open=True)
    await shops.run(GREEN, 200, keep_open=True)
    early, late = BEGIN + timedelta(seconds=9), BEGIN + timedelta(seconds=250)
    shops.tables(
        "last (id int PRIMARY KEY, until timestamptz)",
        f"INSERT INTO last VALUES (1, '{late}'), (2, '{early}'), (3, NULL)",
        f"INSERT INTO last VALUES (1, '{early}'), (2, '{early}'), (3, NULL)",
    )
    found = part(shops.compare(), "table last")
    assert (found.differences, found.compared, found.left_out_a, found.left_out_b) == (0, 2, 1, 1)


# -- the snapshot, rights, errors -----------------------------------------------------------


def test_all_is_read_at_one_moment(shops: Shops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_pages, "LEAST_PAGE_ROWS", 10)
    monkeypatch.setattr(row_pages, "MOST_PAGE_ROWS", 10)
    shops.tables("t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    shops.tables("u (id int PRIMARY KEY)", "INSERT INTO u SELECT generate_series(1, 100)")
    seen: list[tuple[str, int]] = []

    def change(title: str, rows: int, share: float | None) -> None:
        seen.append((title, rows))
        shops.query("DELETE FROM green.t; DELETE FROM green.u")

    found = compare(shops.url, BLUE, GREEN, CompareOptions(), change)
    assert found.verdict == "equal"
    assert [rows for title, rows in seen if title == "table t"] == [*range(0, 101, 10), 100]
    assert differences(shops.compare()) == {"table t": (100, 0, 0), "table u": (100, 0, 0)}


async def test_a_reader_of_both_may_compare_and_no_other(shops: Shops) -> None:
    await shops.run(BLUE, 60)
    await shops.run(GREEN, 60)
    roles = [make_roles(shops.url, name) for name in (BLUE, GREEN)]
    shops.query("CREATE ROLE looker LOGIN")
    url = shops.url.replace("://millwheel@", "://looker@")
    try:
        shops.query(f"GRANT {roles[0].reader} TO looker")
        with pytest.raises(UsageError, match=r"savepoint 'green' .*it may read: blue$"):
            compare(url, BLUE, GREEN)
        shops.query(f"GRANT {roles[1].reader} TO looker")
        assert compare(url, BLUE, GREEN).verdict == "equal"
    finally:
        shops.query("DROP OWNED BY looker; DROP ROLE looker")
        for each in roles:
            for role in each:
                shops.query(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}")
                shops.query(f"DROP ROLE {role}")


async def test_a_savepoint_is_compared_like_a_pipeline(shops: Shops) -> None:
    await shops.run(BLUE, 60, keep_open=True)
    make_savepoint(shops.url, BLUE, "before")
    await shops.run(BLUE, 300, keep_open=True)
    found = shops.compare(BLUE, "blue@before", tables=["per_minute"])
    assert (found.verdict, found.same_place) == ("undecided", False), "no window has ended"
    assert found.parts[0].left_out_a == 4 * ACCOUNTS
    shops.query("""UPDATE "blue@before".alembic_version SET version_num = '0019'""")
    with pytest.raises(
        SchemaBehind, match=r"'blue@before' .* 0019.*No command migrates a savepoint"
    ):
        shops.compare(BLUE, "blue@before")


def test_mistakes_are_refused(shops: Shops) -> None:
    shops.tables("t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 300000)")
    with pytest.raises(UsageError, match=r"no pipeline or savepoint 'gren' .* Did you mean green"):
        shops.compare(BLUE, "gren")
    with pytest.raises(UsageError, match="'blue' is given twice"):
        shops.compare(BLUE, BLUE)
    with pytest.raises(UsageError, match="'blue' has no table 'x'"):
        shops.compare(tables=["x"])
    with pytest.raises(StoreError, match=r"was ended after 0\.001 s"):
        shops.compare(seconds=0.001)
    shops.query("UPDATE green.alembic_version SET version_num = '0019'")
    with pytest.raises(SchemaBehind, match="millwheel migrate green"):
        shops.compare()


@pytest.mark.soak
def test_memory_and_disk_of_a_comparison_do_not_grow_with_the_tables(shops: Shops) -> None:
    rows = (
        "INSERT INTO t SELECT n * 7919 % 3000000, n % 100, 'note ' || n % 1000 "
        "FROM generate_series(0::bigint, 2999999) AS n"
    )
    shops.tables("t (id bigint PRIMARY KEY, v int, note text)", rows)
    shops.query("UPDATE green.t SET v = -1 WHERE id % 3 = 0")
    ((name,),) = shops.query("SELECT current_database()")
    shops.query(f"ALTER DATABASE {name} SET temp_file_limit = 0")  # any file is an error
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = part(shops.compare(), "table t")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (found.compared, found.differing, len(found.rows)) == (3_000_000, 1_000_000, 20)
    assert grown < 10_000, "kB"
