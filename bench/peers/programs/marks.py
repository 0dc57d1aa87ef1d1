"""What every program is told, and how it tells where it is; for any Python, without packages.

A program prints `begin` when the records of the warm-up are done, and `end` when the last one is.
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
    parser.add_argument("--batch", type=int, required=True, help="records that are made durable at once")
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--url", help="a Postgres server")
    parser.add_argument("--kafka", help="HOST:PORT of a broker")
    return parser.parse_args()


def begin():
    """The warm-up is done."""
    print("mark begin", flush=True)


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
        begin()

    def look(self):
        """Count the files that are new."""
        for path in self._directory.rglob(self._pattern):
            if path not in self._known:
                self._known.add(path)
                self.lines += path.read_bytes().count(b"\n")
