"""The committed rows that come to tables, from one look at them to the next.

A look takes a snapshot, and finds the rows that the snapshot of the look before did not see. So it
shows what is committed and nothing else, whichever process is killed. Of several changes of a row
between two looks it shows the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from millwheel.store.console.snapshot import reading, translated
from millwheel.store.postgres.statements import composed, text_of

Row = dict[str, msgspec.Raw]


class NewRows(NamedTuple):
    """Rows that a table has got, in the order of their transactions."""

    table: str
    rows: list[Row]
    """The last of them, by column as JSON."""
    before: int
    """The number of those before `rows`."""


class RowLook:
    """Looks at tables of a pipeline again and again. The first look shows no rows.

    Args:
        most: rows of a table that one look gives.
    """

    def __init__(self, url: str, schema: str, most: int) -> None:
        self._url = url
        self._schema = schema
        self._most = most
        self._since: str | None = None

    def look(self, tables: Sequence[str]) -> list[NewRows]:
        """The new rows of the tables that there are.

        Raises:
            StoreError: the store cannot be reached, or Postgres refuses to read it.
        """
        with reading(self._url) as connection, translated():
            connection.execute(text_of("begin_snapshot"))
            since, self._since = self._since, _value(connection, text_of("current_snapshot"))
            if since is None:
                return []
            return [found for table in tables for found in self._read(connection, table, since)]

    def _read(
        self, connection: psycopg.Connection[Any], table: str, since: str
    ) -> Iterator[NewRows]:
        name = sql.Identifier(self._schema, table)
        if not _value(connection, text_of("find_table"), {"table": name.as_string(None)}):
            return
        found = connection.execute(
            composed("new_rows", table=name).encode(), {"since": since, "most": self._most}
        ).fetchall()
        if found:
            rows = [msgspec.json.decode(text, type=Row) for text, _ in reversed(found)]
            yield NewRows(table, rows, found[0][1] - len(rows))


def _value(
    connection: psycopg.Connection[Any], statement: str, parameters: dict[str, Any] | None = None
) -> Any:
    row = connection.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    return row[0]
