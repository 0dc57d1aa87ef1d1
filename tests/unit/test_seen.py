"""Seen numbers as runs: all of them, in runs within the limits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.model import record_id
from millwheel.errors import InvariantBroken
from millwheel.store.port.seen import MOST_GAP, MOST_SPAN, SeenIds, clusters
from tests.support.drawing import examples

gaps = st.sampled_from([1, 1, 1, 2, MOST_GAP, MOST_GAP + 1, MOST_SPAN])
numbers = st.lists(gaps, min_size=1, max_size=60).map(
    lambda steps: [sum(steps[: n + 1]) for n in range(len(steps))]
)


@examples(200)
@given(st.one_of(numbers, st.integers(1, 10_000).map(range)), st.integers(1, 4))
def test_runs_have_each_number_once_and_keep_the_limits(some: Sequence[int], parts: int) -> None:
    seen = SeenIds()
    for place in range(parts):
        if len(part := some[place::parts]):
            seen.add_numbers(1, 7, part)
    if not len(seen):
        return
    runs = list(seen.runs())
    assert [n for run in runs for n in run.numbers] == [*some]
    assert len(seen) == len(some)
    assert sorted(seen) == [(1, record_id(7, n)) for n in some]
    for run in runs:
        assert (run.first, run.last) == (run.numbers[0], run.numbers[-1])
        assert run.last - run.first < MOST_SPAN
        assert all(b - a <= MOST_GAP for a, b in pairwise(run.numbers))
        assert run.is_whole == (len(run.numbers) == run.last - run.first + 1)


def test_a_run_ends_where_a_look_up_would_not_reach_it() -> None:
    seen = SeenIds()
    seen.add_numbers(1, 7, [*range(0, MOST_SPAN, MOST_GAP), MOST_SPAN])
    assert [run.first for run in seen.runs()] == [0, MOST_SPAN]


@pytest.mark.parametrize("some", [[1, 2, 2, 3], [1, 1, 3], [3, 2, 1]])
def test_a_number_that_is_there_twice_or_out_of_order_is_refused(some: list[int]) -> None:
    seen = SeenIds()
    seen.add_numbers(1, 7, some)
    with pytest.raises(InvariantBroken, match="processed twice"):
        list(seen.runs())


def test_numbers_of_one_log_that_came_in_two_parts_are_one_run() -> None:
    seen = SeenIds()
    seen.add_numbers(1, 7, range(5, 9))
    seen.add_numbers(1, 7, (9,))
    seen.add_numbers(2, 7, (9,))
    assert [(run.computation, run.first, run.last) for run in seen.runs()] == [(1, 5, 9), (2, 9, 9)]
    seen.add_numbers(1, 7, (6,))
    with pytest.raises(InvariantBroken):
        list(seen.runs())


@examples(100)
@given(st.dictionaries(st.integers(1, 3), st.sets(st.integers(0, 50_000), min_size=1), max_size=3))
def test_clusters_cover_what_is_asked_for(asked: dict[int, set[int]]) -> None:
    found = list(clusters({log: [*of_log] for log, of_log in asked.items()}))
    for log, of_log in asked.items():
        mine = [(low, high) for of, low, high in found if of == log]
        assert all(any(low <= n <= high for low, high in mine) for n in of_log)
        assert all({low, high} <= of_log for low, high in mine)
        assert all(b[0] - a[1] > MOST_SPAN for a, b in pairwise(mine))
