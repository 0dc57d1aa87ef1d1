"""Keeps the first rows of a key by an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel.computation import Computation
from millwheel.computations.folds import Fold
from millwheel.context import Context
from millwheel.core.model import Record
from millwheel.sql.accumulating.row_order import RowOrder, precedes
from millwheel.sql.generated import Generated
from millwheel.streams import Stream


class Ranker:
    """Adds rows to sorted ones, of which those up to a rank stay.

    Args:
        function: ``row_number``, ``rank`` or ``dense_rank``.
        limit: the greatest rank.
        names: the fields of a row that decide its place.
        order: their order. Rows that are equal in it stay in the order in which they came.
    """

    def __init__(self, function: str, limit: int, names: Sequence[str], order: RowOrder) -> None:
        self._function = function
        self._limit = limit
        self._names = names
        self._order = order

    def _key(self, row: Any) -> list[Any]:
        return [getattr(row, name) for name in self._names]

    def add(self, rows: list[Any], row: Any) -> None:
        place = self._place(rows, self._key(row))
        if self._function == "row_number":
            if place < self._limit:
                rows.insert(place, row)
                del rows[self._limit :]
            return
        rows.insert(place, row)
        ranks = self.ranks(rows)
        while ranks[len(rows) - 1] > self._limit:
            rows.pop()

    def _place(self, rows: Sequence[Any], key: Sequence[Any]) -> int:
        """The place behind all rows that a row with this key does not precede."""
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) // 2
            if precedes(key, self._key(rows[middle]), self._order):
                high = middle
            else:
                low = middle + 1
        return low

    def ranks(self, rows: Sequence[Any]) -> list[int]:
        """The rank of each row."""
        if self._function == "row_number":
            return list(range(1, len(rows) + 1))
        found: list[int] = []
        before: Any = None
        for number, row in enumerate(rows, 1):
            key = self._key(row)
            if found and key == before:
                found.append(found[-1])
            elif self._function == "rank":
                found.append(number)
            else:
                found.append(found[-1] + 1 if found else 1)
            before = key
        return found


def fold_of_rows(ranker: Ranker, row_type: Any, meaning: str) -> Fold[Any, Any, Any]:
    """The fold of rows into the first ones."""

    def added(rows: list[Any], row: Any) -> list[Any]:
        rows = [*rows]
        ranker.add(rows, row)
        return rows

    def merged(rows: list[Any], more: list[Any]) -> list[Any]:
        rows = [*rows]
        for row in more:
            ranker.add(rows, row)
        return rows

    def named(name: str, parameters: str, code: str) -> Generated:
        names = {"added": added, "merged": merged}
        return Generated(name, f"def {name}({parameters}):\n    return {code}\n", names, meaning)

    return Fold(
        init=named("begin", "", "[]"),
        add=named("add", "rows, row", "added(rows, row)"),
        result=named("finish", "rows", "rows"),
        accumulator=list[row_type],
        merge=named("merge", "rows, more", "merged(rows, more)"),
    )


class FirstRows(Computation[Any, Any]):
    """Rows without windows: when the first rows of a key change, those with another rank are sent.

    Args:
        ranker: keeps the first rows; of row numbers alone.
        row: makes the result of a row and its rank.
        row_type: the type of the rows.
        to: the stream of results.
        meaning: of the ranks, which a deploy compares.
    """

    def __init__(
        self, ranker: Ranker, row: Generated, row_type: Any, to: Stream[Any], meaning: str
    ) -> None:
        self._ranker = ranker
        self._row = row
        self._to = to
        self.writes = (to,)
        self.state_rules = {"query": meaning}
        self.rules = {"row": row.meaning}
        self._state: Any = msgspec.defstruct(
            "FirstRows", [("rows", list[row_type], msgspec.field(default_factory=list))]
        )

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        return self._state

    async def process_record(self, record: Record[Any], ctx: Context[Any]) -> None:
        await self.process_group([record], ctx)

    async def process_group(self, records: Sequence[Record[Any]], ctx: Context[Any]) -> None:
        rows = ctx.state.rows
        before = list(rows)
        for record in records:
            self._ranker.add(rows, record.value)
        newest = max(record.timestamp for record in records)
        for place, row in enumerate(rows):
            if place >= len(before) or row is not before[place]:
                ctx.produce(self._to, self._row(row, place + 1), timestamp=newest)
