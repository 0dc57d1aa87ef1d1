"""Graphs as deploys store them, for pages that draw them."""

from __future__ import annotations

from typing import Any

from tests.support.store_sites import COUNTS


def node(kind: str, reads: list[str], writes: list[str], **more: Any) -> dict[str, Any]:
    """A description, as of `millwheel.graph.node.Node.describe`."""
    return {
        "kind": kind,
        "inputs": [[stream, "by_word"] for stream in reads],
        "writes": writes,
        "sinks": {},
        **more,
    }


LINES_TO_COUNTS: dict[str, Any] = {
    "nodes": {
        "lines": node("injector", [], ["words"], source={"json_lines": "lines.txt"}),
        "count": node(
            "computation", ["words"], ["totals"],
            **{"class": "Count", "sinks": {"totals": [COUNTS.describe()]}},
        ),
    },
    "streams": ["totals", "words"],
}  # fmt: skip
"""The graph of `tests.support.store_sites.deploy`, described in full."""
