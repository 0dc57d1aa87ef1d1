"""Each documented view can be read from Spark, also where watermarks are infinite and ages are
intervals."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.spark.share_query import Whole
from millwheel.spark.stream_source import MillwheelSource
from millwheel.store.console.views import VIEWS
from tests.support.store_sites import Owner, PostgresSite, deploy

pytestmark = pytest.mark.parametrize("schema", [18], indirect=True)


def rows(site: PostgresSite, view: str) -> list[dict[str, Any]]:
    """The rows of a view, as a task of Spark reads them."""
    schema = site.schema
    made = MillwheelSource({"store": schema.url, "pipeline": schema.name, "table": view})
    batches = made.reader(made.schema()).read(Whole())
    return [row for batch in batches for row in batch.to_pylist()]


async def test_each_view_can_be_read(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store, await deploy(postgres.store))
    commit = owner.commit()
    commit.states = [owner.state("a", {"x": 1})]
    await owner.write(commit)
    for view in VIEWS:
        read = rows(postgres, view)
        # These show sessions of the moment, those of other tests and of vacuum too.
        if view not in ("old_snapshots", "oldest_bucket"):
            count = await postgres.query("SELECT count(*)::int FROM {v}", v=view)
            assert count == [(len(read),)], view
    kept_by = {row["kept_by"] for row in rows(postgres, "oldest_bucket")}
    assert kept_by - {"reader"} == {"fold", "last commit", "records"}
    assert {row["input_watermark"].year for row in rows(postgres, "watermarks")} == {1}
    assert all(row["age"] is not None for row in rows(postgres, "fold_lag") if row["commits"])
