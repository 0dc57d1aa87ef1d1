"""One record in, any number out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from millwheel import Computation, Context, Record, Stream

A = TypeVar("A")
B = TypeVar("B")


class FlatMap(Computation[A, None], Generic[A, B]):
    """Sends every value that `function` makes of a record's value, with its timestamp.

    Args:
        function: from a value to the values that come of it; none is fine.
        to: the stream they go to.
    """

    def __init__(self, function: Callable[[A], Iterable[B]], to: Stream[B]) -> None:
        self._function = function
        self._to = to
        self.writes = (to,)

    @property
    def name(self) -> str:
        """Called after the stream it makes."""
        return f"make_{self._to.name}"

    async def process_record(self, record: Record[A], ctx: Context[None]) -> None:
        for value in self._function(record.value):
            ctx.produce(self._to, value)
