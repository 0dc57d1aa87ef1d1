from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import structs

from millwheel.core.extractors import AllKeys

SHARED = "shared"
"""Name of the shared table's type in a state's fingerprint."""


class TypeVersion(msgspec.Struct, frozen=True, array_like=True):
    version: int
    type: Any


class Code(msgspec.Struct, frozen=True):
    graph: dict[str, Any]
    states: dict[str, TypeVersion]
    streams: dict[str, TypeVersion]
    keys: AllKeys = {}
    """Key extractors by node and stream; empty if the deploy was before these were stored."""

    renames: dict[str, str] = {}
    """Former names of nodes, as the code gives them, by the present one."""

    queries: dict[str, list[str]] = {}
    """The nodes of each query that was submitted to the pipeline."""

    @property
    def nodes(self) -> dict[str, Any]:
        """Descriptions of its nodes, by name (`millwheel.graph.node.Node.describe`)."""
        found: dict[str, Any] = self.graph.get("nodes", {})
        return found

    @property
    def tables(self) -> dict[str, Any]:
        """Descriptions of the tables of its sinks, by name."""
        return {
            sink["table"]: sink
            for node in self.nodes.values()
            for uses in node.get("sinks", {}).values()
            for sink in uses
            if "table" in sink
        }

    def keeping(self, names: Collection[str]) -> Code:
        """The code with some of its nodes only, and with the streams that these use."""
        nodes = {name: node for name, node in self.nodes.items() if name in names}
        used = {
            stream
            for node in nodes.values()
            for stream in (*node.get("writes", ()), *(name for name, _ in node.get("inputs", ())))
        }
        queries = {
            query: left
            for query, steps in self.queries.items()
            if (left := [step for step in steps if step in nodes])
        }
        return Code(
            {**self.graph, "nodes": nodes, "streams": sorted(used)},
            {name: kind for name, kind in self.states.items() if name in nodes},
            {name: kind for name, kind in self.streams.items() if name in used},
            {name: keys for name, keys in self.keys.items() if name in nodes},
            queries=queries,
        )

    @property
    def own(self) -> Code:
        """The code without the queries that were submitted to it."""
        submitted = {step for steps in self.queries.values() for step in steps}
        return self.keeping(self.nodes.keys() - submitted)


class Generation(msgspec.Struct, frozen=True):
    number: int
    code: Code


def under_new_names(code: Code, names: Mapping[str, str]) -> Code:
    """A code with other names of its nodes: `names` has the new one by the former one."""
    if not names:
        return code

    def renamed(by_name: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in by_name.items()}

    return structs.replace(
        code,
        graph={**code.graph, "nodes": renamed(code.nodes)},
        states=renamed(code.states),
        keys=renamed(code.keys),
    )


def present_names(history: Sequence[Generation], number: int) -> dict[str, str]:
    """The present name of each node that has been renamed since a generation, by its name there."""
    names: dict[str, str] = {}
    for before, after in pairwise(history):
        if after.number > number:
            names = _continued(names, effective_renames(before.code, after.code))
    return names


def effective_renames(before: Code, after: Code) -> dict[str, str]:
    """The renames that a deploy has made, or makes."""
    return {
        new: former
        for new, former in after.renames.items()
        if former in before.nodes and new not in before.nodes
    }


def _continued(names: Mapping[str, str], renames: Mapping[str, str]) -> dict[str, str]:
    """`names` after a further deploy, which has renamed nodes; by the first name still."""
    later = {former: new for new, former in renames.items()}
    found = {first: later.pop(name, name) for first, name in names.items()}
    return found | later


def with_present_names(
    history: Sequence[Generation], renames: Mapping[str, str]
) -> list[Generation]:
    """The generations with the names that their nodes have now, and after `renames`."""
    return [
        Generation(
            generation.number,
            under_new_names(
                generation.code,
                _continued(present_names(history, generation.number), renames),
            ),
        )
        for generation in history
    ]
