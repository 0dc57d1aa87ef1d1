"""A proxy between a worker and Postgres that knows what a commit is, and cuts right there.

It reads what the worker writes: messages of a letter and a length. A commit is the engine's
statement where that stands alone, else the ``COMMIT`` after it. When it was told to, it lets the
next one meet a fate (`FATES`), at any of the worker's connections:

=========  ===========================================================================
unsent     the connection breaks, and Postgres never hears of the commit
sent       it breaks as soon as the commit is on its way to Postgres
answered   it breaks when Postgres has answered; the answer is thrown away
late       it breaks, and the commit comes to Postgres some time after that
=========  ===========================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from millwheel.runtime.process.tasks import end

FATES = ("unsent", "sent", "answered", "late")
ENGINES = b"WITH part_"
"""How the engine's statement of a commit begins (`millwheel.store.postgres.statements`)."""

STARTUP_BYTES = 8
_head = struct.Struct("!ci")


class Wire:
    """Carries the connections of one worker to a server that listens on a socket."""

    def __init__(self, url: str) -> None:
        self._target = socket_of(url)
        self.met: list[str] = []
        """Fates that commits have met."""
        self.fate = ""
        self.late_seconds = 1.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, directory: Path) -> Path:
        """Listen in a directory of its own; gives it."""
        directory.mkdir()  # noqa: ASYNC240 (nothing else is to be done)
        path = directory / self._target.name
        self._server = await asyncio.start_unix_server(self._accept, path)
        return directory

    async def close(self) -> None:
        """Break what is left, and listen no more."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await end(self._tasks)

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Carry nothing more, to either side; nothing breaks."""
        self._flowing.clear()

    def resume(self) -> None:
        """Go on."""
        self._flowing.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        link = Link(self, reader, writer, *there)
        self._writers |= {writer, there[1]}
        try:
            await link.carry()
        finally:
            for one in (writer, there[1]):
                one.transport.abort()
                self._writers.discard(one)


class Link:
    """One connection, and its other half."""

    def __init__(
        self,
        wire: Wire,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        to_there: asyncio.StreamWriter,
    ) -> None:
        self._wire = wire
        self._reader, self._writer = reader, writer
        self._there, self._to_there = there, to_there
        self._commits = Commits()
        self._answer: asyncio.Event | None = None

    async def carry(self) -> None:
        """Until one side hangs up, or the fate of a commit is done."""
        asking = asyncio.create_task(self._ask())
        answering = asyncio.create_task(self._tell())
        try:
            await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([asking, answering])

    async def _ask(self) -> None:
        """What the worker writes."""
        with contextlib.suppress(OSError, RuntimeError):
            while data := await self._reader.read(1 << 18):
                await self._wire._flowing.wait()
                fate = self._wire.fate
                if self._commits.feed(data) and fate:
                    self._wire.fate = ""
                    self._wire.met.append(fate)
                    await self._meet(fate, data)
                    return
                self._to_there.write(data)
                await self._to_there.drain()

    async def _meet(self, fate: str, data: bytes) -> None:
        if fate == "unsent":
            return
        if fate == "late":
            self._writer.transport.abort()
            await asyncio.sleep(self._wire.late_seconds)
        self._answer = asyncio.Event()
        self._to_there.write(data)
        await self._to_there.drain()
        if fate != "sent":
            await self._answer.wait()

    async def _tell(self) -> None:
        """What Postgres answers."""
        with contextlib.suppress(OSError, RuntimeError):
            while data := await self._there.read(1 << 18):
                if self._answer is not None:
                    self._answer.set()
                    continue
                await self._wire._flowing.wait()
                self._writer.write(data)
                await self._writer.drain()
        if self._answer is not None:
            self._answer.set()


class Commits:
    """Tells where a commit is complete in what a client writes."""

    def __init__(self) -> None:
        self._left = b""
        self._started = False
        self._texts: dict[bytes, bytes] = {}
        self._open = False
        """A transaction was begun."""
        self._is_commit = False

    def feed(self, data: bytes) -> bool:
        """Whether a commit is complete with these bytes; they are whole messages in practice, since
        libpq writes a statement at once."""
        found = False
        buffer = self._left + data
        at = 0
        if not self._started:
            at = int.from_bytes(buffer[:4], "big")
            if len(buffer) < max(at, STARTUP_BYTES):
                self._left = buffer
                return False
            self._started = int.from_bytes(buffer[4:8], "big") >> 16 == 3  # else: asks for TLS
        while len(buffer) - at >= _head.size:
            kind, length = _head.unpack_from(buffer, at)
            if len(buffer) - at < length + 1:
                break
            found |= self._message(kind, buffer[at + _head.size : at + 1 + length])
            at += length + 1
        self._left = buffer[at:]
        return found

    def _message(self, kind: bytes, body: bytes) -> bool:
        if kind == b"P":  # Parse
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text[:16]
        elif kind == b"B":  # Bind
            name = body.split(b"\0", 2)[1]
            self._statement(self._texts.get(name, b""))
        elif kind == b"Q":
            self._statement(body[:16])
        if kind in (b"Q", b"S") and self._is_commit:
            self._is_commit = False
            return True
        return False

    def _statement(self, text: bytes) -> None:
        word = text.strip(b"\0 ;").upper()
        if word.startswith(b"BEGIN"):
            self._open = True
        elif word in (b"COMMIT", b"ROLLBACK"):
            self._is_commit = self._open and word == b"COMMIT"
            self._open = False
        elif text.startswith(ENGINES) and not self._open:
            self._is_commit = True


def socket_of(url: str) -> Path:
    """The socket that a URL leads to."""
    found: dict[str, Any] = parse_qs(urlsplit(url).query)
    return Path(found["host"][0]) / f".s.PGSQL.{found.get('port', ['5432'])[0]}"


def through(url: str, directory: Path) -> str:
    """The URL by way of a socket of the same name elsewhere."""
    parts = urlsplit(url)
    port = parse_qs(parts.query).get("port", ["5432"])[0]
    return urlunsplit(parts._replace(query=f"host={quote(str(directory), safe='/')}&port={port}"))
