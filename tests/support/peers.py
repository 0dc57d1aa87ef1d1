"""Peers of a worker that are not engines: what they receive, and their bare connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.model import Delivery
from millwheel.runtime.engine import Engine
from millwheel.runtime.network.frames import Deliver, DeliverChunk, Frame
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.peer_ports import Link
from millwheel.runtime.network.wire_records import numbers_of
from millwheel.runtime.network.wire_stream import Outgoing


def logged(logs: list[Any], event: str) -> list[Any]:
    """The lines of one event."""
    return [line for line in logs if line["event"] == event]


def links_of(engine: Engine) -> Links:
    assert isinstance(engine._network, Links)
    return engine._network


class Listener:
    """A handler of links that collects frames and is no engine."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def link_up(self, link: Link) -> None: ...
    def link_down(self, link: Link, reason: str) -> None: ...
    def link_drained(self, link: Link) -> None: ...

    def link_refused(self, link: Link) -> None: ...
    def received(self, link: Link, frame: Frame) -> None:
        self.frames.append(frame)


def numbers_in(frame: Frame) -> list[int]:
    """The numbers of the records that a frame delivers; none if it delivers none."""
    return numbers_of(frame) if isinstance(frame, Deliver | DeliverChunk) else []


def next_of(stream: Outgoing, records: int, size: int) -> list[int]:
    """The numbers of the records that a stream gives next."""
    _, found = stream.take(records, size)
    return [*found.numbers] if isinstance(found, Chunk) else [each.seq for each in found]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 (there is nothing to wait for but this)
            await asyncio.sleep(0.001)


async def call(links: Links) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = links.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def record(number: int) -> Delivery[int]:
    return Delivery(
        "a", number, 0, "tally", b'"a"', 0, 1, 0, 1, b"0", 1, number, 0, b"%016d" % number
    )


def chunk(*numbers: int, size: int = 1) -> Chunk:
    """Records of log 1, each with a value of `size` bytes."""
    made = Chunk("tally", 1)
    made.log, made.numbers = 1, numbers
    made.keys, made.key_texts = ["a"] * len(numbers), [b'"a"'] * len(numbers)
    made.slots = made.micros = made.holds = [0] * len(numbers)
    made.values, made.encoded = list(numbers), [b"1" * size] * len(numbers)
    return made
