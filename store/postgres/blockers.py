"""The sessions that others wait for, in words: a lock on a table in an open transaction stops a
pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from millwheel.errors import PooledStore
from millwheel.store.postgres import session
from millwheel.store.postgres.session import OwnSession
from millwheel.store.postgres.statements import text_of

CONNECT_SECONDS = 3
SETTINGS = {"statement_timeout": "3s"}


def session_text(row: tuple[Any, ...]) -> str:
    """A row of ``blockers.sql`` or ``lock_holders.sql``."""
    pid, user, application, client, state, seconds, query = row
    session = ", ".join(
        part
        for part in (
            f"user {user}",
            application and f"application {application!r}",
            client and f"from {client}",
            state,
            None if seconds is None else f"in a transaction for {seconds:.0f} s",
        )
        if part
    )
    statement = " ".join(query.split()) if query else ""
    return f"process {pid} ({session})" + (f": {statement}" if statement else "")


async def blockers_of(url: str, pids: Iterable[int]) -> list[str]:
    """The sessions that others wait for, on a connection of its own: those of the worker may all
    wait."""
    conninfo = make_conninfo(url, connect_timeout=CONNECT_SECONDS)
    async with await OwnSession.connect(conninfo, settings=SETTINGS) as connection:
        cursor = await connection.execute(text_of("blockers"), {"pids": list(pids)})
        return [session_text(row) for row in await cursor.fetchall()]


def lock_holders(conninfo: str) -> list[str]:
    """The sessions that hold the locks, if the server says so."""
    conninfo = make_conninfo(conninfo, connect_timeout=CONNECT_SECONDS)
    try:
        with session.connect(conninfo, SETTINGS) as connection:
            return [session_text(row) for row in connection.execute(text_of("lock_holders"))]
    except (psycopg.Error, PooledStore):
        return []
