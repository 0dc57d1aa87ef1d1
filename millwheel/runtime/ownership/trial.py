"""Migrations tried on stored states before a deploy begins its generation.

A migration that fails when its key is read stops the worker, after older code was locked out of what the
new code has had. So each is tried first on some states of every older version: what fails there refuses
the deploy, and nothing was changed.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from millwheel.addresses import CELL_MARK
from millwheel.codec import apply_migrations, leads, shown
from millwheel.errors import DeployRefused, MigrationFailed
from millwheel.graph import Node
from millwheel.state import StateLayout
from millwheel.store.port import OldState

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

TRIED_STATES = 100
"""States of each computation and version that a migration is tried on, at the most."""


async def try_migrations(engine: Engine) -> None:
    """Run the migrations of all states on a sample of what is stored.

    Raises:
        DeployRefused: one failed, or gave what the new type does not accept.
    """
    nodes = {
        node.name: node
        for node in engine.graph.nodes
        if node.computation is not None
        and (node.computation.migrations or node.computation.shared_migrations)
    }
    if not nodes:
        return
    versions = {name: _version(node) for name, node in nodes.items()}
    found = await engine.patiently(lambda: engine.store.sample_states(versions, TRIED_STATES))
    for (name, version), states in groupby(found, key=lambda old: (old.computation, old.version)):
        tried = _try(nodes[name], version, states)
        if tried:
            engine.log.info(
                "migration_tried",
                computation=name,
                from_version=version,
                to_version=versions[name],
                states=tried,
            )


def _version(node: Node) -> int:
    assert node.computation is not None
    return node.computation.version


def _try(node: Node, version: int, states: Iterable[OldState]) -> int:
    """Migrate some states of one version; gives how many."""
    tried = 0
    for old in states:
        is_table = node.shared is not None and old.key.startswith(CELL_MARK)
        layout: StateLayout[Any] | None = node.shared if is_table else node.layout
        steps = node.shared_steps if is_table else node.state_steps
        if layout is None or layout.stateless or not leads(steps, version, _version(node)):
            continue  # the graph's comparison says what is missing
        what = f"{'shared table' if is_table else 'state'} of {node.name!r}, key {old.key.decode()}"
        try:
            apply_migrations(old.value, version, _version(node), steps, what, layout.codec.decode)
        except MigrationFailed as error:
            cause = error.__cause__ or error
            raise DeployRefused(
                f"nothing was deployed: a migration was tried on stored values, and failed.\n{error}\n"
                f"The value: {shown(old.value.decode(), 500)}\n"
                + "".join(traceback.format_exception(cause)).rstrip()
            ) from error
        tried += 1
    return tried
