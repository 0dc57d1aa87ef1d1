"""The bytes of one HTTP connection, plain or by TLS, over a socket that does not block."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

CHUNK_BYTES = 4096

T = TypeVar("T")


class Channel:
    has_certificate = False
    """The client has shown a certificate of the authority."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        self._loop = loop
        self._connection = connection

    async def open(self) -> None:
        """Do all that comes before the first byte."""

    async def receive(self) -> bytes:
        """Returns nothing if the client sends no more."""
        return await self._loop.sock_recv(self._connection, CHUNK_BYTES)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connection, data)

    async def finish(self) -> None:
        """Say that nothing more comes, and wait until the client has closed.

        Closing with unread input would send a reset, which discards the response.
        """
        self._connection.shutdown(socket.SHUT_WR)
        while await self._loop.sock_recv(self._connection, CHUNK_BYTES):
            pass


class TlsChannel(Channel):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: socket.socket, context: ssl.SSLContext
    ) -> None:
        super().__init__(loop, connection)
        self._arrived = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._to_send, server_side=True)

    async def open(self) -> None:
        await self._do(self._tls.do_handshake)
        self.has_certificate = bool(self._tls.getpeercert())

    async def receive(self) -> bytes:
        try:
            return await self._do(lambda: self._tls.read(CHUNK_BYTES))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def send(self, data: bytes) -> None:
        await self._do(lambda: self._tls.write(data))

    async def finish(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):  # nobody waits for the client's farewell
            self._tls.unwrap()
        await self._flush()
        await super().finish()

    async def _do(self, step: Callable[[], T]) -> T:
        """Take a step of the protocol, as soon as enough has arrived for it."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                if data := await super().receive():
                    self._arrived.write(data)
                else:
                    self._arrived.write_eof()
            except ssl.SSLError:
                await self._flush()  # the alert, which says why
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if data := self._to_send.read():
            await super().send(data)
