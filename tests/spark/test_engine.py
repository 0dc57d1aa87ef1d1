"""``millwheel spark run`` without Java: the product's source, operators and tables, on a stand-in
for Spark's operator."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import count as count_from
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pyarrow as pa
import pytest
from msgspec import structs
from psycopg import sql
from pyspark.sql.streaming.datasource import ReadMaxRows

from examples.nexmark.options import Options
from examples.nexmark.sources import write
from millwheel import Computation, Context, Pipeline, Record, Stream, Timer
from millwheel.bundles import Bundles
from millwheel.cli.commands.status_command import status
from millwheel.cli.options import CommonOptions
from millwheel.cli.refreshing import WatchOptions
from millwheel.computations import FlatMap, Windowed, count
from millwheel.core.codec import slot_of
from millwheel.core.model import EPOCH, MAX_TIME, MIN_TIME
from millwheel.errors import (
    DeployRefused,
    InputError,
    SparkRefused,
    StoreUnavailable,
    UsageError,
    UserCodeError,
)
from millwheel.files import JsonLines
from millwheel.services.run import Run
from millwheel.sinks import Console, Discard, JsonLinesFiles
from millwheel.spark.engine import buckets as buckets_
from millwheel.spark.engine import input as input_
from millwheel.spark.engine import running
from millwheel.spark.engine.buckets import bucket_of
from millwheel.spark.engine.input import ClockPart, InputReader, ReadAhead
from millwheel.spark.engine.moved_keys import COLUMNS as STATE_COLUMNS
from millwheel.spark.engine.moving import Moving
from millwheel.spark.engine.plan import SparkPlan, planned
from millwheel.spark.engine.query import BatchDone, QueryRun
from millwheel.spark.engine.query_progress import StoredQuery
from millwheel.spark.engine.refusals import refuse
from millwheel.spark.engine.result_writer import PARCELS, ResultWriter
from millwheel.spark.engine.running import deploy_on_spark, run_on_spark
from millwheel.spark.engine.staged_results import Results
from millwheel.spark.engine.stream_rows import (
    StreamRow,
    column_text,
    decode_rows,
    encode_rows,
    mark_of,
    micros_of_watermark,
    millis_of_timer,
)
from millwheel.spark.launch import Cluster
from millwheel.spark.staging import StagingWriter
from millwheel.store.console.migrate import migrate
from millwheel.windows import Early, Pane, Tumbling
from tests.following import service as following
from tests.spark.stand_in import BUCKETS, QUERY, Batch, StandIn, Task, made_rows
from tests.support import spark_pipelines
from tests.support.spark_inputs import write_flights, write_lines
from tests.support.spark_pipelines import FILE, FINAL, LINES, Line, Seen, Word

MODULE = "tests.support.spark_pipelines"
FLIGHTS = 1_600


@dataclass(frozen=True)
class Place:
    """A server, and the ways to run a pipeline on it."""

    url: str

    def engine(self, name: str) -> str:
        """Run a pipeline with the engine, under another name."""
        pipeline: Pipeline = getattr(spark_pipelines, name)()
        pipeline.name += "_by_engine"
        migrate(self.url, pipeline.name)
        asyncio.run(Run(pipeline, self.url).run())
        return pipeline.name

    def stand_in(self, name: str, **options: Any) -> StandIn:
        """A pipeline, ready to run as Spark would."""
        planned.cache_clear()
        plan = planned(f"{MODULE}:{name}")
        migrate(self.url, plan.pipeline.name)
        asyncio.run(deploy_on_spark(plan, self.url, "/checkpoint"))
        return StandIn(f"{MODULE}:{name}", plan, self.url, **options)

    def engine_so_far(self, name: str) -> Pipeline:
        """Run a pipeline with the engine over the input that is there, and leave its windows
        open."""
        pipeline: Pipeline = getattr(spark_pipelines, name)()
        migrate(self.url, pipeline.name)
        asyncio.run(Run(pipeline, self.url, keep_open=True).run())
        return pipeline

    def rows(self, pipeline: str, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        text = sql.SQL("SELECT {} FROM {} AS t ORDER BY t::text").format(
            sql.SQL(columns), sql.Identifier(pipeline, table)
        )
        return sorted(self.query(text), key=repr)

    def query(self, text: sql.SQL | sql.Composed) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(text).fetchall()


async def until(run: Run, seconds: float) -> None:
    """Let the engine run for some time."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    await run.run(stop)


@pytest.fixture
def place(postgres_url: Callable[[int], str]) -> Iterator[Place]:
    found = Place(postgres_url(18))
    yield found
    with psycopg.connect(found.url, autocommit=True) as connection:
        for name in (
            *FINAL,
            "trouble",
            "identified",
            "strict",
            "hidden",
            "ordered",
            "two_levels",
            "keeping",
            "stacked",
        ):
            pipeline = getattr(spark_pipelines, name)().name
            for schema in (pipeline, f"{pipeline}_by_engine", "airports"):
                connection.execute(
                    sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema))
                )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all pipelines."""
    directory = tmp_path_factory.mktemp("inputs")
    write_flights(directory / "flights.jsonl", FLIGHTS)
    write_lines(directory / "lines.jsonl", 600)
    write(directory / "events", Options(events=6_000, rate=100, group=50))
    return directory


@pytest.fixture(autouse=True)
def environment(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Names the input of a pipeline."""
    monkeypatch.setenv("NEXMARK_DIR", str(inputs / "events"))
    monkeypatch.setenv("NEXMARK_LATENESS", "1")
    # The records of a key in a batch come in several parcels, in no order.
    monkeypatch.setattr(input_, "READ_ROWS", 7)
    monkeypatch.setattr(input_, "PACKED_ROWS", 7)

    def choose(name: str) -> None:
        file = "lines.jsonl" if name == "words" else "flights.jsonl"
        monkeypatch.setenv(FILE, str(inputs / file))

    choose("hours")
    return choose


IN_ONE_BATCH = ("hours", "words")
QUICKLY = ("hours", "hours_by_query", "legs", "words", "rested")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *(pytest.param(n, 150, marks=() if n in QUICKLY else pytest.mark.soak) for n in FINAL),
        *(pytest.param(n, 100_000, marks=pytest.mark.soak) for n in IN_ONE_BATCH),
    ],
)
def test_final_rows_are_those_of_the_engine(
    name: str, rows: int, place: Place, environment: Callable[[str], None]
) -> None:
    environment(name)
    engine = place.engine(name)
    stand_in = place.stand_in(name, rows=rows)
    stand_in.run()
    pipeline = getattr(spark_pipelines, name)().name
    for table, columns in FINAL[name].items():
        expected = place.rows(engine, table, columns)
        assert len(expected) > 5
        assert place.rows(pipeline, table, columns) == expected


@pytest.mark.parametrize(
    "name", ["hours", *(pytest.param(n, marks=pytest.mark.soak) for n in FINAL if n != "hours")]
)
def test_keys_that_share_a_bucket_share_nothing_else(
    name: str, place: Place, environment: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys of a step in one bucket, whose pages split from batch to batch."""
    monkeypatch.setattr(buckets_, "PAGE_BYTES", 700)
    environment(name)
    engine = place.engine(name)
    place.stand_in(name, rows=150, buckets=1).run()
    pipeline = getattr(spark_pipelines, name)().name
    for table, columns in FINAL[name].items():
        assert place.rows(pipeline, table, columns) == place.rows(engine, table, columns)


def keys_of_bucket(number: int) -> Iterator[str]:
    """Texts that are keys of a bucket."""
    for n in count_from(0):
        if bucket_of(slot_of(f'"k{n}"'.encode()), BUCKETS) == number:
            yield f"k{n}"


def test_a_bucket_is_called_when_its_first_timer_is_due(place: Place, troubled: Path) -> None:
    """Then when the next one is; no record of the bucket comes in the meantime."""
    one, two = islice(keys_of_bucket(5), 2)
    other = next(keys_of_bucket(6))
    lines = [(1_000, one), (1_500, two), (1_501, other), (1_502, other), (1_600, other)]
    troubled.write_text("".join(json.dumps({"at": a, "text": t}) + "\n" for a, t in lines))
    fired = []

    def look() -> None:
        fired.append({row[0] for row in place.rows("trouble", "seen")} - {other})

    place.stand_in("trouble", rows=1).run(most=5, after=look)
    assert fired == [set(), set(), {one}, {one}, {one, two}]


def test_a_batch_comes_to_the_same_result_in_any_order(place: Place, troubled: Path) -> None:
    """Its rows reach a bucket in no order, and a driver that was killed may run it again."""
    stand_in = place.stand_in("trouble", rows=100_000, buckets=1)
    reader = stand_in._reader
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadMaxRows(100_000))
    rows = [
        row
        for part in reader.partitions(first, end)
        for arrow in reader.read(part)
        for row in made_rows(arrow)
    ]
    reader.stop()
    assert len(rows) > 20
    found = []
    for order in (rows, rows[::-1]):
        task = Task(f"{MODULE}:trouble", 1, 1, MIN_TIME)
        parcels = task.run(order, Batch(0, 0, 0)) + task.run([], Batch(10**9, 0, 0))
        made = [row for parcel in parcels for row in decode_rows(parcel.rows)]
        found.append(sorted(row for row in map(structs.astuple, made) if row[1] == "table"))
    assert found[0] == found[1] != []


def write_trouble(path: Path) -> None:
    """Lines of ten keys in order, with one that fails of each key, one that waits, and one that is
    no line."""
    lines = [{"at": at, "text": f"key_{at % 10}"} for at in range(1_000, 1_400)]
    lines += [{"at": 1_400 + key, "text": "bad_x"} for key in range(3)]
    text = [json.dumps(line) for line in [*lines, {"at": 1_500, "text": "awaits"}]]
    text.insert(50, "no line")
    path.write_text("\n".join(text) + "\n")


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "trouble.jsonl"
    write_trouble(file)
    monkeypatch.setenv(FILE, str(file))
    return file


@pytest.mark.parametrize("rows", [37, 100_000])
def test_a_record_that_fails_is_set_aside(rows: int, place: Place, troubled: Path) -> None:
    """It is tried again first; the key goes on without it; a line that is none is a dead letter
    too."""
    spark_pipelines.Trouble.tries = 0
    place.stand_in("trouble", rows=rows).run()
    seen = {row[0]: row[1:] for row in place.rows("trouble", "seen")}
    assert seen == {f"key_{n}": (40, True) for n in range(10)} | {"await": (1, True)}
    ((counters,),) = place.query(sql.SQL("SELECT counters FROM trouble.spark_queries"))
    assert counters["trouble"] == {"processed": 404, "counted": 401, "dead_letters": 3}
    assert counters["lines_injector"] == {"bad_rows": 1}
    letters = place.query(
        sql.SQL("SELECT computation, key, attempts, error FROM trouble.dead_letters ORDER BY 1, 3")
    )
    assert [letter[:3] for letter in letters] == [
        ("lines_injector", None, 1),
        *[("trouble", "bad_x", 3)] * 3,
    ]
    assert "line 51" in letters[0][3]
    assert letters[1][3] == "ValueError: a bad line"
    assert spark_pipelines.Trouble.tries == 1 + 3 * 3, "once quickly, then each three times"


def test_a_failed_record_leaves_nothing_to_the_others(place: Place, troubled: Path) -> None:
    """Those of its key, and of its bucket: they run again, and count once."""
    lines = ["key_1", "key_1 bad", "key_1", "key_2"]
    text = [json.dumps({"at": at, "text": line}) + "\n" for at, line in enumerate(lines, 1_000)]
    troubled.write_text("".join(text))
    place.stand_in("trouble", buckets=1).run()
    ((counters,),) = place.query(sql.SQL("SELECT counters FROM trouble.spark_queries"))
    assert counters["trouble"] == {"processed": 4, "counted": 3, "dead_letters": 1}
    assert place.rows("trouble", "seen") == [("key_1", 2, True), ("key_2", 1, True)]


@pytest.mark.parametrize("rows", [37, 100_000])
def test_records_with_ids_keep_the_order_of_their_source(
    rows: int, place: Place, troubled: Path
) -> None:
    """Though a task runs the ids of a batch in the order of a hash: for a computation, a log and a
    last value."""
    place.stand_in("identified", rows=rows, tasks=3).run()
    seen = {row[0]: row[1:] for row in place.rows("identified", "seen")}
    assert seen == {f"key_{n}": (40, True) for n in range(10)} | {"await": (1, True)}
    log = place.query(
        sql.SQL("SELECT sequence, text, at FROM identified.line_log ORDER BY sequence")
    )
    assert [row[0] for row in log] == list(range(404))
    of: dict[str, list[int]] = {}
    for _, text, at in log:
        of.setdefault(text, []).append(at)
    assert all(times == sorted(times) for times in of.values())
    last = dict(place.rows("identified", "last_line", "text, at"))
    assert last == {text: times[-1] for text, times in of.items()}


def test_status_tells_of_the_query_and_not_of_workers(
    place: Place, troubled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.stand_in("trouble").run()
    status("trouble", watching=WatchOptions(), common=CommonOptions(store=place.url))
    said = capsys.readouterr().out
    assert "runs on Spark, with the checkpoint /checkpoint" in said
    assert re.search(
        r"batch 1 was done [\d.]+ s ago; the sources had promised end of time", said
    ), said
    assert re.search(r"trouble +\| counted +\| +401", said), said
    assert "no worker" not in said


def test_rows_of_a_numbered_table_have_no_gaps(place: Place, troubled: Path) -> None:
    """Others follow it as a table of the engine; the rows of a key are in their order."""
    place.stand_in("trouble", rows=37, tasks=3).run()
    rows = place.query(
        sql.SQL("SELECT sequence, sender, key, lines FROM trouble.seen_log ORDER BY sequence")
    )
    assert [row[0] for row in rows] == list(range(len(rows)))
    written = place.query(
        sql.SQL("SELECT table_name, sender, rows, ended FROM trouble.numbered_rows")
    )
    assert written == [("seen_log", rows[0][1], len(rows), False)]
    of: dict[str, list[int]] = {}
    for _, _, key, lines in rows:
        of.setdefault(key, []).append(lines)
    assert all(lines == sorted(lines) for lines in of.values())


def test_an_error_ends_the_query_and_names_the_record(place: Place, troubled: Path) -> None:
    (troubled.parent / "trouble.jsonl").write_text(json.dumps({"at": 1, "text": "bad_x"}) + "\n")
    with pytest.raises(
        UserCodeError,
        match=r"'trouble' failed on a record.*key 'bad_x', number 0: ValueError: a bad line",
    ) as error:
        place.stand_in("strict").run()
    assert "Nothing of it was committed" in str(error.value)
    assert place.rows("strict", "seen") == []


def test_a_context_ends_with_the_call_of_its_key(place: Place, troubled: Path) -> None:
    """The next key of the bucket has another one: what is left of the first call changes
    nothing."""
    spark_pipelines.Keeping.kept.clear()
    lines = [{"at": 1, "text": text} for text in ("a", "b")]
    troubled.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserCodeError, match=r"ctx.produce after the call .* had ended"):
        place.stand_in("keeping", buckets=1).run()
    assert place.rows("keeping", "seen") == []


def test_timers_for_the_past_fire_before_the_next_record(place: Place, troubled: Path) -> None:
    """Also those that timers set, in the same batch."""
    lines = [{"at": 20_000, "text": "first"}, {"at": 20_001, "text": "last"}]
    far = [{"at": at, "text": "far"} for at in (30_000_000, 30_000_001)]
    troubled.write_text("".join(json.dumps(line) + "\n" for line in [*far, *lines]))
    stand_in = place.stand_in("ordered", rows=2)
    stand_in.run()
    ((ran, *_),) = place.rows("ordered", "seen")
    assert ran.endswith("record 20000 first 20000 second 20000 record 20001")


def test_windows_of_windows_are_on_time(place: Place, troubled: Path) -> None:
    """Windows that close in one batch are older than its watermark, and not late one level
    above."""
    lines = [{"at": at, "text": text} for at in range(0, 7_200, 60) for text in "ab"]
    troubled.write_text("".join(json.dumps(line) + "\n" for line in lines))
    place.stand_in("stacked", rows=1_000).run()
    assert place.rows("stacked", "late") == []
    hours = place.rows("stacked", "hours")
    of = {key: sum(row[1] for row in hours if row[0] == key) for key in "ab"}
    assert of == {"a": 120, "b": 120}


def test_what_is_late_for_its_sender_is_late_one_level_above(place: Place, troubled: Path) -> None:
    """And what comes on time with it is not."""
    lines = [(100, "a"), (110, "a b"), (500, "a"), (101, "a b"), (510, "b"), (900, "c")]
    troubled.write_text("".join(json.dumps({"at": at, "text": text}) + "\n" for at, text in lines))
    place.stand_in("two_levels", rows=1).run()
    assert place.rows("two_levels", "late_words") == [("a",), ("b",)]
    assert sorted(place.rows("two_levels", "minutes")) == [
        ("a", 60, 120, 2), ("a", 480, 540, 1), ("b", 60, 120, 1), ("b", 480, 540, 1),
        ("c", 900, 960, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "reason"),
    [("wall", "wall timers"), ("hold", "hold_watermark"), ("execute", "ctx.execute")],
)
def test_what_only_a_call_shows_is_refused_then(
    what: str, reason: str, place: Place, troubled: Path
) -> None:
    """It is no error of the record: it does not become a dead letter."""
    troubled.write_text(json.dumps({"at": 1, "text": what}) + "\n")
    with pytest.raises(
        SparkRefused,
        match=f"'hidden' cannot run on Spark: with key '{what}' it used {reason}|{reason}",
    ):
        place.stand_in("hidden").run()


def test_a_batch_is_written_once(place: Place) -> None:
    """A driver that is killed after the store's commit does the batch again: it is there, and is
    left out."""
    stand_in = place.stand_in("hours", rows=200)
    stand_in.run(most=3)
    stored = StoredQuery(place.url, "flights")
    rows = place.rows("flights", "pane_log")
    assert stored.next_of(QUERY, 2) is None
    assert stored.next_of(QUERY, 3) is not None
    with pytest.raises(
        UsageError, match=r"older than the tables.*batch 1 again.*Nothing was written"
    ):
        stored.next_of(QUERY, 1)
    with pytest.raises(UsageError, match=r"older than the checkpoint.*in between would be missing"):
        stored.next_of(QUERY, 4)
    other = QUERY.replace("0001", "0002")
    with pytest.raises(
        UsageError, match=r"3 batches of the query .*was deleted, or replaced.*Restore it"
    ):
        stored.next_of(other, 0)
    assert place.rows("flights", "pane_log") == rows


def test_a_checkpoint_that_was_deleted_is_missed_before_spark_starts(
    place: Place, tmp_path: Path
) -> None:
    planned.cache_clear()
    plan = planned(f"{MODULE}:hours")
    migrate(place.url, "flights")
    asyncio.run(deploy_on_spark(plan, place.url, str(tmp_path)))
    stored = StoredQuery(place.url, "flights")
    stored.load().refuse_lost_checkpoint("flights")  # there is nothing to lose yet
    StandIn(f"{MODULE}:hours", plan, place.url, rows=200).run(most=2)
    with pytest.raises(UsageError, match=r"hold 2 batches.*was deleted.*Restore it"):
        stored.load().refuse_lost_checkpoint("flights")
    (tmp_path / "metadata").write_text("{}")
    stored.load().refuse_lost_checkpoint("flights")


def test_a_batch_that_was_written_runs_again_for_its_state(place: Place) -> None:
    """The driver was killed after the store's commit: Spark does the batch again, and needs the
    state of it."""
    stand_in = place.stand_in("hours", rows=200)
    stand_in.run(most=3)
    rows = place.rows("flights", "pane_log")
    stand_in.batches = 2
    stand_in._batch([], Batch(0, 0, 0))
    assert stand_in.batches == 3
    assert place.rows("flights", "pane_log") == rows


@contextmanager
def staged(place: Place) -> Iterator[tuple[StoredQuery, Callable[[], int]]]:
    """A query whose second batch is staged, as two tasks of Spark do, and how it is moved into the
    tables."""
    place.stand_in("hours", rows=200).run(most=1)
    stored = StoredQuery(place.url, "flights")
    before = stored.next_of(QUERY, 1)
    assert before is not None
    with closing(Results(stored, SparkPlan.of(spark_pipelines.hours()).graph, {})) as results:
        results.prepare()
        writer = ResultWriter(place.url, ("flights", "staging_of_spark"), QUERY)
        counted = [
            StreamRow(b"", "counter", f'["x", "x", {n}]'.encode(), 0, False, n) for n in (1, 2)
        ]
        tasks = [
            pa.RecordBatch.from_pydict({PARCELS: [encode_rows([counter])]}) for counter in counted
        ]
        writer.commit([writer.write(iter([rows])) for rows in tasks])
        yield stored, partial(results.move, before, QUERY, QUERY)


def test_two_processes_do_not_write_one_batch(place: Place) -> None:
    with staged(place) as (stored, move):
        move()
        assert stored.load().counters["x"] == {"x": 3}
        with pytest.raises(UsageError, match="another process has done batch 1"):
            move()


GONE = {
    "a crash": "TRUNCATE flights.staging_of_spark, flights.staging_of_spark_batches",
    "a part": "DELETE FROM flights.staging_of_spark WHERE seq = 1",
}


@pytest.mark.parametrize("how", [*GONE, "another process"])
def test_staged_rows_that_are_gone_are_missed(place: Place, how: str) -> None:
    """The tables are unlogged, and tasks that are repeated may outlive a crash of the server."""
    with staged(place) as (stored, move):
        if how == "another process":
            Results(stored, SparkPlan.of(spark_pipelines.hours()).graph, {}).prepare()
        else:
            with psycopg.connect(place.url) as connection:
                connection.execute(GONE[how].encode())
        with pytest.raises(StoreUnavailable, match="rows of a batch are gone"):
            move()
        assert stored.load().batch == 0


class NoBatch:
    """A query of Spark that ends without a batch."""

    def awaitTermination(self, seconds: float) -> bool:
        return True

    def stop(self) -> None:
        """Nothing is left."""


def test_who_has_taken_nothing_over_keeps_the_state(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is new, so that Spark does no batch: the next run begins with the states."""
    place.engine_so_far("hours")
    plan = SparkPlan.of(spark_pipelines.hours())
    moved = Moving(plan, place.url).to_spark(str(tmp_path / "checkpoint"), lambda *found: None)
    stored = StoredQuery(place.url, "flights")
    run = QueryRun(
        MagicMock(), f"{MODULE}:hours", plan, stored, MagicMock(), str(tmp_path / "checkpoint"), {},
        ends=True,
    )  # fmt: skip
    monkeypatch.setattr(run, "_start", lambda *_: NoBatch())
    assert not run.take_over({}, lambda _: None)
    assert len(place.rows("flights", "spark_start")) == moved > 0


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_a_store_that_is_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """As aggregates wait: the query begins anew where it was, for as long as the settings say."""
    tries: list[str] = []

    class Failing:
        def __init__(self, *_: Any, **options: Any) -> None:
            pass

        def until_end(self, done: Callable[[BatchDone], None], idle: Callable[[], None]) -> None:
            tries.append("run")
            if len(tries) < 3:
                raise StoreUnavailable("the server is gone")
            done(BatchDone(0, 1))
            idle()

    @contextmanager
    def session(*_: Any, **options: Any) -> Iterator[tuple[MagicMock, dict[str, str]]]:
        yield MagicMock(), {}

    pipeline = spark_pipelines.hours()
    pipeline.settings = replace(pipeline.settings, store_patience_seconds=seconds)
    stored = MagicMock()
    stored.load.return_value.may_have_start = False
    monkeypatch.setattr("millwheel.spark.patience.AWAY_SECONDS", 0.01)
    monkeypatch.setattr("millwheel.spark.engine.query.QueryRun", Failing)
    monkeypatch.setattr(running, "launched", session)
    monkeypatch.setattr(running, "Results", MagicMock())
    run = partial(
        running._run_query,
        SparkPlan.of(pipeline),
        "a:b",
        stored,
        "/checkpoint",
        {},
        Cluster(),
        None,
        ends=True,
    )
    if seconds:
        run()
        assert len(tries) == 3
    else:
        with pytest.raises(StoreUnavailable, match="the server is gone"):
            run()
        assert len(tries) == 2


def test_one_process_runs_a_query(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.spark.store_sessions.SOLE_SECONDS", 0.0)
    pipeline = spark_pipelines.hours()
    migrate(place.url, pipeline.name)
    with (
        StoredQuery(place.url, pipeline.name).sole(),
        pytest.raises(UsageError, match="another process runs pipeline 'flights' on Spark; end it"),
    ):
        run_on_spark(pipeline, f"{MODULE}:hours", place.url, checkpoint="/checkpoint")


def test_a_used_checkpoint_is_not_begun_with(place: Place, tmp_path: Path) -> None:
    """A pipeline that was moved there and back goes there again: the old checkpoint has batches."""
    place.engine_so_far("legs")
    moving = Moving(SparkPlan.of(spark_pipelines.legs()), place.url)
    (tmp_path / "offsets").mkdir()
    with pytest.raises(UsageError, match=r"is that of another query, or of an earlier one: give"):
        moving.to_spark(str(tmp_path), lambda *found: None)
    assert place.query(sql.SQL("SELECT * FROM flights_trips.spark_query")) == []
    plan = SparkPlan.of(spark_pipelines.hours())
    migrate(place.url, "flights")
    asyncio.run(deploy_on_spark(plan, place.url, "s3://elsewhere"))
    with pytest.raises(UsageError, match=r"s3://elsewhere has batches, and the store has none"):
        StoredQuery(place.url, "flights").next_of(QUERY, 3)


def test_ended_partitions_take_no_share_of_a_batch(tmp_path: Path) -> None:
    made = Pipeline("shares")
    files = []
    for number, count_of in enumerate((1, 1, 500)):
        files.append(tmp_path / f"{number}.jsonl")
        write_lines(files[-1], count_of)
    made.inject(
        LINES, JsonLines(files), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    made.sink(LINES, Discard())
    with closing(ReadAhead(SparkPlan.of(made), keep_open=False)) as ahead:
        offset: dict[str, Any] = {"mark": MIN_TIME, "partitions": {}}
        for end in (28, 58, 88):
            offset = ahead.cut(offset, 30)
            found = {place["next"] for place in offset["partitions"].values()}
            assert found == {1, end}


def test_a_pipeline_runs_in_one_place(place: Place) -> None:
    """The engine does not begin without the state that Spark has, and the other way round."""
    place.stand_in("hours", rows=200).run(most=1)
    pipeline = spark_pipelines.hours()
    with pytest.raises(
        DeployRefused, match="runs on Spark, and its state is in the checkpoint /checkpoint"
    ):
        asyncio.run(Run(pipeline, place.url).run())
    plan = SparkPlan.of(pipeline)
    with pytest.raises(
        DeployRefused, match="hold the results of a query with the checkpoint /checkpoint"
    ):
        asyncio.run(deploy_on_spark(plan, place.url, "/another"))
    engine = place.engine("hours")
    plan.pipeline.name = plan.graph.name = engine
    with pytest.raises(
        DeployRefused, match=r"the engine has run pipeline .* and its state is there"
    ):
        asyncio.run(deploy_on_spark(plan, place.url, "/checkpoint"))


def test_a_changed_graph_is_refused(place: Place, environment: Callable[[str], None]) -> None:
    """A computation at another level would begin without its state."""
    environment("words")
    place.stand_in("words", rows=50).run(most=1)
    pipeline = spark_pipelines.words()
    pipeline.add(
        FlatMap(lambda line: [], to=Stream("nothing", Word)), LINES.by(lambda line: line.text)
    )
    pipeline.sink(Stream("nothing", Word), Discard())
    with pytest.raises(UsageError, match=r"graph of pipeline 'words' has changed .make_nothing"):
        asyncio.run(deploy_on_spark(SparkPlan.of(pipeline), place.url, "/checkpoint"))


def test_a_query_that_has_done_nothing_may_change(
    place: Place, environment: Callable[[str], None], tmp_path: Path
) -> None:
    """A start that fails before its first batch has deployed the graph; the corrected code is not
    bound to it."""
    environment("words")
    stand_in = place.stand_in("words")
    pipeline = spark_pipelines.words()
    pipeline.add(
        FlatMap(lambda line: [], to=Stream("nothing", Word)), LINES.by(lambda line: line.text)
    )
    pipeline.sink(Stream("nothing", Word), Discard())
    (tmp_path / "offsets").mkdir()
    with pytest.raises(DeployRefused, match="No batch was done: delete the checkpoint"):
        asyncio.run(deploy_on_spark(SparkPlan.of(pipeline), place.url, str(tmp_path)))
    (tmp_path / "offsets").rmdir()
    plan = SparkPlan.of(pipeline)
    asyncio.run(deploy_on_spark(plan, place.url, str(tmp_path)))
    stored = stand_in._stored.load()
    assert (stored.checkpoint, stored.levels) == (str(tmp_path), plan.levels)
    StandIn(f"{MODULE}:words", planned(f"{MODULE}:words"), place.url, rows=50).run(most=1)
    with pytest.raises(
        UsageError, match=r"or remove it with all its results \(millwheel drop words"
    ):
        asyncio.run(
            deploy_on_spark(SparkPlan.of(spark_pipelines.words()), place.url, str(tmp_path))
        )


def test_a_batch_that_runs_again_has_the_same_rows(
    place: Place, environment: Callable[[str], None]
) -> None:
    """The offset has everything that the rows of a batch depend on."""
    environment("words")
    stand_in = place.stand_in("words", rows=100)
    reader = stand_in._reader
    first = reader.initialOffset()
    offsets = [first]
    for _ in range(4):
        offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(100)))
    reader.stop()
    again = InputReader(f"{MODULE}:words", 100, BUCKETS)
    for start, end in pairwise(json.loads(json.dumps(offsets))):
        one = [
            row
            for part in reader.partitions(start, end)
            for b in reader.read(part)
            for row in made_rows(b)
        ]
        two = [
            row
            for part in again.partitions(start, end)
            for b in again.read(part)
            for row in made_rows(b)
        ]
        assert one == two
        assert sum(len(decode_rows(row.rows)) for row in one) == 101, "and the clock"
    assert reader.latestOffset(offsets[2], ReadMaxRows(100)) == offsets[3], (
        "a reader that has read further goes back"
    )
    reader.stop()


def test_rows_that_are_gone_end_the_query(place: Place, troubled: Path) -> None:
    stand_in = place.stand_in("strict")
    reader = stand_in._reader
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadMaxRows(40))
    lines = troubled.read_text().splitlines(keepends=True)
    troubled.write_text("".join(lines[:10]))
    clock, stretch = reader.partitions(first, end)
    assert isinstance(clock, ClockPart)
    with pytest.raises(
        InputError, match=r"rows up to number 39 were there .* not there now .after number 9"
    ):
        list(reader.read(stretch))
    reader.stop()


def test_partitions_are_found_and_rows_come_over_a_network(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline on Spark follows a table of the engine: with its watermark, and to its end."""
    upstream = place.engine("hours")
    monkeypatch.setenv(following.STORE, place.url)
    monkeypatch.setattr(following, "FOLLOWED", upstream)
    planned.cache_clear()
    target = "tests.following.service:second"
    plan = planned(target)
    migrate(place.url, "airports")
    asyncio.run(deploy_on_spark(plan, place.url, "/checkpoint"))
    stand_in = StandIn(target, plan, place.url, rows=40)
    stand_in.run()
    assert stand_in.offset["mark"] == MAX_TIME, "the followed pipeline has come to its end"
    bring_back(place, Moving(plan, place.url), stand_in)
    found = place.query(sql.SQL("SELECT acked FROM airports.source_partitions ORDER BY 1"))
    assert found[0] == (len(place.rows(upstream, "pane_log")),), "the engine goes on behind it"
    asyncio.run(until(Run(following.second(), place.url), 1.0))
    panes = place.query(
        sql.SQL("SELECT origin, count(*) FROM {} GROUP BY 1").format(
            sql.Identifier(upstream, "pane_log")
        )
    )
    assert {row[0]: row[1] for row in place.rows("airports", "airport_sum")} == dict(panes)
    days = place.query(
        sql.SQL("SELECT origin, date_trunc('day', hour), count(*) FROM {} GROUP BY 1, 2").format(
            sql.Identifier(upstream, "pane_log")
        )
    )
    assert place.rows("airports", "airport_day") == sorted(days, key=repr)


def bring_back(place: Place, moving: Moving, stand_in: StandIn) -> None:
    """Move a pipeline back to the engine, as of the last batch."""
    moving.prepare_return()
    pipeline = stand_in.plan.pipeline.name
    writer = StagingWriter(place.url, (pipeline, "staging_of_state"), QUERY, STATE_COLUMNS, ())
    columns = list(zip(*stand_in.kept(), strict=True))
    table = pa.table(dict(zip(STATE_COLUMNS, columns, strict=True)))
    writer.commit([writer.write(iter(table.to_batches()))])
    watermark = micros_of_watermark(stand_in.watermark)
    assert watermark is not None
    progress = StoredQuery(place.url, pipeline).load()
    stale = replace(progress, batch=progress.batch - 1)
    with pytest.raises(UsageError, match=r"still runs.*nothing was moved"):
        moving.back(stale, stand_in.offset, watermark, QUERY)
    assert moving.back(progress, stand_in.offset, watermark, QUERY) == len(table)


def test_a_move_that_is_broken_off_changes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The injectors read on; those that an operator has paused stay paused."""
    place.engine_so_far("legs")
    moving = Moving(SparkPlan.of(spark_pipelines.legs()), place.url)
    before = place.query(sql.SQL("SELECT * FROM flights_trips.computation ORDER BY id"))

    def broken_off(*args: Any) -> int | None:
        assert place.query(sql.SQL("SELECT 1 FROM flights_trips.computation WHERE paused"))
        raise KeyboardInterrupt

    monkeypatch.setattr(moving, "_try_to_spark", broken_off)
    with pytest.raises(KeyboardInterrupt):
        moving.to_spark("/checkpoint", lambda *found: None)
    assert place.query(sql.SQL("SELECT * FROM flights_trips.computation ORDER BY id")) == before
    assert place.query(sql.SQL("SELECT * FROM flights_trips.spark_query")) == []


def test_sources_that_stay_paused_are_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.engine_so_far("legs")
    moving = Moving(SparkPlan.of(spark_pipelines.legs()), place.url)

    def away(*args: Any) -> int | None:
        monkeypatch.setattr(moving, "_store", "postgresql://127.0.0.1:1/away")
        raise StoreUnavailable("away")

    monkeypatch.setattr(moving, "_try_to_spark", away)
    with pytest.raises(
        StoreUnavailable, match=r"(?s)stay paused.*: millwheel resume flights_trips$"
    ):
        moving.to_spark("/checkpoint", lambda *found: None)


def test_what_cannot_be_moved_is_not_paused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.engine_so_far("legs")
    moving = Moving(SparkPlan.of(spark_pipelines.legs()), place.url)
    with psycopg.connect(place.url) as connection:
        connection.execute(
            "INSERT INTO flights_trips.timer (slot, computation, key, kind, tag, due, hold, "
            "set_at) SELECT 1, id, '1', 'wall', 'x', 1, 1, 1 FROM flights_trips.computation WHERE "
            "kind = 'computation' LIMIT 1"
        )
    monkeypatch.setattr(moving, "_pause", lambda: pytest.fail("it was paused"))
    with pytest.raises(UsageError, match="cannot be moved: there are timers or holds"):
        moving.to_spark("/checkpoint", lambda *found: None)


def test_a_move_waits_for_records_in_flight(place: Place) -> None:
    """Rows that were processed and are not acknowledged would count again on Spark."""
    place.engine_so_far("legs")
    moving = Moving(SparkPlan.of(spark_pipelines.legs()), place.url)
    with psycopg.connect(place.url) as connection:
        connection.execute(
            "INSERT INTO flights_trips.seen_run (log, first, last, computation) "
            "SELECT id, 1 << 30, 1 << 30, 1 FROM flights_trips.log WHERE source IS NOT NULL"
        )
    told: list[tuple[int, int]] = []

    def tell(*found: int) -> None:
        told.append((found[0], found[1]))
        if len(told) == 2:
            with psycopg.connect(place.url) as connection:
                connection.execute("DELETE FROM flights_trips.seen_run WHERE first > 1 << 29")

    moving.to_spark("/checkpoint", tell)
    assert told == [(0, 1), (0, 1)]


@pytest.mark.parametrize(
    "name", ["hours", *(pytest.param(n, marks=pytest.mark.soak) for n in ("legs", "rested"))]
)
def test_a_pipeline_moves_to_spark_and_back(
    name: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mid-stream, both ways: the final rows are those of an undisturbed run."""
    undisturbed = place.engine(name)
    lines = Path(os.environ[FILE]).read_text().splitlines(keepends=True)
    file = tmp_path / "flights.jsonl"
    file.write_text("".join(lines[:600]))
    monkeypatch.setenv(FILE, str(file))
    pipeline = place.engine_so_far(name)
    file.write_text("".join(lines))
    planned.cache_clear()
    plan = planned(f"{MODULE}:{name}")
    moving = Moving(plan, place.url)
    assert moving.to_spark("/checkpoint", lambda *found: None) > 20
    assert place.rows(pipeline.name, "states") == place.rows(pipeline.name, "timers") == []
    stored = StoredQuery(place.url, pipeline.name).load()
    assert stored.begins_with is not None
    stand_in = place.stand_in(name, rows=100, begins_with=stored.begins_with)
    stand_in.begin_with(place.rows(pipeline.name, "spark_start"))
    stand_in.run(most=4)
    bring_back(place, moving, stand_in)
    asyncio.run(Run(getattr(spark_pipelines, name)(), place.url).run())
    for each, chosen in FINAL[name].items():
        assert place.rows(pipeline.name, each, chosen) == place.rows(undisturbed, each, chosen)
    ((ended,),) = place.query(
        sql.SQL("SELECT ended_at IS NOT NULL FROM {}.spark_queries").format(
            sql.Identifier(pipeline.name)
        )
    )
    assert ended


def test_plan_is_by_levels() -> None:
    plan = SparkPlan.of(spark_pipelines.words())
    assert plan.levels["lines_injector"] == 0
    assert plan.levels["lines_by_id"] == 1
    assert plan.depth == 4


class Walled(Computation[Line, None]):
    async def process_record(self, record: Record[Line], ctx: Context[None]) -> None:
        ctx.set_timer(ctx.now, kind="wall")

    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
        ctx.execute("SELECT 1")


class Bundled(Computation[Line, None]):
    bundles = Bundles()

    async def process_bundle(self, records: Sequence[Record[Line]], ctx: Context[None]) -> None: ...


RULES = Stream("rules", Line)


class Told(Computation[Line, None, Line, Seen]):
    async def process_record(self, record: Record[Line], ctx: Context[None, Seen]) -> None: ...

    async def process_broadcast(self, record: Record[Line], shared: Seen) -> None: ...


def test_what_cannot_run_is_refused_at_once_with_the_reasons(troubled: Path) -> None:
    pipeline = Pipeline("refused")
    by_text = LINES.by(lambda line: line.text)
    pipeline.inject(
        LINES, JsonLines(troubled), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(Walled(), by_text, on_error="park")
    pipeline.add(Bundled(), by_text)
    pipeline.inject(
        RULES, JsonLines(troubled), timestamp=lambda line: datetime.fromtimestamp(line.at, UTC)
    )
    pipeline.add(Told(), by_text, RULES.broadcast())
    counts = Stream("counts", Pane[int])
    early = Windowed(Tumbling(hours=1), count, to=counts, early=Early(seconds=1))
    pipeline.add(early, by_text)
    pipeline.sink(LINES, JsonLinesFiles(troubled.parent))
    pipeline.sink(counts, Console())
    with pytest.raises(SparkRefused) as error:
        refuse(pipeline.graph())
    text = str(error.value)
    for reason in (
        "walled: wall timers", "walled: ctx.execute", "bundled: numbered bundles",
        "told: broadcast",
        'on_error="park"', "windowed → counts: wall timers", "JsonLinesFiles", "Console",
    ):  # fmt: skip
        assert reason in text, reason
    assert "test_engine.py" in text, "it says where"


def test_early_panes_by_number_are_not_refused() -> None:
    pipeline = Pipeline("early")
    pipeline.inject(
        LINES,
        JsonLines("lines.jsonl"),
        timestamp=lambda line: datetime.fromtimestamp(line.at, UTC),
    )
    counts = Stream("counts", Pane[int])
    pipeline.add(
        Windowed(Tumbling(hours=1), count, to=counts, early=Early(records=2)),
        LINES.by(lambda line: line.text),
    )
    pipeline.sink(counts, Discard())
    refuse(pipeline.graph())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None), (True, "True"), ("a\tb", "a\tb"), (b"\x00\xff", "\\x00ff"),
        (float("nan"), "nan"),
        (Decimal("1.50"), "1.50"), (date(2020, 2, 29), "2020-02-29"),
        (datetime(999, 1, 2, 3, 4, 5, 6, UTC), "0999-01-02T03:04:05.000006+00:00"),
    ],
)  # fmt: skip
def test_a_column_reaches_postgres_as_it_is(value: Any, text: str | None, place: Place) -> None:
    assert column_text(value) == text
    types = {
        bool: "boolean",
        str: "text",
        bytes: "bytea",
        float: "float8",
        Decimal: "numeric",
        date: "date",
    }
    of = types.get(type(value), "timestamptz")
    ((stored,),) = place.query(sql.SQL("SELECT {}::" + of).format(sql.Literal(text)))
    assert stored == value or value != value


def test_a_text_with_nul_is_refused() -> None:
    with pytest.raises(UserCodeError, match="NUL"):
        column_text("a\0")


@pytest.mark.parametrize("micros", [MIN_TIME, -1, 0, 999, 1_000, 10**15 + 1, MAX_TIME])
def test_spark_calls_for_a_timer_as_soon_as_it_is_due(micros: int) -> None:
    """A promise becomes a mark, Spark's watermark is a millisecond behind it, and stands for no
    more than the promise."""
    millis = int((mark_of(micros) - EPOCH).total_seconds() * 1000) - 1
    watermark = micros_of_watermark(millis)
    assert (watermark or MIN_TIME) <= max(micros, MIN_TIME)
    if micros >= 2_000:
        assert watermark is not None
        assert micros - watermark < 1_000
        due = watermark - 1
        assert millis_of_timer(due) <= millis, "it is due, and Spark calls"
        assert micros == MAX_TIME or millis_of_timer(watermark) > millis, (
            "it is not due, and Spark does not call"
        )
