"""Steps of a deployed pipeline by their names and by the labels that `millwheel status` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import psycopg

from millwheel.core.names import is_name
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError
from millwheel.graph.labels import label_of
from millwheel.store.postgres.statements import Statements

TYPED = "->"
"""In place of the arrow of a label."""


def labels_of(connection: psycopg.Connection[Any], pipeline: str) -> dict[str, str]:
    """The labels by name; empty: nothing is deployed."""
    nodes = stored_nodes(connection, pipeline)
    return {name: label_of(name, node) for name, node in nodes.items()}


def stored_nodes(connection: psycopg.Connection[Any], pipeline: str) -> dict[str, dict[str, Any]]:
    """The descriptions of the deployed graph's nodes (`millwheel.graph.node.Node.describe`), by
    name; empty: nothing is deployed."""
    found = connection.execute(Statements(pipeline).get("stored_nodes")).fetchall()
    return {} if not found else msgspec.json.decode(found[0][0])


def refusing_steps(nodes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Those of the described nodes whose owners refuse all requests: weak, tree and bundle
    productions are not committed with a state, so there is no commit that could carry one."""
    return {
        name
        for name, node in nodes.items()
        if node.get("productions") == "weak" or "bundles" in node
    }


def name_of_step(connection: psycopg.Connection[Any], pipeline: str, given: str) -> str:
    """The name of a step that an operator names or describes by its label.

    A name is not looked up: there may be such a step, or none.

    Raises:
        UsageError: it is no name, and no step or several steps have it as a label.
    """
    if is_name(given):
        return given
    labels = labels_of(connection, pipeline)
    wanted = given.replace(TYPED, "→")
    names = [name for name, label in labels.items() if label == wanted]
    if len(names) > 1:
        raise UsageError(
            f"several steps of pipeline {pipeline!r} are shown as {given!r}; give the name of one: "
            f"{', '.join(names)}"
        )
    if not names:
        message = f"pipeline {pipeline!r} has no step {given!r}"
        raise UsageError(with_suggestion(message, wanted, [*labels.values(), *labels]))
    return names[0]
