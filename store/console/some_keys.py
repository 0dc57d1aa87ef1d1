"""Keys of a step in the order of their slots, a page at a time: for a beginning, if no key is
known."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import psycopg

from millwheel.core.codec import decode_key
from millwheel.store.postgres.statements import Statements

MOST_STEPS = 10_000
"""Steps down the index for one page: a step without any state may stand beside millions of keys of
others."""


class KeyCursor(NamedTuple):
    """A place in the order of the keys."""

    slot: int
    key: str
    """As JSON; empty: before the first key of the slot."""


BEGINNING = KeyCursor(0, "")


class KeyedStep(NamedTuple):
    """A step that has keys."""

    id: int
    name: str


class SomeKeys(msgspec.Struct, frozen=True):
    found: list[Any]
    next: KeyCursor | None
    """None: these are the last ones."""


def keyed_steps(connection: psycopg.Connection[Any], pipeline: str) -> list[KeyedStep]:
    """In the order of the graph."""
    rows = connection.execute(Statements(pipeline).get("keyed_steps")).fetchall()
    return [KeyedStep(*row) for row in rows]


def some_keys(
    connection: psycopg.Connection[Any],
    pipeline: str,
    computation: int,
    limit: int,
    after: KeyCursor = BEGINNING,
) -> SomeKeys:
    """Keys that have a state, on a connection with a snapshot.

    A key without a folded state is among them if the newest commits have written its first one.

    Args:
        computation: its number.
        after: only keys after this place.
    """
    statements = Statements(pipeline)
    params = {
        "computation_id": computation, "limit": limit + 1, "most_steps": MOST_STEPS,
        **after._asdict(),
    }  # fmt: skip
    rows = connection.execute(statements.get("first_keys"), params).fetchall()
    newest = connection.execute(statements.get("unfolded_keys"), params).fetchall()
    places = {KeyCursor(slot, key) for _, slot, key in rows if key is not None}
    end = None
    if rows and rows[-1][0] == MOST_STEPS:
        end = KeyCursor(rows[-1][1], rows[-1][2] or "")
    elif len(places) > limit:
        end = max(places)
    places |= {place for place in map(KeyCursor._make, newest) if end is None or place <= end}
    ordered = sorted(places)
    shown = ordered[:limit]
    if len(ordered) > limit:
        end = shown[-1]
    return SomeKeys([decode_key(key.encode()) for _, key in shown], end)
