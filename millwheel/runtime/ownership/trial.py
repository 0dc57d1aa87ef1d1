"""Trial of migrations on stored states, before a deploy begins its generation.

A migration that fails when its key is read stops the worker, and by then older code can no longer
own the intervals. So each first runs on some states of every older version, before anything is
changed.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from millwheel.computation import Computation
from millwheel.core.codec import shown
from millwheel.errors import DeployRefused, MigrationFailed
from millwheel.graph.node import Node
from millwheel.runtime.environment import Environment
from millwheel.runtime.keys.stored_states import StoredParts
from millwheel.store.port.states import OldState

TRIED_STATES = 100
"""Most states that are tried, per computation and version."""


async def try_migrations(env: Environment) -> None:
    """`DeployRefused` if a migration failed, or returned a value that the new type does not
    accept, or there is none any more for a value."""
    nodes = {
        node.name: node
        for node in env.graph.nodes
        if node.computation is not None
        and (has_migrations(node.computation) or node.computation.version > 1)
    }
    if not nodes:
        return
    versions = {name: _version(node) for name, node in nodes.items()}
    found = await env.patiently(lambda: env.store.sample_states(versions, TRIED_STATES))
    for (name, version), states in groupby(found, key=lambda old: (old.computation, old.version)):
        tried = _try(nodes[name], version, states)
        if tried:
            env.log.info(
                "migration_tried",
                computation=name,
                from_version=version,
                to_version=versions[name],
                states=tried,
            )


def has_migrations(computation: Computation[Any, Any, Any, Any]) -> bool:
    return bool(
        computation.migrations or computation.entry_migrations or computation.shared_migrations
    )


def _version(node: Node) -> int:
    assert node.computation is not None
    return node.computation.version


def _try(node: Node, version: int, states: Iterable[OldState]) -> int:
    """Returns how many migrations were tried."""
    tried, parts = 0, StoredParts(node)
    for old in states:
        key = old.key.decode()
        part = parts.of(key, old.entry)
        if part is None:
            continue
        if not part.leads_from(version):
            raise DeployRefused(
                f"nothing was deployed: {part.subject}, key {key}{old.entry and ', ' + old.entry}, "
                f"is of version {version}, and the code has no migration from it to version "
                f"{part.version}. Add it again; it may go when no value needs it, after millwheel "
                "migrate MODULE:PIPELINE --states"
            )
        try:
            part.migrated(old.value, version, key, old.entry)
        except MigrationFailed as error:
            cause = error.__cause__ or error
            raise DeployRefused(
                f"nothing was deployed: a migration failed in a trial on stored values.\n{error}\n"
                f"The value: {shown(old.value.decode(), 500)}\n"
                + "".join(traceback.format_exception(cause)).rstrip()
            ) from error
        tried += 1
    return tried
