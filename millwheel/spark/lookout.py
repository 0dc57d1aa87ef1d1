"""Looks, repeatedly over one connection, how far a numbered table is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from millwheel.core.numbered import Marks, RowRange, Vector
from millwheel.errors import StatementError, StoreUnavailable, UsageError
from millwheel.spark.store_sessions import Connection, connected, reading, statement, translated
from millwheel.store.postgres.statements import composed

LOOK_SECONDS = 0.1
"""Least time between two looks. Spark by itself looks a hundred times a second."""
WAIT_SECONDS = 60.0
"""Longest wait for a server that does not answer, as it does while another one takes over."""
RETRY_SECONDS = 0.5


class Lookout:
    def __init__(self, store: str, pipeline: str, table: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._table = table
        self._connection: Connection | None = None
        self._last = float("-inf")

    def written(self) -> tuple[str, dict[int, int]]:
        """The pipeline's id, and by sender the number of rows; at most every `LOOK_SECONDS`.

        `StoreUnavailable` if the server has not answered for `WAIT_SECONDS`.
        """
        time.sleep(max(0.0, self._last + LOOK_SECONDS - time.monotonic()))
        ((id_, written),) = self._rows("written")
        self._last = time.monotonic()
        return id_, {int(sender): rows for sender, rows in written.items()}

    def first_rows(self) -> Vector:
        """Number of the first row that is still there, by sender."""
        return dict(self._rows("first_rows"))

    def marks(self, ranges: Sequence[RowRange]) -> dict[int, Marks]:
        """Hashes of rows by sender; of a table without a hash, none."""
        try:
            return Marks.by_sender(self._rows("row_marks", *ranges))
        except StatementError as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedFunction):
                return {}  # of a column that somebody has added
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _rows(self, name: str, *ranges: RowRange) -> list[Any]:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return self._ask(name, ranges)
            except StoreUnavailable:
                self.close()
                self._connection = None
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def _ask(self, name: str, ranges: Sequence[RowRange]) -> list[Any]:
        with translated(self._store):
            if self._connection is None:
                self._connection = connected(self._store, autocommit=True)
            table = sql.Identifier(self._pipeline, self._table)
            if ranges:
                text = composed(name, table=table)
            else:
                text = statement(f"following/{name}", self._pipeline, table=table).as_string(None)
            values = {
                "table": self._table,
                "relation": table.as_string(None),
                "senders": [one.sender for one in ranges],
                "firsts": [one.first for one in ranges],
                "untils": [one.until for one in ranges],
            }
            return self._connection.execute(text.encode(), values).fetchall()


def numbered_table(store: str, pipeline: str, stream: str) -> str:
    """`UsageError` unless a stream's values are written to exactly one numbered table."""
    with reading(store) as connection:
        found = connection.execute(statement("following/followed_tables", pipeline)).fetchall()
    tables = [table for name, table in found if name == stream]
    if len(tables) == 1:
        return str(tables[0])
    if tables:
        raise UsageError(
            f"the stream {stream!r} is written to several numbered tables, {', '.join(tables)}: "
            "name one with the option 'table'"
        )
    known = ", ".join(sorted({name for name, _ in found})) or "none"
    raise UsageError(
        f"the stream {stream!r} of pipeline {pipeline!r} cannot be followed: it is not written to "
        f"a numbered table (streams that are: {known}). Add pipeline.sink({stream.upper()}, "
        "Table(…, numbered=True))"
    )
