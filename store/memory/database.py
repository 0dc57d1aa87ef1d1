"""Runs the user's statements of a commit in a real Postgres, for tests of code that calls
`Context.execute`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from millwheel.errors import StatementError, UsageError
from millwheel.store.postgres.translation import translate

CONNECT_SECONDS = 5
LOCK_SECONDS = 2
"""A test may have left a transaction open."""


def run_statements(url: str, schema: str, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """Run statements in one transaction, with the search path that they have in a commit.

    Raises:
        StatementError: Postgres refuses one; none has an effect.
        UsageError: the server does not answer, or a lock is not free. The engine would try it
            again, and the clock of a test stands still.
    """
    path = ",".join(sql.Identifier(name).as_string(None) for name in (schema, "public"))
    options = f"-c search_path={path} -c lock_timeout={LOCK_SECONDS}s -c timezone=UTC"
    try:
        connection = psycopg.connect(
            make_conninfo(url, connect_timeout=CONNECT_SECONDS, options=options)
        )
    except psycopg.Error as error:
        raise UsageError(f"the database of the test cannot be reached: {error}") from error
    with connection:
        for statement, params in statements:
            named = f"the statement {statement!r}"
            try:
                connection.execute(statement, params or None, prepare=True)
            except psycopg.Error as error:
                found = translate(error, user=named, alive=not connection.closed)
                if isinstance(found, StatementError):
                    raise found from error
                raise UsageError(f"{found}. Has the test left a transaction open?") from error
            except (TypeError, ValueError, OverflowError) as error:
                raise StatementError(f"{named} cannot be sent to Postgres: {error}") from error
