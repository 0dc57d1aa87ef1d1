"""The Nexmark queries as SQL give the answers of Postgres, and of the classes, through crashes."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import examples.nexmark as nexmark
from examples.nexmark.as_sql import FILES, build, text_of
from examples.nexmark.model import Auction, Bid, Person
from examples.nexmark.options import Options
from examples.nexmark.sources import AUCTIONS, BIDS, PEOPLE, in_order_of_emission
from millwheel import Pipeline, Settings, Table
from millwheel.errors import SqlError
from millwheel.sql.schemas import fields_of
from millwheel.sql.types import shown
from tests.sql.answers import as_tables
from tests.support.worker_processes import Workers
from tests.support.worlds import World

Row = tuple[Any, ...]

REFUSED = {
    "q4": "rows of .* are replaced by newer ones",
    "q6": "no frame",
    "q12": "depends on when the query runs",
}
ANSWERED = sorted(FILES.keys() - REFUSED.keys())
OF_CLASSES = ["q0", "q1", "q2", "q3", "q5", "q7", "q8", "q9", "q11"]
"""Those that a class answers with the same columns."""

EVENTS = Options(
    events=8_000, rate=200, late=0.05, base_time=datetime.fromisoformat("2015-07-14T23:59:40Z")
)
"""Forty seconds of event time over midnight, some events up to 3 s late."""

SESSIONS = """
INSERT INTO q11
SELECT bidder, min(date_time), max(date_time) + INTERVAL '10 s', count(*) FROM (
    SELECT *, count(*) FILTER (WHERE begins) OVER (PARTITION BY bidder ORDER BY date_time) AS number
    FROM (
        SELECT *, coalesce(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
            >= INTERVAL '10 s', true) AS begins
        FROM bids
    ) AS marked
) AS numbered
GROUP BY bidder, number
"""
"""Postgres has no windows of sessions."""


def batch(connection: psycopg.Connection[Any], query: str, options: Options) -> Counter[Row]:
    """The answer of Postgres, given all events as tables."""
    events = list(in_order_of_emission(options))
    text = re.sub(r"--.*", "", text_of(query))
    with connection.transaction(force_rollback=True), connection.cursor() as cursor:
        cursor.execute(b"CREATE SCHEMA batch")
        cursor.execute(b"SET LOCAL search_path = batch")
        for stream, kind in ((PEOPLE, Person), (AUCTIONS, Auction), (BIDS, Bid)):
            fields = fields_of(kind) or []
            columns = ", ".join(f"{f.name} {shown(f.type)}" for f in fields if f.type is not None)
            cursor.execute(f"CREATE TABLE {stream.name} ({columns})".encode())
            copy = f"COPY {stream.name} FROM STDIN".encode()
            with cursor.copy(copy) as rows:
                for event in events:
                    if type(event) is kind:
                        rows.write_row(msgspec.structs.astuple(event))
        for statement in text.split(";"):
            written = SESSIONS if "SESSION(" in statement else as_tables(statement)
            written = re.sub(r"CREATE STREAM (\w+)", r"CREATE VIEW \1", written)
            if written.strip():
                cursor.execute(written.encode())
        return Counter(_plain(cursor.execute(f"TABLE {query}".encode()).fetchall()))


def _plain(rows: Sequence[Row]) -> list[Row]:
    """Decimals as numbers: a class may have a float, or another number of zeros."""
    return [tuple(float(v) if hasattr(v, "as_tuple") else v for v in row) for row in rows]


async def through_crashes(query: str, pipeline: Pipeline) -> Counter[Row]:
    """The rows of a query's table, with an engine that is killed three times."""
    pipeline.settings = Settings(chunk_records=20, bundle_records=20, max_unacked_records=40)
    world = World(pipeline)
    for _ in range(3):
        killed = len(world.commits)
        engine = await world.start(close_at_end=True)
        await world.until(lambda: len(world.commits) > killed + 10)  # noqa: B023
        await engine.kill()
    await world.run(close_at_end=True)
    assert world.letters() == []
    return Counter(_plain(world.rows(query)))


@pytest.mark.parametrize("query", ANSWERED)
async def test_a_query_answers_as_postgres(query: str, server: psycopg.Connection[Any]) -> None:
    found = await through_crashes(query, build(query, EVENTS))
    assert found == batch(server, query, EVENTS)
    assert found


@pytest.mark.parametrize("query", OF_CLASSES)
async def test_a_query_answers_as_the_class(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("events", "rate", "late", "base_time"):
        monkeypatch.setenv(f"NEXMARK_{name.upper()}", str(getattr(EVENTS, name)))
    of_class: Callable[[], Pipeline] = getattr(nexmark, query)
    answers = []
    for pipeline in (build(query, EVENTS), of_class()):
        world = World(pipeline)
        await world.run(close_at_end=True)
        answers.append(Counter(_plain(world.rows(query))))
    assert answers[0] == answers[1]
    assert answers[0]


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_that_needs_retraction_is_refused(query: str) -> None:
    with pytest.raises(SqlError, match=REFUSED[query]):
        build(query, EVENTS)


@pytest.mark.soak
@pytest.mark.parametrize("query", ANSWERED)
def test_workers_that_are_killed_answer_as_postgres(
    query: str, tmp_path: Path, server: psycopg.Connection[Any]
) -> None:
    """Two processes on a real store, of which one is killed each second or so."""
    options = msgspec.structs.replace(EVENTS, events=60_000, rate=1_500)
    environment = {
        "NEXMARK_EVENTS": str(options.events),
        "NEXMARK_RATE": str(options.rate),
        "NEXMARK_LATE": str(options.late),
        "NEXMARK_BASE_TIME": options.base_time.isoformat(),
    }
    wanted = batch(server, query, options)
    target = f"examples.nexmark.as_sql:{query}"
    workers = Workers(tmp_path, f"nexmark_{query}_as_sql", target, environment)
    width = len(_row_type(query).__struct_fields__)

    def answer() -> Counter[Row]:
        rows = _plain(workers.query(f"SELECT * FROM SCHEMA.{query}"))
        return Counter(row[-width:] for row in rows)

    choice = random.Random(query)
    try:
        workers.start()
        workers.start()
        for _ in range(5):
            time.sleep(choice.uniform(1.5, 3.0))
            workers.replace(choice)
        deadline = time.monotonic() + 60
        while answer() != wanted and time.monotonic() < deadline:
            time.sleep(0.5)
        assert answer() == wanted, workers.tail()
        assert not workers.errors
    finally:
        workers.end()


def _row_type(query: str) -> Any:
    (sink,) = (use.sink for _, use in build(query, EVENTS).sinks)
    assert isinstance(sink, Table)
    return sink.row_type
