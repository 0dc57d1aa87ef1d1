"""A page: an answer to one question, as HTML and as JSON.

Both are made of the same figures, which `Page.look` finds in one look at the store. A page's
address holds its filters (`Page.filters`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.errors import UsageError
from millwheel.store.console.inspection import Inspection
from millwheel.ui.given_fields import read_fields
from millwheel.ui.rate_history import RateHistory
from millwheel.ui.visited_store import VisitedStore

FILTERS = TypeVar("FILTERS", bound=msgspec.Struct)


class NoSuchPipeline(UsageError):
    """An address names a pipeline that is not shown."""


def require_pipeline(inspection: Inspection, pipeline: str) -> None:
    """`NoSuchPipeline` if the store has none with this name, or the login may not read it."""
    try:
        inspection.choose(pipeline)
    except UsageError as error:
        raise NoSuchPipeline(str(error)) from error


class NoFilters(msgspec.Struct, frozen=True):
    """Of a page that shows always the same."""


@dataclass(frozen=True)
class Visit:
    """The circumstances in which a viewer asks for a page."""

    store: VisitedStore
    pipeline: str
    may_mend: bool
    may_be_led_here: bool
    """A page of another site can have sent the viewer here, unaware of the filters."""
    redact: bool
    only_pipeline: str | None
    """The only pipeline of the store that is shown."""

    @contextmanager
    def looking(self) -> Iterator[Inspection]:
        """A look of this viewer's own."""
        with self.store.inspecting() as inspection:
            require_pipeline(inspection, self.pipeline)
            yield inspection


@dataclass(frozen=True)
class Download(Generic[FILTERS]):
    """The content of a page with the same filters, as a file at its address with a suffix."""

    suffix: str
    content_type: str
    parts: Callable[[Visit, FILTERS], Iterator[bytes]]
    """In a thread. The first part comes before the answer begins, so an error in it has a page; a
    later one ends the download without its end."""


@dataclass(frozen=True)
class Page(Generic[FILTERS]):
    name: str
    """In addresses, and of the template; empty: the first page of a pipeline."""
    title: str
    """In the navigation."""
    question: str
    """The heading."""
    template: str
    look: Callable[[Inspection, str, FILTERS], Any]
    """Takes the pipeline, returns figures: structs that msgspec can encode. In a thread."""
    filters: type[FILTERS] = NoFilters  # type: ignore[assignment]
    live: bool = True
    """Whether a page that is open looks again each second."""
    remember: Callable[[Any, RateHistory], Any] | None = None
    """Notes rates of figures, and returns the figures with those of former looks."""
    ask: Callable[[Visit, FILTERS], Any] | None = None
    """An answer for this viewer only, beside the look that all share: the figure ``answer``. In a
    thread."""
    download: Download[FILTERS] | None = None

    def read_filters(self, given: Mapping[str, str]) -> FILTERS:
        """The filters of an address; empty ones count as left out. `UsageError` for wrong ones."""
        return read_fields(given, self.filters, "the address of this page")
