"""A page: an answer to one question, as HTML and as JSON.

Both are made of the same figures: what `Page.look` finds in one look at the store. A page's address
holds its filters (`Page.filters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.store.console.inspection import Inspection
from millwheel.ui.given_fields import read_fields

FILTERS = TypeVar("FILTERS", bound=msgspec.Struct)


class NoFilters(msgspec.Struct, frozen=True):
    """Of a page that shows always the same."""


@dataclass(frozen=True)
class Page(Generic[FILTERS]):
    name: str
    """In addresses, and of the template; empty: the first page of a pipeline."""
    title: str
    """In the navigation."""
    question: str
    """The heading: what the page answers."""
    template: str
    look: Callable[[Inspection, str, FILTERS], Any]
    """Takes the pipeline, returns figures: structs that msgspec can encode. In a thread."""
    filters: type[FILTERS] = NoFilters  # type: ignore[assignment]
    live: bool = True
    """Whether a page that is open looks again each second."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """What the fields of the figures mean, for the reference."""

    def read_filters(self, given: Mapping[str, str]) -> FILTERS:
        """The filters of an address; empty ones count as left out. `UsageError` for wrong ones."""
        return read_fields(given, self.filters, "the address of this page")
