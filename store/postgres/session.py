"""Connections with a server process of their own.

The store relies on its sessions: on their first settings (an empty search path, UTC, timeouts,
read-only looks), advisory locks, prepared statements, and the process id by which a successor ends
them. A connection pooler keeps none of that, or at least drops the settings. So each connection
starts with a setting that no other program makes, and asks the server for it: this detects every
such pooler at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict

from millwheel.errors import PooledStore
from millwheel.store.postgres import arrays
from millwheel.store.postgres.statements import text_of

MARK = "-c millwheel.session=own"

REFUSALS = ("startup parameter", "command-line options")
"""Errors of PgBouncer with its relatives, and of RDS Proxy."""


def refusal(error: psycopg.Error) -> PooledStore | None:
    """The error for a pooler that refuses the settings of a session, if `error` is one."""
    text = str(error).strip()
    return _pooled(text) if any(words in text for words in REFUSALS) else None


def _pooled(how: str) -> PooledStore:
    return PooledStore(
        "the store is reached through a connection pooler that does not pass on the settings of a "
        f"session ({how}): give the address of Postgres itself"
    )


def connect(conninfo: str) -> psycopg.Connection[Any]:
    """Commits each statement. `PooledStore` if a connection pooler answers."""
    try:
        connection = psycopg.connect(conninfo, autocommit=True, options=_marked(conninfo, None))
    except psycopg.OperationalError as error:
        pooled = refusal(error)
        if pooled is None:
            raise
        raise pooled from error
    try:
        _check(connection.execute(text_of("own_session")).fetchone())
    except BaseException:
        connection.close()
        raise
    return connection


Outcome = Callable[[PooledStore | None], None]


def _ignored(pooled: PooledStore | None) -> None:
    pass


@asynccontextmanager
async def closed_on_failure(connection: AsyncConnection[Any]) -> AsyncIterator[None]:
    """Close a new connection if the block fails or is cancelled: a pool does not if its
    ``configure`` callback failed."""
    try:
        yield
    except BaseException:
        await connection.close()
        raise


class OwnSession(AsyncConnection[Any]):
    """Commits each statement, and takes packed arrays."""

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        """Like `AsyncConnection.connect`.

        Args:
            options: settings, which replace the ones in `conninfo`.
            outcome: called with a `PooledStore`, or with None after any other outcome: a pool of
                connections does not pass errors on.
        """
        outcome: Outcome = kwargs.pop("outcome", _ignored)
        kwargs["autocommit"] = True
        kwargs["options"] = _marked(conninfo, kwargs.get("options"))
        pooled: PooledStore | None = None
        try:
            connection = await super().connect(conninfo, **kwargs)
            async with closed_on_failure(connection):
                arrays.register(connection.adapters)
                cursor = await connection.execute(text_of("own_session"))
                _check(await cursor.fetchone())
        except PooledStore as error:
            pooled = error
            raise
        except psycopg.OperationalError as error:
            pooled = refusal(error)
            if pooled is None:
                raise
            raise pooled from error
        else:
            return connection
        finally:
            outcome(pooled)


def _marked(conninfo: str, options: str | None) -> str:
    if options is None:
        options = str(conninfo_to_dict(conninfo).get("options", ""))
    return f"{options} {MARK}".strip()


def _check(row: Any) -> None:
    if row is None or not row[0]:
        raise _pooled("it drops them")
