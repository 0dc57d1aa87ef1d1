"""Looks at a followed pipeline, over one connection for all partitions of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
import structlog
from psycopg import AsyncConnection, sql

from millwheel.core.model import MAX_TIME
from millwheel.core.numbered import Marks
from millwheel.errors import InputError, StoreUnavailable
from millwheel.store.address import StoreAddress
from millwheel.store.postgres.connections import lively
from millwheel.store.postgres.session import OwnSession
from millwheel.store.postgres.statements import READ_COMMITTED, composed, filled
from millwheel.store.postgres.translation import translate

LOOK_SECONDS = 0.1
RETRY_SECONDS = 1.0
LOG_SECONDS = 30.0

NUMBERS = frozenset(("sender", "sequence"))
"""The columns of a numbered table that are not fields of its rows."""

SETTINGS = {
    "search_path": "",
    "timezone": "UTC",
    "default_transaction_read_only": "on",
    **READ_COMMITTED,
}

log = structlog.get_logger("millwheel.following")


class Written(NamedTuple):
    rows: int
    low_watermark: int
    """No row to come, of those on time, is older; `MAX_TIME`: none comes."""


class Look(NamedTuple):
    id: str
    low_watermark: int
    """No row on time of a sender that is not here yet will be older."""
    senders: dict[int, Written]


class Upstream:
    """One pipeline that is followed."""

    def __init__(self, url: str, pipeline: str, table: str) -> None:
        self._url = url
        self._pipeline = pipeline
        self._table = table
        self._connection: AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        self._users: set[int] = set()
        self._rows: str | None = None
        self._last: Look | None = None
        self._looked = float("-inf")

    async def look(self) -> Look:
        """Look at the table; a look that is `LOOK_SECONDS` old or less serves again.

        Raises:
            InputError: the pipeline or the table is not there.
        """
        async with self._turn:
            if self._last is None or time.monotonic() >= self._looked + LOOK_SECONDS:
                self._last = await self._patiently(self._look)
                self._looked = time.monotonic()
            return self._last

    async def rows(
        self, sender: int, first: int, until: int, limit: int
    ) -> Sequence[tuple[int, str]]:
        """Rows of a sender, as number and JSON, from `first` on and before `until`."""

        async def ask(connection: AsyncConnection[Any]) -> list[Any]:
            if self._rows is None:
                self._rows = await self._made_rows(connection)
            cursor = await connection.execute(
                self._rows.encode(),
                {"sender": sender, "first": first, "until": until, "limit": limit},
            )
            return await cursor.fetchall()

        async with self._turn:
            found: list[tuple[int, str]] = await self._patiently(ask)
            return found

    async def marks(self, sender: int, first: int, until: int) -> Marks:
        """Hashes of rows of a sender, from `first` on and before `until`; none for a table without
        a hash."""
        table = sql.Identifier(self._pipeline, self._table)
        text = composed("row_marks", table=table).encode()
        values = {"senders": [sender], "firsts": [first], "untils": [until]}

        async def ask(connection: AsyncConnection[Any]) -> list[Any]:
            try:
                relation = {"relation": table.as_string(None)}
                return await (await connection.execute(text, values | relation)).fetchall()
            except psycopg.errors.UndefinedFunction:  # of a column that somebody has added
                return []

        async with self._turn:
            return Marks.by_sender(await self._patiently(ask)).get(sender, Marks())

    def hold(self, user: object) -> None:
        self._users.add(id(user))

    def let_go(self, user: object) -> None:
        """A user has ended; with the last one the connection is closed."""
        self._users.discard(id(user))
        if not self._users:
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()  # as `close` does, which cannot be awaited here

    async def _look(self, connection: AsyncConnection[Any]) -> Look:
        text = self._composed("look").as_string(None)
        cursor = await connection.execute(text.encode(), {"table": self._table, "end": MAX_TIME})
        rows = await cursor.fetchall()
        id_, writers, least = rows[0][:3]
        if not writers:
            raise InputError(
                f"no computation of pipeline {self._pipeline!r} in {self._where} writes a table "
                f"{self._table!r}: write the stream to follow with pipeline.sink(STREAM, Table(…, "
                "numbered=True)), and run that pipeline first"
            )
        senders = {
            sender: Written(count, low_watermark)
            for *_, sender, count, low_watermark in rows
            if sender is not None
        }
        return Look(id_, least, senders)

    async def _made_rows(self, connection: AsyncConnection[Any]) -> str:
        cursor = await connection.execute(
            self._composed("columns"),
            {"schema": self._pipeline, "table": self._table},
        )
        columns = dict(await cursor.fetchall())
        if not columns.keys() >= NUMBERS:
            raise InputError(
                f"the table {self._table!r} of pipeline {self._pipeline!r} in {self._where} cannot "
                "be followed: its rows have no numbers. Declare it with numbered=True"
            )
        values = [
            _as_json(column, data_type)
            for column, data_type in columns.items()
            if column not in NUMBERS
        ]
        table = sql.Identifier(self._pipeline, self._table)
        return self._composed("rows", table=table, values=sql.SQL(", ").join(values)).as_string(
            None
        )

    def _composed(self, name: str, **further: sql.Composable) -> sql.Composed:
        return filled("millwheel.following", name, self._pipeline, **further)

    async def _patiently(self, ask: Any) -> Any:
        logged_at = float("-inf")
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connected()
                return await ask(self._connection)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
                raise InputError(
                    f"there is no pipeline {self._pipeline!r} with a table {self._table!r} in "
                    f"{self._where}, or it is of another version of millwheel: "
                    f"{str(error).strip()}. Run it first, with this version"
                ) from error
            except psycopg.Error as error:
                translated = translate(error)
                if not isinstance(translated, StoreUnavailable):
                    raise InputError(f"{self._where}: {translated}") from error
                self.close()
                if time.monotonic() >= logged_at + LOG_SECONDS:
                    logged_at = time.monotonic()
                    log.warning("followed_store_away", store=self._where, error=str(translated))
                await asyncio.sleep(RETRY_SECONDS)

    async def _connected(self) -> AsyncConnection[Any]:
        return await OwnSession.connect(lively(self._url, "millwheel following"), settings=SETTINGS)

    @property
    def _where(self) -> str:
        return StoreAddress(url=self._url).redacted()


_FORMS = {
    "bytea": "translate(encode({0}, 'base64'), E'\\n', '')",
    "double precision": "CASE WHEN {0}::text = '-0' THEN '-0.0'::json ELSE to_json({0}) END",
}
"""Columns with JSON that differs from the form of Postgres: base64 instead of hex, and -0.0 instead
of -0, a whole number that loses its sign."""


def _as_json(column: str, data_type: str) -> sql.Composable:
    """A column of the table ``t``, as a value that `row_to_json` writes as a field's JSON."""
    name = sql.Identifier("t", column)
    form = sql.SQL(_FORMS.get(data_type, "{0}")).format(name)
    return sql.SQL("{} AS {}").format(form, sql.Identifier(column))
