"""Rates of late: bounded, with gaps where nobody looked, and drawn as small pictures."""

from __future__ import annotations

import re

from millwheel.ui.rate_history import (
    MOST_LINES,
    MOST_POINTS,
    SPAN_SECONDS,
    RateHistory,
    RatePoint,
)
from millwheel.ui.sparkline import HEIGHT, WIDTH, sparkline


def test_a_line_has_its_newest_points() -> None:
    history = RateHistory()
    for second in range(MOST_POINTS + 30):
        history.note("shop", float(second), {"count": float(second)})
    last = MOST_POINTS + 29
    points = history.of("shop", "count", float(last))
    assert len(points) == MOST_POINTS
    assert points[-1] == RatePoint(0.0, float(last))
    assert points[0] == RatePoint(MOST_POINTS - 1.0, 30.0)
    assert history.of("shop", "count", last + SPAN_SECONDS - 10)[0].per_second == last - 10
    assert history.of("shop", "count", last + 10 * SPAN_SECONDS) == []


def test_two_pages_note_a_second_once_and_an_unknown_rate_not_at_all() -> None:
    history = RateHistory()
    history.note("shop", 10.0, {"count": 5.0, "sum": None})
    history.note("shop", 10.2, {"count": 9.0})
    assert history.of("shop", "count", 10.2) == [RatePoint(0.2, 5.0)]
    assert history.of("shop", "sum", 10.2) == []
    assert history.of("other", "count", 10.2) == []


def test_a_look_that_ends_after_a_newer_one_leaves_the_line_as_it_is() -> None:
    history = RateHistory()
    for at in (10.0, 11.0, 10.9, 12.0):  # two pages at the same time
        history.note("shop", at, {"count": at})
    assert [rate for _, rate in history.of("shop", "count", 12.0)] == [10.0, 11.0, 12.0]


def test_a_clock_that_was_set_back_begins_a_line_again() -> None:
    history = RateHistory()
    history.note("shop", 1000.0, {"count": 5.0})
    history.note("shop", 900.0, {"count": 7.0})
    assert history.of("shop", "count", 900.0) == [RatePoint(0.0, 7.0)]


def test_lines_are_bounded_over_pipelines_and_steps() -> None:
    history = RateHistory()
    for pipeline in range(3):
        rates: dict[str, float | None] = {f"step_{n}": 1.0 for n in range(MOST_LINES - 1)}
        history.note(f"p{pipeline}", float(pipeline), rates)
    kept = [
        (pipeline, step)
        for pipeline in range(3)
        for step in range(MOST_LINES - 1)
        if history.of(f"p{pipeline}", f"step_{step}", 2.0)
    ]
    assert len(kept) == MOST_LINES
    assert (2, 0) in kept
    assert (0, 5) not in kept


def test_a_sparkline_is_broken_where_nobody_looked() -> None:
    drawn = str(sparkline([(100.0, 4.0), (99.0, 8.0), (30.0, 2.0), (29.0, 2.0), (0.0, 8.0)]))
    lines = re.findall(r'points="([^"]+)"', drawn)
    assert len(lines) == 3
    places = [tuple(map(int, place.split(","))) for line in lines for place in line.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert "from 4.0/s to 8.0/s, at most 8.0/s" in drawn
    assert "1 min 40 s" in drawn


def test_a_sparkline_has_no_points_that_cannot_be_seen() -> None:
    drawn = str(sparkline([(float(ago), 7.0) for ago in range(119, -1, -1)]))
    (line,) = re.findall(r'points="([^"]+)"', drawn)
    assert len(line.split()) == 2


def test_one_point_is_no_line_and_zero_is_one() -> None:
    assert sparkline([]) == sparkline([(0.0, 3.0)]) == ""
    assert "at most 0.0/s" in sparkline([(1.0, 0.0), (0.0, 0.0)])
