"""The computations of a query, with names and inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from millwheel.core.names import MOST_LETTERS
from millwheel.streams import Input, Stream


@dataclass(frozen=True)
class PlannedStep:
    """A computation, its name, and its inputs."""

    name: str
    computation: Any
    inputs: Sequence[Input[Any]]


@dataclass(frozen=True)
class Planned:
    """The computations of a query."""

    steps: Sequence[PlannedStep]
    result: Stream[Any]
    late: Sequence[Stream[Any]] = ()
    """Streams of late records."""


_LETTERS = MOST_LETTERS - len("captured_")
"""The harness captures a stream in a table with this prefix, and a step is called ``make_...``."""


def _shortened(name: str) -> str:
    """A name of a length that is allowed; a hash has the place of what is left out."""
    if len(name) <= _LETTERS:
        return name
    digest = blake2b(name.encode(), digest_size=3).hexdigest()
    return f"{name[: _LETTERS - 7]}_{digest}"


class Assembly:
    """Collects the steps of a statement.

    Args:
        taken: the names of other steps and streams.
    """

    def __init__(self, taken: Collection[str]) -> None:
        self.steps: list[PlannedStep] = []
        self._taken = set(taken)

    def name(self, wanted: str) -> str:
        """A name for a step or a stream of this statement."""
        number, found = 1, _shortened(wanted)
        while found in self._taken:
            number += 1
            found = _shortened(f"{wanted}_{number}")
        self._taken.add(found)
        return found

    def add(self, computation: Any, *inputs: Input[Any]) -> PlannedStep:
        step = PlannedStep(self.name(computation.name), computation, inputs)
        self.steps.append(step)
        return step

    def replace(self, step: PlannedStep, computation: Any) -> None:
        """Let another computation read the inputs of a step, in its place."""
        place = self.steps.index(step)
        self.steps[place] = PlannedStep(self.name(computation.name), computation, step.inputs)
