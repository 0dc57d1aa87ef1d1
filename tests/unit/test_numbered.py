"""Vectors of numbered tables: what is between two of them, and how it is divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.errors import StoreError
from millwheel.numbered import RowRange, between, bounded, distance, refuse_older, shares

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
