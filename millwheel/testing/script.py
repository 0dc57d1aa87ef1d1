"""A source that a test writes: values and watermarks, in the order given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.model import to_micros
from millwheel.sources import Partition, Row
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


def advance(stream: Stream[V], at: datetime) -> Step[V]:
    """The source of `stream` promises: nothing on time is older than `at` any more."""
    return Step(stream, None, to_micros(at))


class Script:
    """A replayable source whose rows a test appends; also its only partition.

    Each reading gives values of its own, as reading a file does: decoded by the stream's type.
    """

    def __init__(self, name: str, steps: Iterable[Step[Any]] = ()) -> None:
        self.identity = f"script of {name}"
        self.steps: list[Step[Any]] = []
        for step in steps:
            self.append(step)

    def append(self, step: Step[Any]) -> None:
        """One more row."""
        self.steps.append(step)

    def partitions(self) -> list[Partition]:
        """The script itself."""
        return [self]

    def describe(self) -> dict[str, Any]:
        """Nothing of the rows: a script may grow."""
        return {"script": self.identity}

    def open(self, value_type: Any, position: dict[str, Any] | None) -> ScriptReader:
        """Read from the stored row on."""
        return ScriptReader(self.steps, value_type, position["row"] if position else 0)


class ScriptReader:
    """Reads a script's rows; more may come while it is open."""

    def __init__(self, steps: list[Step[Any]], value_type: Any, start: int) -> None:
        self._steps = steps
        self._decode = msgspec.json.Decoder(value_type).decode
        self._next = start

    def read(self, limit: int) -> list[Row]:
        """The next rows; fewer than `limit` at the end."""
        steps = self._steps[self._next : self._next + limit]
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

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The first row not acknowledged."""
        return {"row": acknowledged}

    def progress(self) -> float:
        """The share of the rows read."""
        return self._next / len(self._steps) if self._steps else 1.0

    def close(self) -> None:
        """Nothing to let go."""
