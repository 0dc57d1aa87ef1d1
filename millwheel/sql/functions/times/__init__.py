"""Dates, times and intervals."""

from millwheel.sql.functions.times import (  # noqa: F401
    dates,
    fields,
    formatting,
    instants,
    interval_texts,
    intervals,
    operators,
    time_reading,
    truncating,
    zones,
)
