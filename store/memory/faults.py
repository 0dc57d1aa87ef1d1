from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millwheel.store.port.commit import Commit


@dataclass(slots=True)
class Faults:
    """Hooks for a test that breaks the store; each is optional, and may change at any time.

    A hook that raises fails the call with that error; one that never returns leaves it on the wire
    until its task is cancelled. A `CommitUnknown` also costs the lane its connection.
    """

    before_call: Callable[[str], Awaitable[None]] | None = None
    """Awaited with the name of each method of the store."""

    before_commit: Callable[[Commit], Awaitable[None]] | None = None
    """Awaited before a commit is applied: if it raises, nothing is stored."""

    after_commit: Callable[[Commit], Awaitable[None]] | None = None
    """Awaited after the commit is durable, before its lane knows."""

    refuse: Callable[[str, Sequence[Any]], str | None] | None = None
    """Called with each statement (text and parameters) and each row of a table sink (the table's
    name and the values); a text refuses it with a `StatementError`."""
