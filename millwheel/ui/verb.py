"""A change that a viewer may ask for: its effects are shown first, then it is requested, with a
reason.

Changes go the way of the commands: requests to the owners of keys, or operations that are noted in
the log of operators (decision 59).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from millwheel.store.console.asking import Actor, Asking
from millwheel.store.console.inspection import Inspection
from millwheel.ui.given_fields import read_fields
from millwheel.ui.visited_store import VisitedStore

FORM = TypeVar("FORM", bound=msgspec.Struct)


@dataclass(frozen=True)
class VerbDesk:
    """Where a verb finds the pipeline that it changes."""

    _store: VisitedStore
    pipeline: str
    redacts: bool = False
    """Whether keys and values are hidden."""

    @property
    def url(self) -> str:
        """Of the login that changes."""
        return self._store.operator_url()

    def asking(self) -> AbstractContextManager[Asking]:
        """A transaction for requests."""
        return self._store.asking(self.pipeline)

    @contextmanager
    def asking_owners(self) -> Iterator[Asking]:
        """As `asking`; `UsageError` if the keys have no owners that can be asked."""
        with self.inspecting() as inspection:
            inspection.require_owners(self.pipeline)
        with self.asking() as asking:
            yield asking

    def inspecting(self) -> AbstractContextManager[Inspection]:
        return self._store.inspecting()


@dataclass(frozen=True)
class FormField:
    """A field as it is shown."""

    label: str
    kind: Literal["text", "lines", "number", "check"] = "text"
    hint: str = ""


class Further(NamedTuple):
    """A page or a download that helps to decide about a change."""

    label: str
    page: str
    filters: Mapping[str, Any]


class Foreseen(NamedTuple):
    """The effects that a change would have now."""

    lines: list[str]
    is_possible: bool = True
    """Whether there is anything to do."""
    suggested: Mapping[str, str] = {}
    """Contents of fields that the viewer has not filled in yet."""
    further: tuple[Further, ...] = ()


class Asked(NamedTuple):
    """A request, and the page that shows its outcome."""

    batch: int | None
    page: str = "log"
    filters: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Verb(Generic[FORM]):
    name: str
    """In addresses."""
    title: str
    form: type[FORM]
    foresee: Callable[[VerbDesk, FORM], Foreseen]
    carry_out: Callable[[VerbDesk, Actor, FORM], Asked]
    """Both run in a thread; a `UsageError` is about the form."""
    labels: Mapping[str, FormField] = field(default_factory=dict)
    """By the form's fields."""
    is_final: bool = False
    """Whether it cannot be undone."""

    def needs_more(self, given: Mapping[str, str]) -> bool:
        """Whether the form has been opened without its fields."""
        needed = [one.name for one in msgspec.structs.fields(self.form) if one.required]
        return bool(needed) and not any(given.values())

    def read(self, given: Mapping[str, str]) -> FORM:
        """The form that a viewer has sent. `UsageError` if it is wrong."""
        return read_fields(given, self.form, self.title)
