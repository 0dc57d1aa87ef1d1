"""A small HTTP server for probes: a thread with an event loop of its own, and h11 for the protocol.

A probe must get its answer while other clients do what they like. Three rules see to that:

* One connection carries one request, and lives no longer than `EXCHANGE_SECONDS`: reading the head,
  finding the answer and writing it together. A byte now and then gains no time.
* At most `CONNECTIONS` are open. A further client is accepted all the same; the oldest connection
  that waits for its client is closed for it.
* Without a file descriptor for a new connection the server closes an old one, and tries again.

Why no ready-made server: `docs/decisions/0043-http-probes-with-h11.md`.
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

EXCHANGE_SECONDS = 10.0
"""From accepting a connection to its end. The slowest answer, of `/readyz`, takes 4 s."""

CONNECTIONS = 64
"""Open at a time."""

WAITING_CONNECTIONS = 1024
"""Made by the kernel and not accepted yet; the system may allow fewer (`net.core.somaxconn`)."""

HEAD_BYTES = 16 * 1024
"""Longest request line with headers; a longer one is refused with 431."""

CHUNK_BYTES = 4096

RETRY_SECONDS = 0.1
"""Pause after a connection that could not be accepted."""

TEXT = "text/plain; charset=utf-8"

log = structlog.get_logger("millwheel.http")


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> Answer:
        return cls(status, f"{text}\n".encode())


class HttpServer:
    """Answers GET and HEAD on a socket, from `start` until `stop`.

    Args:
        listener: a socket that listens.
        answer: makes the answer to (path, the `Accept` header); called in the server's thread. It
            raises nothing.
    """

    def __init__(
        self, listener: socket.socket, answer: Callable[[str, str], Awaitable[Answer]]
    ) -> None:
        self._listener = listener
        self._answer = answer
        self._loop = asyncio.SelectorEventLoop()
        self._stopping = asyncio.Event()
        self._idle: dict[asyncio.Task[None], None] = {}
        """Connections whose client is waited for: to ask, to take its answer or to close; the oldest
        first."""
        self._answering: dict[asyncio.Task[None], None] = {}
        """Connections whose answer is being found; the oldest first."""
        self._accept_failed = False
        """Since the last connection that was accepted."""
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Begin to accept connections."""
        self._listener.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and the listening socket; blocks until that is done."""
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
        """A client waits to be accepted."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it left
        except OSError as error:  # out of file descriptors, most likely
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
        talk = self._loop.create_task(self._talk(connection))
        self._idle[talk] = None
        talk.add_done_callback(partial(self._close, connection))

    def _close_one(self) -> None:
        """Close the connection that has waited longest for its client; else the oldest."""
        for connections in (self._idle, self._answering):
            for talk in connections:
                del connections[talk]
                talk.cancel()
                return

    def _close(self, connection: socket.socket, talk: asyncio.Task[None]) -> None:
        connection.close()
        self._idle.pop(talk, None)
        self._answering.pop(talk, None)

    async def _talk(self, connection: socket.socket) -> None:
        """One connection: a request, its answer, and its end."""
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # the client left, or was too slow
            async with asyncio.timeout(EXCHANGE_SECONDS):
                if await self._exchange(connection):
                    connection.shutdown(socket.SHUT_WR)
                    # Closing with unread input would send a reset, and take the answer back.
                    while await self._loop.sock_recv(connection, CHUNK_BYTES):
                        pass

    async def _exchange(self, connection: socket.socket) -> bool:
        """Read a request and answer it; False: there was none."""
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        with_body = True
        try:
            request = await self._request(protocol, connection)
            if request is None:
                return False
            with_body = request.method != b"HEAD"
            answer = await self._answer_to(request)
        except h11.RemoteProtocolError as error:
            answer = Answer.text(HTTPStatus(error.error_status_hint), str(error))
        await self._loop.sock_sendall(connection, _encoded(protocol, answer, with_body=with_body))
        return True

    async def _request(
        self, protocol: h11.Connection, connection: socket.socket
    ) -> h11.Request | None:
        """The head of the request; a body is not read. None: the client left without asking."""
        while True:
            event = protocol.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            protocol.receive_data(await self._loop.sock_recv(connection, CHUNK_BYTES))

    async def _answer_to(self, request: h11.Request) -> Answer:
        if request.method not in (b"GET", b"HEAD"):
            method = request.method.decode("latin-1")
            return Answer.text(
                HTTPStatus.NOT_IMPLEMENTED, f"{method} is not supported: ask with GET or HEAD"
            )
        accept = dict(request.headers).get(b"accept", b"")
        talk = asyncio.current_task()
        assert talk is not None
        del self._idle[talk]
        self._answering[talk] = None
        answer = await self._answer(request.target.decode("latin-1"), accept.decode("latin-1"))
        del self._answering[talk]
        self._idle[talk] = None
        return answer


def _encoded(protocol: h11.Connection, answer: Answer, *, with_body: bool) -> bytes:
    headers = [
        ("Date", formatdate(usegmt=True)),
        ("Server", "millwheel"),
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    reason = answer.status.phrase.encode()
    head = h11.Response(status_code=answer.status, reason=reason, headers=headers)
    sent = protocol.send(head) or b""
    if with_body:
        sent += protocol.send(h11.Data(data=answer.body)) or b""
    return sent
