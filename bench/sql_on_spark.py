"""A file of SQL on Spark, as Spark's own SQL and by classes, in turns: ``python -m
bench.sql_on_spark [RECORDS]``.

Each side runs over an input and over one of four times as many records. The difference of the two
has neither the start of Spark nor the batches that compile. CPU is of the command, the JVM and its
Python processes, and counts on a machine that others use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.fleet import ROOT

RECORDS = 200_000
TURNS = 2
TEXT = """
CREATE SOURCE payments (
    at timestamptz NOT NULL, account bigint NOT NULL, amount bigint NOT NULL, WATERMARK FOR at AS at
) WITH (connector = 'files', path = '{path}');
CREATE TABLE sums (account bigint, minute timestamptz, n bigint, amount numeric);
INSERT INTO sums SELECT account % 50, window_start, count(*), sum(amount)
FROM TUMBLE(payments, at, INTERVAL '1 minute') WHERE amount > 100 GROUP BY 1, window_start;
"""


def write(path: Path, records: int) -> None:
    """Write payments, fifty a second."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    with path.open("w") as file:
        for number in range(records):
            at = (begin + timedelta(milliseconds=20 * number)).isoformat()
            row = {"at": at, "account": number * 7_919 % 10_000, "amount": number % 1_000}
            file.write(json.dumps(row) + "\n")


def run(directory: Path, records: int, *options: str) -> tuple[float, float]:
    """Seconds of a run, and of its CPU."""
    payments, file = directory / f"payments_{records}.jsonl", directory / "sums_on_spark.sql"
    file.write_text(TEXT.replace("{path}", str(payments)))
    with tempfile.TemporaryDirectory(dir=directory) as place:
        words = ["--store", f"{place}/store", "--checkpoint", f"{place}/checkpoint"]
        command = [sys.executable, "-m", "millwheel", "spark", "run", str(file), *words]
        command += ["--max-rows", "100000", *options]
        began = time.monotonic()
        with (Path(place) / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
            cpu: dict[int, float] = {}
            while process.poll() is None:
                cpu |= cpu_of_session(process.pid)
                time.sleep(0.2)
        seconds = time.monotonic() - began
        assert process.returncode == 0, (Path(place) / "log").read_text()[-2000:]
        stop = [sys.executable, "-m", "millwheel", "stop", "--store", f"{place}/store"]
        subprocess.run(stop, cwd=ROOT, check=False, capture_output=True)
    return seconds, sum(cpu.values())


def cpu_of_session(leader: int) -> dict[int, float]:
    """Seconds of CPU so far, by process."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parts = place.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parts[3]) == leader:
            ticks = int(parts[11]) + int(parts[12])
            found[int(place.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return found


def main(records: int) -> None:
    """Measure both in turns, and print a line of each."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        for number in (records, 4 * records):
            write(directory / f"payments_{number}.jsonl", number)
        for _ in range(TURNS):
            for name, options in (("as Spark's SQL", ()), ("by classes", ("--by-classes",))):
                seconds, cpu = run(directory, records, *options)
                all_seconds, all_cpu = run(directory, 4 * records, *options)
                more = 3 * records
                rate, micros = more / (all_seconds - seconds), (all_cpu - cpu) / more * 1e6
                print(f"{name}: {rate:,.0f} records/s, {micros:.1f} us of CPU each", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS)
