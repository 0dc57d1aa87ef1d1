"""Windows as pure data: their bounds, on every clock, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.core.model import MAX_TIME, MIN_TIME, to_micros
from millwheel.errors import GraphError
from millwheel.windows import (
    Count,
    Early,
    Global,
    LocalClock,
    Months,
    Session,
    Sliding,
    Span,
    Tumbling,
    instant,
    micros_of,
)
from tests.support.examples import examples

HOUR = 3_600_000_000
ZONES = (
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Asia/Kolkata",  # half hours
    "Asia/Kathmandu",  # quarters
    "Australia/Lord_Howe",  # daylight saving of half an hour
    "America/Sao_Paulo",  # put forward at midnight until 2018: some days begin at 01:00
    "America/St_Johns",  # put back at 00:01 until 2006: one midnight comes twice
    "Africa/Cairo",
    "Pacific/Apia",  # a day left out, 2011-12-30
    "America/Toronto",  # 23:30 became 00:30 in 1919
)
TROUBLE = (
    ("America/New_York", datetime(2024, 3, 10, tzinfo=UTC)),
    ("America/New_York", datetime(2024, 11, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2024, 4, 6, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2017, 10, 15, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 2, 18, tzinfo=UTC)),
    ("America/St_Johns", datetime(2006, 10, 29, tzinfo=UTC)),
    ("America/St_Johns", datetime(2006, 4, 2, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, tzinfo=UTC)),
    ("America/Toronto", datetime(1919, 3, 31, tzinfo=UTC)),
)
moments = st.one_of(
    st.tuples(
        st.sampled_from(ZONES),
        st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    ),
    # Around changes of the clock.
    st.tuples(st.sampled_from(TROUBLE), st.integers(-48 * HOUR, 48 * HOUR)).map(
        lambda drawn: (drawn[0][0], drawn[0][1] + timedelta(microseconds=drawn[1]))
    ),
    # On the bounds themselves.
    st.tuples(st.sampled_from(TROUBLE), st.integers(-2880, 2880)).map(
        lambda drawn: (drawn[0][0], drawn[0][1] + timedelta(minutes=drawn[1]))
    ),
)
many = settings(max_examples=examples(200), deadline=None, derandomize=True)


def local(zone: str, *when: int) -> datetime:
    return datetime(*when, tzinfo=ZoneInfo(zone))  # type: ignore[misc,arg-type]


def days_of(windows: Any, moment: datetime) -> tuple[datetime, datetime]:
    span = windows.of(to_micros(moment))
    return instant(span.start), instant(span.end)


# -- local clocks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("day", "hours"), [((2024, 3, 10), 23), ((2024, 11, 3), 25), ((2024, 7, 1), 24)]
)
def test_a_local_day_has_as_many_hours_as_the_clock_says(
    day: tuple[int, int, int], hours: int
) -> None:
    zone = "America/New_York"
    start, end = days_of(Tumbling(days=1, zone=zone), local(zone, *day, 15))
    assert start == local(zone, *day)
    assert end - start == timedelta(hours=hours)


def test_an_offset_counts_on_the_local_clock() -> None:
    """A day from six to six, over a change: both at six."""
    zone = "Europe/Berlin"
    windows = Tumbling(days=1, offset=timedelta(hours=6), zone=zone)
    start, end = days_of(windows, local(zone, 2024, 3, 31, 1))
    assert (start, end) == (local(zone, 2024, 3, 30, 6), local(zone, 2024, 3, 31, 6))


def test_a_window_over_an_hour_that_comes_twice_holds_both() -> None:
    zone = "Europe/Berlin"
    hours = Tumbling(hours=1, zone=ZoneInfo(zone))
    first = local(zone, 2024, 10, 27, 2)
    assert days_of(hours, first) == days_of(hours, first.replace(fold=1))
    assert days_of(hours, first)[1] - days_of(hours, first)[0] == timedelta(hours=2)


def test_of_half_hours_in_an_hour_that_comes_twice_the_last_takes_ninety_minutes() -> None:
    windows = Tumbling(minutes=30, zone="Europe/Berlin")
    midnight = to_micros(datetime(2024, 10, 27, tzinfo=UTC))
    minute = HOUR // 60
    spans = {windows.of(midnight + number * minute) for number in range(-30, 150)}
    found = sorted(((s.start - midnight) // minute, (s.end - s.start) // minute) for s in spans)
    assert found == [(-30, 30), (0, 30), (30, 90), (120, 30)]


def test_an_hour_that_is_jumped_over_has_no_window() -> None:
    zone = "Europe/Berlin"
    hours = Tumbling(hours=1, zone=zone)
    before = hours.of(to_micros(local(zone, 2024, 3, 31, 1, 30)))
    after = hours.of(before.end)
    assert instant(before.end) == instant(after.start) == local(zone, 2024, 3, 31, 3)
    assert after.end - after.start == HOUR


def test_a_day_without_midnight_begins_when_it_begins() -> None:
    zone = "America/Sao_Paulo"
    start, end = days_of(Tumbling(days=1, zone=zone), local(zone, 2017, 10, 15, 12))
    assert start == local(zone, 2017, 10, 15, 1)
    assert end - start == timedelta(hours=23)
    start, _ = days_of(
        Tumbling(days=1, zone="America/Toronto"), local("America/Toronto", 1919, 3, 31, 12)
    )
    assert start.astimezone(ZoneInfo("America/Toronto")).isoformat()[:16] == "1919-03-31T00:30"


def test_a_day_that_was_left_out_has_no_window() -> None:
    zone = "Pacific/Apia"
    days = Tumbling(days=1, zone=zone)
    before = days.of(to_micros(local(zone, 2011, 12, 29, 12)))
    after = days.of(before.end)
    assert instant(after.start).astimezone(ZoneInfo(zone)).date() == date(2011, 12, 31)


def test_an_origin_is_an_instant_at_which_a_window_starts() -> None:
    origin = datetime(2024, 1, 1, 5, 17, tzinfo=UTC)
    windows = Tumbling(hours=8, origin=origin)
    assert days_of(windows, origin - timedelta(1))[0] == origin - timedelta(1)
    zone = "Asia/Kolkata"
    windows = Tumbling(days=1, origin=local(zone, 2024, 1, 1, 9), zone=zone)
    assert days_of(windows, local(zone, 2024, 5, 5, 10))[0] == local(zone, 2024, 5, 5, 9)


@many
@given(moments, st.sampled_from([(1, 0), (6, 0), (24, 0), (24, 6), (168, 96), (5, 1)]))
def test_windows_on_a_local_clock_have_no_gap_and_no_overlap(
    moment: tuple[str, datetime], shape: tuple[int, int]
) -> None:
    zone, at = moment
    micros = to_micros(at)
    size, offset = shape
    windows = Tumbling(hours=size, offset=timedelta(hours=offset), zone=zone)
    span = windows.of(micros)
    assert span.start <= micros < span.end
    for inside in (span.start, span.last, (span.start + span.end) // 2):
        assert windows.of(inside) == span
    assert windows.of(span.end).start == span.end
    assert windows.of(span.start - 1).end == span.start
    assert windows.at(span.start) == span
    assert windows.spans(micros) == (span,)


@many
@given(moments)
def test_a_bound_is_the_first_instant_at_which_the_clock_is_there(
    moment: tuple[str, datetime],
) -> None:
    """The clock has not come to the bound before the window, nor to the next one inside."""
    zone, at = moment
    clock = LocalClock(zone)
    day = 24 * HOUR
    span = Tumbling(days=1, zone=zone).of(to_micros(at))
    number = clock.reading(span.start) // day
    assert all(
        clock.reading(instant_) < number * day
        for instant_ in range(span.start - 26 * HOUR, span.start, HOUR // 4)
    )
    assert clock.reading(span.start - 1) < number * day
    assert clock.reading(span.last) < (number + 1) * day
    assert clock.reading(span.end) >= (number + 1) * day


@many
@given(moments)
def test_days_and_months_hold_what_the_calendar_says(moment: tuple[str, datetime]) -> None:
    """Except where a date comes twice: there the window of the day after has begun."""
    zone, at = moment
    there = ZoneInfo(zone)
    day = Tumbling(days=1, zone=zone).of(to_micros(at))
    month = Months(zone=zone).of(to_micros(at))
    assert month.start <= day.start <= day.end <= month.end, "days nest into months"
    told = instant(day.start).astimezone(there).date()
    if zone != "America/St_Johns":
        assert told == at.astimezone(there).date()
        first = instant(month.start).astimezone(there)
        assert (first.year, first.month) == (told.year, told.month)
        if zone not in ("Pacific/Apia", "America/Sao_Paulo", "America/Toronto"):
            assert first.day == 1


@many
@given(moments, st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_local_windows_nest(moment: tuple[str, datetime], hours: int) -> None:
    zone, at = moment
    small = Tumbling(hours=hours, zone=zone).of(to_micros(at))
    day = Tumbling(days=1, zone=zone).of(to_micros(at))
    assert day.start <= small.start < small.end <= day.end


def test_months() -> None:
    def bounds(windows: Months, moment: datetime) -> tuple[str, str]:
        start, end = days_of(windows, moment)
        return start.isoformat()[:10], end.isoformat()[:10]

    assert bounds(Months(), datetime(2024, 2, 29, 23, tzinfo=UTC)) == ("2024-02-01", "2024-03-01")
    assert bounds(Months(), datetime(2023, 12, 31, tzinfo=UTC)) == ("2023-12-01", "2024-01-01")
    assert bounds(Months(3), datetime(2024, 5, 5, tzinfo=UTC)) == ("2024-04-01", "2024-07-01")
    assert bounds(Months(12), datetime(1950, 5, 5, tzinfo=UTC)) == ("1950-01-01", "1951-01-01")
    zone = "America/New_York"
    start, end = days_of(Months(zone=zone), local(zone, 2024, 3, 31, 23))
    assert (start, end) == (local(zone, 2024, 3, 1), local(zone, 2024, 4, 1))


# -- sliding, sessions, the others -----------------------------------------------------------


@many
@given(
    st.integers(-(10**12), 10**12),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(-100, 100),
)
def test_sliding_windows_equal_a_search(micros: int, slide: int, number: int, offset: int) -> None:
    size = slide * number
    moved = timedelta(microseconds=offset % size)
    windows = Sliding(timedelta(microseconds=size), timedelta(microseconds=slide), offset=moved)
    expected = [
        Span(start, start + size)
        for start in range(micros - size + 1, micros + 1)
        if (start - offset) % slide == 0
    ]
    assert windows.spans(micros) == expected
    assert len(expected) == number
    for span in expected:
        assert windows.at(span.start) == span
    assert windows.ending(windows.slices.of(micros)) == expected[0]


@many
@given(moments, st.integers(1, 8))
def test_sliding_local_days(moment: tuple[str, datetime], number: int) -> None:
    zone, at = moment
    micros = to_micros(at)
    one = timedelta(days=1)
    spans = Sliding(number * one, one, zone=zone).spans(micros)
    assert len(spans) == number
    day = Tumbling(days=1, zone=zone)
    assert all(span.start <= micros < span.end for span in spans)
    assert (
        [span.start for span in spans][-1]
        == day.of(micros).start
        == spans[0].end - (day.of(micros).end - day.of(micros).start)
    )
    for span, following in pairwise(spans):
        assert day.of(span.start).end == following.start
        assert day.of(span.end).end == following.end


def brute_sessions(times: list[int], gap: int) -> list[tuple[int, int]]:
    """Sessions by the words of their definition: who is connected by steps below the gap."""
    left = set(times)
    found = []
    while left:
        group = {left.pop()}
        while near := {t for t in left if any(abs(t - other) < gap for other in group)}:
            group |= near
            left -= near
        found.append((min(group), max(group) + gap))
    return sorted(found)


@many
@given(st.lists(st.integers(-200, 200), max_size=40), st.integers(1, 30))
def test_merged_spans_equal_a_brute_force_merge(times: list[int], gap: int) -> None:
    session = Session(timedelta(microseconds=gap))
    merged = session.merge([session.of(time) for time in times])
    assert [(span.start, span.end) for span in merged] == brute_sessions(times, gap)


def test_the_global_window_is_all_of_time() -> None:
    (span,) = Global().spans(0)
    assert (span.start, span.end) == (MIN_TIME, MAX_TIME)
    assert Global().at(MIN_TIME) == span


# -- refusals ------------------------------------------------------------------------------


ZERO, SECOND = timedelta(0), timedelta(seconds=1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Tumbling(), "Tumbling needs a size above zero, not 0:00:00"),
        (lambda: Tumbling(-SECOND), "size above zero, not -0:00:01; for example"),
        (lambda: Tumbling(10), "Tumbling: size must be a timedelta.*not 10"),  # type: ignore[arg-type]
        (lambda: Tumbling(minutes=float("nan")), "Tumbling cannot have this size: .*minutes=1"),
        (lambda: Tumbling(days=1e12), "Tumbling cannot have this size"),
        (
            lambda: Tumbling(minutes=1, offset=90 * SECOND),
            (
                "Tumbling: an offset of 0:01:30 is not below the size of 0:01:00.* of 0:00:30 "
                "would mean"
            ),
        ),
        (lambda: Tumbling(SECOND, offset=-SECOND), "an offset of -0:00:01 is not below"),
        (lambda: Tumbling(SECOND, offset=5), "offset must be a timedelta.*not 5"),  # type: ignore[arg-type]
        (lambda: Tumbling(days=1, zone=UTC), "time zone datetime.*give a name"),  # type: ignore[arg-type]
        (lambda: Tumbling(days=1, zone="Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (lambda: Tumbling(days=1, zone="../etc/passwd"), "no time zone"),
        (lambda: Tumbling(days=1, zone=5), "no time zone 5"),  # type: ignore[arg-type]
        (lambda: Tumbling(days=1, origin=datetime(2024, 1, 1)), "has no time zone"),
        (lambda: Tumbling(days=1, origin=5), "aware datetime"),  # type: ignore[arg-type]
        (
            lambda: Tumbling(days=1, origin=datetime(2024, 1, 1, tzinfo=UTC), offset=SECOND),
            "not both",
        ),
        (lambda: Sliding(ZERO, SECOND), "above zero, not 0:00:00 and 0:00:01"),
        (lambda: Sliding(SECOND, ZERO), "above zero"),
        (lambda: Sliding(SECOND, -SECOND), "above zero, not 0:00:01 and -0:00:01"),
        (lambda: Sliding(10, 5), "Sliding: size must be a timedelta.*not 10"),  # type: ignore[arg-type]
        (lambda: Sliding(SECOND, 5), "Sliding: slide must be a timedelta"),  # type: ignore[arg-type]
        (
            lambda: Sliding(2 * SECOND, SECOND, offset=2 * SECOND),
            "Sliding: an offset of 0:00:02 is not below the size of 0:00:02",
        ),
        (lambda: Sliding(10 * SECOND, 3 * SECOND), "does not divide.*size of 0:00:12"),
        (lambda: Sliding(SECOND, 2 * SECOND), "does not divide"),
        (lambda: Sliding(SECOND, SECOND, origin=datetime(2024, 1, 1)), "has no time zone"),
        (lambda: Session(ZERO), "gap above zero, not 0:00:00"),
        (lambda: Session(-SECOND), "gap above zero, not -0:00:01"),
        (lambda: Session(10), "Session: gap must be a timedelta"),  # type: ignore[arg-type]
        (lambda: Count(0), "above zero, not 0"),
        (lambda: Count(-1), "above zero"),
        (lambda: Count(1.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Months(0), "above zero, not 0"),
        (lambda: Months(1.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Months(zone=""), "no time zone"),
        (lambda: Months(zone="Mars/Olympus"), "no time zone 'Mars/Olympus'.*pip install tzdata"),
        (lambda: Early(), "sends nothing"),
        (lambda: Early(records=0), "above zero, not 0"),
        (lambda: Early(seconds=0), "above zero, not 0"),
        (lambda: Early(seconds=-1), "above zero"),
        (lambda: Early(seconds=1e300), "number of seconds above zero, not 1e"),
        (lambda: Early(seconds=SECOND), "a number of seconds.*not 0:00:01"),  # type: ignore[arg-type]
        (lambda: Early(seconds=float("nan")), "above zero"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(make: Any, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        make()


def test_naive_times_have_no_place_in_time() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        micros_of(datetime(2024, 1, 1))
