"""What every program is told, and how it tells where it is; for any Python, without packages.

A program prints `begin` and how many records are done when those of the warm-up are, which may be more
if many are made durable at once; and `end` when the last one is.
It is looked at from outside at both, so it stays until it is told to go.
"""

import argparse
import json
import sys
import threading
import time
from pathlib import Path


def options():
    """What to do, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", type=Path, required=True, help="JSON Lines of payments")
    parser.add_argument("--out", type=Path, required=True, help="an empty directory")
    parser.add_argument("--setting", required=True)
    parser.add_argument("--records", type=int, required=True, help="lines of the input")
    parser.add_argument("--warm", type=int, required=True, help="lines that do not count")
    parser.add_argument(
        "--batch", type=int, required=True, help="records that are made durable at once"
    )
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--url", help="a Postgres server")
    parser.add_argument("--kafka", help="HOST:PORT of a broker")
    parser.add_argument("--rate", type=float, help="records a second, for `latency`")
    return parser.parse_args()


def begin(done):
    """The warm-up is done, and so many records with it."""
    print(f"mark begin {done}", flush=True)


def end():
    """Everything is done; waits until somebody has looked."""
    print("mark end", flush=True)
    sys.stdin.readline()


def payments(path):
    """The payments of a file."""
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)


def write_answers(path, balances):
    """Write balances as the sinks of the others do."""
    with path.open("w") as file:
        for balance in balances:
            file.write(json.dumps(balance) + "\n")


class Arrivals(threading.Thread):
    """Lets records arrive by the clock, `GROUP` at a time, and notes how long each took.

    Records are done in the order in which they came: the n-th that is done is the n-th that came.
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
        """So many are done by now."""
        now = time.perf_counter()
        self._took += [now - came for came in self._came[len(self._took) : total]]

    def write(self, directory):
        """Keep how long each took, in milliseconds."""
        path = directory / "latencies.json"
        path.write_text(json.dumps([seconds * 1000 for seconds in self._took]))


class Watch(threading.Thread):
    """Counts the lines of files that do not change any more, and marks the beginning."""

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
        """Count the files that are new."""
        for path in self._directory.rglob(self._pattern):
            if path not in self._known:
                self._known.add(path)
                self.lines += path.read_bytes().count(b"\n")
