"""A hostile peer: a client of a worker's port that needs nothing but the standard library.

It speaks the frames of `millwheel.runtime.network.frames` by itself, so that it can say what no
worker says.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import struct
from typing import Any

VERSION = 7

HELLO, PROOF, WELCOME, REFUSE, DELIVER, ACKNOWLEDGE, NOT_MINE, GAP, REPORT = range(1, 10)
PING, PONG, GOODBYE, TOO_NEW, ASK, PROGRESS, LOOSE, ROOT_REPORT, INTRODUCTION = range(10, 19)


def pack(value: Any) -> bytes:
    """MessagePack of plain Python values."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes((value,))
        return struct.pack(">BQ" if value >= 0 else ">Bq", 0xCF if value >= 0 else 0xD3, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        data = value.encode()
        return struct.pack(">BI", 0xDB, len(data)) + data
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, dict):
        parts = b"".join(pack(part) for item in value.items() for part in item)
        return struct.pack(">BI", 0xDF, len(value)) + parts
    head = bytes((0x90 | len(value),)) if len(value) < 16 else struct.pack(">BI", 0xDD, len(value))
    return head + b"".join(map(pack, value))


def canonical(value: Any) -> bytes:
    """MessagePack in the shortest form, which is what proofs are made of."""
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        if isinstance(value, str) and len(data) < 32:
            return bytes((0xA0 | len(data),)) + data
        return bytes((0xD9 if isinstance(value, str) else 0xC4, len(data))) + data
    if isinstance(value, int):
        assert 0 <= value < 128
        return bytes((value,))
    return bytes((0x90 | len(value),)) + b"".join(map(canonical, value))


class Attacker:
    """A connection to a worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def call(cls, address: str) -> Attacker:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, *frame: Any) -> None:
        self.send_body(pack(frame))

    def send_body(self, body: bytes) -> None:
        self.writer.write(struct.pack(">I", len(body)) + body)

    async def greet(
        self,
        pipeline: str,
        worker: str,
        secret: bytes | None,
        kind: str = "given",
        incarnation: str = "",
    ) -> bytes:
        """Greet, with an empty proof if the secret is not known; gives the last answer."""
        mine = [HELLO, VERSION, "", "", os.urandom(32)]
        self.send(*mine)
        theirs = await self.answer()
        if theirs[1] != HELLO:
            return theirs

        def digest(*content: str) -> bytes:
            # The listener's Hello is in the shortest form.
            said = canonical(kind) + canonical(content) + canonical(mine) + theirs
            return b"" if secret is None else hmac.digest(secret, b"\x94" + said, "sha256")

        self.send(PROOF, digest("proof", "caller"))
        answer = await self.answer()
        if answer[1] != PROOF:
            return answer
        assert (await self.answer())[1] == INTRODUCTION
        who = pipeline, worker, incarnation
        self.send(INTRODUCTION, *who, digest("introduction", "caller", *who))
        return await self.answer()

    async def answer(self) -> bytes:
        """The body of the next frame; empty if the connection was closed."""
        try:
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return b""

    async def end(self, until: int | None = None) -> bytes:
        """Wait until the worker hangs up, or sends a frame of kind `until`; gives the last frame
        but pings and reports."""
        last = b""
        while body := await self.answer():
            if body[1] not in (PING, PONG, REPORT, WELCOME, HELLO, PROOF, INTRODUCTION):
                last = body
            if body[1] == until:
                break
        await self.hang_up()
        return last

    async def hang_up(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()
