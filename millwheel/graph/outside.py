"""Which steps write outside the store, by their descriptions: the code's, and the stored one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INSIDE = ("table", "discard")
"""Parts of the descriptions of sinks that write nothing outside the store."""


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
