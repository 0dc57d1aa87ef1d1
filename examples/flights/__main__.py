"""``python -m examples.flights``: the whole job, from the table of departures to the report.

It prints and runs one command after the other, and ends with SQL statements to try next.
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


def main() -> int:
    """Run the pipeline and the report; returns the exit code of the first that fails, or 0."""
    path = replay.prepare()
    print(f"The year's departures, in the order in which they were seen: {path}")
    for command in (
        ["run", "examples.flights:pipeline", "--store", STORE],
        ["spark", "examples.flights.report:report", "--store", STORE, "--pipeline", "flights",
         "--output", OUTPUT],
    ):  # fmt: skip
        print(f"\n$ millwheel {shlex.join(command)}", flush=True)
        code = subprocess.call([sys.executable, "-m", "millwheel", *command])  # noqa: S603
        if code:
            return code
    print(
        f"\nThe store is {STORE}/, and the report's files are in {OUTPUT}/. Query the store, for example:"
    )
    for question in QUESTIONS:
        print(f'  .venv/bin/millwheel sql "{question}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
