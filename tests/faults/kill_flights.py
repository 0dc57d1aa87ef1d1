"""``python -m tests.faults.kill_flights [--kills 20] [--seed 1] [--postgres]``: a year of flights,
killed again and again.

Runs ``millwheel run examples.flights:pipeline`` on an embedded store and sends it SIGKILL at
seeded numbers of acknowledged rows spread over the whole run, each time after at least one
commit since the last start; starts it again each time. In the end the hourly table must
equal the batch answer, nothing may be a dead letter, and the alerts must be exactly what a
batch replay of the run's own pane log through the model gives.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from examples.flights import replay
from examples.flights.model import DelayAlert, DelayModel, HourTotals, watch
from millwheel.store import embedded
from millwheel.windows import Pane
from tests.support.flights_oracle import airport_hour, flights_of
from tests.support.flights_pages import cut
from tests.support.servers import reachable_directory

FIRST = datetime(2012, 12, 31, tzinfo=UTC)
PROGRESS = """
SELECT k.sequencer, (r.acked -> l.id::text ->> 0)::bigint, r.n
FROM flights.key_interval AS k
JOIN flights.log AS l ON l.interval_id = k.id AND l.source IS NOT NULL
CROSS JOIN LATERAL (
    SELECT acked, n FROM flights.commit_record AS c
    WHERE c.interval_id = k.id ORDER BY n DESC LIMIT 1
) AS r
"""


@dataclass
class Verdict:
    """What was found in the end."""

    hours_equal: bool
    hours: int
    dead_letters: int
    alerts_equal: bool
    alerts: int
    panes: int
    late_panes: int

    @property
    def good(self) -> bool:
        """Nothing lost, nothing doubled."""
        return self.hours_equal and self.alerts_equal and self.dead_letters == 0


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory that an unprivileged server can reach, gone in the end with its server."""
    directory = reachable_directory("millwheel-kill-")
    try:
        yield directory
    finally:
        embedded.remove(directory / "store")
        shutil.rmtree(directory, ignore_errors=True)


class FlightsRun:
    """The command, its store, and what it has done so far."""

    def __init__(self, directory: Path, until: datetime | None = None) -> None:
        """
        Args:
            until: leave out the flights that were seen then or later.
        """
        self._directory = directory
        self._stretches = [] if until is None else [(FIRST, until)]
        self._environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        self._connection: psycopg.Connection[Any] | None = None
        shared = replay.prepare()
        link = directory / shared
        link.parent.mkdir(parents=True, exist_ok=True)
        if until is None:
            link.symlink_to(shared.resolve())
        else:
            cut(self._stretches, directory).flights.rename(link)
        with link.open("rb") as lines:
            self.rows = sum(1 for _ in lines)

    def start(self) -> subprocess.Popen[bytes]:
        """Run the pipeline."""
        command = [
            sys.executable, "-m", "millwheel", "run", "examples.flights:pipeline", "--store",
            "store",
        ]  # fmt: skip
        with (self._directory / "run.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self._directory, env=self._environment, stdout=log, stderr=log
            )

    def output(self) -> str:
        """Everything the runs have printed."""
        return (self._directory / "run.log").read_text()

    def progress(self) -> tuple[int, int, int]:
        """Sequencer, rows acknowledged and commits of the injector, as stored; zeros before."""
        try:
            if self._connection is None or self._connection.closed:
                state = embedded.status(self._directory / "store")
                if not state.running or state.url is None:
                    return (0, 0, 0)
                self._connection = psycopg.connect(state.url, autocommit=True)
            row = self._connection.execute(PROGRESS).fetchone()
        except psycopg.Error:
            self.close()
            return (0, 0, 0)
        return (row[0], row[1] or 0, row[2]) if row else (0, 0, 0)

    def close(self) -> None:
        """Let the look at the store go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def wait_for_rows(self, process: subprocess.Popen[bytes], rows: int) -> tuple[int, int]:
        """Until so many rows are acknowledged and something was committed since the start."""
        before = self.progress()
        while True:
            sequencer, acknowledged, commits = self.progress()
            started = sequencer > before[0] or before[0] == 0
            if acknowledged >= rows and (commits > before[2] if started else False):
                return acknowledged, commits - before[2]
            try:
                code = process.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(
                f"the run ended by itself with code {code}:\n{self.output()[-4000:]}"
            )

    def kill_at(self, rows: int) -> tuple[int, int]:
        """Start, and SIGKILL when `rows` are acknowledged; gives rows and commits since the
        start."""
        process = self.start()
        try:
            return self.wait_for_rows(process, rows)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def finish(self) -> int:
        """Start, and let it end; gives the exit code."""
        return self.start().wait()

    def judge(self) -> Verdict:
        """Compare everything with what it must be."""
        self.close()
        url = embedded.start(self._directory / "store").url
        with psycopg.connect(url) as connection:
            hours = {
                (origin, hour): tuple(rest)
                for origin, hour, *rest in connection.execute("SELECT * FROM flights.airport_hour")
            }
            letters = connection.execute("SELECT count(*) FROM flights.dead_letters").fetchone()
            alerts = Counter(
                DelayAlert(*row)
                for row in connection.execute(
                    "SELECT origin, hour, pane, mean_delay, usual_delay FROM flights.delay_alert"
                )
            )
            panes = connection.execute(
                "SELECT origin, hour, number, late, flights, cancelled, delay_minutes, delayed_15 "
                "FROM flights.pane_log ORDER BY origin, sender, sequence"
            ).fetchall()
        assert letters is not None
        return Verdict(
            hours_equal=hours == airport_hour(flights_of(self._stretches)),
            hours=len(hours),
            dead_letters=letters[0],
            alerts_equal=alerts == implied_alerts(panes),
            alerts=alerts.total(),
            panes=len(panes),
            late_panes=sum(row[3] for row in panes),
        )


def implied_alerts(panes: list[Any]) -> Counter[DelayAlert]:
    """What the model says to the logged panes, in their order per origin."""
    models: dict[str, DelayModel] = {}
    alerts: Counter[DelayAlert] = Counter()
    for origin, hour, number, late, *totals in panes:
        pane = Pane(origin, hour, hour, HourTotals(*totals), number, late)
        alert = watch(models.setdefault(origin, DelayModel()), pane)
        if alert is not None:
            alerts[alert] += 1
    return alerts


def main() -> int:
    """Kill, finish, judge; exit code 0 if everything is as it must be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.kill_flights", description=__doc__
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="also kill Postgres, mid-run")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with workplace() as directory:
        run = FlightsRun(directory)
        points = sorted(draw.randrange(1, run.rows) for _ in range(options.kills))
        for number, rows in enumerate(points, 1):
            acknowledged, commits = run.kill_at(rows)
            print(
                f"kill {number:2} at {rows:7,} rows: SIGKILL at {acknowledged:7,} acknowledged, "
                f"{commits} injector commits since the start",
                flush=True,
            )
        if options.postgres:
            kill_postgres(run, directory)
        code = run.finish()
        verdict = run.judge()
    print(f"last run: exit code {code}; {verdict}")
    return 0 if verdict.good and code == 0 else 1


def kill_postgres(run: FlightsRun, directory: Path) -> None:
    """SIGKILL the server while the pipeline runs; the run goes on, or ends with a clear error."""
    process = run.start()
    run.wait_for_rows(process, 1)
    pid = embedded.status(directory / "store").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    print(f"SIGKILL to Postgres ({pid}); the run ended with code {process.wait()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
