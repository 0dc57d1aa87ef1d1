"""Sends records into streams with an `millwheel.Inbox`, from any program.

A program without an event loop, or in another language, calls the SQL functions ``send`` and
``send_all`` of the pipeline's schema; `Client.statement` gives the call with its parameters.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from millwheel.errors import PooledStore, SendRefused, StoreUnavailable, UsageError
from millwheel.store.address import StoreAddress
from millwheel.store.postgres import arrays
from millwheel.store.postgres.connections import lively
from millwheel.store.postgres.quick_call import QuickCall
from millwheel.store.postgres.session import OwnSession
from millwheel.store.postgres.statements import READ_COMMITTED
from millwheel.store.postgres.translation import translate
from millwheel.streams import Stream

__all__ = ["Client", "SendCall"]

V = TypeVar("V")

CALL = (
    "SELECT SEND_ALL(%(stream)s, CAST(CAST(%(records)s AS text[]) AS jsonb[]), "
    "CAST(%(ids)s AS text[]), CAST(%(at)s AS timestamptz[]), %(batch)s)"
)

QUICK_CALL = b"SELECT SEND_ALL($1, $2, $3, $4, $5)"
_TEXT_OID, _TIMES_OID = 25, 1185
QUICK_TYPES = (_TEXT_OID, arrays.JSONBS, arrays.TEXTS, _TIMES_OID, _TEXT_OID)
QUICK_FORMATS = (Format.TEXT, Format.BINARY, Format.BINARY, Format.TEXT, Format.TEXT)
_TRUE = ord("t")

WAIT_SECONDS = 10.0

Why = Literal["unknown_stream", "no_id", "another_value", "no_right", "busy", "wrong"]

REFUSALS: dict[str, Why] = {
    "42704": "unknown_stream",  # undefined_object: send() raises it
    "42883": "unknown_stream",  # undefined_function: there is no such pipeline
    "3F000": "unknown_stream",  # invalid_schema_name
    "22004": "no_id",
    "23505": "another_value",
    "42501": "no_right",
    "55P03": "busy",  # a transaction that is open has sent the id
    "22": "wrong",  # no JSON, a NUL in a text, a number or a time that Postgres does not have
    "23": "wrong",
    "54": "wrong",  # too large
}
"""Reasons for which Postgres refuses records, by SQLSTATE or its class."""

LOCK_SECONDS = 2
"""On the client's own connections, longest wait for a transaction that has sent the same id."""

STATEMENT_SECONDS = 30

SETTINGS = {
    **READ_COMMITTED,
    "lock_timeout": f"{LOCK_SECONDS}s",
    "statement_timeout": f"{STATEMENT_SECONDS}s",
}


class SendCall(NamedTuple):
    """A call of ``send_all``, for a driver that takes ``%(name)s``, such as psycopg.

    ```python
    call = Client("shop").statement(ORDERS, TEA, id="order-17")
    assert isinstance(call, SendCall)
    assert call.parameters["ids"] == ["order-17"]
    ```
    """

    text: str
    parameters: dict[str, Any]


class Client:
    """Sends records to one pipeline.

    ```python
    async with Client("shop", "postgresql://app@db/shop") as client:
        print(client.pipeline)  # await client.send(...)
    ```

    Its own connections are opened at the first use, and closed at the end of ``async with``.

    Args:
        pipeline: the pipeline's name, which is the name of its schema.
        store: the address of its store, a URL of Postgres or a directory; None:
            ``MILLWHEEL_STORE``. Not needed without connections of its own.
        connections: most connections of its own at once. Of several, one serves sends alone.
    """

    def __init__(self, pipeline: str, store: str | None = None, *, connections: int = 4) -> None:
        self.pipeline = pipeline
        self._store = store
        self._most = connections
        self._pool: AsyncConnectionPool[OwnSession] | None = None
        self._pooled: PooledStore | None = None
        """The last attempt to connect met a connection pooler that shares sessions."""
        self._opening = asyncio.Lock()
        self._quick: QuickCall | None = None
        self._is_preparing = False
        self._send_all = sql.Identifier(pipeline, "send_all").as_string(None)
        self._call = CALL.replace("SEND_ALL", self._send_all)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await self._end_quick(pool)
            await pool.close()

    async def send(
        self,
        stream: Stream[V],
        value: V,
        *,
        id: str | None = None,
        at: datetime | None = None,
        connection: Any = None,
    ) -> bool:
        """Send one record.

        ```python
        async with Client("shop", "postgresql://app@db/shop") as client:
            assert await client.send(ORDERS, TEA, id="order-17")
            assert not await client.send(ORDERS, TEA, id="order-17")  # it was sent before
        ```

        Args:
            value: a value of the stream's type.
            id: the record's own id. For as long as `Inbox.remember` says, a repeat with the same
                value has no second effect.
            at: the event time, an aware datetime; None: the time of sending.
            connection: of psycopg, or a connection or session of SQLAlchemy (asynchronous or not),
                in whose transaction the record is sent; None: it is committed at once.

        Returns:
            False if the id was sent before, with the same value.

        Raises:
            SendRefused: the stream takes no records, or not this one.
            UserCodeError: the value is not of the stream's type, or cannot be stored.
            UsageError: `at` has no time zone, or `connection` is of another kind.
            StoreUnavailable: the store does not answer. The record may have been sent: repeat it
                with its id.
        """
        ids = None if id is None else [id]
        times = None if at is None else [at]
        return (await self.send_all(stream, [value], ids=ids, at=times, connection=connection))[0]

    async def send_all(
        self,
        stream: Stream[V],
        values: Sequence[V],
        *,
        ids: Sequence[str | None] | None = None,
        at: Sequence[datetime | None] | None = None,
        batch: str | None = None,
        connection: Any = None,
    ) -> list[bool]:
        """Send records, all or none; each key keeps their order.

        ```python
        async with Client("shop", "postgresql://app@db/shop") as client:
            assert await client.send_all(ORDERS, [TEA, MILK], batch="page-1") == [True, True]
            assert await client.send_all(ORDERS, [TEA, MILK], batch="page-1") == [False, False]
        ```

        Args:
            ids: the id of each record, or None.
            at: the event time of each record, or None.
            batch: an id of the whole: a repeat of the same records has no second effect.

        Returns:
            For each record whether it is new.

        Raises:
            SendRefused, UserCodeError, UsageError, StoreUnavailable: as `send`.
        """
        return await self.send_json(
            stream.name,
            _encoded(stream, values),
            ids=ids,
            at=at,
            batch=batch,
            connection=connection,
        )

    async def send_json(
        self,
        stream: str,
        records: Sequence[bytes],
        *,
        ids: Sequence[str | None] | None = None,
        at: Sequence[datetime | None] | None = None,
        batch: str | None = None,
        connection: Any = None,
    ) -> list[bool]:
        """As `send_all`, with values that are JSON already; they are not checked against the
        stream's type."""
        _check_lengths(records, ids, at)
        if connection is None:
            return await self._send_alone(stream, records, ids, at, batch)
        parameters = _parameters(stream, records, ids, at, batch)
        try:
            return await _answer(await _execute(connection, self._call, parameters))
        except Exception as error:
            _refuse(error, stream)
            raise

    def statement(
        self,
        stream: Stream[V],
        value: V,
        *,
        id: str | None = None,
        at: datetime | None = None,
    ) -> SendCall:
        """The call that `send` makes, for the caller to execute in a transaction of its own.

        ```python
        async with Client("shop", "postgresql://app@db/shop") as client:
            text, parameters = client.statement(ORDERS, TEA, at=at(0))
            async with client.transaction() as connection:
                await connection.execute("INSERT INTO bills VALUES ('ann')")
                await connection.execute(text, parameters)
        ```
        """
        times = None if at is None else [at]
        _check_lengths([b""], None, times)
        parameters = _parameters(
            stream.name, _encoded(stream, [value]), None if id is None else [id], times, None
        )
        return SendCall(self._call, parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A transaction on one of the client's own connections, for several calls.

        ```python
        async with Client("shop", "postgresql://app@db/shop") as client:
            async with client.transaction() as connection:
                await connection.execute("INSERT INTO bills VALUES ('ann')")
                await client.send(ORDERS, TEA, connection=connection)
        ```

        Raises:
            StoreUnavailable: the store cannot be reached, or the connection broke.
        """
        async with self._connection() as connection, connection.transaction():
            yield connection

    async def count_waiting(self, stream: str, most: int = 100_000) -> int:
        """Number of records of a stream that its injector has not taken yet, up to a limit.

        Raises:
            SendRefused: there is no such pipeline, or no right to count.
            StoreUnavailable: the store cannot be reached.
        """
        call = sql.SQL("SELECT {}(%s, %s)").format(sql.Identifier(self.pipeline, "count_waiting"))
        async with self._connection(stream) as connection:
            cursor = await connection.execute(call, (stream, most))
            row = await cursor.fetchone()
            return 0 if row is None else int(row[0])

    async def _send_alone(
        self,
        stream: str,
        records: Sequence[bytes],
        ids: Sequence[str | None] | None,
        at: Sequence[datetime | None] | None,
        batch: str | None,
    ) -> list[bool]:
        """Send by the quick call or, while others use it, by another connection."""
        with self._errors(stream):
            quick = await self._idle_quick()
            if quick is not None:
                packed = _quick_parameters(stream, records, ids, at, batch)
                answer = await quick.call(packed, QUICK_FORMATS)
                assert answer is not None
                return [each == _TRUE for each in answer[1:-1:2]]
        async with self._connection(stream) as connection:
            parameters = _parameters(stream, records, ids, at, batch)
            return await _answer(await connection.execute(self._call, parameters))

    async def _idle_quick(self) -> QuickCall | None:
        """The quick call, on a connection that stays out of the pool; None if it is busy, or there
        is but one connection."""
        quick = self._quick
        if quick is not None and not quick.is_over:
            return quick if quick.is_idle else None
        if self._most < 2 or self._is_preparing:
            return None
        self._is_preparing = True
        try:
            pool = await self._connections()
            if quick is not None:
                await self._end_quick(pool)
                await pool.check()  # what ended this connection has mostly ended the others
            connection = await pool.getconn()
            self._quick = quick = QuickCall(connection)
            statement = QUICK_CALL.replace(b"SEND_ALL", self._send_all.encode())
            try:
                await quick.prepare(statement, QUICK_TYPES)
            except BaseException:
                await self._end_quick(pool)
                raise
            return quick
        finally:
            self._is_preparing = False

    async def _end_quick(self, pool: AsyncConnectionPool[OwnSession]) -> None:
        quick, self._quick = self._quick, None
        if quick is not None:
            is_usable = quick.is_idle
            quick.end()
            if not is_usable:
                await quick.connection.close()
            await pool.putconn(quick.connection)

    @asynccontextmanager
    async def _connection(self, stream: str = "") -> AsyncIterator[psycopg.AsyncConnection]:
        with self._errors(stream):
            pool = await self._connections()
            async with pool.connection() as connection:
                yield connection

    @contextmanager
    def _errors(self, stream: str) -> Iterator[None]:
        """Raise errors of Postgres as those of a send."""
        try:
            yield
        except PoolTimeout as error:
            if self._pooled is not None:
                raise PooledStore(str(self._pooled)) from error
            raise StoreUnavailable("the store does not answer") from error
        except psycopg.Error as error:
            _refuse(error, stream)
            raise translate(error) from error

    def _connected(self, pooled: PooledStore | None) -> None:
        self._pooled = pooled

    async def _connections(self) -> AsyncConnectionPool[OwnSession]:
        async with self._opening:
            if self._pool is None:
                url = await asyncio.to_thread(StoreAddress.parse(self._store).open)
                pool = AsyncConnectionPool(
                    lively(url, f"millwheel client of {self.pipeline}"),
                    min_size=0,
                    max_size=self._most,
                    open=False,
                    timeout=WAIT_SECONDS,
                    connection_class=OwnSession,
                    kwargs={"outcome": self._connected, "settings": SETTINGS},
                )
                await pool.open()
                self._pool = pool
            return self._pool


def _encoded(stream: Stream[V], values: Sequence[V]) -> list[bytes]:
    """
    Raises:
        UserCodeError: a value is not of the stream's type, or cannot be stored.
    """
    codec = stream.codec
    found = [codec.encode(value) for value in values]
    for text, value in zip(found, values, strict=True):
        codec.check(text, value)
    return found


def _check_lengths(
    records: Sequence[bytes],
    ids: Sequence[str | None] | None,
    at: Sequence[datetime | None] | None,
) -> None:
    for name, given in (("ids", ids), ("at", at)):
        if given is not None and len(given) != len(records):
            raise UsageError(f"there are {len(records)} values and {len(given)} {name}")
    for moment in at or ():
        if moment is not None and moment.tzinfo is None:
            raise UsageError(f"send: at={moment} has no time zone; make it aware")


def _quick_parameters(
    stream: str,
    records: Sequence[bytes],
    ids: Sequence[str | None] | None,
    at: Sequence[datetime | None] | None,
    batch: str | None,
) -> list[bytes | None]:
    """As `QUICK_TYPES` and `QUICK_FORMATS`.

    Raises:
        psycopg.DataError: a text has a NUL, at which libpq would end it.
    """
    named = times = None
    if ids is not None and any(id_ is not None for id_ in ids):
        named = arrays.texts([None if id_ is None else id_.encode() for id_ in ids]).data
    if at is not None and any(moment is not None for moment in at):
        shown = ("NULL" if moment is None else f'"{moment.isoformat()}"' for moment in at)
        times = f"{{{','.join(shown)}}}".encode()
    texts = [stream.encode(), None if batch is None else batch.encode()]
    if any(text is not None and b"\0" in text for text in texts):
        raise psycopg.DataError("a text has a NUL character, which Postgres does not store")
    return [texts[0], arrays.jsonbs(records).data, named, times, texts[1]]


def _parameters(
    stream: str,
    records: Sequence[bytes],
    ids: Sequence[str | None] | None,
    at: Sequence[datetime | None] | None,
    batch: str | None,
) -> dict[str, Any]:
    return {
        "stream": stream,
        "records": [record.decode() for record in records],
        "ids": None if ids is None else list(ids),
        "at": None if at is None else list(at),
        "batch": batch,
    }


async def _execute(connection: Any, call: str, parameters: dict[str, Any]) -> Any:
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        cursor = connection.cursor(row_factory=tuple_row)
        return await _settled(cursor.execute(call, parameters))
    if not type(connection).__module__.startswith("sqlalchemy."):
        raise UsageError(
            "send: connection= takes a psycopg connection, or a connection or session of "
            f"SQLAlchemy, not {type(connection).__name__}"
        )
    import sqlalchemy
    from sqlalchemy.dialects.postgresql import ARRAY

    of_texts = ARRAY(sqlalchemy.Text)
    statement = sqlalchemy.text(re.sub(r"%\((\w+)\)s", r":\1", call)).bindparams(
        sqlalchemy.bindparam("records", type_=of_texts),
        sqlalchemy.bindparam("ids", type_=of_texts),
        sqlalchemy.bindparam("at", type_=ARRAY(sqlalchemy.DateTime(timezone=True))),
        sqlalchemy.bindparam("batch", type_=sqlalchemy.Text),
    )
    return await _settled(connection.execute(statement, parameters))


async def _answer(cursor: Any) -> list[bool]:
    row = await _settled(cursor.fetchone())
    return list(row[0])


async def _settled(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _refuse(error: BaseException, stream: str) -> None:
    """
    Raises:
        SendRefused: Postgres has refused the records.
    """
    cause = getattr(error, "orig", error)  # SQLAlchemy's errors have that of the driver
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""
    why = REFUSALS.get(state) or REFUSALS.get(state[:2])
    if not state and isinstance(cause, psycopg.DataError):
        why = "wrong"  # psycopg cannot send it
    if why is not None:
        diagnostics = getattr(cause, "diag", None)
        said = [getattr(diagnostics, name, None) for name in ("message_primary", "message_hint")]
        told = ". ".join(text for text in said if text) or str(cause).strip()
        place = "" if stream in told else f"stream {stream!r}: "
        raise SendRefused(place + told, why) from error
