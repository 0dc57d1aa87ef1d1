"""Outputs of a pipeline: whether anything of it leaves the store (decision 86)."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import psycopg

from millwheel.errors import UsageError
from millwheel.graph.labels import label_of
from millwheel.graph.outside import leaves_store
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.live_workers import live_workers
from millwheel.store.console.snapshot import choose, list_pipelines
from millwheel.store.console.step_names import stored_nodes
from millwheel.store.postgres.statements import Statements


class OutputStatus(msgspec.Struct, frozen=True):
    """Of one pipeline."""

    origin: str | None = None
    """The pipeline or savepoint that it was copied from; None: it is no copy."""
    withholds: bool = False
    steps: tuple[str, ...] = ()
    """Steps that write outside the store, as they are shown."""


class DeliveringOrigin(NamedTuple):
    """The pipeline that another one was copied from, and that writes outside the store."""

    name: str
    workers: int
    """Workers that run it."""


class SwitchedOutputs(NamedTuple):
    changed: bool
    steps: tuple[str, ...]
    workers: int
    """Workers that run the pipeline; they start over when they notice the change."""


def output_status(connection: psycopg.Connection[Any], pipeline: str) -> OutputStatus:
    rows = connection.execute(Statements(pipeline).get("copy_state")).fetchall()
    if not rows:
        return OutputStatus()
    nodes = stored_nodes(connection, pipeline)
    steps = tuple(label_of(name, node) for name, node in nodes.items() if leaves_store(node))
    (origin, withholds), *_ = rows
    return OutputStatus(origin, withholds, steps)


def delivering_origin(url: str, pipeline: str) -> DeliveringOrigin | None:
    """The origin of a pipeline, if it is in the store, and its outputs are on."""
    with transaction(url) as connection:
        known = list_pipelines(connection)
        choose(known, pipeline)
        origin = output_status(connection, pipeline).origin
        name = None if origin is None else origin.partition("@")[0]
        if name is None or name == pipeline or name not in known:
            return None
        if output_status(connection, name).withholds:
            return None
        return DeliveringOrigin(name, len(live_workers(connection, Statements(name))))


def switch_outputs(url: str, pipeline: str, *, on: bool, actor: Actor = UNNAMED) -> SwitchedOutputs:
    """Turn outputs on or off, and note it in the log of operators.

    Raises:
        UsageError: there is no such pipeline, or it was never run.
    """
    with transaction(url) as connection:
        choose(list_pipelines(connection), pipeline)
        statements = Statements(pipeline)
        if not connection.execute(statements.get("copy_state")).fetchall():
            raise UsageError(f"pipeline {pipeline!r} was never run: it has no outputs yet")
        rows = connection.execute(
            statements.get("switch_outputs"), {"withholds": not on}
        ).fetchall()
        steps = output_status(connection, pipeline).steps
        if rows:
            verb = "outputs on" if on else "outputs off"
            Asking(connection, pipeline).note(actor, verb, {"steps": steps})
        return SwitchedOutputs(
            bool(rows),
            steps,
            len(live_workers(connection, statements)),
        )
