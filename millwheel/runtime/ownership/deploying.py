from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

from millwheel.core.model import SLOTS
from millwheel.graph.node import Node
from millwheel.graph.order import Graph
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.step import Step
from millwheel.runtime.ownership.own_outputs import as_run
from millwheel.runtime.ownership.trial import try_migrations
from millwheel.runtime.routes.routes import StreamRoute, WeakRoute, connect
from millwheel.runtime.seen.weak_ids import mark_of
from millwheel.sinks import Table
from millwheel.state import changed_fields
from millwheel.store.port.deploy import Deployment, DescribedGraph, NodeDeploy, StreamDeploy
from millwheel.store.port.queries import QueryChange
from millwheel.store.port.state_shape import state_shape
from millwheel.store.rules.code import SHARED
from millwheel.streams import Input

DISCOVERY = "discovery of partitions"
"""Identity of the discovery's interval, which is no partition."""


def described(graph: Graph, intervals: int) -> DescribedGraph:
    """`intervals` is for each new computation."""
    tables = {
        use.sink.name: use.sink
        for node in graph.nodes
        for uses in node.sinks.values()
        for use in uses
        if isinstance(use.sink, Table)
    }
    for aggregate in graph.aggregates:
        if isinstance(aggregate.to, Table):
            tables[aggregate.to.name] = aggregate.to
    return DescribedGraph(
        graph.describe(),
        [node_deploy(graph, node, intervals) for node in graph.nodes],
        [
            StreamDeploy(s.name, s.version, s.codec.fingerprint, sorted(s.migrations))
            for s in graph.streams.values()
        ],
        list(tables.values()),
        graph.submitted,
    )


async def deploy(
    env: Environment, *, back: bool = False, change: QueryChange | None = None
) -> Deployment:
    """`DeployRefused` if the code cannot continue from the stored state.

    Args:
        back: the code is that of a former generation, and is to begin the next one.
        change: a change of the submitted queries, which the code has already.
    """
    found = described(env.graph, env.settings.intervals)._replace(change=change)
    plan = await env.patiently(lambda: env.store.plan(found))
    if plan.deployed is not None and not plan.is_refused:  # otherwise `Store.deploy` refuses it
        await try_migrations(env)
    stamp = env.stamps.next()
    return await env.patiently(  # commits of running workers may block it for a while
        lambda: env.store.deploy(
            found,
            stamp=stamp,
            bucket_high=stamp + int(env.settings.bucket_seconds * 1e6),
            shared=env.is_shared or back or change is not None,
            back=back,
        )
    )


def log_changes(env: Environment, deployment: Deployment) -> None:
    for change in deployment.changes:
        env.log.info(
            "deployed_change", change=change.title, what_it_means=change.text or "as it is"
        )


def node_deploy(graph: Graph, node: Node, intervals: int) -> NodeDeploy:
    sources: list[str] = []
    if node.injection is not None:
        sources = [partition.identity for partition in node.injection.source.partitions()]
        if node.injection.growing is not None:
            sources = [DISCOVERY]
        slots = [(number, number + 1) for number in range(len(sources))]
    else:
        grain = node.grain
        count = min(intervals, SLOTS // grain)
        edges = [SLOTS // grain * number // count * grain for number in range(count + 1)]
        slots = list(pairwise(edges))
    computation = node.computation
    return NodeDeploy(
        name=node.name,
        kind=node.kind,
        version=computation.version if computation else 1,
        state=_fingerprint(node),
        upstream=[other.name for other in graph.upstream(node)],
        slots=slots,
        sources=sources,
        renamed_from=node.renamed_from,
        migrates_from=sorted(computation.migrations) if computation else [],
        changed_fields=(
            {
                version: sorted(fields)
                for version, migration in computation.migrations.items()
                if (fields := changed_fields(migration)) is not None
            }
            if computation
            else {}
        ),
        entries_migrate_from=(
            {name: sorted(of) for name, of in computation.entry_migrations.items()}
            if computation
            else {}
        ),
        shared_migrates_from=sorted(computation.shared_migrations) if computation else [],
        keys={
            i.stream.name: i.keys
            for i in node.inputs
            if isinstance(i, Input) and i.keys is not None
        },
        shape=state_shape(node.layout),
        shared=state_shape(node.shared),
    )


def _fingerprint(node: Node) -> dict[str, Any]:
    found = dict(node.layout.fingerprint) if node.layout else {}
    if node.shared is not None:
        found[SHARED] = node.shared.fingerprint["plain"]
    return found


def log_rekeyed(env: Environment, deployment: Deployment) -> None:
    for name, stream in deployment.newly_rekeyed:
        node = env.graph.by_name[name]
        does = "records not yet acknowledged are sent again under the new keys, and count once"
        to_do = "nothing"
        if node.named:
            does = (
                "ids are extracted again: rows that are not acknowledged yet count again if their "
                "ids have changed"
            )
            to_do = "to avoid this, deploy such a change when all rows are acknowledged"
        elif node.kind == "computation" and node.layout and not node.layout.stateless:
            does += "; the state of keys that no record has any more stays, and nothing reads it"
            to_do = f"see the view state_of_{name} for such keys"
        env.log.warning(
            "key_extractor_changed",
            computation=name,
            stream=stream,
            what_it_means=does,
            what_to_do=to_do,
        )


def connect_steps(steps: dict[int, Step], env: Environment, deployment: Deployment) -> None:
    for place, node in enumerate(map(partial(as_run, env), env.graph.nodes)):
        id_ = deployment.computations[node.name]
        kind = WeakRoute if node.is_weak else StreamRoute
        withholds = env.copied.withholds and node.leaves_store
        routes = {
            s.name: kind(s, node.sinks.get(s.name, []), withholds=withholds) for s in node.writes
        }
        steps[id_] = Step(id_, place, node, routes, mark_of(env.worker), withholds)
    by_name = {step.name: step for step in steps.values()}
    for step in steps.values():
        connect(by_name, step.node, step.routes)
