"""Registers the inboxes of a new pipeline, so that programs can send before the first worker
runs."""

from __future__ import annotations

from millwheel.core.own_loop import run_to_end
from millwheel.inbox import Inbox
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.ownership.deploying import deploy
from millwheel.services.hosting import opened
from millwheel.store.console.inspection import inspect


def register_inboxes(pipeline: Pipeline, url: str) -> list[str]:
    """Deploy a pipeline that has never run, if it has inboxes, and open them; returns the names of
    their streams.

    A pipeline that has run is deployed by its workers only: a graph with changes needs workers that
    have it.
    """
    inboxes = [
        (node.name, node.writes[0].name, node.injection.source)
        for node in pipeline.nodes.values()
        if node.injection is not None and isinstance(node.injection.source, Inbox)
    ]
    with inspect(url) as inspection:
        if not inboxes or inspection.status(pipeline.name).deployed:
            return []
    run_to_end(_register(pipeline, url, inboxes))
    return [stream for _, stream, _ in inboxes]


async def _register(pipeline: Pipeline, url: str, inboxes: list[tuple[str, str, Inbox]]) -> None:
    async with opened(pipeline, url) as store:
        await store.incarnation()  # so that the first worker knows that no commit is lost
        deployment = await deploy(Engine(pipeline, store).env)
        intervals = {row.computation: row.id for row in deployment.intervals}
        for node, stream, inbox in inboxes:
            await store.open_inbox(
                stream,
                intervals[deployment.computations[node]],
                requires_id=inbox.require_id,
                remember=inbox.remember,
            )
