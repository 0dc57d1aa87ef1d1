"""What a worker tells the store of its graph when it starts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from millwheel.graph import Graph, Node
from millwheel.model import SLOTS
from millwheel.runtime.ownership.trial import try_migrations
from millwheel.sinks import Table
from millwheel.store.generations import SHARED
from millwheel.store.port import Deployment, NodeDeploy, StreamDeploy
from millwheel.store.state_shape import state_shape
from millwheel.streams import Input

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

DISCOVERY = "discovery of partitions"
"""In place of a partition's identity: the interval of the task that looks for partitions."""


async def deploy(engine: Engine) -> Deployment:
    """Hand in the graph of this code, and learn what it is called in the store.

    Raises:
        DeployRefused: the stored pipeline and this code do not agree.
    """
    nodes = [
        node_deploy(engine.graph, node, engine.settings.intervals) for node in engine.graph.nodes
    ]
    streams = [
        StreamDeploy(s.name, s.version, s.codec.fingerprint, sorted(s.migrations))
        for s in engine.graph.streams.values()
    ]
    tables = {
        use.sink.name: use.sink
        for node in engine.graph.nodes
        for uses in node.sinks.values()
        for use in uses
        if isinstance(use.sink, Table)
    }
    await try_migrations(engine)
    stamp = engine.stamps.next()
    return await engine.patiently(  # commits of those who are there may be in its way
        lambda: engine.store.deploy(
            engine.graph.describe(),
            nodes,
            streams,
            list(tables.values()),
            stamp=stamp,
            bucket_high=stamp + int(engine.settings.bucket_seconds * 1e6),
            shared=engine.is_shared,
        )
    )


def node_deploy(graph: Graph, node: Node, intervals: int) -> NodeDeploy:
    """What one node is, and where its intervals begin and end if it is new."""
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
        migrates_from=sorted(computation.migrations) if computation else [],
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
    """The types that a node stores: of its state, and of what its keys share."""
    found = dict(node.layout.fingerprint) if node.layout else {}
    if node.shared is not None:
        found[SHARED] = node.shared.fingerprint["plain"]
    return found
