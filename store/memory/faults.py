"""Where a test breaks the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millwheel.store.port import Commit


@dataclass(slots=True)
class Faults:
    """Where a test may break the store; each hook is optional, and may be changed at any time.

    A hook that raises fails the call with that error, one that never returns leaves it on
    the wire until its task is cancelled. A `CommitUnknown` also costs the lane its
    connection, as it does in Postgres.
    """

    before_call: Callable[[str], Awaitable[None]] | None = None
    """Awaited with the name of each method of the store, before it does anything."""

    before_commit: Callable[[Commit], Awaitable[None]] | None = None
    """Awaited with each commit before it is looked at: what it raises leaves no trace."""

    after_commit: Callable[[Commit], Awaitable[None]] | None = None
    """Awaited when the commit is durable and the lane has not heard of it yet."""

    refuse: Callable[[str, Sequence[Any]], str | None] | None = None
    """Asked for each statement (its text and parameters) and each row of a table sink (the
    table's name and the values); an answer refuses it with a `StatementError`."""
