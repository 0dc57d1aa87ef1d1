"""A small HTTP server for probes: a thread with its own event loop, and h11 for the protocol.

Slow or malicious clients must not keep a probe from its response:

* A connection carries one request and lives at most `EXCHANGE_SECONDS`; sending single bytes does
  not extend the time.
* At most `CONNECTIONS` are open. A further client replaces the oldest connection that is waiting
  for its client.
* When no file descriptor is left for a new connection, the server closes an old one and retries.

Why no ready-made server is used: `docs/decisions/0043-http-probes-with-h11.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus

import h11
import structlog

from millwheel.services.http_access import Access
from millwheel.services.http_channel import Channel, TlsChannel

EXCHANGE_SECONDS = 10.0
"""Lifetime of a connection. The slowest response, that of `/readyz`, takes 4 s."""

CONNECTIONS = 64

WAITING_CONNECTIONS = 1024
"""Length of the kernel's accept queue; the system may allow less (`net.core.somaxconn`)."""

HEAD_BYTES = 16 * 1024
"""Request line with headers; a longer one gets status 431."""

RETRY_SECONDS = 0.1
"""Pause after accepting a connection failed."""

TEXT = "text/plain; charset=utf-8"

log = structlog.get_logger("millwheel.http")


@dataclass(frozen=True)
class Response:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> Response:
        return cls(status, f"{text}\n".encode())


class HttpServer:
    """Serves GET and HEAD on a listening socket.

    `answer` returns the response for (path, the `Accept` header). It is called in the server's
    thread and must not raise.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[str, str], Awaitable[Response]],
        access: Access,
    ) -> None:
        self._listener = listener
        self._answer = answer
        self._access = access
        self._loop = asyncio.SelectorEventLoop()
        self._stopping = asyncio.Event()
        self._idle: dict[asyncio.Task[None], None] = {}
        """Connections that wait for their client (to send a request, read the response or close),
        oldest first."""
        self._answering: dict[asyncio.Task[None], None] = {}
        """Connections with a response being computed, oldest first."""
        self._accept_failed = False
        """Accepting has failed since the last accepted connection."""
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        self._listener.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and the listening socket; block until they are closed."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._listen()
        await self._stopping.wait()
        self._loop.remove_reader(self._listener)  # the runner cancels the connections

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has disconnected
        except OSError as error:  # most likely no file descriptor is left
            if not self._accept_failed:
                log.warning("http_accept_failed", error=error.strerror or str(error))
            self._accept_failed = True
            self._close_one()
            self._loop.remove_reader(self._listener)
            self._loop.call_later(RETRY_SECONDS, self._listen)
            return
        self._accept_failed = False
        if len(self._idle) + len(self._answering) >= CONNECTIONS:
            self._close_one()
        handler = self._loop.create_task(self._handle(connection))
        self._idle[handler] = None
        handler.add_done_callback(partial(self._close, connection))

    def _close_one(self) -> None:
        for connections in (self._idle, self._answering):
            for handler in connections:
                del connections[handler]
                handler.cancel()
                return

    def _close(self, connection: socket.socket, handler: asyncio.Task[None]) -> None:
        connection.close()
        self._idle.pop(handler, None)
        self._answering.pop(handler, None)

    async def _handle(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        tls = self._access.tls
        channel = (
            Channel(self._loop, connection)
            if tls is None
            else TlsChannel(self._loop, connection, tls)
        )
        with contextlib.suppress(OSError):  # the client disconnected or was too slow
            async with asyncio.timeout(EXCHANGE_SECONDS):
                await channel.open()
                if await self._exchange(channel):
                    await channel.finish()

    async def _exchange(self, channel: Channel) -> bool:
        """Read a request and respond to it; false if the client sent none."""
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        with_body = True
        try:
            request = await self._request(protocol, channel)
            if request is None:
                return False
            with_body = request.method != b"HEAD"
            answer = await self._answer_to(request, channel)
        except h11.RemoteProtocolError as error:
            answer = Response.text(HTTPStatus(error.error_status_hint), str(error))
        await channel.send(_encoded(protocol, answer, with_body=with_body))
        return True

    async def _request(self, protocol: h11.Connection, channel: Channel) -> h11.Request | None:
        """Read the head of a request, not its body. None: the client disconnected before."""
        while True:
            event = protocol.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            protocol.receive_data(await channel.receive())

    async def _answer_to(self, request: h11.Request, channel: Channel) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            method = request.method.decode("latin-1")
            return Response.text(
                HTTPStatus.NOT_IMPLEMENTED, f"{method} is not supported: use GET or HEAD"
            )
        headers = dict(request.headers)
        if not self._access.admits(
            request.target,
            headers.get(b"authorization", b""),
            has_certificate=channel.has_certificate,
        ):
            return Response.text(HTTPStatus.UNAUTHORIZED, self._access.needs)
        accept = headers.get(b"accept", b"")
        handler = asyncio.current_task()
        assert handler is not None
        del self._idle[handler]
        self._answering[handler] = None
        answer = await self._answer(request.target.decode("latin-1"), accept.decode("latin-1"))
        del self._answering[handler]
        self._idle[handler] = None
        return answer


def _encoded(protocol: h11.Connection, answer: Response, *, with_body: bool) -> bytes:
    headers = [
        ("Date", formatdate(usegmt=True)),
        ("Server", "millwheel"),
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    if answer.status is HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", "Bearer"))
    reason = answer.status.phrase.encode()
    head = h11.Response(status_code=answer.status, reason=reason, headers=headers)
    sent = protocol.send(head) or b""
    if with_body:
        sent += protocol.send(h11.Data(data=answer.body)) or b""
    return sent
