"""Tables of sinks whose row type changes: former code goes on writing beside the new one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from millwheel import Table
from millwheel.errors import StoreUnavailable
from tests.support.store_sites import COUNTS, GRAPH, Counted, Owner, PostgresSite, Site, deploy, row

pytestmark = pytest.mark.newest


class Wider(Counted):
    """`Counted` with fields that a row may be without."""

    tag: str | None = None
    weight: float = 1.5
    marks: list[str] = msgspec.field(default_factory=list)


class Shorter(msgspec.Struct):
    word: str
    share: float | None = None


WIDER = Table("counts", Wider, key=("word",))
SHORTER = Table("counts", Shorter, key=("word",))


def graph_with(table: Table[Any]) -> dict[str, Any]:
    count = {**GRAPH["nodes"]["count"], "sinks": {"totals": [table.describe()]}}
    return {**GRAPH, "nodes": {**GRAPH["nodes"], "count": count}}


async def write(owner: Owner, *rows: tuple[Table[Any], tuple[Any, ...]]) -> None:
    commit = owner.commit()
    commit.rows = list(rows)
    await owner.write(commit)


async def test_former_and_new_code_write_a_table_with_more_columns(site: Site) -> None:
    owner = await Owner.take(site.store)
    await write(owner, (COUNTS, row("before", 1)))
    await deploy(site.store, tables=(WIDER,))
    await write(owner, (COUNTS, row("former", 2)), (COUNTS, row("both", 3)))
    both = (*row("both", 4), "new", 2.5, '["x"]')
    await write(owner, (WIDER, both))
    await write(owner, (COUNTS, row("both", 5)))
    found = {word: rest for word, *rest in await site.rows(WIDER)}
    nothing = [None, None, None]
    assert found["before"] == [1, *nothing, None, 1.5, []]
    assert found["both"][0] == 5
    assert found["both"][-3:] == ["new", 2.5, ["x"]], "former code does not know these columns"
    assert found["former"][0] == 2


async def test_a_column_that_no_code_writes_any_more_stays(site: Site) -> None:
    deployment = await deploy(site.store, graph=graph_with(COUNTS))
    owner = await Owner.take(site.store, deployment)
    await write(owner, (COUNTS, row("before", 1)))
    await deploy(site.store, graph=graph_with(SHORTER), tables=(SHORTER,))
    await write(owner, (SHORTER, ("after", 0.5)))
    found = {word: count for word, count, *_ in await site.rows(COUNTS)}
    assert found == {"before": 1, "after": None}


async def test_who_uses_a_table_for_long_delays_the_deploy_and_not_the_workers(
    postgres: PostgresSite,
) -> None:
    """The deploy waits for two seconds, and is tried again: nothing is changed until then."""
    owner = await Owner.take(postgres.store)
    reader = await postgres.another()
    async with reader.connections.connection() as connection, connection.transaction():
        await connection.execute(postgres.schema.compose("SELECT FROM {t}", t="counts"))
        with pytest.raises(StoreUnavailable, match="locked by another session"):
            await deploy(postgres.store, tables=(WIDER,))
        await asyncio.wait_for(write(owner, (COUNTS, row("meanwhile", 1))), 10)
    assert (await postgres.query("SELECT count(*) FROM {g}", g="generation"))[0] == (1,)
    await deploy(postgres.store, tables=(WIDER,))
    assert len(await postgres.rows(WIDER)) == 1
