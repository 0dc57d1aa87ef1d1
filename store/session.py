"""Connections that have a server process to themselves.

Everything here relies on the session: on the settings it starts with (an empty search path, UTC,
timeouts, read-only looks), on its advisory lock, on prepared statements, on the process id by which
a successor ends it. A connection pooler that hands the server process to another client after each
transaction (PgBouncer in its default mode) keeps none of that; one that hands it over later still
drops the settings, as it opens the session before it knows who will use it.

So each connection starts with a setting that nobody else makes, and asks for it. A pooler that
refuses such settings, or drops them, is found out at once, whatever its mode.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict

from millwheel.errors import PooledStore
from millwheel.store.statements import text_of

MARK = "-c millwheel.session=own"

REFUSALS = ("startup parameter", "command-line options")
"""In the errors of poolers that refuse settings: PgBouncer's and its relatives', RDS Proxy's."""


def refusal(error: psycopg.Error) -> PooledStore | None:
    """The error of a pooler that refuses the settings of a session; None: it is another error."""
    text = str(error).strip()
    return _pooled(text) if any(words in text for words in REFUSALS) else None


def _pooled(how: str) -> PooledStore:
    return PooledStore(
        "the store is reached through a connection pooler that does not pass on the settings of a "
        f"session ({how}): give the address of Postgres itself"
    )


def connect(conninfo: str) -> psycopg.Connection[Any]:
    """A connection that commits each statement, and has a session of its own.

    Raises:
        PooledStore: it has none.
        psycopg.Error: it cannot be made.
    """
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
    """Close a new connection that is not handed over to who has asked for it, as a pool of connections
    does not when what it is configured with fails or is cancelled."""
    try:
        yield
    except BaseException:
        await connection.close()
        raise


class OwnSession(AsyncConnection[Any]):
    """A connection that commits each statement, and has a session of its own."""

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        """As `AsyncConnection.connect`.

        Args:
            options: settings, instead of those in `conninfo`.
            outcome: called with the error, or with None after any other outcome: a pool of
                connections keeps errors to itself.

        Raises:
            PooledStore: it has no session of its own.
        """
        outcome: Outcome = kwargs.pop("outcome", _ignored)
        kwargs["autocommit"] = True
        kwargs["options"] = _marked(conninfo, kwargs.get("options"))
        pooled: PooledStore | None = None
        try:
            connection = await super().connect(conninfo, **kwargs)
            async with closed_on_failure(connection):
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
