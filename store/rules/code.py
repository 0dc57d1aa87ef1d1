from __future__ import annotations

from typing import Any

import msgspec

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


class Generation(msgspec.Struct, frozen=True):
    number: int
    code: Code
