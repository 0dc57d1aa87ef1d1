"""``python -m examples.flights``: the whole job, from the table of departures to the report.

It prints and runs one command after the other, and ends with SQL statements to try next.
``python -m examples.flights run`` and ``python -m examples.flights report`` do one half each:
only the report needs Spark. If Spark is there already, it follows the pipeline while that runs.
"""

from __future__ import annotations

import importlib.util
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from examples.flights import replay

STORE = ".millwheel"
OUTPUT = "millwheel-output"
QUESTIONS = (
    "SELECT * FROM airport_hour ORDER BY delay_minutes DESC LIMIT 5",
    "SELECT * FROM airport_month ORDER BY delay_minutes DESC LIMIT 5",
    "SELECT name, batch, rows_behind FROM aggregates",
    "SELECT origin, count(*) AS amended FROM pane_log WHERE late GROUP BY origin",
    "SELECT * FROM delay_alert ORDER BY mean_delay DESC LIMIT 5",
    "SELECT * FROM states LIMIT 3",
    "SELECT computation, holder, what FROM watermark_holders",
)


RUN = ["run", "examples.flights:pipeline", "--store", STORE]
if importlib.util.find_spec("starlette") is not None:
    RUN.append("--ui")
FOLLOW = ["spark", "aggregate", "examples.flights:pipeline", "--store", STORE]
CATCH_UP = [*FOLLOW, "--until-caught-up"]
REPORT = [
    "spark", "report", "examples.flights.report:report", "--store", STORE, "--pipeline", "flights",
    "--output", OUTPUT,
]  # fmt: skip


def main(halves: list[str]) -> int:
    """Run the pipeline, the report, or both; the exit code of the first that fails, or 0."""
    if unknown := set(halves) - {"run", "report"}:
        print(f"there is no {', '.join(sorted(unknown))}: run or report", file=sys.stderr)
        return 2
    for half in halves or ["run", "report"]:
        if code := run() if half == "run" else report():
            return code
    return 0


def run() -> int:
    """Write the input, and run the pipeline over it."""
    path = replay.prepare()
    print(f"The year's departures, in the order they were seen: {path}")
    with following():
        return millwheel(RUN)


@contextmanager
def following() -> Iterator[None]:
    """Let Spark keep `airport_month` up to date during the block, if Spark is installed."""
    if importlib.util.find_spec("pyspark") is None:
        yield
        return
    print(f"\n$ millwheel {shlex.join(FOLLOW)} &", flush=True)
    command = [sys.executable, "-m", "millwheel", *FOLLOW]
    with tempfile.TemporaryFile() as log:
        spark = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
        try:
            yield
        finally:
            spark.send_signal(signal.SIGTERM)
            if spark.wait() != 128 + signal.SIGTERM:
                log.seek(0)
                sys.stderr.buffer.write(log.read())


def report() -> int:
    """Let Spark catch up with the pipeline and report on the store, and print queries to try
    next."""
    for command in (CATCH_UP, REPORT):
        if code := millwheel(command):
            return code
    print(
        f"\nThe store is {STORE}/, and the report's files are in {OUTPUT}/. Query the store, for "
        "example:"
    )
    for question in QUESTIONS:
        print(f'  .venv/bin/millwheel sql "{question}"')
    return 0


def millwheel(command: list[str]) -> int:
    """Print a command and run it."""
    print(f"\n$ millwheel {shlex.join(command)}", flush=True)
    return subprocess.call([sys.executable, "-m", "millwheel", *command])  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
