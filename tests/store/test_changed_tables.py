"""Tables of sinks whose row type changes: former code goes on writing beside the new one."""

from __future__ import annotations

import asyncio
import uuid
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from millwheel import Table
from millwheel.errors import DeployRefused, StatementError, StoreUnavailable
from millwheel.store.rules.changes import kinds, table_changes
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


class Renamed(msgspec.Struct):
    word: str
    number: int | None = None


class Exact(msgspec.Struct):
    word: str
    count: Decimal | None = None


class Spelled(msgspec.Struct):
    word: str
    count: str | None = None


SPELLED = Table("counts", Spelled, key=("word",))
RENAMED = Table("counts", Renamed, key=("word",), renamed_from={"number": "count"})
EXACT = Table("counts", Exact, key=("word",))
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


async def test_a_column_is_renamed_with_its_values(site: Site) -> None:
    await write(await Owner.take(site.store), (COUNTS, row("before", 1)))
    await deploy(site.store, graph=graph_with(RENAMED), tables=(RENAMED,))
    deployment = await deploy(site.store, graph=graph_with(RENAMED), tables=(RENAMED,))
    owner = await Owner.take(site.store, deployment)
    await write(owner, (RENAMED, ("after", 2)))
    assert [of[:2] for of in sorted(await site.rows(RENAMED))] == [("after", 2), ("before", 1)]


async def test_a_column_is_renamed_only_if_no_worker_of_former_code_runs(site: Site) -> None:
    deployment = await deploy(site.store)
    owner = await Owner.take(site.store, deployment)
    await site.store.register_worker(str(uuid.uuid4()), 60.0, address="somewhere")
    with pytest.raises(DeployRefused, match="write the column under its former name"):
        await deploy(site.store, graph=graph_with(RENAMED), tables=(RENAMED,), shared=True)
    await write(owner, (COUNTS, row("former", 1)))


async def test_each_value_of_a_column_gets_the_wider_type(site: Site) -> None:
    deployment = await deploy(site.store)
    owner = await Owner.take(site.store, deployment)
    await write(owner, (COUNTS, row("before", 1)))
    await deploy(site.store, graph=graph_with(EXACT), tables=(EXACT,))
    await write(owner, (COUNTS, row("former", 2)))
    await write(owner, (EXACT, ("after", Decimal("0.5"))))
    found = {word: count for word, count, *_ in await site.rows(EXACT)}
    assert found == {"before": 1, "former": 2, "after": Decimal("0.5")}
    assert all(isinstance(count, Decimal) for count in found.values())
    with pytest.raises(DeployRefused, match="which may not have each stored value"):
        await deploy(site.store, graph=graph_with(SPELLED), tables=(SPELLED,))


async def test_a_view_on_a_column_keeps_its_type(postgres: PostgresSite) -> None:
    await write(await Owner.take(postgres.store), (COUNTS, row("before", 1)))
    await postgres.query("CREATE VIEW {v} AS SELECT count FROM {t}", v="report", t="counts")
    with pytest.raises(DeployRefused, match=r"table 'counts' cannot be changed: .* used by a view"):
        await deploy(postgres.store, graph=graph_with(EXACT), tables=(EXACT,))
    assert (await postgres.query("SELECT count(*) FROM {g}", g="generation"))[0] == (1,)


async def test_a_large_table_is_not_rewritten(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(await Owner.take(postgres.store), (COUNTS, row("before", 1)))
    monkeypatch.setattr(table_changes, "MOST_REWRITTEN_BYTES", 1)
    with pytest.raises(DeployRefused, match=r"column count of table .* to type numeric by SQL"):
        await deploy(postgres.store, graph=graph_with(EXACT), tables=(EXACT,))


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


async def test_a_table_that_was_there_before_the_first_deploy_is_compared_too(
    postgres: PostgresSite,
) -> None:
    await postgres.query("CREATE TABLE {t} (word bigint PRIMARY KEY, count bigint)", t="counts")
    with pytest.raises(DeployRefused, match=r"table 'counts', column 'word': another type"):
        await deploy(postgres.store)
    await postgres.query("DROP TABLE {t}", t="counts")
    await postgres.query("CREATE TABLE {t} (word text, count bigint)", t="counts")
    with pytest.raises(DeployRefused, match="has no unique index on"):
        await deploy(postgres.store)
    await postgres.query("ALTER TABLE {t} ADD PRIMARY KEY (word)", t="counts")
    owner = await Owner.take(postgres.store)
    await write(owner, (COUNTS, row("fits", 1)))
    assert len(await postgres.rows(COUNTS)) == 1


async def test_a_column_of_a_table_made_by_hand_that_rows_have_no_value_for_is_said(
    postgres: PostgresSite,
) -> None:
    """It is taken, as a trigger may give the value; numbers that the table makes itself are no
    such column."""
    await postgres.query(
        "CREATE TABLE {t} (word text PRIMARY KEY, count bigint, pounds bigint NOT NULL, "
        "id bigint GENERATED ALWAYS AS IDENTITY, made timestamptz NOT NULL DEFAULT now())",
        t="counts",
    )
    first = await deploy(postgres.store, graph=graph_with(COUNTS))
    said = [change for change in first.changes if change.kind is kinds.COLUMN_FOREIGN]
    assert [change.where for change in said] == ["table 'counts', column 'pounds'"]
    assert "let column pounds of table wheel.counts be NULL" in said[0].text
    again = await deploy(postgres.store, graph=graph_with(WIDER), tables=(WIDER,))
    assert kinds.COLUMN_FOREIGN not in [change.kind for change in again.changes]


async def test_the_column_and_the_value_that_a_row_is_refused_for(site: Site) -> None:
    owner = await Owner.take(site.store)
    with pytest.raises(StatementError) as refused:
        await write(owner, (COUNTS, row("fits", 1)), (COUNTS, row("large", 1 << 70)))
    assert "rows for table 'counts'" in str(refused.value)
    assert "column 'count' is bigint, which does not hold 1180591620717411303424" in str(
        refused.value
    )
