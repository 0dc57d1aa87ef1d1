"""Views that answer "why does the disk fill": sizes by kind, what keeps old buckets, what is not folded."""

from __future__ import annotations

import psycopg
import pytest

from millwheel.store.schema import metadata
from millwheel.store.statements import BUCKETED
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
