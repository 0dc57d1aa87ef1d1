"""The outputs of a pipeline outside the store, and their names (decision 86).

A fork has the ids of intervals, the logs and the numbers of bundles of its origin. So it withholds
its outputs until an operator turns them on (`millwheel.store.console.outputs`); then names that its
code gives to things outside are made its own. The stored description stays that of the code:
neither is a change of code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from millwheel.graph.node import Node
from millwheel.runtime.environment import Environment
from millwheel.sinks import JsonLinesFiles
from millwheel.sources import Source


@runtime_checkable
class GroupedSource(Protocol):
    """A source that shows its position to tools, as that of a group."""

    group: str | None

    def with_group(self, group: str | None) -> Source:
        """The same source with another group."""
        ...


def as_run(env: Environment, node: Node) -> Node:
    """The node as this pipeline runs it: the group of its source is not that of another pipeline,
    and none while outputs are withheld."""
    injection = node.injection
    source: Any = None if injection is None else injection.source
    if injection is None or not isinstance(source, GroupedSource) or source.group is None:
        return node
    if not env.copied.withholds and not env.is_beside:
        return node
    group = None if env.copied.withholds else env.own_name(source.group)
    return replace(node, injection=replace(injection, source=source.with_group(group)))


def log_withheld(env: Environment) -> None:
    """Warn of steps that write outside the store, and do not in this pipeline."""
    steps = [node.label for node in env.graph.nodes if node.leaves_store]
    if not env.copied.withholds or not steps:
        return
    name, origin = env.graph.name, env.copied.origin
    env.log.warning(
        "outputs_withheld",
        steps=steps,
        **({} if origin is None else {"copy_of": origin}),
        what_it_means=(
            "these steps take their records as delivered, count them (withheld), and write nothing "
            "outside the store; calls that other user code makes by itself are not held back"
        ),
        what_to_do=f"nothing; to let them write from now on: millwheel outputs {name} on",
    )


def writes_files(env: Environment) -> bool:
    """Whether intervals here may write part files."""
    uses = [use for node in env.graph.nodes for found in node.sinks.values() for use in found]
    return not env.copied.withholds and any(isinstance(use.sink, JsonLinesFiles) for use in uses)
