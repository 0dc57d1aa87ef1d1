"""How far a numbered table is written, and how far it is read (decision 53).

Each *sender* of rows, a key interval, numbers its rows of a table from 0, without gaps. Its commits
follow each other (I12), so a reader of a row sees all its rows with lower numbers. Between senders
there is no order (I11): a *vector* gives, by sender, the number of the next row. A sender that is
not in a vector is read from its first row on.

A store that lost commits may have written as many other rows again. So a follower keeps a *sign*
with its position, a digest of the last rows that it has read, and compares it whenever it resumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from millwheel.errors import StoreError

Vector: TypeAlias = Mapping[int, int]
"""Number of the next row by sender."""


class RowRange(NamedTuple):
    """Rows of one sender, from number `first` up to, but not including, `until`."""

    sender: int
    first: int
    until: int

    @property
    def rows(self) -> int:
        return self.until - self.first


COMPARED = 16
"""Rows of a sign. With one, a table with few different rows would pass by chance."""


class Sign(NamedTuple):
    """A digest of the last rows before a position."""

    rows: int
    digest: str
    columns: str
    """A hash: signs of other columns cannot be compared."""

    def written(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parsed(cls, text: str) -> Sign:
        rows, digest, columns = text.split()
        return cls(int(rows), digest, columns)


class Marks:
    """Hashes of rows of one sender, by number."""

    def __init__(self, columns: int = 0, rows: Mapping[int, int] | None = None) -> None:
        self._columns = columns
        self._rows = dict(rows or {})

    @classmethod
    def by_sender(cls, found: Sequence[tuple[int, int, int, int]]) -> dict[int, Marks]:
        """Marks of each sender, from rows of ``row_marks.sql``."""
        made: dict[int, Marks] = {}
        for sender, number, row, columns in found:
            made.setdefault(sender, cls(columns))._rows[number] = row
        return made

    def sign(self, until: int, limit: int = COMPARED) -> Sign | None:
        """The sign of the last rows before a number; None: none of them is known."""
        first = until
        while first - 1 in self._rows and until - first < limit:
            first -= 1
        if first == until:
            return None
        text = ",".join(str(self._rows[number]) for number in range(first, until))
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return Sign(until - first, digest, str(self._columns))

    def contradict(self, sign: Sign | None, until: int) -> bool:
        """Whether the rows before a number are not those of a sign.

        Rows that were deleted since, and rows with other columns than then, contradict nothing.
        """
        now = None if sign is None else self.sign(until, sign.rows)
        if sign is None or now is None:
            return False
        return (now.rows, now.columns) == (sign.rows, sign.columns) and now.digest != sign.digest

    def add(self, newer: Marks) -> None:
        """Add marks; with other columns, only these are left."""
        if newer._columns != self._columns:
            self._columns, self._rows = newer._columns, {}
        self._rows.update(newer._rows)

    def forget(self, before: int) -> None:
        """The rows before a number are at the front."""
        for number in list(takewhile(lambda number: number < before, self._rows)):
            del self._rows[number]


def between(start: Vector, end: Vector) -> list[RowRange]:
    return [
        RowRange(sender, start.get(sender, 0), until)
        for sender, until in sorted(end.items())
        if until > start.get(sender, 0)
    ]


def distance(start: Vector, end: Vector) -> int:
    return sum(piece.rows for piece in between(start, end))


def bounded(start: Vector, end: Vector, limit: int) -> dict[int, int]:
    """The vector at most `limit` rows behind `start`; each sender has its share, so that all end
    together."""
    present = between(start, end)
    total = sum(piece.rows for piece in present)
    if total <= limit:
        return {**start, **end}
    found = dict(start)
    left = limit
    for sender, first, until in present:
        rows = (until - first) * limit // total
        found[sender] = first + rows
        left -= rows
    for sender, _, until in present:  # what rounding has left over
        extra = min(left, until - found[sender])
        found[sender] += extra
        left -= extra
    return found


def shares(ranges: list[RowRange], limit: int, least_rows: int) -> Iterator[list[RowRange]]:
    """Divide ranges into at most `limit` shares of about the same number of rows, at least
    `least_rows` if there are several."""
    total = sum(piece.rows for piece in ranges)
    wanted = max(1, min(limit, total // least_rows))
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


def refuse_other_rows(
    read: Vector, signs: Mapping[int, Sign], there: Mapping[int, Marks], table: str
) -> None:
    """`StoreError` if a sign is not that of the rows that are `there`."""
    for sender, sign in sorted(signs.items()):
        if sender in there and there[sender].contradict(sign, read[sender]):
            raise StoreError(
                f"the last of {read[sender]} rows of sender {sender} of table {table!r} that were "
                "read are not those that it has now: the store was restored from a backup, or it "
                "lost commits in a failover, and has written other rows since; or rows were "
                "changed. Results of its rows may contain some that no longer exist: make "
                "them again with a new checkpoint"
            )


def refuse_older(read: Vector, written: Vector, table: str) -> None:
    """`StoreError` if the table has fewer rows than were read."""
    for sender, number in sorted(read.items()):
        if number > written.get(sender, 0):
            raise StoreError(
                f"{number} rows of sender {sender} of table {table!r} were read, but it has "
                f"written only {written.get(sender, 0)}: the store was restored from a backup, or "
                "it lost commits in a failover. Results of its rows may contain some that no "
                "longer exist: make them again with a new checkpoint"
            )
