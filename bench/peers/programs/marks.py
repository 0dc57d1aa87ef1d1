"""Options and progress marks of every program; for any Python, without packages.

A program prints `begin` with the number of records done when the warm-up is done (the number may be
larger than the warm-up if many records become durable at once), and `end` when the last record is
done. The parent process measures at both marks, so the program waits after `end` for a line on its
standard input.
"""

import argparse
import json
import sys
import threading
import time
from pathlib import Path


def options():
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", type=Path, required=True, help="JSON Lines of payments")
    parser.add_argument("--out", type=Path, required=True, help="an empty directory")
    parser.add_argument("--setting", required=True)
    parser.add_argument("--records", type=int, required=True, help="lines of the input")
    parser.add_argument("--warm", type=int, required=True, help="lines of the warm-up")
    parser.add_argument(
        "--batch", type=int, required=True, help="records that become durable at once"
    )
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--url", help="a Postgres server")
    parser.add_argument("--kafka", help="HOST:PORT of a broker")
    parser.add_argument("--payments", help="the topic to read")
    parser.add_argument("--balances", help="the topic to write")
    parser.add_argument("--rate", type=float, help="records per second, for `latency`")
    return parser.parse_args()


def begin(done):
    """Print the mark for the end of the warm-up, with the number of records done."""
    print(f"mark begin {done}", flush=True)


def end():
    """Print the final mark, and wait until the parent process has measured."""
    print("mark end", flush=True)
    sys.stdin.readline()


def payments(path):
    """Read the payments of a file."""
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)


def write_answers(path, balances):
    """Write balances in the format of the other programs' sinks."""
    with path.open("w") as file:
        for balance in balances:
            file.write(json.dumps(balance) + "\n")


class Arrivals(threading.Thread):
    """Lets records arrive at a fixed rate, `GROUP` at a time, and notes the latency of each.

    Records are done in arrival order: the n-th record done is the n-th that arrived.
    """

    GROUP = 20

    def __init__(self, rate, records, place):
        super().__init__(daemon=True)
        self._place = place
        self._groups = [
            range(n, min(n + self.GROUP, records)) for n in range(0, records, self.GROUP)
        ]
        self._every = self.GROUP / rate
        self._came = []
        self._took = []

    def run(self):
        begin = time.perf_counter()
        for number, group in enumerate(self._groups):
            time.sleep(max(0.0, begin + number * self._every - time.perf_counter()))
            self._came += [time.perf_counter()] * len(group)
            self._place(group)

    def done(self, total):
        """Note that `total` records are done now."""
        now = time.perf_counter()
        self._took += [now - came for came in self._came[len(self._took) : total]]

    def write(self, directory):
        """Write the latencies, in milliseconds."""
        path = directory / "latencies.json"
        path.write_text(json.dumps([seconds * 1000 for seconds in self._took]))


class Watch(threading.Thread):
    """Counts the lines of files that no longer change, and prints the first mark."""

    def __init__(self, directory, pattern, warm):
        super().__init__(daemon=True)
        self._directory = directory
        self._pattern = pattern
        self._warm = warm
        self._known = set()
        self.lines = 0

    def run(self):
        while self.lines < self._warm:
            time.sleep(0.02)
            self.look()
        begin(self.lines)

    def look(self):
        """Count the lines of new files."""
        for path in self._directory.rglob(self._pattern):
            if path not in self._known:
                self._known.add(path)
                self.lines += path.read_bytes().count(b"\n")
