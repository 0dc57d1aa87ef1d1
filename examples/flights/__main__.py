"""``python -m examples.flights``: the whole job, from the table of departures to the report.

It prints and runs one command after the other, and ends with SQL statements to try next.
``python -m examples.flights run`` and ``python -m examples.flights report`` do one half each:
only the report needs Spark.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

from examples.flights import replay

STORE = ".millwheel"
OUTPUT = "millwheel-output"
QUESTIONS = (
    "SELECT * FROM airport_hour ORDER BY delay_minutes DESC LIMIT 5",
    "SELECT origin, count(*) AS amended FROM pane_log WHERE late GROUP BY origin",
    "SELECT * FROM delay_alert ORDER BY mean_delay DESC LIMIT 5",
    "SELECT * FROM states LIMIT 3",
    "SELECT computation, holder, what FROM watermark_holders",
)


RUN = ["run", "examples.flights:pipeline", "--store", STORE]
REPORT = [
    "spark", "examples.flights.report:report", "--store", STORE, "--pipeline", "flights",
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
    return millwheel(RUN)


def report() -> int:
    """Let Spark report on the store, and print queries to try next."""
    if code := millwheel(REPORT):
        return code
    print(
        f"\nThe store is {STORE}/, and the report's files are in {OUTPUT}/. Query the store, for example:"
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
