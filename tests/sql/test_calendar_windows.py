"""Windows by a local clock and by months, also where the clock changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql.answers import Payment, from_pipeline
from tests.support.examples import examples

ZONES = ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]
UNITS = {"day": "1 day", "month": "1 month", "quarter": "3 months", "year": "1 year"}

moments = st.one_of(
    st.datetimes(datetime(2023, 1, 1), datetime(2026, 12, 31)),
    st.sampled_from([datetime(2024, 3, 31), datetime(2024, 10, 27), datetime(2024, 4, 7)]).flatmap(
        lambda day: st.integers(-30, 30).map(lambda hour: day + timedelta(hours=hour, minutes=-1))
    ),
).map(lambda moment: moment.replace(tzinfo=UTC))


@given(
    zone=st.sampled_from(ZONES),
    unit=st.sampled_from(list(UNITS)),
    times=st.lists(moments, min_size=1, max_size=12),
)
@settings(max_examples=examples(500))
def test_calendar_windows_are_those_of_postgres(
    server: psycopg.Connection[Any], zone: str, unit: str, times: list[datetime]
) -> None:
    query = (
        "INSERT INTO r SELECT window_start, count(*) AS n FROM TUMBLE(payments, at, INTERVAL "
        f"'{UNITS[unit]}', '{zone}') GROUP BY window_start"
    )
    found = asyncio.run(from_pipeline(query, [Payment("ann", at, 1) for at in sorted(times)]))
    rows = server.execute(
        b"SELECT date_trunc(%s, at AT TIME ZONE %s) AT TIME ZONE %s, count(*) FROM unnest(%b) AS at"
        b" GROUP BY 1",
        (unit, zone, zone, times),
    ).fetchall()
    assert found == Counter(rows)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns"])
async def test_hours_over_a_day_with_a_change_of_the_clock(zone: str) -> None:
    start = datetime(2024, 3, 10, tzinfo=UTC)
    payments = [Payment("ann", start + timedelta(hours=hour), 1) for hour in range(24 * 25)]
    found = await from_pipeline(
        "INSERT INTO r SELECT window_end - window_start > INTERVAL '24 h' AS long, "
        "window_end - window_start < INTERVAL '24 h' AS short, count(*) AS n "
        f"FROM TUMBLE(payments, at, INTERVAL '1 day', '{zone}') "
        "GROUP BY window_start, window_end",
        payments,
    )
    assert found[False, True, 23] == 1
    assert found[False, False, 24] >= 22


async def test_the_window_of_each_record() -> None:
    payments = [Payment("ann", datetime(2024, 2, 29, 23, 30, tzinfo=UTC), 1)]
    (row,) = await from_pipeline(
        "INSERT INTO r SELECT window_start, window_end FROM TUMBLE(payments, at, "
        "INTERVAL '1 month', 'Europe/Berlin')",
        payments,
    )
    hour = timedelta(hours=1)
    assert row == (
        datetime(2024, 3, 1, tzinfo=UTC) - hour,
        datetime(2024, 4, 1, tzinfo=UTC) - 2 * hour,
    )
