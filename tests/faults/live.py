"""``python -m tests.faults.live [--minutes 10] [--kills 10] [--seed 1]``: a live service, killed
again and again.

Two ``millwheel worker examples.fraud:pipeline`` share an embedded store and read files to which
another process appends: in pieces that end anywhere, with rotation by renaming and by copying and
truncating, and with new files that appear. Workers are killed and started again meanwhile. In the
end every row of the three tables must equal what plain arithmetic says of the rows that were
written.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from examples.fraud import BIG, DUE, Order, Payment, trade
from millwheel.store import embedded
from tests.faults.kill_flights import workplace

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)
SPEED = 10.0
"""Event time runs so much faster than the clock."""
ORDERS_PER_SECOND = 60
BEAT_SECONDS = 0.05
WINDOW = timedelta(minutes=10)
ROTATE_SECONDS = 9.0
TERMINAL_SECONDS = 13.0
"""From one new terminal to the next."""
AHEAD_SECONDS = 4.0
"""A terminal's file is there so long before its first row, as a log is."""
LAST = BEGIN + timedelta(days=30)
"""When the last rows of each file say that it is: everything before is over."""

EVENT: msgspec.json.Decoder[Order | Payment] = msgspec.json.Decoder(Order | Payment)


# -- the process that writes -------------------------------------------------------------------


@dataclass
class Growing:
    """A file that is appended to in pieces, and rotated."""

    path: Path
    random: Random
    waiting: bytes = b""
    """Of the rows, what is not written yet."""
    number: int = 0

    def append(self, rows: bytes, *, whole: bool = False) -> None:
        """Write the rows up to some byte, which may be in the midst of a row."""
        data = self.waiting + rows
        cut = (
            len(data)
            if whole or self.random.random() < 0.3
            else self.random.randrange(len(data) + 1)
        )
        with self.path.open("ab") as file:
            file.write(data[:cut])
        self.waiting = data[cut:]

    def rotate(self) -> None:
        """By one of the two ways that there are; rows that are begun are finished first."""
        self.append(b"", whole=True)
        for number in range(self.number, 0, -1):
            self._aside(number).rename(self._aside(number + 1))
        self.number += 1
        if self.random.random() < 0.5:
            self.path.rename(self._aside(1))
            self.path.touch()
        else:
            shutil.copyfile(self.path, self._aside(1))
            os.truncate(self.path, 0)

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def produce(directory: Path, seconds: float, seed: int) -> None:
    """Write for so long; then say in each file that it is over, and in `told.jsonl` all that was
    written."""
    random = Random(seed)
    payments = directory / "payments"
    payments.mkdir(parents=True, exist_ok=True)
    orders = Growing(directory / "orders.jsonl", random)
    terminals: dict[str, tuple[Growing, float]] = {}
    told: list[Order | Payment] = []
    every = timedelta(seconds=SPEED / ORDERS_PER_SECOND)
    began = time.monotonic()
    rotated = opened = began
    next_terminal = itertools.count()

    def open_terminal(now: float) -> None:
        name = f"till-{next(next_terminal)}"
        file = Growing(payments / f"{name}.jsonl", random)
        file.path.touch()
        terminals[name] = (file, now + AHEAD_SECONDS)

    for _ in range(3):
        open_terminal(began - AHEAD_SECONDS)
    rows: dict[Path, list[bytes]] = defaultdict(list)
    placed = BEGIN
    for event in trade(BEGIN, every, seed=seed):
        if isinstance(event, Payment):
            now = time.monotonic()
            ready = [name for name, (_, at) in terminals.items() if at <= now]
            event = msgspec.structs.replace(event, terminal=random.choice(ready))
            rows[terminals[event.terminal][0].path].append(msgspec.json.encode(event) + b"\n")
        else:
            rows[orders.path].append(msgspec.json.encode(event) + b"\n")
            placed = event.at
        told.append(event)
        wait = (placed - BEGIN).total_seconds() / SPEED - (time.monotonic() - began)
        if wait < BEAT_SECONDS:
            continue
        for file in (orders, *(file for file, _ in terminals.values())):
            file.append(b"".join(rows.pop(file.path, [])))
        time.sleep(BEAT_SECONDS)
        now = time.monotonic()
        if now - began > seconds:
            break
        if now - opened > TERMINAL_SECONDS:
            open_terminal(now)
            opened = now
        if now - rotated > ROTATE_SECONDS:
            random.choice([orders, orders, *(file for file, _ in terminals.values())]).rotate()
            rotated = now
    end = Order(-1, "nobody", 0, LAST)
    orders.append(msgspec.json.encode(end) + b"\n", whole=True)
    for name, (file, _) in terminals.items():
        file.append(msgspec.json.encode(Payment(-1, name, 0, LAST)) + b"\n", whole=True)
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in told)
    (directory / "told.jsonl").write_bytes(lines)
    print(
        f"{len(told)} rows, {len(terminals)} terminals, {orders.number} rotations of orders",
        flush=True,
    )


# -- arithmetic --------------------------------------------------------------------------------


def expected(told: Iterable[Order | Payment]) -> dict[str, Counter[tuple[Any, ...]]]:
    """What the tables must hold of these rows."""
    orders: list[Order] = []
    paid: dict[int, list[Payment]] = defaultdict(list)
    for event in told:
        if isinstance(event, Order):
            orders.append(event)
        else:
            paid[event.order].append(event)
    spent: Counter[tuple[str, datetime]] = Counter()
    unpaid: Counter[tuple[Any, ...]] = Counter()
    for order in orders:
        begin = datetime.fromtimestamp(
            order.at.timestamp() // WINDOW.total_seconds() * WINDOW.total_seconds(), UTC
        )
        spent[order.customer, begin] += order.cents
        cents = sum(p.cents for p in paid[order.number] if p.at <= order.at + DUE)
        if cents < order.cents:
            unpaid[order.number, order.customer, order.at, order.cents - cents] += 1
    return {
        "unpaid": unpaid,
        "spending": Counter((*key, cents) for key, cents in spent.items()),
        "big_spender": Counter((*key, cents) for key, cents in spent.items() if cents > BIG),
    }


# -- the service ---------------------------------------------------------------------------------


@dataclass
class Service:
    """Workers of the pipeline, as processes."""

    directory: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: int = 0

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "FRAUD_INPUT": str(self.directory / "input"),
        }

    def start(self) -> subprocess.Popen[bytes]:
        """One more worker."""
        command = [
            sys.executable, "-m", "millwheel", "worker", "examples.fraud:pipeline", "--store",
            "store",
        ]  # fmt: skip
        with (self.directory / "workers.log").open("ab") as log:
            worker = subprocess.Popen(
                command, cwd=self.directory, env=self.environment(), stdout=log, stderr=log
            )
        self.workers.append(worker)
        return worker

    def kill_one(self, random: Random) -> None:
        """SIGKILL to a worker, and another in its place."""
        worker = random.choice(self.workers)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.workers.remove(worker)
        self.kills += 1
        self.start()

    def wait_until_reading(self) -> None:
        """A file that was rotated before the service has ever looked is no input of it."""
        deadline = time.monotonic() + 180
        while not self.read("SELECT 1 FROM source_partitions WHERE injector = 'orders_injector'"):
            self.check()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def check(self) -> None:
        """See that nobody has ended by itself."""
        for worker in self.workers:
            assert worker.poll() is None, (worker.returncode, self.log())

    def stop(self) -> None:
        """End in order."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            assert worker.wait(60) in (0, -signal.SIGTERM, 143), self.log()

    def log(self) -> str:
        """The last that they have said."""
        return (self.directory / "workers.log").read_text()[-6000:]

    def read(self, query: str) -> list[tuple[Any, ...]] | None:
        """Ask the store; None: there is nothing to ask yet."""
        state = embedded.status(self.directory / "store")
        if not state.running or state.url is None:
            return None
        try:
            with psycopg.connect(state.url, autocommit=True, connect_timeout=10) as connection:
                connection.execute("SET search_path = fraud; SET timezone = UTC")
                return connection.execute(sql.SQL(query)).fetchall()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return None


def live(
    directory: Path, minutes: float, kills: int, seed: int, say: Callable[[str], None]
) -> None:
    """Run it, and compare.

    Raises:
        AssertionError: a row is missing, doubled or wrong; or a worker ended by itself.
    """
    random = Random(seed)
    (directory / "input").mkdir()
    (directory / "input/orders.jsonl").touch()
    service = Service(directory)
    command = [
        sys.executable, "-m", "tests.faults.live", "--produce", str(directory / "input"),
        "--minutes", str(minutes), "--seed", str(seed),
    ]  # fmt: skip
    service.start()
    service.wait_until_reading()
    writer = subprocess.Popen(command, env=service.environment(), cwd=Path(__file__).parents[2])
    service.start()
    began = time.monotonic()
    due = sorted(random.uniform(0.05, 0.95) * 60 * minutes for _ in range(kills))
    try:
        while writer.poll() is None:
            time.sleep(0.2)
            service.check()
            if due and time.monotonic() - began >= due[0]:
                due.pop(0)
                service.kill_one(random)
                judged = service.read("SELECT count(*) FROM unpaid")
                say(
                    f"{time.monotonic() - began:5.0f} s: kill {service.kills}, unpaid so far: "
                    f"{judged}"
                )
        assert writer.returncode == 0
        told = [
            EVENT.decode(line)
            for line in (directory / "input/told.jsonl").read_bytes().splitlines()
        ]
        wanted = expected(told)
        deadline = time.monotonic() + 180
        while not _is_through(service):
            service.check()
            assert time.monotonic() < deadline, (_state(service), service.log())
            time.sleep(0.5)
        for table, rows in wanted.items():
            got = Counter(service.read(f"SELECT * FROM {table}"))
            missing, extra = rows - got, got - rows
            assert not missing, f"{table}: {len(missing)} missing, as {list(missing)[:3]}"
            assert not extra, f"{table}: {len(extra)} too much, as {list(extra)[:3]}"
            say(f"{table}: {len(rows)} rows, equal")
        letters = service.read("SELECT count(*) FROM dead_letters")
        assert letters == [(0,)], letters
        service.stop()
        say(f"{len(told):,} rows written, {service.kills} kills: equal to arithmetic")
    finally:
        writer.kill()
        for worker in service.workers:
            worker.kill()


def _is_through(service: Service) -> bool:
    """Whether event time has passed all that was written but the last rows."""
    through = LAST - timedelta(hours=1)
    rows = service.read(f"SELECT min(low_watermark) > '{through.isoformat()}' FROM watermarks")
    return bool(rows and rows[0][0])


def _state(service: Service) -> object:
    return service.read(
        "SELECT computation, low_watermark::text, what, root FROM watermark_holders"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--produce", type=Path)
    options = parser.parse_args()
    if options.produce is not None:
        produce(options.produce, 60 * options.minutes, options.seed)
        return
    with workplace() as directory:
        live(
            directory, options.minutes, options.kills, options.seed, lambda t: print(t, flush=True)
        )


if __name__ == "__main__":
    main()
