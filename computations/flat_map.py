"""One record in, any number out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from millwheel import Computation, Context, Record, Stream
from millwheel.core.functions import check_function

A = TypeVar("A")
B = TypeVar("B")


class FlatMap(Computation[A, None], Generic[A, B]):
    """Sends every value that `function` returns for a record's value, with the record's timestamp.

    ```python
    ITEMS = Stream("items", str)
    pipeline.add(FlatMap(lambda order: order.item.split(), to=ITEMS), ORDERS.spread())
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, Order("ann", "tea milk", 390))
        assert harness.produced(ITEMS) == ["tea", "milk"]
    ```

    Args:
        function: converts a value to any number of values, including none.
        to: the stream of the results.
    """

    def __init__(self, function: Callable[[A], Iterable[B]], to: Stream[B]) -> None:
        check_function(
            function,
            f"FlatMap to {to.name!r}: the function",
            "returns the values that become of one",
            gives="[value]",
        )
        self._function = function
        self._to = to
        self.writes = (to,)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    async def process_record(self, record: Record[A], ctx: Context[None]) -> None:
        for value in self._function(record.value):
            ctx.produce(self._to, value)
