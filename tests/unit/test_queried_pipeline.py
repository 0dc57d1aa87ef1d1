"""The pipeline of the code with submitted queries (`millwheel.services.queried_pipeline`)."""

from __future__ import annotations

from datetime import datetime

import pytest
from msgspec import Struct

from millwheel import Inbox, Pipeline, Stream, Table
from millwheel.errors import DeployRefused, SqlError
from millwheel.services.queried_pipeline import QueriedPipeline, QueryRefused
from millwheel.sql.explaining import explained
from millwheel.store.port.queries import StoredQueries, SubmittedQuery
from millwheel.streams import StreamFacts


class Payment(Struct):
    account: str
    at: datetime
    cents: int


class Copy(Struct):
    account: str
    cents: int


COPY = "INSERT INTO copies SELECT account, cents FROM payments"


def code() -> Pipeline:
    payments, copies = Stream("payments", Payment), Stream("copies", Copy)
    made = Pipeline("bank")
    made.inject(payments, Inbox(), timestamp=lambda payment: payment.at)
    made.sql(COPY, copies)
    made.sink(copies, Table("copies", Copy))
    return made


def query(name: str, text: str, *steps: str, avoided: tuple[str, ...] = ()) -> SubmittedQuery:
    return SubmittedQuery(name, text, avoided, steps)


HIGH = query("high", "CREATE STREAM high AS SELECT account, cents FROM payments", "make_high")
TABLE = "CREATE TABLE t (account text, n bigint, PRIMARY KEY (account));"
SUMS = f"{TABLE} INSERT INTO t SELECT account, count(*) FROM high GROUP BY 1 RETAIN UNBOUNDED"
OF_SUMS = ("make_t_partials", "make_t")


def test_the_pipeline_of_the_code_stays_as_it_is() -> None:
    pipeline = code()
    before = pipeline.graph().describe()
    queried = QueriedPipeline(pipeline)
    assert queried.deployed(StoredQueries(0, ())) is pipeline
    with_high = queried.deployed(StoredQueries(1, (HIGH,)))
    assert queried.deployed(StoredQueries(1, (HIGH,))) is with_high
    assert with_high.graph().submitted.steps == {"high": ("make_high",)}
    with_sums = queried.deployed(StoredQueries(2, (HIGH, query("sums", SUMS, *OF_SUMS))))
    assert {"make_high", *OF_SUMS} <= with_sums.graph().by_name.keys()
    assert with_sums.graph().submitted.revision == 2
    without = queried.deployed(StoredQueries(3, ()))
    assert without.graph().describe() == pipeline.graph().describe() == before
    assert without.graph().submitted.revision == 3


def test_avoided_names_are_not_used_and_texts_go_on_with_theirs() -> None:
    """A removed step or stream has another one in its place, under the name of the text."""
    former = ("make_high", "high", "t", "make_t")
    high = query("high", HIGH.text, "make_high_2", avoided=former)
    steps = ("make_t_2_partials", "make_t_2")
    found = QueriedPipeline(code()).compiled([high, query("sums", SUMS, avoided=former)], 1)
    assert found.get("high").steps == high.steps
    assert found.get("high").written == {"high": "high_2"}
    sums = found.get("sums")
    assert set(sums.steps) == set(steps)
    assert [i.stream.name for i in found.pipeline.nodes["make_t_2_partials"].inputs] == ["high_2"]
    tables = [use.sink.name for _, use in found.pipeline.sinks if isinstance(use.sink, Table)]
    assert tables == ["copies", "t"]


def test_an_error_names_its_query() -> None:
    queried = QueriedPipeline(code())
    wrong = query("wrong", "INSERT INTO x SELECT cent FROM payments")
    with pytest.raises(QueryRefused, match="query 'wrong': line 1, column 22") as refused:
        queried.compiled([HIGH, wrong], 1)
    assert isinstance(refused.value.error, SqlError)
    with pytest.raises(DeployRefused, match="'wrong' cannot be compiled with this code"):
        queried.deployed(StoredQueries(1, (wrong,)))
    with pytest.raises(DeployRefused, match="becomes the steps make_high with this code"):
        queried.deployed(StoredQueries(1, (query("high", HIGH.text, "make_other"),)))


def test_a_dropped_query_leaves_no_mark_on_streams_of_the_code() -> None:
    """Rows of `late` are replaced by later ones as long as the first query is there."""
    late = Stream("late", Copy)
    pipeline = code()
    pipeline.inject(late, Inbox())
    pipeline.sql("CREATE STREAM x AS SELECT account FROM late", late)
    updating = query(
        "updating",
        "INSERT INTO late SELECT account, coalesce(cents, 0) AS cents FROM (SELECT account, "
        "max(cents) AS cents FROM payments GROUP BY account RETAIN UNBOUNDED) AS x",
    )
    reader = query(
        "reader",
        "CREATE STREAM y AS SELECT account, count(*) AS n FROM late GROUP BY account RETAIN "
        "UNBOUNDED",
    )
    queried = QueriedPipeline(pipeline)
    queried.compiled([reader], 1)
    with pytest.raises(QueryRefused, match="'reader'"):
        queried.compiled([updating, reader], 2)
    queried.compiled([reader], 3)
    assert late.facts == StreamFacts()


def test_the_steps_of_a_query_are_explained() -> None:
    text = (
        "CREATE SOURCE s (at timestamptz NOT NULL, n int, WATERMARK FOR at AS at - INTERVAL '5 "
        "seconds') WITH (connector = 'inbox'); CREATE TABLE t (n int, start timestamptz, rows "
        "bigint); INSERT INTO t SELECT n, window_start, count(*) FROM TUMBLE(s, at, INTERVAL '1 "
        "minute') GROUP BY n, window_start ALLOWED LATENESS INTERVAL '1 day'; INSERT INTO u SELECT "
        "n + 1 AS m, count(*) AS rows FROM s GROUP BY n + 1 RETAIN INTERVAL '30 days'"
    )
    found = QueriedPipeline(code()).compiled([query("all", text)], 1)
    step, nodes = found.get("all"), found.pipeline.graph().by_name
    lines = explained([nodes[name] for name in step.steps], text, step.written)
    shown = "\n".join(lines)
    for line in (
        "s_injector\n  reads a source: inbox",
        "its low watermark is 5 s behind its newest row",
        "make_t_partials\n  reads s\n  keeps no state",
        "make_t\n  reads t_partials, a key for each group: n, window_start",
        "keeps state for each group and open window: Tumbling(0:01:00)",
        "until the low watermark has passed the end of the window and 1 day, 0:00:00 more",
        "late records: the row of their window comes out again",
        "writes the table t, in the same transaction: rows are added",
        "a key for each group: the expression in line 1, column",
        "until 30 days, 0:00:00 after the last record of the group",
    ):
        assert line in shown, shown
