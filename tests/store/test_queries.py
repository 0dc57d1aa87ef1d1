"""Submitted queries: a row of one is there exactly if its generation is."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from millwheel.core.model import SLOTS
from millwheel.errors import DeployRefused, QueriesChanged, StoreError, UsageError
from millwheel.graph.submitted import Submitted
from millwheel.store.console import administration
from millwheel.store.port import Store
from millwheel.store.port.deploy import Deployment, DescribedGraph, NodeDeploy, StreamDeploy
from millwheel.store.port.queries import QueryChange, SubmittedQuery
from tests.support.cut_connections import CutOff
from tests.support.store_sites import BUCKET_HIGH, COUNT, LINES, START, TOTALS, WORDS, PostgresSite

NODES: dict[str, Any] = {
    "lines": {"kind": "injector", "inputs": [], "writes": ["words"]},
    "count": {"kind": "computation", "inputs": [["words", "word"]], "writes": ["totals"]},
}


def query(name: str, *steps: str) -> SubmittedQuery:
    return SubmittedQuery(name, f"text of {name}", (), steps, (name,), submitted_by="ada")


def described(
    *queries: SubmittedQuery, revision: int, change: QueryChange | None = None, more: str = ""
) -> DescribedGraph:
    """A pipeline with queries, each step of which writes the stream of the query."""
    nodes, deploys, streams = dict(NODES), [LINES, COUNT], [WORDS, TOTALS]
    for one in queries:
        streams.append(StreamDeploy(one.name, 1, {"type": "string"}))
        for step in one.steps:
            nodes[step] = {
                "kind": "computation", "inputs": [["words", "spread()"]], "writes": [one.name],
            }  # fmt: skip
            deploys.append(NodeDeploy(step, "computation", 1, {}, ["lines"], [(0, SLOTS)], []))
    if more:
        nodes[more] = {"kind": "computation", "inputs": [["words", "word"]], "writes": []}
        deploys.append(NodeDeploy(more, "computation", 1, {}, ["lines"], [(0, SLOTS)], []))
    graph = {"nodes": nodes, "streams": sorted(stream.name for stream in streams)}
    submitted = Submitted(revision, {one.name: one.steps for one in queries})
    return DescribedGraph(graph, deploys, streams, [], submitted, change)


async def deploy(store: Store, found: DescribedGraph, *, shared: bool = True) -> Deployment:
    return await store.deploy(found, stamp=START, bucket_high=BUCKET_HIGH, shared=shared)


ONE, TWO = query("one", "make_one"), query("two", "make_two", "more_two")


async def test_a_query_is_stored_with_its_generation(store: Store) -> None:
    await deploy(store, described(revision=0))
    assert await store.queries_revision() == 0
    submit = QueryChange("submit", ONE)
    deployment = await deploy(store, described(ONE, revision=0, change=submit))
    assert deployment.generation == 2
    stored = await store.queries()
    assert stored.revision == await store.queries_revision() == 1
    (found,) = stored.queries
    assert (found.name, found.text, found.steps) == ("one", "text of one", ("make_one",))
    assert (found.targets, found.generation, found.submitted_by) == (("one",), 2, "ada")
    again = await deploy(store, described(ONE, revision=1))
    assert again.generation == 2
    plan = await store.plan(described(ONE, revision=1))
    assert plan.is_newest
    assert plan.is_own_code_newest


async def test_code_without_the_queries_is_not_deployed(store: Store) -> None:
    await deploy(store, described(revision=0))
    await deploy(store, described(ONE, revision=0, change=QueryChange("submit", ONE)))
    with pytest.raises(QueriesChanged, match="it has now: one"):
        await deploy(store, described(revision=0))
    with pytest.raises(QueriesChanged):  # two operators at once
        await deploy(store, described(TWO, revision=0, change=QueryChange("submit", TWO)))
    await deploy(store, described(ONE, TWO, revision=1, change=QueryChange("submit", TWO)))
    assert [one.name for one in (await store.queries()).queries] == ["one", "two"]


async def test_a_replacement_removes_steps_in_its_transaction(store: Store) -> None:
    await deploy(store, described(revision=0))
    await deploy(store, described(TWO, revision=0, change=QueryChange("submit", TWO)))
    other = query("two", "make_two", "make_two_2")
    refused = QueryChange("replace", other)
    with pytest.raises(DeployRefused, match="more_two"):  # nothing said that it is to go
        await deploy(store, described(other, revision=1, change=refused))
    change = QueryChange("replace", other, ["more_two"])
    deployment = await deploy(store, described(other, revision=1, change=change))
    assert len(deployment.removed) == 1
    assert "more_two" not in deployment.computations
    assert {"make_two", "make_two_2"} <= deployment.computations.keys()
    stored = await store.queries()
    assert stored.revision == 2
    assert stored.queries[0].steps == ("make_two", "make_two_2")
    again = await deploy(store, described(other, revision=2))
    assert again.generation == deployment.generation


async def test_former_code_is_former_also_with_other_queries(store: Store) -> None:
    """A worker that starts again in a rolling deploy does not undo it, although a query was
    submitted since: no generation is quite its code."""
    await deploy(store, described(revision=0))
    await deploy(store, described(revision=0, more="newer"))
    submit = QueryChange("submit", ONE)
    await deploy(store, described(ONE, revision=0, change=submit, more="newer"))
    plan = await store.plan(described(ONE, revision=1))
    assert (plan.older, plan.is_own_code_newest) == (1, False)
    with pytest.raises(DeployRefused, match=r"generation 1 .* generation 3 is deployed.*submitted"):
        await deploy(store, described(ONE, revision=1))


@pytest.mark.newest
async def test_a_submission_that_is_cut_off_at_any_statement_changes_nothing(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgres.store
    await deploy(store, described(revision=0))
    await deploy(store, described(TWO, revision=0, change=QueryChange("submit", TWO)))
    other = query("two", "make_two", "make_two_2")
    change = QueryChange("replace", other, ["more_two"])

    async def stored() -> list[Any]:
        return [
            await postgres.query("SELECT name, steps, revision, generation FROM {q}", q="query"),
            await postgres.query("SELECT number FROM {g} ORDER BY 1", g="generation"),
            await postgres.query("SELECT name, removed_at FROM {c} ORDER BY 1", c="computation"),
            await postgres.query("SELECT id FROM {k} ORDER BY 1", k="key_interval"),
            await postgres.query("SELECT verb FROM {r}", r="request"),
        ]

    before = await stored()
    cut = CutOff(postgres, monkeypatch)
    cuts = 0
    while True:
        cut.after(cuts)
        try:
            await deploy(store, described(other, revision=1, change=change))
        except (StoreError, psycopg.Error):
            assert await stored() == before, f"cut off at statement {cuts}"
            cuts += 1
        else:
            break
    monkeypatch.undo()
    assert cuts > 25
    assert (await store.queries()).queries[0].steps == ("make_two", "make_two_2")


@pytest.mark.newest
async def test_a_dropped_query_leaves_its_row_and_takes_its_steps(postgres: PostgresSite) -> None:
    store, url, name = postgres.store, postgres.schema.url, postgres.schema.name
    await deploy(store, described(revision=0))
    await deploy(store, described(ONE, revision=0, change=QueryChange("submit", ONE)))
    await deploy(store, described(ONE, TWO, revision=1, change=QueryChange("submit", TWO)))
    with pytest.raises(UsageError, match="belong to the submitted query 'one'"):
        administration.remove_computations(url, name, ["make_one"])
    administration.drop_query(url, name, "one")
    stored = await store.queries()
    assert (stored.revision, [one.name for one in stored.queries]) == (3, ["two"])
    assert (await store.plan(described(TWO, revision=3))).is_newest
    with pytest.raises(UsageError, match="no query 'one' was submitted; there are: two"):
        administration.drop_query(url, name, "one")
    assert (await postgres.query("SELECT count(*) FROM {q}", q="query")) == [(2,)]
    again = query("one", "make_one_2")
    await deploy(store, described(TWO, again, revision=3, change=QueryChange("submit", again)))
