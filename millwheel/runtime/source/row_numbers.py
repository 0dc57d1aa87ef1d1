from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from operator import ge

from millwheel.errors import UserCodeError
from millwheel.sources import Partition, Row, Rows


class RowNumbers:
    def __init__(self, injector: str, partition: Partition) -> None:
        self._injector = injector
        self._partition = partition
        self._last = -1

    def check(self, rows: Sequence[Row]) -> None:
        """`UserCodeError` if numbers do not rise: a lower one counts as processed, and its row
        would be lost."""
        if isinstance(rows, Rows) and rows.are_columns and rows.offset > self._last:
            self._last = rows.offset + len(rows) - 1
            return
        numbers = [self._last, *(row.offset for row in rows)]
        self._last = numbers[-1]
        if any(map(ge, numbers, islice(numbers, 1, None))):
            before, number = next(pair for pair in pairwise(numbers) if pair[0] >= pair[1])
            raise UserCodeError(
                f"the source of {self._injector!r} gave row number "
                f"{number}{f' after row number {before}' if before >= 0 else ''}: the row numbers "
                f"of a partition ({self._partition.identity}) must rise, from 0 on. Correct the "
                "source and start again"
            )


def runs(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """First and last numbers of runs without gaps."""
    if isinstance(rows, Rows) and rows.are_columns:
        yield rows.offset, rows.offset + len(rows) - 1
        return
    first, last = rows[0].offset, rows[-1].offset
    if last - first + 1 == len(rows):
        yield first, last
        return
    end = first
    for row in rows:
        if row.offset != end:
            yield first, end - 1
            first = row.offset
        end = row.offset + 1
    yield first, last
