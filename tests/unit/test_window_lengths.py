"""Lengths of windows, read from the rule that a deploy stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.core.model import to_micros
from millwheel.windows import (
    Assigner,
    Count,
    Global,
    Months,
    Session,
    Sliding,
    Tumbling,
    duration_of,
    lengths_of,
    rule_of,
)
from tests.support.examples import examples

FIXED: list[Assigner] = [
    Tumbling(minutes=1),
    Tumbling(seconds=0.25, offset=timedelta(seconds=0.125)),
    Tumbling(days=1, zone="Europe/Berlin"),
    Tumbling(minutes=30, zone="Australia/Lord_Howe"),
    Tumbling(days=400),
    Sliding(timedelta(minutes=10), timedelta(minutes=5)),
    Sliding(timedelta(days=7), timedelta(days=1), zone="America/New_York"),
    Months(1),
    Months(3, zone="Asia/Kolkata"),
]
FIRST, LAST = (to_micros(datetime(year, 1, 1, tzinfo=UTC)) for year in (1975, 2035))


@pytest.mark.parametrize("windows", FIXED, ids=rule_of)
@settings(max_examples=examples(100))
@given(micros=st.integers(FIRST, LAST))
def test_no_window_is_shorter_or_longer_than_its_rule_says(windows: Assigner, micros: int) -> None:
    lengths = lengths_of(rule_of(windows))
    assert lengths is not None
    for span in windows.spans(micros):
        assert lengths.least <= span.end - span.start <= lengths.most


def test_the_length_of_a_window_without_a_zone_is_exact() -> None:
    assert lengths_of(rule_of(Sliding(timedelta(minutes=10), timedelta(minutes=5)))) == (
        600_000_000,
        600_000_000,
    )


@pytest.mark.parametrize("windows", [Session(timedelta(minutes=5)), Count(3), Global()])
def test_windows_that_records_decide_have_no_length(windows: object) -> None:
    assert lengths_of(rule_of(windows)) is None


@given(st.timedeltas(timedelta(0)))
def test_a_duration_is_read_from_its_text(duration: timedelta) -> None:
    assert duration_of(str(duration)) == duration
