"""How far a numbered table is written, and how far it is read (decision 53).

Each *sender* of rows, a key interval, numbers its rows of a table from 0, without gaps. A commit of an interval
follows the one before it (I12), so whoever sees a row of a sender sees all rows with lower numbers: there is
nothing to wait for, and nothing is overtaken. Between senders there is no order, and so no one number tells how
far a table is read (I11). A *vector* does: by sender, the number of the next row.

Numbers start at 0 and senders are never forgotten, so a sender that is not in a vector is read from its first
row on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from millwheel.errors import StoreError

Vector: TypeAlias = Mapping[int, int]
"""By sender, the number of the next row."""


class RowRange(NamedTuple):
    """Rows of one sender: from number `first` up to, but not including, `until`."""

    sender: int
    first: int
    until: int

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.until - self.first


def between(start: Vector, end: Vector) -> list[RowRange]:
    """The rows from one vector to another, by sender."""
    return [
        RowRange(sender, start.get(sender, 0), until)
        for sender, until in sorted(end.items())
        if until > start.get(sender, 0)
    ]


def distance(start: Vector, end: Vector) -> int:
    """The number of rows from one vector to another."""
    return sum(piece.rows for piece in between(start, end))


def bounded(start: Vector, end: Vector, most: int) -> dict[int, int]:
    """The vector that is at most `most` rows behind `start` on the way to `end`.

    Each sender has its share of the rows, so that all senders end together.
    """
    there = between(start, end)
    total = sum(piece.rows for piece in there)
    if total <= most:
        return {**start, **end}
    found = dict(start)
    left = most
    for sender, first, until in there:
        rows = (until - first) * most // total
        found[sender] = first + rows
        left -= rows
    for sender, _, until in there:  # what rounding has left over
        extra = min(left, until - found[sender])
        found[sender] += extra
        left -= extra
    return found


def shares(ranges: list[RowRange], most: int, least_rows: int) -> Iterator[list[RowRange]]:
    """Divide ranges into at most `most` shares of about the same number of rows.

    Args:
        least_rows: no share is to have fewer rows, unless there is only one.
    """
    total = sum(piece.rows for piece in ranges)
    wanted = max(1, min(most, total // least_rows))
    size = -(-total // wanted)
    share: list[RowRange] = []
    room = size
    for sender, first, until in ranges:
        while first < until:
            end = min(until, first + room)
            share.append(RowRange(sender, first, end))
            room -= end - first
            first = end
            if room == 0:
                yield share
                share, room = [], size
    if share:
        yield share


def refuse_older(read: Vector, written: Vector, table: str) -> None:
    """Refuse a table that has fewer rows than were read.

    Raises:
        StoreError: the store has lost commits, or it was restored from a backup.
    """
    for sender, number in sorted(read.items()):
        if number > written.get(sender, 0):
            raise StoreError(
                f"{number} rows of sender {sender} of table {table!r} were read, but it has written only "
                f"{written.get(sender, 0)}: the store was restored from a backup, or it lost commits in a "
                "failover. What was made of its rows may contain some that no longer exist: make it again "
                "with a new checkpoint"
            )
