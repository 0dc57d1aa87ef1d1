"""The server of --ingest: limits on a client that has not shown a token, over sockets."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from millwheel.ingest import Ingest
from millwheel.services import bounded_http, tcp
from millwheel.services.endpoint import Endpoint
from millwheel.services.ingesting import IngestServer

HEAD = b"POST /streams/words HTTP/1.1\r\nhost: x\r\n"
REQUEST = HEAD + b"content-length: 2\r\n\r\nhi"
ANSWER_SECONDS = 20.0
"""Time that an answer may take on a machine that is busy with other tests."""


class App:
    """Answers 200 with the length of the body, once `gate` is open."""

    def __init__(self) -> None:
        self.doors: dict[str, Any] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.reads = True
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for part in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{part}.complete"})
            return
        self.asked += 1
        size, more = 0, self.reads
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        await self.gate.wait()
        text = json.dumps(size).encode()
        length = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": text})


class Client:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """The status of the next answer; 0: the connection has ended."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                line = await self.reader.readline()
                while line and await self.reader.readline() not in (b"\r\n", b""):
                    pass
                if line.startswith(b"HTTP/1.1 200"):
                    await self.reader.readexactly(1)
        except ConnectionError:
            return 0
        return int(line.split()[1]) if line else 0

    async def ended(self) -> bool:
        """Wait until the server has closed the connection."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.reader.read()
        except ConnectionError:
            return True
        return self.reader.at_eof()


Connect = Callable[[], Any]


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def connect(app: App) -> AsyncIterator[Connect]:
    """Connects to a server of the app."""
    async with AsyncExitStack() as stack:
        server: list[IngestServer] = []

        async def connect() -> Client:
            if not server:  # the test has set its limits by now
                made = IngestServer(cast("Ingest", app), Endpoint(), has_tokens=True)
                server.append(await stack.enter_async_context(made))
            _, _, port = server[0].url.rpartition(":")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            stack.callback(writer.close)
            return Client(reader, writer)

        yield connect


async def test_requests_on_one_connection(connect: Connect) -> None:
    """One after the other, and several sent at once."""
    client = await connect()
    for _ in range(2):
        client.send(REQUEST)
        assert await client.status() == 200
    client.send(REQUEST * 3)
    assert [await client.status() for _ in range(3)] == [200] * 3


async def test_a_head_without_a_body_is_answered_at_once(connect: Connect) -> None:
    """The connection stays open, so its end does not bring the answer."""
    client = await connect()
    client.send(b"HEAD /streams/words HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(ANSWER_SECONDS):
        head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: 1" in head
    client.send(REQUEST)
    assert await client.status() == 200


async def test_an_answer_is_one_write(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    class Noted(bounded_http.OneWrite):
        def __init__(self, transport: Any) -> None:
            super().__init__(cast("asyncio.Transport", Transport(transport)))

    class Transport:
        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            writes.append(data)
            self._transport.write(data)

        def is_closing(self) -> bool:
            return bool(self._transport.is_closing())

    monkeypatch.setattr(bounded_http, "OneWrite", Noted)
    client = await connect()
    for _ in range(2):
        client.send(REQUEST)
        assert await client.status() == 200
    assert [data.endswith(b"\r\n\r\n2") for data in writes] == [True, True]


async def test_a_client_that_waits_to_be_asked_for_its_body(connect: Connect) -> None:
    client = await connect()
    for _ in range(2):
        client.send(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await client.status() == 100
        client.send(b"hi")
        assert await client.status() == 200


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"POST /", b"a"),
        (HEAD + b"x: ", b"a"),
        (HEAD, b"x: a\r\n"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2;", b"a"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx: ", b"a"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n", b"x: a\r\n"),
    ],
    ids=["a path", "a header", "headers", "an extension", "a trailer", "trailers"],
)
async def test_the_size_of_a_head_has_a_limit(connect: Connect, first: bytes, rest: bytes) -> None:
    """Nothing that is no body may go on for ever."""
    client = await connect()
    client.send(first)
    answer = asyncio.create_task(client.status())
    while not answer.done():
        client.send(rest * (4_000 // len(rest)))
        await asyncio.sleep(0.02)
    assert await answer == 431
    assert await client.ended()
    other = await connect()
    other.send(HEAD + b"x: " + b"a" * 12_000 + b"\r\ncontent-length: 2\r\n\r\nhi")
    assert await other.status() == 200


@pytest.mark.parametrize("head", [b"x: " + b"a" * 20_000, b"x: a\r\n" * 5_000])
async def test_a_head_that_comes_at_once_has_a_limit(connect: Connect, head: bytes) -> None:
    client = await connect()
    client.send(HEAD + head + b"\r\n\r\n")
    assert await client.status() == 431


async def test_a_large_body_is_no_head(connect: Connect) -> None:
    client = await connect()
    client.send(HEAD + b"content-length: 9\r\n\r\n" + b"a" * 9)
    assert await client.status() == 200
    client.send(HEAD + b"content-length: 100000\r\n\r\n" + b"a" * 100_000 + REQUEST)
    assert (await client.reader.readline()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"P", HEAD, REQUEST + b"P", REQUEST + b"\r\n"])
async def test_the_time_of_a_head_has_a_limit(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Also if a byte comes now and then, and after a request that was answered."""
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.5)
    client = await connect()
    client.send(sent)
    if sent.startswith(REQUEST):
        assert await client.status() == 200

    async def trickle() -> None:
        while sent:
            client.send(b"a" if sent.strip() else b"\r\n")
            await asyncio.sleep(0.1)

    task = asyncio.create_task(trickle())
    assert await client.ended()
    task.cancel()


async def test_a_head_after_a_pause_has_no_more_time(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the connection's timer waits for the end of a much longer pause."""
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.2)
    client = await connect()
    client.send(REQUEST)
    assert await client.status() == 200
    await asyncio.sleep(0.4)
    client.send(b"P")
    assert await client.ended()


async def test_the_rest_of_a_body_comes_soon_or_never(
    connect: Connect, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "REST_SECONDS", 0.3)
    app.reads = False
    client = await connect()
    client.send(HEAD + b"content-length: 9\r\n\r\nhi")
    assert await client.status() == 200
    assert await client.ended()


async def test_a_request_has_a_time(
    connect: Connect, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "REQUEST_SECONDS", 0.3)
    app.gate.clear()
    client = await connect()
    client.send(REQUEST)
    assert await client.ended()


async def asked(app: App, requests: int) -> None:
    """Wait until so many requests have reached the app, which runs in another thread."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while app.asked < requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_new_connection_takes_the_place_of_the_oldest_that_waits(
    connect: Connect, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "most_connections", lambda: 8)  # 4 of one address
    app.gate.clear()
    busy = [await connect() for _ in range(2)]
    for client in busy:
        client.send(REQUEST)
    await asked(app, 2)
    strangers = [await connect() for _ in range(20)]
    for stranger in strangers[:18]:
        assert await stranger.ended()
    busy += strangers[18:]
    for client in busy[2:]:
        client.send(REQUEST)
    await asked(app, 4)
    refused = await connect()
    assert await refused.status() == 503
    app.gate._loop.call_soon_threadsafe(app.gate.set)  # type: ignore[attr-defined]
    assert [await client.status() for client in busy] == [200] * 4


async def test_the_rest_of_the_process_keeps_descriptors(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood does not take the last ones, and the server goes on after it."""
    first = await connect()
    first.send(REQUEST)
    assert await first.status() == 200
    used = len(os.listdir("/proc/self/fd"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 60, before[1]))
    flood: list[Client] = []
    try:
        flood += [await connect() for _ in range(25)]  # each takes two: both ends are here
        await asyncio.sleep(0.5)
        free = used + 60 - len(os.listdir("/proc/self/fd"))
        assert free >= tcp.SPARE_DESCRIPTORS - 6  # those of the clients that wait in the queue
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    first.send(REQUEST)
    assert await first.status() == 200


def test_a_third_of_the_descriptors_are_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((1024, 341), (64, 21), (1 << 20, 1_000), (-1, 1_000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert bounded_http.most_connections() == most
