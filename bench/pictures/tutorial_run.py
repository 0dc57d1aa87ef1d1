"""A run of the program in ``docs/start/event-time.md``: its payments arrive one at a time.

It takes half a minute, so the results are kept in ``low_watermark.json``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

PAGE = Path(__file__).parents[2] / "docs" / "start" / "event-time.md"
RECORDED = Path(__file__).with_name("low_watermark.json")
STORE = ("--store", "store")
CLOSED = "SELECT minute, payments FROM minutes ORDER BY minute"


class Arrival(Struct, frozen=True):
    """One payment, and the pipeline after it was processed."""

    at: datetime
    """Its event time."""
    low_watermark: datetime
    late: bool
    closed: dict[datetime, int]
    """Payments of each window that is closed by now, by its begin."""


class TutorialRun(Struct, frozen=True):
    """All payments, in the order of their arrival."""

    lateness: timedelta
    arrivals: list[Arrival]


def page_times(page: str) -> list[str]:
    """The times that the page gives to ``pay.py``, as it writes them."""
    commands = re.findall(r"^\$ python pay\.py ([\d: ]+?) >>", page, re.MULTILINE)
    return [time for times in commands for time in times.split()]


def record() -> TutorialRun:
    """Run the page's program on an embedded Postgres, with a run of ``millwheel`` each payment."""
    page = PAGE.read_text("utf-8")
    arrivals: list[Arrival] = []
    with TemporaryDirectory() as name:
        directory = Path(name)
        for file, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.M | re.S):
            (directory / file).write_text(text)
        for time in page_times(page):
            line = _output(directory, "pay.py", time)
            with (directory / "payments.jsonl").open("a") as payments:
                payments.write(line)
            done = json.loads(
                _millwheel(directory, "run", "shop:pipeline", "--keep-open", "--json")
            )
            closed = json.loads(_millwheel(directory, "sql", "--format", "json", CLOSED))
            arrivals.append(
                Arrival(
                    at=datetime.fromisoformat(json.loads(line)["at"]),
                    low_watermark=datetime.fromisoformat(done["low_watermark"]),
                    late=done["counters"].get("late_dropped", 0) > 0,
                    closed={
                        datetime.fromisoformat(row["minute"]): row["payments"] for row in closed
                    },
                )
            )
    newest = max(arrival.at for arrival in arrivals)
    return TutorialRun(newest - arrivals[-1].low_watermark, arrivals)


def _millwheel(directory: Path, *arguments: str) -> str:
    return _output(directory, "-m", "millwheel", *arguments, *STORE)


def _output(directory: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, check=True, text=True, capture_output=True).stdout
