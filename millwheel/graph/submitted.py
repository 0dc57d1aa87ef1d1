"""Queries of the store that are a part of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Submitted:
    """The queries that were added to the pipeline of the code (decision 81)."""

    revision: int = 0
    """Number of changes of queries that the store had when these were read."""
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the steps of each query."""


NOTHING_SUBMITTED = Submitted()
