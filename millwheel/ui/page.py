"""A page: an answer to one question, as HTML and as JSON.

Both are made of the same figures: what `Page.look` finds in one look at the store. A page's address
holds its filters (`Page.filters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from millwheel.errors import UsageError
from millwheel.store.console.inspection import Inspection
from millwheel.ui.rate_history import RateHistory

FILTERS = TypeVar("FILTERS", bound=msgspec.Struct)


class NoFilters(msgspec.Struct, frozen=True):
    """Of a page that shows always the same."""


class Portion(NamedTuple):
    """A part of a download."""

    lines: list[Any]
    """Figures, each of which becomes a line of JSON."""
    cursor: Any
    """Given back for the next part; None: this is the last one."""


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
    remember: Callable[[Any, RateHistory], Any] | None = None
    """Notes rates of figures, and returns the figures with those of former looks."""
    portion: Callable[[Inspection, str, FILTERS, Any], Portion] | None = None
    """The download ``NAME.jsonl`` of the page: takes also the cursor of the portion before, at
    first None. Each portion is a look of its own, so no snapshot lasts as long as the download."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """What the fields of the figures mean, for the reference."""

    def read_filters(self, given: Mapping[str, str]) -> FILTERS:
        """The filters of an address; empty ones count as left out. `UsageError` for wrong ones."""
        known = self.filters.__struct_fields__
        for name in given:
            if name not in known:
                raise UsageError(
                    f"this page has no filter {name!r}; it has: {', '.join(known) or 'none'}"
                )
        values = {name: value for name, value in given.items() if value != ""}
        try:
            return msgspec.convert(values, self.filters, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"the address has a wrong filter: {error}") from error
