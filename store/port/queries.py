from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError


class SubmittedQuery(msgspec.Struct, frozen=True):
    """A query that was submitted to a pipeline."""

    name: str
    text: str
    avoided: tuple[str, ...] = ()
    """Names of former steps and streams, which it does not use again."""
    steps: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    """The streams and tables that its statements write."""
    generation: int = 0
    """The first generation with its text."""
    submitted_at: str = ""
    """RFC 3339."""
    submitted_by: str = ""


class StoredQueries(msgspec.Struct, frozen=True):
    revision: int
    """Number of changes so far."""
    queries: tuple[SubmittedQuery, ...]
    """Those that are not dropped, in the order of their submission."""


def find_query(stored: StoredQueries, name: str) -> SubmittedQuery:
    """`UsageError` if there is no such query."""
    for query in stored.queries:
        if query.name == name:
            return query
    names = [query.name for query in stored.queries]
    message = f"no query {name!r} was submitted; there are: {', '.join(names) or 'none'}"
    raise UsageError(with_suggestion(message, name, names))


class QueryChange(msgspec.Struct, frozen=True):
    """A change of the queries, stored with the generation that has it."""

    verb: Literal["submit", "replace"]
    """"submit" or "replace"; `millwheel log` shows it."""
    query: SubmittedQuery
    removes: Sequence[str] = ()
    """Steps to remove with their state, before the code is compared."""
    reason: str = ""


class StoreQueries(Protocol):
    async def queries(self) -> StoredQueries: ...

    async def queries_revision(self) -> int:
        """The number of changes so far, in one round trip."""
        ...
