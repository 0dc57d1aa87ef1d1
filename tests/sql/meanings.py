"""What a deploy compares of a query."""

from __future__ import annotations

from typing import Any

from millwheel.graph.node import _code_of
from millwheel.streams import Input
from tests.sql.answers import pipeline_of


def described(query: str) -> dict[str, Any]:
    """What a deploy compares."""
    pipeline, _ = pipeline_of(f"INSERT INTO r {query}")
    return {
        node.name: [
            node.describe(),
            [
                _code_of((input_.extractor,))
                for input_ in node.inputs
                if isinstance(input_, Input) and input_.extractor is not None
            ],
        ]
        for node in pipeline.graph().nodes
    }
