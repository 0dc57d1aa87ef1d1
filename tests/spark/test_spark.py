"""Reading a pipeline's tables with PySpark: one moment, every row once, and the right values.

Most tests of the data source drive its classes as Spark's workers would, in this process; the
ones marked `spark` share one session, and one runs `run_job` as a process of its own.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import structlog
from psycopg import sql
from rich.console import Console

from examples.flights.replay import weather_csv
from millwheel.errors import (
    MillwheelError,
    SnapshotGone,
    StatementError,
    StoreError,
    StoreUnavailable,
    UsageError,
    UserCodeError,
)
from millwheel.spark import Job, Snapshot, run_job, snapshot, snapshots
from millwheel.spark import local_session as sessions
from millwheel.spark import store_sessions as connections
from millwheel.spark.failures import error_text, from_worker
from millwheel.spark.filters import Filter, parsed, written
from millwheel.spark.job import load_function
from millwheel.spark.spark_stopping import Interruptible
from millwheel.spark.stage_bars import StageProgress, _Bars, _display, _Lines
from millwheel.store import embedded
from tests.support import flights_oracle

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st
from pyspark.sql.datasource import InputPartition

from examples.flights import report
from millwheel.spark.relation import TYPE_MAPPINGS, SparkColumn, SparkRelation, describe
from millwheel.spark.share_query import Blocks, Slots, Whole, condition, select, shares
from millwheel.spark.stream_source import MillwheelReader, MillwheelSource

# PySpark 4.1 leaves its sockets to the garbage collector; 4.3 does not.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)

ROWS = 20_000
UTC = dt.UTC

SETUP = """
CREATE SCHEMA flights;
CREATE TABLE flights.commit_record (n bigint);
CREATE TABLE flights.slotted (slot integer, id bigint);
INSERT INTO flights.slotted
    SELECT hashint4(id) & 65535, id FROM generate_series(1, 19997) AS id;
-- What no hash makes must not get lost either.
INSERT INTO flights.slotted VALUES (NULL, 19998), (-1, 19999), (70000, 20000);
CREATE VIEW flights.slotted_view AS SELECT * FROM flights.slotted;
CREATE TABLE flights.plain AS SELECT id FROM flights.slotted;
CREATE VIEW flights.plain_view AS SELECT * FROM flights.plain;
CREATE MATERIALIZED VIEW flights.stored_view AS SELECT * FROM flights.plain;
CREATE TABLE flights.parted (id bigint) PARTITION BY RANGE (id);
CREATE TABLE flights.parted_1 PARTITION OF flights.parted FOR VALUES FROM (0) TO (5000);
CREATE TABLE flights.parted_2 PARTITION OF flights.parted FOR VALUES FROM (5000) TO (100000);
INSERT INTO flights.parted SELECT id FROM flights.plain;
CREATE TABLE flights.empty (id bigint);
CREATE TYPE flights.colour AS ENUM ('red', 'green');
CREATE DOMAIN flights.score AS numeric(5, 2);
CREATE DOMAIN flights.grade AS flights.score CHECK (value > 0);
"""

# column, its type, a value as SQL, as Spark has it, its Spark type
TYPES: list[tuple[str, str, str, Any, str]] = [
    ("big", "bigint", "-9223372036854775808", -(2**63), "bigint"),
    ("whole", "integer", "2147483647", 2**31 - 1, "int"),
    ("small", "smallint", "-32768", -(2**15), "smallint"),
    ("double", "double precision", "'1e-300'", 1e-300, "double"),
    ("single", "real", "1.5", 1.5, "float"),
    ("money", "numeric(10, 2)", "12345678.9", Decimal("12345678.90"), "decimal(10,2)"),
    ("rough", "numeric(5, -2)", "1234567", Decimal(1234600), "decimal(7,0)"),
    ("fine", "numeric(2, 4)", "0.0012", Decimal("0.0012"), "decimal(4,4)"),
    ("free", "numeric", "1::numeric / 3", Decimal("0.333333333333333333"), "decimal(38,18)"),
    ("graded", "flights.grade", "1.25", Decimal("1.25"), "decimal(5,2)"),
    ("flag", "boolean", "true", True, "boolean"),
    ("words", "text", "'grün ''x'' \"y\" %s'", "grün 'x' \"y\" %s", "string"),
    ("short", "varchar(5)", "''", "", "string"),
    ("padded", "char(5)", "'ab'", "ab", "string"),
    ("colour", "flights.colour", "'green'", "green", "string"),
    ("at", "timestamptz", "'2013-07-01 12:00:00.000001+02'",
     dt.datetime(2013, 7, 1, 10, 0, 0, 1), "timestamp"),
    ("long_ago", "timestamptz", "'0001-01-02 00:00:00+00'", dt.datetime(1, 1, 2), "timestamp"),
    ("wall", "timestamp", "'1999-12-31 23:59:59.5'",
     dt.datetime(1999, 12, 31, 23, 59, 59, 500_000), "timestamp_ntz"),
    ("day", "date", "'1969-12-31'", dt.date(1969, 12, 31), "date"),
    ("span", "interval", "'1 day 00:00:01.5'", dt.timedelta(days=1, seconds=1.5),
     "interval day to second"),
    ("never", "timestamp", "'infinity'", dt.datetime.max, "timestamp_ntz"),
    ("raw", "bytea", r"'\x00ff'", bytearray(b"\x00\xff"), "binary"),
    ("doc", "jsonb", """'{"a": [1, null]}'""", '{"a": [1, null]}', "string"),
    ("plain_doc", "json", """'{"a":1}'""", '{"a":1}', "string"),
    ("id", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
     "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "string"),
    ("numbers", "bigint[]", "'{1,NULL,3}'", [1, None, 3], "array<bigint>"),
    ("names", "text[]", "'{}'", [], "array<string>"),
    ("prices", "numeric(6, 1)[]", "'{1.5}'", [Decimal("1.5")], "array<decimal(6,1)>"),
    ("moments", "timestamptz[]", "'{2013-01-01 00:00+00,NULL}'",
     [dt.datetime(2013, 1, 1), None], "array<timestamp>"),
    ("days", "date[]", "'{2000-02-29}'", [dt.date(2000, 2, 29)], "array<date>"),
    ("docs", "jsonb[]", """ARRAY['1'::jsonb, 'null']""", ["1", "null"], "array<string>"),
    ("colours", "flights.colour[]", "'{red}'", ["red"], "array<string>"),
]  # fmt: skip


# ------------------------------------------------------------------------------------ fixtures


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own with the pipeline `flights`; its URL has a password to look out for."""
    directory = tmp_path_factory.mktemp("store")
    server = embedded.start(directory)
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(SETUP)
            columns = ", ".join(f"{name} {kind}" for name, kind, *_ in TYPES)
            values = ", ".join(value for _, _, value, *_ in TYPES)
            connection.execute(f"CREATE TABLE flights.typed ({columns})".encode())
            connection.execute(f"INSERT INTO flights.typed VALUES ({values})".encode())
            connection.execute("INSERT INTO flights.typed DEFAULT VALUES")
            connection.execute("VACUUM ANALYZE")
        yield f"{server.url}{'&' if '?' in server.url else '?'}password=geheim"
    finally:
        embedded.stop(directory)


@pytest.fixture
def writer(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(writer: psycopg.Connection[Any]) -> Iterator[Callable[[str, str], str]]:
    """Makes a table of the pipeline that goes with the test."""
    made = []

    def make(name: str, text: str) -> str:
        made.append(name)
        writer.execute(f"CREATE TABLE flights.{name} {text}".encode())
        return name

    yield make
    for name in made:
        writer.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("flights", name)))


def source(url: str, table: str, **options: str) -> MillwheelSource:
    return MillwheelSource({"store": url, "pipeline": "flights", "table": table, **options})


def reader(held: Snapshot, table: str, partitions: int) -> MillwheelReader:
    made = MillwheelSource(held.options(table) | {"partitions": str(partitions)})
    return made.reader(made.schema())


def ids(reader: MillwheelReader, share: InputPartition) -> list[int]:
    found = [value for batch in reader.read(share) for value in batch.column("id").to_pylist()]
    return sorted(found)


def frame(spark: SparkSession, held: Snapshot, table: str, **options: str) -> DataFrame:
    return spark.read.format("millwheel").options(**held.options(table) | options).load()


# ------------------------------------------------------------------------- one moment, held open


def test_shares_read_one_after_the_other_are_of_one_moment(
    url: str, writer: psycopg.Connection[Any], table: Callable[[str, str], str]
) -> None:
    table("moving", f"AS SELECT id FROM generate_series(1, {ROWS}) AS id")
    with snapshot(url, "flights") as held:
        reading = reader(held, "moving", 4)
        first, *others = reading.partitions()
        found = ids(reading, first)
        # Updated rows move to other blocks, new ones come, old ones go and are vacuumed.
        writer.execute("UPDATE flights.moving SET id = id + 1000000 WHERE id % 2 = 0")
        writer.execute("DELETE FROM flights.moving WHERE id % 3 = 0")
        writer.execute("INSERT INTO flights.moving SELECT * FROM generate_series(-999, 0)")
        writer.execute("VACUUM flights.moving")
        for share in others:
            found += ids(reading, share)
        assert len(others) == 3
        assert sorted(found) == list(range(1, ROWS + 1))
    with snapshot(url, "flights") as held:
        reading = reader(held, "moving", 1)
        assert ids(reading, reading.partitions()[0]) != sorted(found)


@pytest.mark.parametrize("change", ["DROP TABLE {}", "TRUNCATE {}", "ALTER TABLE {} ADD x int"])
def test_a_held_table_cannot_be_taken_away(
    url: str, writer: psycopg.Connection[Any], table: Callable[[str, str], str], change: str
) -> None:
    table("wanted", "AS SELECT 1::bigint AS id")
    writer.execute("SET lock_timeout = '50ms'")
    with snapshot(url, "flights") as held:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            writer.execute(change.format("flights.wanted").encode())
        reading = reader(held, "wanted", 1)
        assert ids(reading, reading.partitions()[0]) == [1]
    with writer.transaction(force_rollback=True):
        writer.execute(change.format("flights.wanted").encode())


def test_a_snapshot_survives_the_servers_patience_with_idle_transactions(url: str) -> None:
    impatient = f"{url}&options=-c%20idle_in_transaction_session_timeout%3D1min"
    with connections.reading(impatient) as connection:
        setting = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert setting == ("0",)


def test_a_table_dropped_before_it_was_locked_is_no_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = snapshots._lockable
    calls = []

    def lists_a_table_too_many(url: str, pipeline: str) -> list[str]:
        calls.append(pipeline)
        return real(url, pipeline) + (["just_dropped"] if len(calls) < 3 else [])

    monkeypatch.setattr(snapshots, "_lockable", lists_a_table_too_many)
    with snapshot(url, "flights") as held:
        assert "plain" in held.relations
    assert len(calls) == 3

    monkeypatch.setattr(snapshots, "_lockable", lambda url, pipeline: ["never_there"])
    with pytest.raises(StoreError, match="dropped between listing and locking"), snapshot(url):
        pass


def test_a_table_under_migration_is_waited_for_and_named(
    url: str, writer: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LOCK_SECONDS", 1)
    with writer.transaction(force_rollback=True):
        writer.execute("LOCK TABLE flights.plain")
        with (
            pytest.raises(StoreUnavailable, match="migration"),
            snapshot(url, "flights"),
        ):
            pass


def test_the_error_of_a_block_stays_what_it_is(url: str) -> None:
    with pytest.raises(psycopg.DataError), snapshot(url, "flights"):
        raise psycopg.DataError("the user's own")


def test_after_the_block_the_snapshot_is_gone_and_said_to_be(url: str) -> None:
    with snapshot(url, "flights") as held:
        reading = reader(held, "plain", 2)
        share = reading.partitions()[0]
    with pytest.raises(StoreError, match="is no longer held"):
        ids(reading, share)
    with psycopg.connect(url) as connection:
        left = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s",
            [connections.APPLICATION],
        ).fetchone()
    assert left == (0,)


def test_a_snapshot_is_let_go_of_after_its_time(url: str) -> None:
    """So that a job that hangs does not keep Postgres from cleaning up; the next read says so."""
    with snapshot(url, "flights", most_seconds=0.2) as held:
        reading = reader(held, "plain", 2)
        share = reading.partitions()[0]
        assert ids(reading, share)
        deadline = time.monotonic() + 10
        with psycopg.connect(url, autocommit=True) as connection:
            while connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'",
                [connections.APPLICATION],
            ).fetchone():
                assert time.monotonic() < deadline
                time.sleep(0.05)
        with pytest.raises(StoreError, match=r"is no longer held.*--snapshot-seconds"):
            ids(reading, share)


# ------------------------------------------------------------------------ every row in one share


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("slotted", Slots),
        ("slotted_view", Slots),
        ("plain", Blocks),
        ("parted", Blocks),
        ("stored_view", Blocks),
        ("plain_view", Whole),
        ("empty", Whole),
    ],
)
@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_each_row_is_in_one_share(url: str, name: str, kind: type, partitions: int) -> None:
    with snapshot(url, "flights") as held:
        reading = reader(held, name, partitions)
        planned = reading.partitions()
        parts = [ids(reading, share) for share in planned]
    assert len(planned) == (1 if kind is Whole else partitions)
    assert all(isinstance(share, Whole if partitions == 1 else kind) for share in planned)
    found = sorted(value for part in parts for value in part)
    assert found == ([] if name == "empty" else list(range(1, ROWS + 1)))
    if len(parts) == 3:
        assert max(map(len, parts)) < ROWS * 0.6, "shares are of about one size"


def test_a_table_of_one_block_is_one_share() -> None:
    small = SparkRelation("p", "t", "r", blocks=1, has_slots=True, columns=())
    assert [type(share) for share in shares(small, 8)] == [Whole]


@pytest.mark.parametrize(("name", "node"), [("plain", "Tid Range Scan"), ("parted", "Tid Range")])
def test_a_share_of_blocks_reads_no_other_blocks(
    url: str, writer: psycopg.Connection[Any], name: str, node: str
) -> None:
    relation = described(url, name)
    share = shares(relation, 4)[1]
    query, values = select(relation, relation.columns, share)
    plan = writer.execute(sql.SQL("EXPLAIN ") + query, values).fetchall()
    assert node in str(plan)
    assert "Seq Scan" not in str(plan)


def test_a_read_is_bounded_by_bytes_not_rows(
    url: str, table: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table(
        "wide",
        "AS SELECT repeat('x', CASE WHEN id < 500 THEN 10 ELSE 20000 END) AS body "
        "FROM generate_series(1, 2000) AS id",
    )
    monkeypatch.setattr("millwheel.spark.reading.BATCH_BYTES", 1 << 20)
    made = source(url, "wide")
    batches = list(made.reader(made.schema()).read(Whole()))
    rows = [batch.num_rows for batch in batches]
    assert sum(rows) == 2000
    assert rows[:4] == [16, 64, 256, 1024], "sizes are found out step by step"
    assert all(batch.nbytes < 1.1 * (1 << 20) for batch in batches[5:]), "and then kept"
    assert len(batches) > 10


# --------------------------------------------------------------------------------- what was asked


def described(url: str, name: str) -> SparkRelation:
    with connections.reading(url) as connection:
        return describe(connection, "flights", name)


def test_without_a_snapshot_a_read_is_one_transaction(url: str) -> None:
    made = source(url, "plain")
    reading = made.reader(made.schema())
    (share,) = reading.partitions()
    assert ids(reading, share) == list(range(1, ROWS + 1))
    made = source(url, "plain", partitions="4")
    with pytest.raises(UsageError, match="4 partitions without a snapshot"):
        made.reader(made.schema())


def test_only_the_columns_that_are_named_are_read(
    url: str, table: Callable[[str, str], str]
) -> None:
    table("odd", "AS SELECT 1 AS slot, 2::bigint AS id, '(1,2)'::point AS span")
    assert source(url, "odd", columns="id").schema().fieldNames() == ["id"]
    # A schema of the user's names columns too; then `schema()` is never called.
    reading = source(url, "odd").reader(st.StructType([st.StructField("id", st.LongType())]))
    (batch,) = reading.read(Whole())
    assert batch.to_pylist() == [{"id": 2}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "plane"}, "no table or view 'plane'; it has: commit_record, empty, parted, pl"),
        ({"pipeline": "trains"}, "pipeline 'trains' has no table"),
        ({"pipeline": ""}, "'pipeline' of format 'millwheel' is missing"),
        ({"partitions": "many"}, "must be a number from 1, not 'many'"),
        ({"columns": "id, colour"}, "no column 'colour'; it has: id"),
        ({"store": "/srv/wheel"}, "The server of a directory has to run first"),
    ],
)
def test_a_wrong_option_is_told(url: str, options: dict[str, str], message: str) -> None:
    given = {"store": url, "pipeline": "flights", "table": "plain"} | options
    with pytest.raises(UsageError, match=message):
        MillwheelSource(given).schema()


def test_the_store_may_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"pipeline": "flights", "table": "plain"}
    monkeypatch.delenv("MILLWHEEL_STORE", raising=False)
    with pytest.raises(UsageError, match="no store given"):
        MillwheelSource(options).schema()
    monkeypatch.setenv("MILLWHEEL_STORE", url)
    assert MillwheelSource(options).schema().fieldNames() == ["id"]


def test_a_type_without_a_place_in_spark_is_named(
    url: str, table: Callable[[str, str], str]
) -> None:
    table("spans", "(id bigint, span point)")
    with pytest.raises(UsageError, match="'span' of 'spans' is of type point"):
        source(url, "spans").schema()
    table("huge", "(id numeric(40, 2))")
    with pytest.raises(UsageError, match=r"'id' of 'huge' is of type numeric\(40,2\)"):
        source(url, "huge").schema()


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("numeric(5, 2)", "NaN"),
        ("interval", "1 year"),
        ("int[]", "{{1},{2}}"),
    ],
)
def test_a_value_without_a_place_in_spark_is_told_with_its_column(
    url: str, table: Callable[[str, str], str], declared: str, value: str
) -> None:
    table("edges", f"AS SELECT '{value}'::{declared} AS edge")
    reading = source(url, "edges").reader(source(url, "edges").schema())
    with pytest.raises(StoreError, match=r"'edge' .* holds a value that Spark cannot represent"):
        list(reading.read(Whole()))


def test_infinite_times_are_the_ends_of_pythons(url: str, table: Callable[[str, str], str]) -> None:
    """And an interval is one, in microseconds."""
    table(
        "ends",
        "AS SELECT i::timestamptz AS instant, i::timestamp AS local, i::date AS day, "
        "ARRAY[i::timestamptz] AS instants, s::interval AS span FROM (VALUES ('infinity', '-2 "
        "days 1 second'), ('-infinity', NULL), (NULL, 'infinity'), ('2024-02-29', '25:00:00')) AS "
        "t (i, s)",
    )
    made = source(url, "ends")
    rows = [
        row
        for batch in made.reader(made.schema()).read(Whole())
        for row in zip(*batch.to_pydict().values(), strict=True)
    ]
    last, first = dt.datetime.max, dt.datetime.min
    leap = dt.datetime(2024, 2, 29)
    utc = dt.UTC
    longest = dt.timedelta(microseconds=2**63 - 1)
    assert rows == [
        (last.replace(tzinfo=utc), last, last.date(), [last.replace(tzinfo=utc)],
         dt.timedelta(days=-2, seconds=1)),
        (first.replace(tzinfo=utc), first, first.date(), [first.replace(tzinfo=utc)], None),
        (None, None, None, [None], longest),
        (leap.replace(tzinfo=utc), leap, leap.date(), [leap.replace(tzinfo=utc)],
         dt.timedelta(hours=25)),
    ]  # fmt: skip


def test_a_number_too_large_for_38_digits_is_an_error(
    url: str, table: Callable[[str, str], str]
) -> None:
    table("sums", "AS SELECT 1e30::numeric AS total")
    reading = source(url, "sums").reader(source(url, "sums").schema())
    with pytest.raises(StoreError, match=r"\('total'\) does not fit into decimal\(38, 18\)"):
        list(reading.read(Whole()))


def test_what_postgres_refuses_is_a_statements_error(
    url: str, writer: psycopg.Connection[Any], table: Callable[[str, str], str]
) -> None:
    table("changed", "AS SELECT 1 AS id, 2 AS other")
    reading = source(url, "changed").reader(source(url, "changed").schema())
    writer.execute("ALTER TABLE flights.changed DROP COLUMN other")
    with pytest.raises(StatementError, match='column "other" does not exist'):
        list(reading.read(Whole()))


def test_a_schema_of_the_users_must_fit(url: str) -> None:
    wrong = st.StructType([st.StructField("id", st.StringType())])
    with pytest.raises(UsageError, match=r"'id' of 'plain' .bigint. is bigint in Spark"):
        source(url, "plain").reader(wrong)


def test_the_password_is_in_no_message(url: str) -> None:
    nowhere = url.replace("host=", "host=/nowhere")
    assert nowhere != url
    with pytest.raises(StoreUnavailable) as unreachable, snapshot(nowhere, "flights"):
        pass
    with pytest.raises(UsageError) as unknown, snapshot(url, "trains"):
        pass
    assert "pipelines there: flights" in str(unknown.value)
    with snapshot(url) as held:
        assert held.pipeline == "flights"
        texts = [str(unreachable.value), str(unknown.value), repr(held)]
    assert not [text for text in texts if "geheim" in text]


# ---------------------------------------------------------------------------------------- filters

COLUMNS = {
    column.name: column
    for column in (
        SparkColumn("n", "bigint", TYPE_MAPPINGS["int8"]),
        SparkColumn("word", "text", TYPE_MAPPINGS["text"]),
        SparkColumn("loose", "text", TYPE_MAPPINGS["text"], byte_order=False),
        SparkColumn("id", "uuid", TYPE_MAPPINGS["uuid"]),
        SparkColumn("at", "timestamptz", TYPE_MAPPINGS["timestamptz"]),
        SparkColumn("list", "bigint[]", TYPE_MAPPINGS["int8"], is_array=True),
    )
}
MOMENT = dt.datetime(2013, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        (("n", "=", 1), '"n" = %s::bigint', "1"),
        (("n", "==", -1), '"n" = %s::bigint', "-1"),
        (("n", "!=", 1.5), '"n" <> %s::bigint', "1.5"),  # and Postgres says what is wrong
        (("word", "=", "it's"), '"word" = %s::text', "it's"),
        (("loose", "=", "a"), '"loose" COLLATE "C" = %s::text', "a"),
        (("word", "<", "b"), '"word" COLLATE "C" < %s::text', "b"),
        (("at", ">=", MOMENT), '"at" >= %s::timestamptz', "2013-01-01T00:00:00+00:00"),
        (("id", "=", UUID(int=1)), '"id"::text = %s::uuid::text', str(UUID(int=1))),
        (("n", "in", [1, 2]), '"n" = ANY(%s::bigint[])', ["1", "2"]),
        (("id", "not in", []), '"id"::text <> ALL(%s::uuid[]::text[])', []),
        (("n", "=", None), '"n" IS NULL', None),
        (("n", "!=", None), '"n" IS NOT NULL', None),
    ],
)
def test_a_filter_becomes_sql_with_a_parameter(given: Filter, text: str, value: Any) -> None:
    (one,) = parsed(written([given]))
    found = condition(COLUMNS[given[0]], one)
    assert found.text.as_string() == text
    assert list(found.values) == ([] if value is None else [value])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("n", "~", "1"), "'~' and a value; operators for a value: =, ==, !=, <>, <, <=, >, >="),
        (("n", "in", 1), "'in' and a value"),
        (("n", "=", [1]), "'=' and a list; operators for a list: in, not in"),
        (("n", "<", None), "'<' and None"),
        (("list", "=", 1), "an array column"),
        (("n", "=", {1}), "cannot compare with .1., a set"),
        (("n", "in", [None]), 'not JSON like .*"column"'),
    ],
)
def test_a_wrong_filter_is_told(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        condition(COLUMNS[given[0]], *parsed(written([given])))


def test_a_filter_on_an_unknown_column_or_with_a_wrong_value_is_told(url: str) -> None:
    wrong = written([("colour", "=", "red")])
    for options in ({"filters": wrong}, {"filters": wrong, "columns": "id"}):
        made = source(url, "plain", **options)
        with pytest.raises(UsageError, match="'plain' has no column 'colour'; it has: id"):
            made.reader(made.schema())
    made = source(url, "plain", filters=written([("id", "=", "red")]))
    with pytest.raises(StatementError, match='invalid input syntax for type bigint: "red"'):
        list(made.reader(made.schema()).read(Whole()))


def test_names_and_values_cannot_break_out_of_the_statement(
    url: str, table: Callable[[str, str], str]
) -> None:
    evil = 'a"; DROP TABLE flights.plain; --'
    quoted = evil.replace('"', '""')
    table("evil", f"""AS SELECT 'x''; DROP TABLE flights.plain; --'::text AS "{quoted}" """)
    value = "x'; DROP TABLE flights.plain; --"
    made = source(url, "evil", filters=written([(evil, "=", value), (evil, "in", [value])]))
    batches = list(made.reader(made.schema()).read(Whole()))
    assert [batch.to_pylist() for batch in batches] == [[{evil: value}]]


FILTERED = r"""AS SELECT * FROM (VALUES
    (1, 'a', 1.5::float8, 1.10, true, '2013-01-01 00:00+00'::timestamptz, '2013-01-01'::date,
     '\x61'::bytea),
    (2, 'B', 'NaN', 2.20, false, '2013-01-01 00:00:00.000001+00', '2013-01-02', '\x'),
    (3, 'é', '-0', -3.3, NULL, '1900-01-01', '1900-01-01', '\xff'),
    (NULL, '', NULL, NULL, true, NULL, NULL, NULL),
    (5, NULL, '-Infinity', 0, false, '9999-12-31', '9999-12-31', '\x6100')
) AS t (n, word, x, price, flag, at, day, raw)"""
#            what Spark says of all rows, and the filters that must choose the same
PREDICATES: list[tuple[str, list[Filter]]] = [
    ("n = 1", [("n", "=", 1)]),
    ("n <> 1", [("n", "!=", 1)]),
    ("n > 1 AND n <= 3", [("n", ">", 1), ("n", "<=", 3)]),
    ("n IN (1, 2)", [("n", "in", [1, 2])]),
    ("n NOT IN (1, 2)", [("n", "not in", [1, 2])]),
    ("false", [("n", "in", [])]),
    ("n IS NULL", [("n", "=", None)]),
    ("word = ''", [("word", "=", "")]),
    ("word < 'a'", [("word", "<", "a")]),
    ("word > 'z'", [("word", ">", "z")]),
    ("word IN ('a', 'é')", [("word", "in", ["a", "é"])]),
    ("x > 1", [("x", ">", 1)]),
    ("x = double('NaN')", [("x", "=", float("nan"))]),
    ("x = 0", [("x", "=", 0.0)]),
    ("price = 1.1", [("price", "=", Decimal("1.1"))]),
    ("price >= 0", [("price", ">=", 0)]),
    ("flag", [("flag", "=", True)]),
    ("flag IS NOT NULL", [("flag", "!=", None)]),
    ("at > timestamp'2013-01-01 00:00:00'", [("at", ">", MOMENT.replace(tzinfo=None))]),
    ("at = timestamp'2013-01-01 00:00:00'",
     [("at", "=", MOMENT.astimezone(dt.timezone(dt.timedelta(hours=2))))]),
    ("day < date'1970-01-01'", [("day", "<", dt.date(1970, 1, 1))]),
    ("raw = X'61'", [("raw", "=", b"a")]),
    ("raw > X'61'", [("raw", ">", b"a")]),
]  # fmt: skip


@pytest.mark.spark
def test_filters_choose_the_rows_that_spark_would(
    url: str, spark: SparkSession, table: Callable[[str, str], str]
) -> None:
    table("filtered", FILTERED)
    every = source(url, "filtered").schema()
    with snapshot(url, "flights") as held:
        rows = spark.createDataFrame(frame(spark, held, "filtered").collect(), every)
        texts = [text for text, _ in PREDICATES]
        expected = rows.select([F.count_if(F.expr(text)) for text in texts]).first()
        found = []
        for _, filters in PREDICATES:
            made = MillwheelSource(held.options("filtered", filters=filters))
            reading = made.reader(every)
            shares = reading.partitions()
            found.append(sum(batch.num_rows for share in shares for batch in reading.read(share)))
    assert expected is not None
    assert dict(zip(texts, found, strict=True)) == dict(zip(texts, expected, strict=True))


@pytest.mark.spark
def test_queries_on_one_dataframe_do_not_get_each_others_filters(
    url: str, spark: SparkSession
) -> None:
    """As they do in Spark 4.1 to 4.3 with a source that takes over the filters of `where`."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    with snapshot(url, "flights") as held:
        plain = frame(spark, held, "plain")
        one, two = plain.where("id = 1"), plain.where("id = 2")
        assert sorted(row.id for row in one.union(two).collect()) == [1, 2]
        assert plain.count() == ROWS
        few = frame(spark, held, "plain", filters=written([("id", "<", 3)]))
        assert (few.count(), plain.count()) == (2, ROWS)
        plan = few.where("id = 1")._jdf.queryExecution().toString()
    assert "geheim" not in plan


# ----------------------------------------------------------------------------------- with a session


@pytest.mark.spark
def test_all_types_arrive_as_what_they_are(url: str, spark: SparkSession) -> None:
    with snapshot(url, "flights") as held:
        read = frame(spark, held, "typed")
        assert [(field.name, field.dataType.simpleString()) for field in read.schema] == [
            (name, kind) for name, _, _, _, kind in TYPES
        ]
        full, empty = sorted(read.collect(), key=lambda row: row.whole is None)
    assert full.asDict() == {name: value for name, _, _, value, _ in TYPES}
    assert set(empty) == {None}


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_an_instant_is_one_in_any_time_zone(url: str, spark: SparkSession, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        with snapshot(f"{url}&options=-c%20timezone%3DAsia/Tokyo", "flights") as held:
            read = frame(spark, held, "typed").where("at IS NOT NULL")
            micros, hour, wall = read.select(
                F.unix_micros("at"), F.hour("at"), F.hour("wall")
            ).collect()[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert micros == 1_372_672_800_000_001
    assert (hour, wall) == (10 if zone == "UTC" else 6, 23)


@pytest.mark.spark
def test_all_reads_of_a_snapshot_are_of_one_moment(
    url: str,
    spark: SparkSession,
    writer: psycopg.Connection[Any],
    table: Callable[[str, str], str],
) -> None:
    table("one", "AS SELECT id FROM generate_series(1, 5000) AS id")
    table("two", "AS SELECT id FROM generate_series(1, 5000) AS id")
    with snapshot(url, "flights") as held:
        one, two = frame(spark, held, "one"), frame(spark, held, "two")
        assert one.rdd.getNumPartitions() == 4
        before = one.agg(F.count("*"), F.sum("id")).collect()
        writer.execute("DELETE FROM flights.one WHERE id > 10")
        writer.execute("UPDATE flights.two SET id = -id")
        assert one.agg(F.count("*"), F.sum("id")).collect() == before
        assert one.join(two, "id").count() == 5000
    with pytest.raises(PySparkException) as gone:
        two.count()
    error = from_worker(gone.value)
    assert type(error) is SnapshotGone
    assert str(error).startswith("the snapshot ")
    with snapshot(url, "flights") as held:
        assert frame(spark, held, "one").join(frame(spark, held, "two"), "id").count() == 0


@pytest.mark.spark
def test_spark_passes_on_what_is_wrong(url: str, spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as unknown:
        spark.read.format("millwheel").options(store=url, pipeline="flights", table="x").load()
    error = from_worker(unknown.value)
    assert type(error) is UsageError
    assert str(error).startswith("pipeline 'flights' has no table or view 'x'; it has: commit_rec")
    assert "geheim" not in str(unknown.value)


# -------------------------------------------------------------------------------------- the report


AirportHour = dict[flights_oracle.Key, flights_oracle.Counts]


@pytest.fixture
def airport_hour(writer: psycopg.Connection[Any], table: Callable[[str, str], str]) -> AirportHour:
    """What the flights pipeline makes, from the oracle; it is in the table of that name, too."""
    counts = flights_oracle.airport_hour()
    table(
        "airport_hour",
        "(origin text, hour timestamptz, flights bigint, cancelled bigint, delay_minutes bigint, "
        "delayed_15 bigint, PRIMARY KEY (origin, hour))",
    )
    with writer.cursor().copy("COPY flights.airport_hour FROM STDIN") as copy:
        for key, values in counts.items():
            copy.write_row((*key, *values))
    return counts


def means_by_month(airport_hour: AirportHour) -> dict[tuple[str, dt.date], list[float | None]]:
    """What the report must say, without Spark: all, dry and rainy delay, hours without weather."""
    with weather_csv().open() as lines:
        rain = {
            (row["origin"], dt.datetime.fromisoformat(row["time_hour"])): float(row["precip"]) > 0
            for row in csv.DictReader(lines)
        }
    sums: dict[tuple[str, dt.date], Counter[Any]] = defaultdict(Counter)
    for (origin, hour), (flights, cancelled, minutes, _) in airport_hour.items():
        counts = sums[origin, hour.date().replace(day=1)]
        weather = rain.get((origin, hour))
        for kind in ("all", weather):
            counts[kind, "minutes"] += minutes
            counts[kind, "departed"] += flights - cancelled
            counts[kind, "hours"] += 1
    return {
        key: [
            *(
                (
                    counts[kind, "minutes"] / departed
                    if (departed := counts[kind, "departed"])
                    else None
                )
                for kind in ("all", False, True)
            ),
            counts[None, "hours"],
        ]
        for key, counts in sums.items()
    }


@pytest.mark.soak
@pytest.mark.spark
def test_the_report_of_the_whole_year(
    url: str,
    spark: SparkSession,
    airport_hour: AirportHour,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with snapshot(url, "flights") as held:
        job = Job(spark, tmp_path, held, {"store": url})
        report.report(job)
        first = (tmp_path / "airport_month").resolve()
        report.report(job)
    rows = spark.read.parquet(str(tmp_path / "airport_month")).collect()
    found = {
        (row.origin, row.month): [
            row.mean_delay, row.mean_delay_dry, row.mean_delay_rainy, row.hours_unknown
        ]
        for row in rows
    }  # fmt: skip
    expected = means_by_month(airport_hour)
    assert found.keys() == expected.keys()
    assert len(found) == 39
    for key, values in found.items():
        assert values == pytest.approx(expected[key]), key
    assert sum(row.flights for row in rows) == 336_776
    assert sum(row.cancelled for row in rows) == 8_255

    # The second run has replaced the first.
    second = (tmp_path / "airport_month").resolve()
    assert second != first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["airport_month", "airport_month.png", second.name]
    )
    assert (tmp_path / "airport_month.png").read_bytes().startswith(b"\x89PNG")
    printed = " ".join(capsys.readouterr().out.split())
    assert "336,776 flights in 19,486 airport hours; 108 of these have no weather" in printed
    assert str(tmp_path / "airport_month.png") in printed


@pytest.mark.spark
def test_the_report_bears_doubled_missing_and_unknown_weather(
    url: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weather.csv"
    path.write_text(
        "origin,time_hour,precip\n"
        "EWR,2013-11-03T05:00:00Z,0\nEWR,2013-11-03T05:00:00Z,0.2\n"  # the clocks go back
        "EWR,2013-11-03T06:00:00Z,0\n"
        "EWR,2013-11-03T07:00:00Z,NA\n"
    )
    monkeypatch.setattr(report, "weather_csv", lambda: path)
    hours = spark.createDataFrame(
        [
            ("EWR", dt.datetime(2013, 11, 3, 5), 3, 1, 40, 1),
            ("EWR", dt.datetime(2013, 11, 3, 6), 2, 0, 10, 0),
            ("EWR", dt.datetime(2013, 11, 3, 7), 1, 0, 1, 0),
            ("EWR", dt.datetime(2013, 11, 3, 8), 1, 0, 5, 0),
            ("EWR", dt.datetime(2013, 12, 1, 0), 2, 2, 0, 0),
        ],
        "origin string, hour timestamp, flights long, cancelled long, delay_minutes long, "
        "delayed_15 long",
    )
    with snapshot(url, "flights") as held:
        rain = report.weather(Job(spark, tmp_path, held))
        november, december = report.by_month(hours, rain).collect()
    assert (november.mean_delay_rainy, november.mean_delay_dry) == (20, 5)
    assert (november.mean_delay, november.hours_unknown) == (56 / 6, 2)
    assert (december.cancelled_share, december.mean_delay, december.flights) == (1, None, 2)
    report.draw([december], tmp_path / "nothing.png")  # nothing is known: an empty panel


def test_what_is_published_was_written_whole(tmp_path: Path) -> None:
    place = tmp_path / "result"

    def write(text: str) -> Callable[[Path], object]:
        def to(new: Path) -> None:
            new.mkdir()
            (new / "file").write_text(text)

        return to

    def fail(new: Path) -> None:
        new.mkdir()
        raise RuntimeError("half way")

    report.publish(place, write("one"))
    with pytest.raises(RuntimeError):
        report.publish(place, fail)
    assert (place / "file").read_text() == "one"
    report.publish(place, write("two"))
    assert (place / "file").read_text() == "two"


# ------------------------------------------------------------------------------------- running jobs


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of jobs in the current directory, which is not on sys.path."""
    (tmp_path / "wheel_jobs.py").write_text(
        textwrap.dedent("""
            def endless(job):
                from pathlib import Path
                from threading import Event

                def run(rows):
                    Path("running").write_text("now")   # a FIFO: the test waits for it
                    while Event().wait(0.05) is False:
                        yield 1

                job.spark.sparkContext.parallelize([1], 1).mapPartitions(run).count()

            number = 1
            """)
    )
    (tmp_path / "wheel_broken.py").write_text("1 / 0")
    (tmp_path / "wheel_needy.py").write_text("import there_is_no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "wheel_jobs"
    for name in ("wheel_jobs", "wheel_broken", "wheel_needy"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("wheel_jobs", UsageError, "not of the form MODULE:FUNCTION"),
        ("wheel_job:endless", UsageError, "no module 'wheel_job' here"),
        ("wheel_jobs.more:x", UsageError, "no module 'wheel_jobs.more' here"),
        ("wheel_jobs:endles", UsageError, "no function 'endles'; it has: endless"),
        ("wheel_jobs:number", UsageError, "no function 'number'"),
        ("wheel_needy:x", UsageError, "needs 'there_is_no_such_package', which is not installed"),
        ("wheel_broken:x", UserCodeError, "importing wheel_broken failed: ZeroDivisionError"),
    ],
)
def test_a_wrong_target_is_told_before_anything_starts(
    jobs: str, target: str, kind: type[MillwheelError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run_job(target, "postgresql://nobody@nowhere.invalid/x", "flights")


def test_a_function_of_the_current_directory_is_found(jobs: str) -> None:
    assert load_function("wheel_jobs:endless").__name__ == "endless"


WITHOUT = """
import importlib.abc, os, sys

class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pyarrow", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone())
import wheel_plain
from millwheel.cli.main import main

assert "millwheel.spark" not in sys.modules
for command in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        sys.argv = ["millwheel", "spark", *command.split()]
        main()
    _, status = os.waitpid(child, 0)
    print("exit code", os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.mark.process
def test_without_pyspark_it_is_said_what_to_install(tmp_path: Path) -> None:
    """By each command, and by an import: whichever module of ours comes first."""
    (tmp_path / "wheel_plain.py").write_text(
        "from millwheel import *\npipeline = Pipeline('plain')\n"
        "LINES = Stream('lines', str)\n"
        "pipeline.inject(LINES, JsonLines('lines'), timestamp=lambda line: None)\n"
        "pipeline.sink(LINES, Console())\n"
        "def job(job): ...\n"
    )
    commands = (
        "report wheel_plain:job",
        "aggregate wheel_plain:pipeline",
        "run wheel_plain:pipeline --checkpoint x",
        "take wheel_plain:pipeline --checkpoint x",
        "return wheel_plain:pipeline",
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *commands],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    *each, rest = done.stdout.split(f"exit code {UsageError.exit_code}\n")
    assert (len(each), rest) == (len(commands), ""), done.stdout
    for said in each:
        assert "Spark needs the package pyspark, which is not installed: pip install" in said
        assert "millwheel-engine[spark]'" in said
        assert "bug" not in said


def test_a_job_may_only_ask_for_what_is_there(url: str, tmp_path: Path) -> None:
    with (
        snapshot(url, "flights") as held,
        pytest.raises(UsageError, match="no table or view 'x'; it has: commit_record, empty"),
    ):
        Job(None, tmp_path, held).table("x")  # type: ignore[arg-type] # it does not get that far


@pytest.mark.spark
def test_a_second_session_is_refused(url: str, spark: SparkSession, jobs: str) -> None:
    with pytest.raises(UsageError, match="already has a Spark session"):
        run_job("wheel_jobs:endless", url, "flights")


@pytest.mark.soak
@pytest.mark.spark
def test_sigterm_ends_a_running_job_and_leaves_nothing(
    url: str, jobs: str, tmp_path: Path, writer: psycopg.Connection[Any]
) -> None:
    os.mkfifo(tmp_path / "running")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = (
        "import sys; from millwheel.spark import run_job; run_job('wheel_jobs:endless', "
        "*sys.argv[1:])"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", program, url, "flights"],
        env=os.environ | {"PYTHONPATH": str(root), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert (tmp_path / "running").read_text() == "now"
        process.terminate()
        # The JVM and the workers have the same standard output: its end is theirs.
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert said == "", "no greetings, no stack traces"
    assert [path.name for path in scratch.iterdir() if path.name.startswith("millwheel")] == []
    left = writer.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s",
        [connections.APPLICATION],
    ).fetchone()
    assert left == (0,)


def jvm_call(wait: Callable[[], object]) -> None:
    """Run `wait` as if py4j did."""
    exec("wait()", {"__name__": "py4j.java_gateway", "wait": wait})


@pytest.mark.parametrize(
    ("number", "exception"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_inside_a_jvm_call_cancels_it_and_is_raised_after_it(
    number: signal.Signals, exception: type[BaseException]
) -> None:
    cancelled = threading.Event()
    returned = False
    before = signal.getsignal(number)

    def answer() -> None:
        nonlocal returned
        os.kill(os.getpid(), number)
        assert cancelled.wait(60)
        returned = True

    def run() -> None:
        with Interruptible() as interruptible:
            interruptible.cancel_by(cancelled.set)
            jvm_call(answer)
            threading.Event().wait(10)  # the signal comes again, outside the call

    with pytest.raises(exception) as raised:
        run()
    assert returned
    assert signal.getsignal(number) == before
    if exception is SystemExit:
        assert raised.value.args == (143,)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_elsewhere_is_raised_at_once_and_one_while_closing_never() -> None:
    with pytest.raises(KeyboardInterrupt), Interruptible():
        interrupted()
    with Interruptible() as interruptible:
        interruptible.close()
        interrupted()


def test_the_error_of_a_cancelled_job_gives_way_to_the_signal() -> None:
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ConnectionError("the JVM was signalled too")

    with pytest.raises(SystemExit), Interruptible():
        jvm_call(killed)


def test_files_of_killed_sessions_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, foreign = tmp_path / "millwheel-spark-killed", tmp_path / "millwheel-spark-foreign"
    killed.mkdir()
    (killed / "lock").touch()
    foreign.mkdir()
    waiting = tmp_path / "millwheel-spark-waiting"
    waiting.mkdir()
    os.mkfifo(waiting / "lock")
    with sessions._scratch() as alive:
        assert not killed.exists()
        with sessions._scratch():
            assert alive.exists()
    assert {*tmp_path.iterdir()} == {foreign, waiting}, "a FIFO is not opened, which would wait"


def test_an_error_from_a_worker_comes_out_as_what_it_was() -> None:
    from pyspark.errors import PythonException

    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  "
        'File "x.py", line 1\nmillwheel.errors.StoreUnavailable: no store\nDETAIL: none'
        "\n SQLSTATE: 38000"
    )
    error = from_worker(PythonException(text))
    assert type(error) is StoreUnavailable
    assert str(error) == "no store\nDETAIL: none"
    chained = (
        'Traceback (most recent call last):\n  File "/home/ada/shop.py", line 7, in '
        "process_record\n    prices[item]\nKeyError: 'x'\n\nThe above exception was the direct "
        "cause of the following exception:\n\nTraceback (most recent call last):\n  File "
        '"/home/ada/shop.py", line 9, in check\n    check(item)\n  File "/home/ada/shop.py", line '
        "7, in process_record\n    prices[item]\n  File "
        '"/usr/lib/python3.13/asyncio/base_events.py", line 653, in run\n    '
        "future.result()\nmillwheel.errors.UsageError: no such item\n\nThe above exception was "
        "the direct cause of the following exception:\n\nTraceback (most recent call "
        "last):\nmillwheel.errors.UserCodeError: key 13: KeyError: 'x'\n SQLSTATE: 38000"
    )
    error = from_worker(PythonException(chained))
    assert type(error) is UserCodeError
    assert str(error).splitlines() == [
        "key 13: KeyError: 'x'",
        "  /home/ada/shop.py:7 in process_record: prices[item]",
        "  /home/ada/shop.py:9 in check: check(item)",
    ]
    assert from_worker(PythonException("builtins.ValueError: millwheel.errors.Nothing: x")) is None
    assert from_worker(ValueError("millwheel.errors.StoreError: x")) is None
    java = (
        "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.\n\tat "
        "org.apache.A(A.scala:1)\nCaused by: java.lang.RuntimeException: a wrapper\n\tat "
        "org.apache.B(B.scala:2)\nCaused by: java.io.IOException: No space left on device\n\t... "
        "20 more"
    )
    assert error_text(PythonException(java)).splitlines() == [
        "PythonException: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.",
        "caused by java.io.IOException: No space left on device",
    ]


def test_progress_off_a_terminal_is_a_line_for_what_takes_long() -> None:
    lines = _Lines(clock=iter([0.0, 5.0, 9.9, 10.0, 15.0, 25.0, 26.0]).__next__)
    counting = StageProgress(1, "count at jobs.py:7", 8, 2)
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            lines.show([counting, StageProgress(2, "short", 1, 0)])
        assert logged == []
        for _ in range(3):
            lines.show([counting])
        lines.show([])
    assert [(entry["event"], entry["stage"], entry["seconds"]) for entry in logged] == [
        ("spark stage runs", 1, 10.0),
        ("spark stage runs", 1, 25.0),
        ("spark stage done", 1, 26.0),
    ]


def test_progress_on_a_terminal_is_a_bar_that_goes_away() -> None:
    out = io.StringIO()
    with _display(Console(file=out, force_terminal=True, width=60)) as display:
        assert isinstance(display, _Bars)
        display.show([StageProgress(3, "count", 8, 2)])
        display._progress.refresh()
        assert "stage 3" in out.getvalue()
        assert "2/8" in out.getvalue()
        display.show([])
        assert display._progress.tasks == []
    with _display(Console(file=io.StringIO())) as display:
        assert isinstance(display, _Lines)


def test_a_session_starts_from_a_home_without_the_packed_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    home = sessions._home(tmp_path)
    assert home is not None
    assert (home / "jars").is_dir()
    assert not (home / "python").exists()


def test_an_installation_of_spark_of_the_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert sessions._home(tmp_path) is None
