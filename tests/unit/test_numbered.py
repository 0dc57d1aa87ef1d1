"""Vectors of numbered tables: what is between two of them, and how it is divided."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.numbered import (
    COMPARED,
    Marks,
    RowRange,
    Sign,
    between,
    bounded,
    distance,
    refuse_older,
    refuse_other_rows,
    shares,
)
from millwheel.errors import StoreError

NUMBERS = st.dictionaries(st.integers(1, 9), st.integers(0, 60))


def later(start: dict[int, int], more: dict[int, int]) -> dict[int, int]:
    """A vector after another one."""
    return {
        sender: start.get(sender, 0) + more.get(sender, 0) for sender in start.keys() | more.keys()
    }


def test_a_new_sender_is_read_from_its_first_row() -> None:
    assert between({3: 5}, {3: 7, 9: 2}) == [RowRange(3, 5, 7), RowRange(9, 0, 2)]
    assert distance({3: 5}, {3: 7, 9: 2}) == 4


@given(NUMBERS, NUMBERS, st.integers(1, 50))
def test_bounded_steps_come_to_the_end_and_skip_nothing(
    start: dict[int, int], more: dict[int, int], most: int
) -> None:
    end = later(start, more)
    read = start
    while left := distance(read, end):
        step = bounded(read, end, most)
        assert distance(read, step) == min(most, left)
        assert all(read.get(sender, 0) <= number <= end[sender] for sender, number in step.items())
        read = step
    assert distance(end, read) == 0


@given(NUMBERS, NUMBERS, st.integers(1, 8), st.integers(1, 30))
def test_shares_have_each_row_once(
    start: dict[int, int], more: dict[int, int], most: int, least: int
) -> None:
    ranges = between(start, later(start, more))
    found = list(shares(ranges, most, least))
    rows = [(s.sender, n) for share in found for s in share for n in range(s.first, s.until)]
    assert rows == [(s.sender, n) for s in ranges for n in range(s.first, s.until)]
    assert len(found) <= most
    sizes = [sum(piece.rows for piece in share) for share in found]
    assert all(size >= min(least, sum(sizes)) for size in sizes[:-1])
    assert all(sizes)


def test_fewer_rows_than_were_read_are_refused() -> None:
    refuse_older({1: 5, 2: 0}, {1: 5}, "out")
    with pytest.raises(StoreError, match="6 rows of sender 1 of table 'out' were read, but it has"):
        refuse_older({1: 6}, {1: 5}, "out")


def marks(rows: Iterable[int], *, columns: int = 1, salt: int = 0) -> Marks:
    """The marks of rows with these numbers."""
    return Marks(columns, {number: hash((number, salt)) for number in rows})


def test_a_sign_tells_rows_from_others() -> None:
    """Whichever of the last rows has changed; and one that was written is read as it was."""
    sign = marks(range(100)).sign(100)
    assert sign is not None
    assert sign.rows == COMPARED
    assert Sign.parsed(sign.written()) == sign
    assert not marks(range(70, 120)).contradict(sign, 100)
    for changed in range(100 - COMPARED, 100):
        other = marks(range(100))
        other.add(marks([changed], salt=1))
        assert other.contradict(sign, 100)
    other = marks(range(100))
    other.add(marks([*range(100 - COMPARED), 100], salt=1))
    assert not other.contradict(sign, 100), "they are not among the last rows"


def test_what_cannot_be_compared_contradicts_nothing() -> None:
    sign = marks(range(10)).sign(10)
    assert sign is not None
    assert sign.rows == 10
    assert not marks(range(10), salt=1).contradict(None, 10)
    assert not marks(range(3, 10), salt=1).contradict(sign, 10), "some are deleted"
    assert not marks([*range(5), *range(6, 10)], salt=1).contradict(sign, 10)
    assert not marks([], salt=1).contradict(sign, 10)
    assert not marks(range(10), columns=2, salt=1).contradict(sign, 10)
    assert Marks().sign(0) is None


def test_marks_are_kept_as_long_as_they_may_be_needed() -> None:
    kept = marks(range(50))
    kept.forget(20)
    assert kept.sign(50, 100) == marks(range(20, 50)).sign(50, 100)
    kept.add(marks(range(45, 60), columns=2))
    assert kept.sign(60, 100) == marks(range(45, 60), columns=2).sign(60, 100), "others have gone"


def test_another_store_is_named_by_its_sender() -> None:
    signs = {n: sign for n in (1, 2) if (sign := marks(range(5)).sign(5))}
    there = {1: marks(range(5)), 2: marks(range(5), salt=1)}
    refuse_other_rows({1: 5, 2: 5}, {1: signs[1]}, there, "log")
    with pytest.raises(StoreError, match="the last of 5 rows of sender 2 of table 'log'"):
        refuse_other_rows({1: 5, 2: 5}, signs, there, "log")
