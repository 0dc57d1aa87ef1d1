"""``python -m tests.faults.switches [--switches 50] [--seed 1]``: readers follow switches under
faults.

Two pipelines read a file that grows, with two workers each. Their readers are led from one to the
other and back, while workers of both and the switching process are killed at random. A reader never
misses a table, never meets rows of both, and never sees a sum fall; in the end both pipelines equal
arithmetic.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import psycopg
from psycopg import sql

from millwheel.store.address import StoreAddress
from millwheel.store.console.presence import present
from millwheel.store.copies.publishing import publish
from tests.faults.kill_flights import workplace
from tests.faults.service import Service
from tests.faults.travels import Writer, build, differences, is_done

NAMES = ("wheel", "wheel2")
MARKS = ("marks", "more_marks")
SEEN = """
    SELECT (SELECT whose FROM "out".marks), (SELECT whose FROM "out".more_marks),
           (SELECT sum(payments) FROM "out".minute)
"""
PER_SECOND = 200.0
TARGETS = {name: f"tests.faults.switches:{name}" for name in NAMES}

wheel, wheel2 = (build(name) for name in NAMES)


class Reader(threading.Thread):
    """Reads all published names in one statement, again and again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.wrong: list[str] = []
        self.reads = self.changes = 0
        self.longest = 0.0
        """Of all reads, in seconds."""
        self._ends = threading.Event()

    def run(self) -> None:
        last, before = 0, None
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ends.is_set():
                began = time.monotonic()
                try:
                    ((whose, as_well, seen),) = connection.execute(SEEN).fetchall()
                except psycopg.Error as error:
                    self.wrong.append(f"read {self.reads}: {error}")
                    return
                self.longest = max(self.longest, time.monotonic() - began)
                if whose != as_well:
                    self.wrong.append(f"read {self.reads}: rows of {whose} and of {as_well}")
                if (seen or 0) < last:
                    self.wrong.append(f"read {self.reads}: {last} fell to {seen} at {whose}")
                self.changes += before not in (None, whose)
                last, before = seen or 0, whose
                self.reads += 1
                self._ends.wait(0.02)

    def end(self) -> None:
        self._ends.set()
        self.join()


def leading(url: str) -> str:
    """Which pipeline the readers read."""
    with psycopg.connect(url) as connection:
        row = connection.execute('SELECT whose FROM "out".marks').fetchone()
    assert row is not None
    return str(row[0])


def make_marks(url: str) -> None:
    """Two tables in each pipeline that say whose they are."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name in NAMES:
            for table in MARKS:
                place = sql.Identifier(name, table)
                connection.execute(sql.SQL("CREATE TABLE {} (whose text)").format(place))
                connection.execute(sql.SQL("INSERT INTO {} VALUES (%s)").format(place), [name])


def switching(url: str, old: str, new: str) -> subprocess.Popen[bytes]:
    """Start the command, which waits for a successor that is behind."""
    command = [sys.executable, "-m", "millwheel", "--store", url, "switch", old, new, "--yes"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def follow(
    directory: Path,
    switches: int,
    *,
    seed: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    random = Random(seed)
    services = [Service(directory, TARGETS[name], name, "TRAVELS_INPUT") for name in NAMES]
    ends = threading.Event()
    writer = Writer(directory, None, PER_SECOND, ends)
    for service in services * 2:
        service.start()
    url = services[0].url()
    with present(StoreAddress.parse(str(directory / "store"))):
        writer.start()
        for service in services:
            service.wait("SELECT count(*) FROM minute", lambda found: found > 0)
        make_marks(url)
        publish(url, NAMES[0], "out")
        readers = [Reader(url) for _ in range(2)]
        for reader in readers:
            reader.start()
        done = killed = tries = 0
        while done < switches:
            old = leading(url)
            new = NAMES[1 - NAMES.index(old)]
            process = switching(url, old, new)
            tries += 1
            if random.random() < 0.5:
                time.sleep(random.uniform(0.0, 1.5))
                random.choice(services).kill(random)
            if tries == 1 or random.random() < 0.25:
                time.sleep(random.uniform(0.0, 1.5))
                process.kill()
            output, _ = process.communicate(timeout=120)
            killed += process.returncode == -9
            assert process.returncode in {0, -9}, output.decode()
            assert process.returncode == -9 or leading(url) == new, output.decode()
            done += leading(url) == new
            if leading(url) == new and done % 10 == 0:
                say(f"{done} of {switches} switches")
            assert not any(reader.wrong for reader in readers), [one.wrong for one in readers]
        for reader in readers:
            reader.end()
            assert reader.wrong == []
            assert reader.changes >= min(switches, reader.reads) // 2
        ends.set()
        writer.join()
        for service, name in zip(services, NAMES, strict=True):
            deadline = time.monotonic() + 300
            while not is_done(url, name, writer.written):
                assert time.monotonic() < deadline, service.log()
                time.sleep(0.3)
        for service in services:
            service.stop()
        for name in NAMES:
            assert differences(url, name, writer.written) == [], name
    kills = " and ".join(
        f"{one.kills} of {name}" for one, name in zip(services, NAMES, strict=True)
    )
    say(
        f"{done} switches, killed: {killed} commands, workers {kills}; "
        f"{sum(one.reads for one in readers):,} reads, none longer than "
        f"{max(one.longest for one in readers) * 1000:.0f} ms; {writer.written:,} payments: equal"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--switches", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with workplace() as place:
        follow(place, options.switches, seed=options.seed)
