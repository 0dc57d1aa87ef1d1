"""Views that answer "why does the disk fill": sizes by kind, what keeps old buckets, what is not
folded."""

from __future__ import annotations

import psycopg
import pytest

from millwheel.store.console.inspection import inspect
from millwheel.store.postgres.buckets import tables_of
from millwheel.store.postgres.schema import metadata
from millwheel.store.postgres.statements import BUCKETED
from tests.support.store_sites import SECOND, START, Owner, PostgresSite

pytestmark = pytest.mark.newest


async def test_every_table_has_its_kind_and_the_users_are_own(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store)
    await postgres.query("CREATE TABLE {t} (n integer)", t="totals")
    rows = await postgres.query("SELECT relation, kind, tables, bytes FROM {v}", v="disk_use")
    found = {relation: (kind, tables, size) for relation, kind, tables, size in rows}
    own = {relation for relation, (kind, *_) in found.items() if kind == "own tables"}
    assert "totals" in own
    assert own == set(found) - set(metadata.tables) - {"alembic_version"}
    assert {relation for relation, (_, tables, _) in found.items() if tables > 1} == set(BUCKETED)
    assert found["state"][2] > 0


async def test_every_kind_but_bookkeeping_and_own_tables_has_a_retention(
    postgres: PostgresSite,
) -> None:
    await Owner.take(postgres.store)
    await postgres.query("CREATE TABLE {t} (n integer)", t="totals")
    rows = await postgres.query("SELECT kind, retention FROM {v}", v="disk_use")
    assert {kind for kind, retention in rows if retention is None} == {"bookkeeping", "own tables"}
    assert "until no older pane can come" in dict(rows)["state"]


async def test_what_keeps_the_oldest_bucket_is_told(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    low, _ = owner.intervals

    async def kept() -> dict[str, set[str]]:
        rows = await postgres.query("SELECT kept_by, what, owner::text FROM {v}", v="oldest_bucket")
        assert {worker for kind, _, worker in rows if kind != "reader"} <= {owner.worker}
        return {kind: {what for each, what, _ in rows if each == kind} for kind, *_ in rows}

    await owner.write(owner.commit(low, floor=START + SECOND))
    found = await kept()
    assert any("may send records from" in what for what in found["records"])
    assert any("1 commits that are not folded" in what for what in found["fold"])
    assert any("has committed nothing since" in what for what in found["last commit"])
    assert "reader" not in found
    with psycopg.connect(postgres.schema.url) as reader:
        reader.execute(postgres.schema.compose("SELECT count(*) FROM {c}", c="commit_record"))
        (read,) = (await kept())["reader"]
    assert "reads it: SELECT count(*)" in read
    link = owner.links[low.id]
    assert await postgres.store.fold(low.id, link.sequencer, 0, link.n)
    assert "fold" not in await kept()


async def test_a_reader_of_any_table_of_the_oldest_bucket_is_told(postgres: PostgresSite) -> None:
    """A report on the view `states` holds the tables with the changes, and not those of the
    commits."""
    await Owner.take(postgres.store)
    (bucket,) = [b for b in await postgres.store.live_buckets() if b.family == "time"]
    for table in tables_of(bucket):
        with psycopg.connect(postgres.schema.url) as reader:
            reader.execute(postgres.schema.compose("SELECT count(*) FROM {t}", t=table))
            rows = await postgres.query(
                "SELECT what FROM {v} WHERE kept_by = 'reader'", v="oldest_bucket"
            )
            assert [f"process {reader.info.backend_pid}" in what for (what,) in rows] == [True], (
                table
            )


async def test_what_keeps_dead_rows_is_named_with_its_session(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store)
    await postgres.query("CREATE TABLE {t} AS SELECT 1 AS n", t="totals")
    with psycopg.connect(postgres.schema.url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        pid = reader.info.backend_pid
        reader.execute(postgres.schema.compose("SELECT count(*) FROM {t}", t="totals"))
        for _ in range(10):
            await postgres.query("UPDATE {t} SET n = n + 1", t="totals")
        await postgres.query("VACUUM {t}", t="totals")
        rows = await postgres.query(
            "SELECT kind, what, since < now(), transactions FROM {v} WHERE pid = %s",
            pid,
            v="old_snapshots",
        )
        ((kind, what, began_before, transactions),) = rows
        assert (kind, began_before) == ("session", True)
        assert "idle in transaction: SELECT count(*)" in what
        assert transactions >= 10
        dead = "SELECT dead_rows FROM {v} WHERE relation = 'totals'"
        assert await postgres.query(dead, v="disk_use") == [(10,)]
        with inspect(postgres.schema.url) as inspection:
            found = inspection.operating(postgres.schema.name)
        assert found.dead_rows["own tables"] >= 10
        assert found.snapshot_seconds > 0
    assert not await postgres.query("SELECT FROM {v} WHERE pid = %s", pid, v="old_snapshots")


async def test_commits_that_are_not_folded_are_counted(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    low, _ = owner.intervals

    async def lag() -> tuple[int, bool]:
        ((commits, has_age),) = await postgres.query(
            "SELECT commits, age IS NOT NULL FROM {v} WHERE interval_id = %s", low.id, v="fold_lag"
        )
        return commits, has_age

    before, _ = await lag()
    assert before == 0
    await owner.write(owner.commit(low))
    await owner.write(owner.commit(low))
    assert await lag() == (2, True)
    link = owner.links[low.id]
    assert await postgres.store.fold(low.id, link.sequencer, 0, link.n)
    assert await lag() == (0, False)
