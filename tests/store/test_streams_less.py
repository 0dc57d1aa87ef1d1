"""A computation that reads or writes a stream less than the deployed code does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel.errors import DeployRefused
from tests.support.store_sites import GRAPH, Owner, PostgresSite, Site, deploy

pytestmark = pytest.mark.newest


def graph_with(name: str, **parts: Any) -> dict[str, Any]:
    return {**GRAPH, "nodes": {**GRAPH["nodes"], name: {**GRAPH["nodes"][name], **parts}}}


async def test_an_output_stays_while_its_records_are_on_their_way(site: Site) -> None:
    owner = await Owner.take(site.store)
    commit = owner.commit()
    commit.productions = [owner.production("key", 1)]
    await owner.write(commit)
    silent = graph_with("count", writes=[])
    with pytest.raises(DeployRefused, match="they would be late"):
        await deploy(site.store, graph=silent)
    acked = msgspec.json.encode({str(owner.log()): [1, []]})
    first, *_ = owner.intervals
    await owner.write(owner.commit(first, acked=acked))
    await deploy(site.store, graph=silent)


async def test_a_record_that_was_sent_meanwhile_keeps_the_output(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deploy waits for commits that run, and then looks again."""
    owner = await Owner.take(postgres.store)
    commit = owner.commit()
    commit.productions = [owner.production("key", 1)]
    await owner.write(commit)
    from millwheel.store.postgres import deployment

    asked: list[Any] = []
    real = deployment.Deploy._sent

    async def sent(self: Any, pairs: Any) -> set[tuple[str, str]]:
        asked.append(pairs)
        return set() if len(asked) == 1 else await real(self, pairs)

    monkeypatch.setattr(deployment.Deploy, "_sent", sent)
    with pytest.raises(DeployRefused, match="they would be late"):
        await deploy(postgres.store, graph=graph_with("count", writes=[]))
    assert asked == [[("count", "totals")]] * 2
    assert (await postgres.query("SELECT count(*) FROM {g}", g="generation"))[0] == (1,)


async def test_an_input_stays_while_keys_are_parked(postgres: PostgresSite) -> None:
    reads = graph_with("count", inputs=[["words", "word"], ["more", "word"]])
    deployment = await deploy(postgres.store, graph=reads)
    await Owner.take(postgres.store, deployment)
    parked = (
        "INSERT INTO {d} (computation, slot, key, parked, stream, value, ts, place, error, "
        "traceback, attempts, stamp) "
        "VALUES (%s, 0, '1', 'waiting', 'more', '1', 0, '', '', '', 1, 0)"
    )
    await postgres.query(parked, deployment.computations["count"], d="dead_letter")
    less = graph_with("count", inputs=[["words", "word"]])
    with pytest.raises(DeployRefused, match="'count' has parked keys"):
        await deploy(postgres.store, graph=less)
    await postgres.query("DELETE FROM {d}", d="dead_letter")
    await deploy(postgres.store, graph=less)
