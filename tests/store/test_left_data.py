"""Columns and entries that no code has any more: shown, and dropped when it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import Table
from millwheel.errors import UsageError
from millwheel.store.console.left_data import OrphanedState, drop_left_data, orphaned
from millwheel.store.postgres.statements import Statements
from tests.support.store_sites import COUNT, COUNTS, GRAPH, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest


class Shorter(msgspec.Struct):
    word: str
    share: float | None = None


SHORTER = Table("counts", Shorter, key=("word",))

COLLECTIONS = {"marks": ["map", {"type": "string"}, {"type": "integer"}]}
WITH_MARKS = replace(COUNT, state={"type": "object", "n": "int", "collections": COLLECTIONS})


def graph_with(table: Table[Any]) -> dict[str, Any]:
    count = {**GRAPH["nodes"]["count"], "sinks": {"totals": [table.describe()]}}
    return {**GRAPH, "nodes": {**GRAPH["nodes"], "count": count}}


async def taken_over(postgres: PostgresSite) -> None:
    """By workers of the newest code."""
    await postgres.query("UPDATE {k} SET generation = 2", k="key_interval")


def found(postgres: PostgresSite) -> list[OrphanedState]:
    with psycopg.connect(postgres.schema.url) as connection:
        return orphaned(connection, Statements(postgres.schema.name))


async def test_columns_that_no_code_has_are_dropped(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store, await deploy(postgres.store, graph=graph_with(COUNTS)))
    await postgres.query("ALTER TABLE {t} ADD COLUMN by_hand text", t="counts")
    await deploy(postgres.store, graph=graph_with(SHORTER), tables=(SHORTER,))
    url, name = postgres.schema.url, postgres.schema.name
    with pytest.raises(UsageError, match="workers of former code may still write"):
        drop_left_data(url, name)
    await taken_over(postgres)
    await postgres.query("CREATE VIEW {v} AS SELECT count FROM {t}", v="report", t="counts")
    with pytest.raises(UsageError, match="drop these objects first"):
        drop_left_data(url, name)
    await postgres.query("DROP VIEW {v}", v="report")
    gone = [column.name for column in COUNTS.columns if column.name not in ("word", "share")]
    assert drop_left_data(url, name) == [
        f"column {column} of table counts" for column in sorted(gone)
    ]
    assert drop_left_data(url, name) == []
    columns = await postgres.query(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'counts'"
    )
    assert sorted(of for (of,) in columns) == ["by_hand", "share", "word"]


async def test_entries_that_no_code_reads_are_orphaned_state(postgres: PostgresSite) -> None:
    deployment = await deploy(postgres.store, count=WITH_MARKS)
    owner = await Owner.take(postgres.store, deployment)
    assert found(postgres) == []
    commit = owner.commit()
    commit.states = [
        owner.state("a", {"n": 1}),
        owner.state("a", 1, 'marks/"x"'),
        owner.state("b", 2, 'marks/"y"'),
    ]
    await owner.write(commit)
    await deploy(postgres.store, count=COUNT)
    assert found(postgres) == [OrphanedState("count", "marks", 1)]
    for row in owner.intervals:
        link = owner.links[row.id]
        await postgres.store.fold(row.id, link.sequencer, 0, link.n)
    assert found(postgres) == [OrphanedState("count", "marks", 1)]

    url, name = postgres.schema.url, postgres.schema.name
    with pytest.raises(UsageError, match="entries of marks of count"):
        drop_left_data(url, name)
    assert len(await postgres.states()) == 3
    await taken_over(postgres)
    assert drop_left_data(url, name) == ["entries of marks of count"]
    assert found(postgres) == []
    assert [of.entry for of in await postgres.states()] == [""]
