"""Histograms of durations."""

from __future__ import annotations

import pytest

from millwheel.runtime.process.durations import Durations


def test_durations_are_counted_up_to_each_bound() -> None:
    durations = Durations((0.1, 1.0))
    for seconds, times in ((0.05, 3), (0.1, 1), (0.5, 2), (7.0, 1)):
        durations.observe(seconds, times)
    found = durations.distribution()
    assert (found.counts, found.count) == ((4, 6, 7), 7)
    assert found.total == durations.total == pytest.approx(0.15 + 0.1 + 1.0 + 7.0)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 0.1), (0.5, 0.1), (0.8, 1.0), (0.9, 4.0), (1.0, 4.0)]
)
def test_a_percentile_is_the_bound_of_its_bucket_or_the_longest(
    share: float, expected: float
) -> None:
    durations = Durations((0.1, 1.0))
    for seconds, times in ((0.05, 6), (0.5, 2), (4.0, 2)):
        durations.observe(seconds, times)
    assert durations.percentile(share) == expected


def test_no_percentile_is_above_the_longest_duration() -> None:
    durations = Durations((0.1, 1.0))
    assert durations.percentile(0.99) == 0.0
    durations.observe(0.3)
    assert durations.percentile(0.99) == 0.3
