"""Ids of records whose effects a commit makes durable, as the store keeps them (decision 69)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from millwheel.core.model import record_id
from millwheel.errors import InvariantBroken

SeenRow = tuple[int, int, bytes]
"""Slot, computation and id."""

MOST_SPAN = 4096
"""Numbers from the first of a run to its last: a look-up reads no run that begins further away."""

MOST_GAP = 512
"""A larger gap ends a run. As bits it takes 64 bytes, about as many as another run."""


class NumberRun(NamedTuple):
    """Numbers of one log that a computation has seen."""

    computation: int
    log: int
    first: int
    last: int
    numbers: Sequence[int]
    """Those seen, ascending."""

    @property
    def is_whole(self) -> bool:
        return len(self.numbers) == self.last - self.first + 1


@dataclass(slots=True)
class SeenIds:
    """The ids that one commit notes in one bucket; an iteration gives each with its computation."""

    rows: list[SeenRow] = field(default_factory=list)
    """Ids in no order: of users, and of weak productions."""
    numbers: dict[tuple[int, int], list[Sequence[int]]] = field(default_factory=dict)
    """Ids of rows and strong productions: by computation and log, ascending sequences of
    numbers."""

    def add_numbers(self, computation: int, log: int, numbers: Sequence[int]) -> None:
        self.numbers.setdefault((computation, log), []).append(numbers)

    def __len__(self) -> int:
        return len(self.rows) + sum(len(part) for parts in self.numbers.values() for part in parts)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for _, computation, id_ in self.rows:
            yield computation, id_
        for (computation, log), parts in self.numbers.items():
            for number in chain.from_iterable(parts):
                yield computation, record_id(log, number)

    def runs(self) -> Iterator[NumberRun]:
        """The numbers, in as few runs as the limits allow.

        Raises:
            InvariantBroken: a number is there twice.
        """
        for (computation, log), parts in self.numbers.items():
            numbers = parts[0] if len(parts) == 1 else sorted(chain.from_iterable(parts))
            for part in _cut(numbers):
                yield NumberRun(computation, log, part[0], part[-1], part)


def _cut(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Stretches of ascending numbers that are within the limits of a run."""
    if _are_consecutive(numbers):
        for place in range(0, len(numbers), MOST_SPAN):
            yield numbers[place : place + MOST_SPAN]
        return
    begin, first, before = 0, numbers[0], numbers[0] - 1
    for place, number in enumerate(numbers):
        if number <= before:
            raise InvariantBroken("a record is processed twice by one commit")
        if number - first >= MOST_SPAN or number - before > MOST_GAP:
            yield numbers[begin:place]
            begin, first = place, number
        before = number
    yield numbers[begin:]


def _are_consecutive(numbers: Sequence[int]) -> bool:
    first, last = numbers[0], numbers[-1]
    if last - first + 1 != len(numbers):
        return False
    return isinstance(numbers, range) or list(numbers) == list(range(first, last + 1))


def clusters(numbers: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """Log, first and last of numbers that lie near each other, so that one look-up finds the runs
    of all of them."""
    for log, of_log in numbers.items():
        for part in _near(sorted(of_log)):
            yield log, part[0], part[-1]


def _near(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    begin = 0
    for place in range(1, len(numbers)):
        if numbers[place] - numbers[place - 1] > MOST_SPAN:
            yield numbers[begin:place]
            begin = place
    if numbers:
        yield numbers[begin:]
