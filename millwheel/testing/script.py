"""A source that a test writes: values and watermarks, in the order given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.model import to_micros
from millwheel.sources import Lag, Partition, Row
from millwheel.streams import Stream

V = TypeVar("V")


@dataclass(frozen=True)
class Step(Generic[V]):
    """One line of a script: a value for a stream, or a watermark."""

    stream: Stream[V]
    value: V | None
    watermark: int | None


def inject(stream: Stream[V], value: V) -> Step[V]:
    """`value` comes into `stream`, with the timestamp its injector takes from it."""
    return Step(stream, value, None)


def advance(stream: Stream[Any], at: datetime) -> Step[Any]:
    """The source of `stream` promises: nothing on time is older than `at` any more."""
    return Step(stream, None, to_micros(at))


class Script:
    """A replayable source whose rows a test appends; also its only partition.

    It goes the way of every live source: a reader that has read all rows waits, and an appended row
    wakes it. It ends when the test says so. Each reader gives values of its own, decoded by
    the stream's type, as the readers of files do.
    """

    bounded = True

    def __init__(self, name: str, steps: Iterable[Step[Any]] = ()) -> None:
        self.identity = f"script of {name}"
        self.steps: list[Step[Any]] = []
        self.ended = False
        """No row will follow: a reader that has read all rows ends."""
        self.caught_up = asyncio.Event()
        """A reader has read every row, and waits for more."""
        self._readers: dict[ScriptReader, None] = {}
        for step in steps:
            self.append(step)

    def append(self, step: Step[Any]) -> None:
        """Add one row, and wake the reader."""
        self.steps.append(step)
        self.ended = False
        self.caught_up.clear()
        self.wake()

    def end(self) -> None:
        """Say that no row will follow."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Let readers look for rows."""
        for reader in list(self._readers):
            reader.wake()

    def partitions(self) -> list[Partition]:
        """The script itself."""
        return [self]

    def describe(self) -> dict[str, Any]:
        """Its name alone, as rows may be appended."""
        return {"script": self.identity}

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> ScriptReader:
        """Read from the stored row on."""
        return self.opened(ScriptReader(self, value_type, position["row"] if position else 0))

    def opened(self, reader: ScriptReader) -> ScriptReader:
        """Wake this reader from now on, until it is closed."""
        self._readers[reader] = None
        return reader

    def closed(self, reader: ScriptReader) -> None:
        """Wake this reader no more."""
        self._readers.pop(reader, None)


class ScriptReader:
    """Reads a script's rows; more may be appended while it is open."""

    def __init__(self, script: Script, value_type: Any, start: int) -> None:
        self._script = script
        self._decode = msgspec.json.Decoder(value_type).decode
        self._next = start
        self._more = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether all rows were read, and the test has said that none will follow."""
        return self._script.ended and self._next >= len(self._script.steps)

    async def read(self, limit: int) -> list[Row]:
        """The next rows, those that are there."""
        steps = self._script.steps[self._next : self._next + limit]
        rows = [
            Row(number, number + 1, self._value_of(step), step.watermark)
            for number, step in enumerate(steps, self._next)
        ]
        self._next += len(rows)
        return rows

    def _value_of(self, step: Step[Any]) -> Any:
        if step.watermark is not None:
            return None
        return self._decode(msgspec.json.encode(step.value))

    async def wait(self) -> None:
        """Return when the script was woken."""
        if self._next >= len(self._script.steps):
            self._script.caught_up.set()
        await self._more.wait()
        self._more.clear()

    def wake(self) -> None:
        """There may be more rows, or the end."""
        self._more.set()

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The first row not acknowledged."""
        return {"row": acknowledged}

    def progress(self) -> float:
        """The share of the rows read."""
        return self._next / len(self._script.steps) if self._script.steps else 1.0

    def lag(self) -> Lag:
        """The rows that were appended and not read yet."""
        return Lag(rows=max(0, len(self._script.steps) - self._next))

    def close(self) -> None:
        """Be woken no more."""
        self._script.closed(self)
