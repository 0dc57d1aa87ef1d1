"""Outputs outside the store: the steps that have some, by their descriptions (the code's, and the
stored one), and the directories of pipelines that share their code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INSIDE = ("table", "discard")
"""Parts of the descriptions of sinks that write nothing outside the store."""


def own_directory(pipeline: str) -> str:
    """A directory inside a sink's, for a pipeline that shares its code with another one. Readers of
    the sink's directory, as Spark's, leave out names with ``_``."""
    return f"_as_{pipeline}"


def leaves_store(description: Mapping[str, Any]) -> bool:
    """Whether a step writes outside the store: numbered bundles, part files, or lines on a
    terminal. Code that does so by itself is not known.

    Args:
        description: of the step, see `Node.describe`.
    """
    if description.get("bundles"):
        return True
    uses = [use for each in description.get("sinks", {}).values() for use in each]
    return not all(any(part in use for part in INSIDE) for use in uses)
