"""Departures by airport and month, which Spark keeps up to date while the pipeline runs."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class AirportMonth(msgspec.Struct, frozen=True):
    """A row of `airport_month`."""

    origin: str
    month: date
    hours: int
    flights: int
    cancelled: int
    delay_minutes: int
    delayed_15: int


def by_month(hours: DataFrame) -> DataFrame:
    """Sum up `airport_hour` by airport and month (UTC). Nothing in it knows of streams."""
    from pyspark.sql import functions as F

    month = F.date_trunc("month", "hour").cast("date").alias("month")
    sums = [
        F.sum(name).alias(name) for name in ("flights", "cancelled", "delay_minutes", "delayed_15")
    ]
    return hours.groupBy("origin", month).agg(F.count("*").alias("hours"), *sums)
