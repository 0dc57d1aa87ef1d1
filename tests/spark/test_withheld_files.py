"""Aggregates of a fork: its files are withheld, or are in a directory of its own."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import Struct
from structlog.testing import capture_logs

from millwheel import Inbox, Pipeline, Stream, Table
from millwheel.aggregates import Parquet
from millwheel.errors import UsageError
from millwheel.spark.aggregation.aggregate_progress import Stored
from millwheel.spark.aggregation.aggregate_run import _as_run, _is_empty
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest


class Order(Struct):
    customer: str
    at: datetime


class Bill(Struct):
    customer: str
    orders: int


def bills(orders: Any) -> Any:
    return orders


def files(orders: Any) -> Any:
    return orders


def made(directory: Path, *, with_table: bool = True) -> Pipeline:
    orders = Stream("orders", Order)
    pipeline = Pipeline("shop")
    pipeline.inject(orders, Inbox(), timestamp=lambda order: order.at)
    pipeline.sink(orders, Table("bought", Order, numbered=True))
    bought = {"follows": "bought", "reads": "bought", "group": "customer"}
    if with_table:
        table = Table("bill", Bill, key=("customer",))
        pipeline.spark(bills, to=table, **bought)
    pipeline.spark(files, to=Parquet(directory), **bought)
    return pipeline.named("wheel")


def mark(schema: Schema, origin: str | None, *, withholds: bool) -> None:
    with psycopg.connect(schema.url) as connection:
        connection.execute("DELETE FROM wheel.pipeline")
        connection.execute(
            "INSERT INTO wheel.pipeline (name, gc_watermark, origin, withholds) "
            "VALUES ('wheel', 0, %s, %s)",
            (origin, withholds),
        )


def targets(pipeline: Pipeline, schema: Schema) -> list[str]:
    found = _as_run(pipeline, schema.url, list(pipeline.aggregates.values()))
    return [one.target for one in found]


def test_files_are_withheld_and_tables_are_not(schema: Schema, tmp_path: Path) -> None:
    mark(schema, "shop", withholds=True)
    with capture_logs() as logs:
        assert targets(made(tmp_path), schema) == ["bill"]
    assert [one["event"] for one in logs] == ["aggregates_withheld"]
    with pytest.raises(UsageError, match=r"withholds its outputs: files; .*outputs wheel on"):
        targets(made(tmp_path, with_table=False), schema)


def test_a_fork_has_files_of_its_own(schema: Schema, tmp_path: Path) -> None:
    """Made from all rows at first: the progress that was copied is that of other files."""
    mark(schema, "shop", withholds=False)
    own = str(tmp_path / "_as_wheel")
    assert targets(made(tmp_path), schema) == ["bill", own]
    pipeline = made(tmp_path)
    table, of_files = _as_run(pipeline, schema.url, list(pipeline.aggregates.values()))
    assert _is_empty(Stored(schema.url, "wheel", of_files))
    assert not _is_empty(Stored(schema.url, "wheel", table))
    Path(own).mkdir()
    assert not _is_empty(Stored(schema.url, "wheel", of_files))


def test_a_restored_pipeline_keeps_its_files(schema: Schema, tmp_path: Path) -> None:
    mark(schema, "wheel@one", withholds=False)
    pipeline = made(tmp_path)
    pipeline.name_in_code = "wheel"
    assert targets(pipeline, schema) == ["bill", str(tmp_path)]
