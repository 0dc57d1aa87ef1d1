"""Connections of HTTP clients: uvicorn's, with limits on all that a client may do before it has
shown a token.

uvicorn with httptools bounds neither the size of headers nor the time that they take, and accepts
as many connections as the process has descriptors. Here each step of a connection has a limit:

* a head: `HEAD_BYTES` and `HEAD_SECONDS`, from the first byte or, for the first one, the accept
* a body: the app's: `Inbox.max_body`, 30 s, and a total for all requests
* a whole request: `REQUEST_SECONDS`, so also a client that does not read its answer
* an unread rest: `REST_SECONDS` after the answer
* between two requests: ``timeout_keep_alive``
* connections: `MOST_CONNECTIONS`, a third of the descriptors; half of them for one address

Where no place is free, the connection that has waited longest for its client to begin a request is
closed: of the same address if that has too many. Only if all of them have requests is the new one
refused. The listener itself leaves some descriptors to the rest of the process, such as the probes
(`millwheel.services.tcp.Listener`).
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millwheel.runtime.network.peer_ports import AbandonKind, Visitor
from millwheel.services.tcp import Listener

HEAD_BYTES = 16 * 1024
"""Most bytes of a request's line with its headers and trailers."""

HEAD_SECONDS = 10.0
"""Longest wait for a complete head."""

REQUEST_SECONDS = 120.0
"""Longest time from a head to the end of its answer: a body takes 30 s at most, the store 40 s."""

REST_SECONDS = 2.0
"""Longest time that the rest of a body comes after the answer, which would be lost in a reset."""

MOST_CONNECTIONS = 1_000
"""Most open connections, if the process may open three times as many files."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection:"
    b" close\r\n\r\n"
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_PLACE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection:"
    b" close\r\n\r\n"
)


def most_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else max(2, min(MOST_CONNECTIONS, files // 3))


class Places:
    """The open connections, the one that has waited longest first."""

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._open: dict[BoundedProtocol, str] = {}
        """Address of each connection."""
        self._of_address: Counter[str] = Counter()

    def take(self, connection: BoundedProtocol, address: str) -> bool:
        """If no place is free, that of a connection that waits for its client is used; false: there
        is none."""
        if self._of_address[address] >= self._most // 2:
            if not self._end_one(address):
                return False
        elif len(self._open) >= self._most and not self._end_one(None):
            return False
        self._open[connection] = address
        self._of_address[address] += 1
        return True

    def used(self, connection: BoundedProtocol) -> None:
        """A connection that has sent something has waited shortest."""
        address = self._open.pop(connection, None)
        if address is not None:
            self._open[connection] = address

    def leave(self, connection: BoundedProtocol) -> None:
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def _end_one(self, address: str | None) -> bool:
        for connection, its in self._open.items():
            if connection.waits and address in (None, its):
                connection.transport.abort()
                self.leave(connection)
                return True
        return False


class OneWrite:
    """Where a request's answer is written: the head goes out with the first part of the body.

    uvicorn writes them one after the other, each by a call of the system and in a packet of its
    own.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""
        """Empty: it has not been written; None: it was sent."""

    def write(self, data: bytes) -> None:
        if self._head is None or data == CONTINUE:
            self._transport.write(data)
        elif not self._head:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = None

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class BoundedProtocol(HttpToolsProtocol, Visitor):
    """One connection, from its accept."""

    def __init__(self, places: Places, **options: Any) -> None:
        super().__init__(**options)
        self._places = places
        self._ends_at = 0.0
        """By the loop's time."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks at `_ends_at`, at that time or earlier."""
        self._in_head = True
        """The next request, or its head, is not complete."""
        self._in_message = False
        self._is_idle = False
        """Nothing of the next request has arrived."""
        self._is_refused = False
        """Further input is thrown away."""
        self._head = 0
        """Bytes of the head that the parser has given out."""
        self._read = 0
        """Bytes of the last read, in which a message may begin."""
        self._unparsed = 0
        """Bytes that have arrived since the parser gave out anything of the message."""

    @property
    def waits(self) -> bool:
        """Whether it waits for its client to begin a request, or to complete its head."""
        return self._in_head and (self.cycle is None or self.cycle.response_complete)

    def abandon(self, kind: AbandonKind, text: str) -> None:
        """The connection was lost before its transport was ready; nothing counts it yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end_after(HEAD_SECONDS)
        if not self._places.take(self, self.client[0] if self.client else ""):
            self._is_refused = True
            transport.write(NO_PLACE)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_idle:
            self._is_idle = False
            self._end_after(HEAD_SECONDS)
            self._places.used(self)
        self._read = len(data)
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > HEAD_BYTES:
            self._refuse_head()

    def send_400_response(self, msg: str) -> None:
        if self._head > HEAD_BYTES:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    # -- what the parser gives out

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._head, self._unparsed = 0, self._read

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unparsed = 0
        self._end_after(REQUEST_SECONDS)
        super().on_headers_complete()
        if self.cycle is not None and self.scope["method"] != "HEAD":  # nothing follows its head
            self.cycle.transport = OneWrite(self.transport)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._unparsed = 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self._turn_to_the_next()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:  # of a request that was sent behind it
            self._end_after(REQUEST_SECONDS)
        elif self._in_message:
            self._end_after(REST_SECONDS)
        else:
            self._turn_to_the_next()

    # -- limits

    def _turn_to_the_next(self) -> None:
        self._in_head = self._is_idle = True
        self._end_after(self.timeout_keep_alive)

    def _count(self, size: int) -> None:
        """Count bytes of a head; `ValueError`, with which the parser ends, if there are too
        many."""
        self._head += size
        if self._head > HEAD_BYTES:
            raise ValueError("the headers are too large")

    def _refuse_head(self) -> None:
        """Answer 431, and read for a moment: closing at once would discard the answer."""
        if not self._is_refused and not self.transport.is_closing():
            self._is_refused = True
            self.transport.write(TOO_LARGE)
            self.transport.write_eof()
            self._end_after(REST_SECONDS)

    def _end_after(self, seconds: float) -> None:
        """End the connection after a time, in place of the former one.

        A request has three such times. A timer that is due earlier stays, and looks again.
        """
        self._ends_at = self.loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._ends_at:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(self._ends_at, self._look_at_the_time)

    def _look_at_the_time(self) -> None:
        self._timer = None
        seconds = self._ends_at - self.loop.time()
        if seconds > 0:
            self._end_after(seconds)
        else:
            self.transport.abort()


class BoundedServer(uvicorn.Server):
    """uvicorn on a listening socket, with `BoundedProtocol`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._places = Places(most_connections())
        self._listener: Listener | None = None

    async def startup(self, sockets: list[Any] | None = None) -> None:
        for listening in sockets or []:
            listening.setblocking(False)
        await super().startup(sockets=[])
        make = partial(
            BoundedProtocol, self._places, config=self.config, server_state=self.server_state,
            app_state=self.lifespan.state,
        )  # fmt: skip
        self._listener = Listener(sockets or [], lambda _: make(), None, 0, callers="clients")

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        if self._listener is not None:
            await self._listener.closed()
        await super().shutdown(sockets=[])
