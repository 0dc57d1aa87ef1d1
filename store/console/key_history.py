"""The history of one key, as far as the store still has it.

Commits, and most records between computations, are stored until their bucket is dropped. The rows
of a commit do not say which records they come from, so a history has the records that were sent to
the key, and the changes of its state and timers, in the order of time.

Not stored are rows that an injector sends, which reads them again after a crash, weak productions
that were acknowledged in time, and records for a computation that takes them at most once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import psycopg

from millwheel.core.model import Key, from_micros
from millwheel.store.console.one_key import SoughtKey
from millwheel.store.console.snapshot import iso_text
from millwheel.store.console.step_names import stored_nodes

MOST_EVENTS = 100

MOST_COMMITS = 5_000
"""Number of newest commits of the key's interval that are searched."""

MOST_LOGS = 1_000
"""Number of newest logs that are searched for records to the key."""

MOST_LOG_ROWS = 20_000
"""Rows of these logs that are searched, with at least ten of each; a row has the records of one
commit."""

MOST_REQUESTS = 100_000
"""Number of newest requests that are searched."""

MOST_CHARACTERS = 4_001
"""Longest value of an event: one more than a page shows, which says that it is cut."""


class KeyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the history of a key."""

    at: str
    """Logical time of the commit, or when a request was asked."""
    happened: str
    """``state written``, ``state removed``, ``entry written``, ``entry removed``, ``timer set``,
    ``timer ended``, ``record sent to it`` or ``asked``."""
    by: str = ""
    """Of a record: its sender and stream; of a request: its actor."""
    entry: str = ""
    """Of a collection: field/entry."""
    timer: str = ""
    """Kind of the timer."""
    tag: str = ""
    due: str | None = None
    value: str | None = None
    """JSON, at most `MOST_CHARACTERS` of it."""
    verb: str = ""
    outcome: str = ""
    batch: int | None = None
    """Of a request."""


class KeyHistory(msgspec.Struct, frozen=True):
    events: list[KeyEvent]
    """Newest first, at most `MOST_EVENTS`."""
    commits_since: str | None
    """Time of the oldest commit that was searched; None: the interval has none."""
    is_whole: bool
    """Whether that is the first commit of the interval."""
    has_more: bool
    """Whether the searched rows have older events."""
    unstored: list[str]
    """Steps that send it records which are not stored, so they are no events."""


class _Found(NamedTuple):
    micros: int
    event: KeyEvent


def history_of_key(
    connection: psycopg.Connection[Any], pipeline: str, computation: str, key: Key
) -> KeyHistory:
    """The newest events of a key, on a connection with a snapshot. `UsageError` if there is no such
    computation."""
    sought = SoughtKey(connection, pipeline, computation, key)
    limit = {"limit": MOST_EVENTS + 1, "most_characters": MOST_CHARACTERS}
    commits = sought.rows("key_commits", {"most_commits": MOST_COMMITS})
    found: list[_Found] = []
    if commits:
        since = limit | {"first": commits[0][0]}
        found += [_state(*row) for row in sought.rows("key_state_changes", since)]
        found += [
            _timer(*row)
            for row in sought.rows("key_timer_changes", since, micros_to_time="micros_to_time")
        ]
    logs = limit | {"most_logs": MOST_LOGS, "most_rows": MOST_LOG_ROWS}
    found += [_record(*row) for row in sought.rows("key_productions", logs)]
    asked = limit | {"most_requests": MOST_REQUESTS}
    found += [_request(*row) for row in sought.rows("key_requests", asked)]
    found.sort(key=lambda one: one.micros, reverse=True)
    return KeyHistory(
        [one.event for one in found[:MOST_EVENTS]],
        _time(commits[0][1]) if commits else None,
        bool(commits) and commits[0][0] <= 1,
        len(found) > MOST_EVENTS,
        _unstored(sought, stored_nodes(connection, pipeline), computation),
    )


def _unstored(sought: SoughtKey, nodes: dict[str, dict[str, Any]], computation: str) -> list[str]:
    def is_stored(name: str, kind: str) -> bool:
        is_weak = nodes.get(name, {}).get("productions") == "weak"
        return kind != "injector" and not is_weak

    at_most_once = nodes.get(computation, {}).get("delivery") == "at_most_once"
    senders = sought.rows("key_senders")
    return [name for name, kind in senders if at_most_once or not is_stored(name, kind)]


def _state(micros: int, entry: str, value: str | None) -> _Found:
    part = "entry" if entry else "state"
    done = "removed" if value is None else "written"
    event = KeyEvent(at=_time(micros), happened=f"{part} {done}", entry=entry, value=value)
    return _Found(micros, event)


def _timer(micros: int, kind: str, tag: str, due: str | None) -> _Found:
    happened = "timer ended" if due is None else "timer set"
    return _Found(
        micros,
        KeyEvent(at=_time(micros), happened=happened, timer=kind, tag=tag, due=iso_text(due)),
    )


def _record(micros: int, sender: str, stream: str, value: str) -> _Found:
    by = f"{sender}, stream {stream}"
    return _Found(
        micros, KeyEvent(at=_time(micros), happened="record sent to it", by=by, value=value)
    )


def _request(
    micros: int, actor: str, verb: str, payload: str | None, outcome: str, batch: int
) -> _Found:
    event = KeyEvent(
        at=_time(micros), happened="asked", by=actor, verb=verb, value=payload, outcome=outcome,
        batch=batch,
    )  # fmt: skip
    return _Found(micros, event)


def _time(micros: int) -> str:
    return from_micros(micros).isoformat()
