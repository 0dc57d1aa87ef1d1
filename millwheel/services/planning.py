"""Compares a pipeline's code with the deployed one, before any worker runs it."""

from __future__ import annotations

from dataclasses import replace

from millwheel.core.own_loop import run_to_end
from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Environment
from millwheel.runtime.ownership.deploying import deploy, described
from millwheel.runtime.ownership.trial import try_migrations
from millwheel.services.hosting import opened
from millwheel.services.queried_pipeline import with_queries
from millwheel.store.port.change import ChangeVerdict
from millwheel.store.port.deploy import Deployment, Plan
from millwheel.store.port.states import OldState
from millwheel.store.rules.changes import kinds

MOST_SHOWN = 5


def plan(pipeline: Pipeline, url: str) -> Plan:
    """The differences that a deploy of the code would find. Nothing is changed, and nothing waits.

    Raises:
        DeployRefused: a migration fails on a stored state.
    """
    return run_to_end(_plan(pipeline, url))


async def _plan(pipeline: Pipeline, url: str) -> Plan:
    async with opened(pipeline, url) as store:
        env = Engine(await with_queries(pipeline, store), store).env
        found = await store.plan(described(env.graph, env.settings.intervals))
        if found.deployed is not None and not found.is_refused:
            await try_migrations(env)
        if any(change.kind is kinds.TYPE_DOWN for change in found.changes):
            found = replace(found, in_the_way=await _in_the_way(env))
        return found


def changes_data(found: Plan) -> bool:
    """Whether a deploy would remove stored data, or give it another form."""
    return any(
        change.kind.verdict is ChangeVerdict.FOLLOWS and change.kind not in kinds.UNCONFIRMED
        for change in found.changes
    )


async def _in_the_way(env: Environment) -> list[OldState]:
    """Some states of versions above those of this code, of each computation, collection and
    version."""
    versions = {
        node.name: node.computation.version
        for node in env.graph.nodes
        if node.computation is not None
    }
    found = await env.store.sample_states(versions, MOST_SHOWN)
    return [old for old in found if old.version > versions[old.computation]]


def roll_back(pipeline: Pipeline, url: str) -> Deployment:
    """Deploy code of a former generation again.

    Raises:
        DeployRefused: it cannot read values that newer code has written.
        UsageError: it is not the code of a former generation.
    """
    return run_to_end(_roll_back(pipeline, url))


async def _roll_back(pipeline: Pipeline, url: str) -> Deployment:
    async with opened(pipeline, url) as store:
        env = Engine(await with_queries(pipeline, store), store).env
        found = await store.plan(described(env.graph, env.settings.intervals))
        if found.older is None:
            raise UsageError(
                f"this code is not that of a former generation of pipeline {pipeline.name!r}, so "
                "there is no way back to it; see the differences: millwheel plan MODULE:PIPELINE"
            )
        return await deploy(env, back=True)
