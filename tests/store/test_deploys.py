"""Deploys that meet, and deploys that are cut off: never half done."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import Table
from millwheel.errors import DeployRefused, StoreError
from millwheel.store.port.deploy import Deployment
from tests.support.cut_connections import CutOff
from tests.support.store_sites import (
    COUNT,
    COUNTS,
    GRAPH,
    WORDS,
    Counted,
    Owner,
    PostgresSite,
    Site,
    deploy,
)

pytestmark = pytest.mark.newest


class Wider(Counted):
    tag: str | None = None


WIDER = Table("counts", Wider, key=("word",))
NEWER = replace(WORDS, version=2, type={"type": "integer"}, migrates_from=[1])
ANOTHER = replace(COUNT, name="another")


def graph(table: Table[Any] = COUNTS, *, more: bool = False) -> dict[str, Any]:
    count = {**GRAPH["nodes"]["count"], "sinks": {"totals": [table.describe()]}}
    nodes = {**GRAPH["nodes"], "count": count}
    if more:
        nodes["another"] = {"inputs": [["words", "word"]]}
    return {**GRAPH, "nodes": nodes}


async def new_code(postgres: PostgresSite) -> Deployment:
    """An additional computation, another version of a stream, and a column more."""
    return await deploy(
        postgres.store, graph=graph(WIDER, more=True), words=NEWER, tables=(WIDER,), more=(ANOTHER,)
    )


async def stored(postgres: PostgresSite) -> list[Any]:
    """All that a deploy changes."""
    return [
        await postgres.query("SELECT number FROM {g} ORDER BY 1", g="generation"),
        await postgres.query("SELECT name, version FROM {c} ORDER BY 1", c="computation"),
        await postgres.query("SELECT name, version FROM {s} ORDER BY 1", s="stream"),
        await postgres.query("SELECT id, generation FROM {k} ORDER BY 1", k="key_interval"),
        await postgres.query(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = %s ORDER BY 1, 2",
            postgres.schema.name,
        ),
    ]


async def test_of_two_deploys_at_once_one_is_compared_with_the_other(
    postgres: PostgresSite,
) -> None:
    await Owner.take(postgres.store, await deploy(postgres.store, graph=graph()))
    other = await postgres.another()
    one = deploy(postgres.store, graph=graph(), words=NEWER)
    two = deploy(other, graph=graph(more=True), more=(ANOTHER,))
    found = await asyncio.gather(one, two, return_exceptions=True)
    refused = [of for of in found if isinstance(of, DeployRefused)]
    assert len(refused) == 1
    assert "millwheel remove" in str(refused[0]) or "version 2" in str(refused[0])
    assert (await stored(postgres))[0] == [(1,), (2,)]


async def test_the_same_deploy_twice_at_once_is_one(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store, await deploy(postgres.store, graph=graph()))
    other = await postgres.another()
    found = await asyncio.gather(
        new_code(postgres), new_code(PostgresSite(postgres.schema, other, postgres.reader))
    )
    assert [deployment.generation for deployment in found] == [2, 2]
    assert (await stored(postgres))[0] == [(1,), (2,)]


async def test_a_deploy_that_is_cut_off_at_any_statement_changes_nothing(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Owner.take(postgres.store, await deploy(postgres.store, graph=graph()))
    before = await stored(postgres)
    cut = CutOff(postgres, monkeypatch)
    cuts = 0
    while True:
        cut.after(cuts)
        try:
            await new_code(postgres)
        except (StoreError, psycopg.Error):
            assert await stored(postgres) == before, f"cut off at statement {cuts}"
            cuts += 1
        else:
            break
    assert cuts > 20
    found = await stored(postgres)
    assert found[0] == [(1,), (2,)]
    assert ("counts", "tag") in found[-1]
    assert msgspec.to_builtins(found[1]) == [("another", 2), ("count", 2), ("lines", 1)]


async def test_the_same_type_in_another_unit_is_no_way_back(site: Site) -> None:
    """Version 2 counts cents where version 1 counts dollars; both are numbers."""
    await deploy(site.store, count=replace(COUNT, version=1, migrates_from=[]))
    await deploy(site.store, count=replace(COUNT, version=2, migrates_from=[1]))
    with pytest.raises(DeployRefused, match=r"give migrations = \{2: down\}"):
        await deploy(site.store, count=replace(COUNT, version=1, migrates_from=[]))
    await deploy(site.store, count=replace(COUNT, version=1, migrates_from=[2]))


async def test_each_new_version_has_a_migration(site: Site) -> None:
    await deploy(site.store, count=replace(COUNT, version=1, migrates_from=[]))
    with pytest.raises(DeployRefused, match="no entry for version 1"):
        await deploy(site.store, count=replace(COUNT, version=2, migrates_from=[]))


async def test_a_part_without_its_migration_is_not_taken_for_unchanged(site: Site) -> None:
    """The entries keep theirs, so that version 1 seems to be known."""
    words = {"words": ["map", {"type": "string"}, {"type": "integer"}]}
    texts = {"words": ["map", {"type": "string"}, {"type": "string"}]}
    before = replace(COUNT, version=1, migrates_from=[], state={"n": "int", "collections": words})
    both = replace(
        COUNT, version=2, migrates_from=[1], entries_migrate_from={"words": [1]},
        state={"n": "text", "collections": texts},
    )  # fmt: skip
    await deploy(site.store, count=before)
    await deploy(site.store, count=both)
    with pytest.raises(DeployRefused, match="state of 'count': a new version without"):
        await deploy(site.store, count=replace(both, migrates_from=[]))
