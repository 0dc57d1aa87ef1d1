"""A source for tests that returns given values and watermarks in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.core.model import to_micros
from millwheel.sources import Lag, Partition, Row, Rows
from millwheel.streams import Stream

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)  # steps of several streams make one list


@dataclass(frozen=True)
class ScriptStep(Generic[V_co]):
    """A step of a script: a value for a stream, or a watermark."""

    stream: Stream[Any]
    value: V_co | None
    watermark: int | None
    at: int | None = None
    """The timestamp that its source gives a value, in microseconds since the epoch."""


def inject(stream: Stream[V], value: V, *, at: datetime | None = None) -> ScriptStep[V]:
    """A step that injects a value into a stream.

    ```python
    inputs = [inject(ORDERS, TEA, at=at(0)), inject(ORDERS, MILK, at=at(30))]
    ```

    Args:
        at: the event time that the source gives the value, for an injector without ``timestamp=``
            (an `Inbox`, Kafka, another pipeline); None: the test's wall time. With ``timestamp=``,
            the injector computes it from the value.
    """
    return ScriptStep(stream, value, None, None if at is None else to_micros(at))


def advance(stream: Stream[Any], at: datetime) -> ScriptStep[Any]:
    """A step that advances the watermark of a stream's source: values older than `at` are late
    then.

    ```python
    inputs = [inject(ORDERS, TEA, at=at(0)), advance(ORDERS, at(60))]
    ```
    """
    return ScriptStep(stream, None, to_micros(at))


class Script:
    """A replayable source with rows appended by the test; it is also its only partition.

    It behaves like any live source: a reader that has read all rows waits, and an appended row
    wakes it. It ends when the test calls `end`. Each reader decodes separate values, as file
    readers do.
    """

    bounded = True

    def __init__(
        self, name: str, steps: Iterable[ScriptStep[Any]] = (), *, timestamps: bool = False
    ) -> None:
        self.timestamps = timestamps
        """Whether the rows have timestamps of their own; then each step with a value has one."""
        self.identity = f"script of {name}"
        self.steps: list[ScriptStep[Any]] = []
        self.ended = False
        """Whether the script is complete: a reader that has read all rows ends."""
        self.caught_up = asyncio.Event()
        """Set while a reader has read every row and waits for more."""
        self.rows_read = 0
        """Rows that some reader has read."""
        self._readers: dict[ScriptReader, None] = {}
        for step in steps:
            self.append(step)

    def append(self, step: ScriptStep[Any]) -> None:
        self.steps.append(step)
        self.ended = False
        self.caught_up.clear()
        self.wake()

    def cut(self, length: int) -> None:
        """Drop the rows after the first `length`, except those that have been read."""
        del self.steps[max(length, self.rows_read) :]
        self.wake()

    def end(self) -> None:
        self.ended = True
        self.wake()

    def wake(self) -> None:
        for reader in list(self._readers):
            reader.wake()

    def partitions(self) -> list[Partition]:
        return [self]

    def describe(self) -> dict[str, Any]:
        return {"script": self.identity}

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> ScriptReader:
        return self.opened(ScriptReader(self, value_type, position["row"] if position else 0))

    def opened(self, reader: ScriptReader) -> ScriptReader:
        self._readers[reader] = None
        return reader

    def closed(self, reader: ScriptReader) -> None:
        self._readers.pop(reader, None)


class ScriptReader:
    def __init__(self, script: Script, value_type: Any, start: int) -> None:
        self._script = script
        self._decode = msgspec.json.Decoder(value_type).decode
        self._next = start
        self._more = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._script.ended and self._next >= len(self._script.steps)

    @property
    def caught_up(self) -> bool:
        return self._next >= len(self._script.steps)

    async def read(self, limit: int) -> Sequence[Row]:
        """Up to `limit` of the next rows: those before a watermark as columns."""
        first, steps = self._next, self._script.steps
        if first < len(steps) and (watermark := steps[first].watermark) is not None:
            self._advance(1)
            return [Row(first, first + 1, watermark=watermark)]
        together = takewhile(lambda step: step.watermark is None, steps[first : first + limit])
        taken = list(together)
        self._advance(len(taken))
        raws = [msgspec.json.encode(step.value) for step in taken]
        values = list(map(self._value_of, taken))
        micros = [step.at for step in taken if step.at is not None]
        return Rows(  # sources may give their JSON or not
            first, first + 1, values, None if first % 2 else raws, micros or None
        )

    def _advance(self, rows: int) -> None:
        self._next += rows
        self._script.rows_read = max(self._script.rows_read, self._next)

    def _value_of(self, step: ScriptStep[Any]) -> Any:
        return self._decode(msgspec.json.encode(step.value))

    async def wait(self) -> None:
        if self._next >= len(self._script.steps):
            self._script.caught_up.set()
        await self._more.wait()
        self._more.clear()

    def wake(self) -> None:
        self._more.set()

    def position(self, acknowledged: int) -> dict[str, Any]:
        return {"row": acknowledged}

    def progress(self) -> float:
        return self._next / len(self._script.steps) if self._script.steps else 1.0

    def lag(self) -> Lag:
        return Lag(rows=max(0, len(self._script.steps) - self._next))

    def close(self) -> None:
        self._script.closed(self)
