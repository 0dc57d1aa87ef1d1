"""One prepared statement that a connection executes again and again, with little CPU for each call.

`AsyncConnection.execute` composes the statement, looks for its adapters and watches the socket anew
each time, all in Python: 100 to 170 µs of CPU, where the server needs 40. A call here takes 20 to
30. It uses libpq by psycopg's public layer for it (`psycopg.pq`)::

    idle ──call──▶ busy ──ReadyForQuery──▶ idle
      │              │
      └──────────────┴──end of the connection, or a caller that is cancelled──▶ over
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from millwheel.store.postgres.session import OwnSession

_ANSWERS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class QuickCall:
    """A statement on a connection that nothing else uses meanwhile, in the running event loop.

    Each call is a transaction of its own.
    """

    def __init__(self, connection: OwnSession) -> None:
        self.connection = connection
        self.is_over = False
        """The connection is lost, or its state is not known any more."""
        self._name = b"millwheel_call_" + secrets.token_hex(8).encode()
        """Name of the prepared statement, drawn for this session: if a connection pooler begins to
        share sessions, that is an error, and never the call of another client."""
        self._libpq = connection.pgconn
        self._socket = self._libpq.socket
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[PGresult | None] | None = None
        self._result: PGresult | None = None
        self._loop.add_reader(self._socket, self._read)

    @property
    def is_idle(self) -> bool:
        return self._answer is None and not self.is_over

    async def prepare(self, statement: bytes, types: Sequence[int]) -> None:
        """Prepare the statement, whose parameters are ``$1``, ``$2``, …; `psycopg.Error` if the
        server refuses it.

        `types` are OIDs.
        """
        answer = self._begin()
        self._libpq.send_prepare(self._name, statement, types)
        await self._settled(answer)

    async def call(
        self, parameters: Sequence[bytes | None], formats: Sequence[Format]
    ) -> bytes | None:
        """The first value of the first row, as text; `psycopg.Error` as of `execute`.

        No caller waits: the call must be idle.
        """
        answer = self._begin()
        self._libpq.send_query_prepared(self._name, parameters, formats)
        result = await self._settled(answer)
        return result.get_value(0, 0)

    def end(self) -> None:
        """Watch the connection no longer. If a call is running, its outcome is not known, and the
        connection cannot be used any more."""
        self._lose(psycopg.OperationalError("the connection was closed during the call"))

    def _begin(self) -> asyncio.Future[PGresult | None]:
        assert self.is_idle
        self._answer = self._loop.create_future()
        return self._answer

    async def _settled(self, answer: asyncio.Future[PGresult | None]) -> PGresult:
        try:
            self._write()
            result = await answer
        except BaseException:  # a cancelled caller leaves a call that is still running
            self.end()
            raise
        if result is None or result.status not in _ANSWERS:
            raise (
                psycopg.OperationalError("the server gave no answer")
                if result is None
                else error_from_result(result)
            )
        return result

    def _write(self) -> None:
        """Send as much as the socket takes, and the rest when it takes more."""
        if self._libpq.flush():
            self._loop.add_writer(self._socket, self._write_rest)

    def _write_rest(self) -> None:
        try:
            self._libpq.consume_input()  # a server that cannot send does not read
            if not self._libpq.flush():
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._lose(error)

    def _read(self) -> None:
        libpq = self._libpq
        try:
            libpq.consume_input()
            while not libpq.is_busy():
                result = libpq.get_result()
                if result is None:
                    break
                self._result = result
            else:
                return
        except psycopg.Error as error:
            self._lose(error)
            return
        answer, self._answer = self._answer, None
        result, self._result = self._result, None
        if answer is not None and not answer.done():
            answer.set_result(result)

    def _lose(self, error: psycopg.Error) -> None:
        """The connection has ended; a caller gets the server's last words."""
        if not self.is_over:
            self.is_over = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            if self._result is not None:
                answer.set_result(self._result)
            else:
                answer.set_exception(error)
