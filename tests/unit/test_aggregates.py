"""Aggregates by Spark are checked against the tables and the graph of their pipeline."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.aggregates import Parquet, days, months
from millwheel.errors import GraphError
from millwheel.graph import drawing
from millwheel.testing.script import Script


class Hour(msgspec.Struct):
    """A row."""

    origin: str
    hour: datetime
    flights: int
    note: str | None = None
    extra: dict[str, int] = {}
    share: float = 0.0


class Month(msgspec.Struct):
    """A sum."""

    origin: str
    month: datetime
    flights: int


HOURS = Stream("hours", Hour)
LOGGED = Stream("logged", Hour)
ITEMS = Stream("items", Hour)


class Make(Computation[Hour, None]):
    writes = (HOURS,)

    async def process_record(self, record: Record[Hour], ctx: Context[None]) -> None: ...


class Log(Computation[Hour, None]):
    writes = (LOGGED,)

    async def process_record(self, record: Record[Hour], ctx: Context[None]) -> None: ...


def origin(hour: Hour) -> str:
    return hour.origin


MONTH = Table("airport_month", Month, key=("origin", "month"))


def made(**modes: Any) -> Pipeline:
    """A pipeline with a table that changes, and two logs of its changes: before and after."""
    pipeline = Pipeline("flights")
    pipeline.inject(ITEMS, Script("items", []), timestamp=lambda hour: hour.hour)
    pipeline.add(Make(), ITEMS.by(origin), **modes)
    pipeline.add(Log(), HOURS.by(origin))
    table = Table("airport_hour", Hour, key=("origin", "hour"), producer_key=("origin",))
    pipeline.sink(HOURS, table)
    pipeline.sink(HOURS, Table("by_key", Hour, key=("hour",)))
    pipeline.sink(HOURS, Table("changes", Hour, numbered=True))
    pipeline.sink(LOGGED, Table("pane_log", Hour, numbered=True))
    return pipeline


def by_month(hours: Any) -> Any:
    return hours


GIVEN = {
    "follows": "pane_log",
    "reads": "airport_hour",
    "group": ("origin", months("hour")),
    "to": MONTH,
}


@pytest.mark.parametrize("follows", ["pane_log", "changes"])
def test_an_aggregate_follows_what_is_written_with_or_after_what_it_reads(follows: str) -> None:
    pipeline = made()
    pipeline.spark(by_month, **{**GIVEN, "follows": follows})  # type: ignore[arg-type]
    graph = pipeline.graph()
    assert [a.group_names for a in graph.aggregates] == [("origin", "month")]
    assert "aggregate by_month, by Spark" in drawing.text(graph)
    assert "by_month[[by_month]]" in drawing.mermaid(graph)
    assert graph.describe() == made().graph().describe(), "no new code for the engine"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"follows": "airport_hour"},
         r"follows 'airport_hour', which is not a numbered table .*changes, pane_log"),
        ({"reads": "nothing"},
         r"reads 'nothing', which is no table of the pipeline; there are airport_hour"),
        ({"reads": ()}, r"name at least one table in reads="),
        ({"group": "airport"}, r"groups by 'airport', but table 'pane_log' has no such column"),
        ({"group": "note"}, r"groups by 'note', which in table 'pane_log' is sometimes None"),
        ({"group": "extra"}, r"groups by 'extra', which in table 'pane_log' is JSON"),
        ({"group": "share"}, r"groups by 'share', which .* is double precision; a group needs"),
        ({"group": days("origin")}, r"groups by the day of 'origin', which .* is no time but text"),
        ({"group": ("origin", days("hour"))}, r"table 'airport_month' has no column 'day'"),
        ({"to": Table("pane_log", Month)}, r"writes table 'pane_log', which a sink writes as well"),
        ({"to": Table("x", Month, numbered=True)}, r"that table cannot be numbered"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str) -> None:
    pipeline = made()
    with pytest.raises(GraphError, match=text):
        pipeline.spark(by_month, **{**GIVEN, **given})


def test_a_table_of_results_has_no_reserved_name() -> None:
    pipeline = made()
    pipeline.spark(by_month, **{**GIVEN, "to": Table("state_of_month", Month)})  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="names that begin with state_of_ are reserved"):
        pipeline.graph()


def test_two_aggregates_have_two_names_and_two_targets() -> None:
    pipeline = made()
    pipeline.spark(by_month, **GIVEN)  # type: ignore[arg-type]
    for changed in ({"to": Parquet(Path("x"))}, {"name": "other"}):
        with pytest.raises(GraphError, match="two aggregates are called"):
            pipeline.spark(by_month, **{**GIVEN, **changed})  # type: ignore[arg-type]
    pipeline.spark(by_month, **{**GIVEN, "to": Parquet(Path("x")), "name": "files"})  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="and a name= if it has none"):
        pipeline.spark(lambda hours: hours, **GIVEN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "modes"),
    [
        ({"reads": "by_key"}, {}),  # a step of its own writes it
        ({}, {"productions": "weak"}),  # what comes after it may be durable before it
    ],
)
def test_rows_that_may_come_after_those_that_tell_of_them_are_refused(
    given: dict[str, Any], modes: dict[str, Any]
) -> None:
    pipeline = made(**modes)
    pipeline.spark(by_month, **{**GIVEN, **given})
    with pytest.raises(GraphError, match="may come before the rows of"):
        pipeline.graph()
