"""Records that are sent to inboxes of a pipeline are sent to a fork of it too (``fork --tee``).

A trigger on the origin's table of sent records writes them into the fork's, in the sender's
transaction. It must be there before the fork's snapshot is taken, or records in between would be in
neither::

    make the fork's table and the trigger, COMMIT ─▶ snapshot ─▶ delete from that table what the
        snapshot sees, since it is copied ─▶ copy ─▶ COMMIT

A process that is killed in between leaves a schema without a pipeline; the next fork drops it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from millwheel.errors import UsageError
from millwheel.store.console.administration import transaction
from millwheel.store.copies.copying import drop_copy, explained
from millwheel.store.copies.origins import connected, require_copyable
from millwheel.store.postgres.statements import composed, text_of

TEED = "sent_record"
"""The table that is there before the copy."""

FUNCTION = "tee_sent"

ROOM = 1 << 40
"""More records than are sent while a copy is made."""


@contextlib.contextmanager
def teed(url: str, origin: str, name: str) -> Iterator[None]:
    """Let a copy be made in the block; without it nothing stays.

    Raises:
        UsageError: the origin has no inbox, or there is a schema `name`.
    """
    _drop_unfinished(url)
    with connected(url) as holder:
        holder.execute(text_of("hold_tee"), {"name": name})
        _begin(url, origin, name)
        try:
            yield
        except BaseException:
            drop_copy(url, name)
            raise


def _begin(url: str, origin: str, name: str) -> None:
    copied, like = sql.Identifier(name, TEED), sql.Identifier(origin, TEED)
    tee_sent = sql.Identifier(name, FUNCTION)
    with connected(url) as connection, connection.transaction(), explained(origin, name):
        require_copyable(connection, origin)
        if not connection.execute(
            composed("has_inbox", inbox=sql.Identifier(origin, "inbox"))
        ).fetchall():
            raise UsageError(
                f"{origin!r} has no inbox: there is nothing to send to both. Leave out --tee"
            )
        table = sql.Identifier(origin, "generation").as_string(None)
        ((owner,),) = connection.execute(text_of("owner_of_table"), {"table": table}).fetchall()
        made = {"schema": sql.Identifier(name), "owner": sql.Identifier(owner)}
        connection.execute(composed("make_schema", **made))
        connection.execute(text_of("act_as_owner"), {"table": table})
        connection.execute(composed("tee_table", copied=copied, like=like))
        ((last,),) = connection.execute(
            text_of("last_sent"), {"table": like.as_string(None)}
        ).fetchall()
        first = sql.Literal(last + ROOM)
        connection.execute(composed("tee_begin", copied=copied, first=first))
        connection.execute(composed("tee_function", tee_sent=tee_sent, copied=copied))
        add_trigger(connection, origin, name)


def add_trigger(connection: psycopg.Connection[Any], origin: str, name: str) -> None:
    connection.execute(
        composed(
            "tee_trigger",
            trigger=sql.Identifier(f"tee_{name}"),
            like=sql.Identifier(origin, TEED),
            tee_sent=sql.Identifier(name, FUNCTION),
        )
    )


def is_teed(connection: psycopg.Connection[Any], origin: str, name: str) -> bool:
    """Whether records that are sent to a pipeline are sent to this copy too."""
    table = sql.Identifier(origin, TEED).as_string(None)
    rows = connection.execute(text_of("tees_of"), {"table": table}).fetchall()
    return name in [copy for _, copy in rows]


def carry_tees(connection: psycopg.Connection[Any], replaced: str, origin: str) -> None:
    """Let the forks of a pipeline get records of the schema that has taken its name."""
    like = sql.Identifier(replaced, TEED)
    found = connection.execute(text_of("tees_of"), {"table": like.as_string(None)}).fetchall()
    for trigger, name in found:
        connection.execute(composed("drop_tee", trigger=sql.Identifier(trigger), like=like))
        add_trigger(connection, origin, name)


def _drop_unfinished(url: str) -> None:
    """Of processes that have died: a living one holds a lock."""
    with transaction(url) as connection:
        for (name,) in connection.execute(text_of("unfinished_tees")).fetchall():
            ((is_free,),) = connection.execute(text_of("hold_tee"), {"name": name}).fetchall()
            if is_free:
                connection.execute(composed("drop_schema", schema=sql.Identifier(name)))
