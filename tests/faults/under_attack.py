"""``python -m tests.faults.under_attack [--rows 40000] [--kills 3] [--without-secret]``: workers
among liars.

Two ``millwheel worker tests.faults.under_attack:pipeline`` share an embedded store. Peers of both,
which know the secret (or do not), say all the time what no worker says, or only the owner may say,
while workers are killed and started again. In the end the sums must equal plain arithmetic.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.core.model import MAX_TIME
from millwheel.store import embedded
from tests.faults.kill_flights import workplace
from tests.support import hostile
from tests.support.hostile import Attacker

FILES = 4
KEYS = 97
HUGE = 1 << 62
SECONDS = 300.0
"""After so long a run has failed."""


class Item(msgspec.Struct, frozen=True):
    number: int
    key: str
    value: int


class Sum(msgspec.Struct):
    key: str
    count: int
    total: int


class Sums(msgspec.Struct):
    count: int = 0
    total: int = 0


ITEMS, PASSED, SUMS = Stream("items", Item), Stream("passed", Item), Stream("sums", Sum)


class Pass(Computation[Item, None]):
    """Takes its time with each item, and passes it on: to any worker."""

    writes = (PASSED,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        time.sleep(0.0005)  # noqa: ASYNC251 (as code does that computes)
        ctx.produce(PASSED, record.value)


class Add(Computation[Item, Sums]):
    """Adds up, by key."""

    writes = (SUMS,)

    async def process_record(self, record: Record[Item], ctx: Context[Sums]) -> None:
        ctx.state.count += 1
        ctx.state.total += record.value.value
        ctx.produce(SUMS, Sum(record.value.key, ctx.state.count, ctx.state.total))


pipeline = Pipeline("attacked")
pipeline.inject(
    ITEMS,
    JsonLines([f"in{file}.jsonl" for file in range(FILES)]),
    timestamp=lambda item: datetime.fromtimestamp(item.number, UTC),
    lateness=timedelta(days=1),
)
pipeline.add(Pass(), ITEMS.by(lambda item: item.number))
pipeline.add(Add(), PASSED.by(lambda item: item.key))
pipeline.sink(SUMS, Table("sums", Sum, key=("key",)))


def lies(random: Random, logs: list[int], rows: list[Any]) -> Iterator[tuple[Any, ...] | bytes]:
    """Frames of one kind; bytes are the body of one.

    Args:
        rows: (interval, computation, first slot, slot behind the last, sequencer).
    """
    steps = sorted({row[1] for row in rows})
    interval, step, slot, _, sequencer = random.choice(rows)
    log, item = random.choice(logs), b'{"number":1,"key":"k1","value":1}'
    stream = random.choice(["items", "passed", "sums"])
    row: list[Any] = [5, stream, b'"k1"', slot, 0, 0, 0, 9, b"", False, item, 1, 0]
    kind = random.randrange(9)
    if kind < 2:
        last = (22_000, HUGE)[kind]
        yield from ((hostile.ACKNOWLEDGE, of, to, [[0, last]]) for of in logs for to in steps)
    elif kind == 2:
        for ahead in (0, 1, 1000):
            told = [[*r[:4], r[4] + ahead, MAX_TIME, False, {}] for r in rows]
            yield (hostile.REPORT, told)
        yield (hostile.REPORT, [[*rows[0], HUGE, False, {}]])
    elif kind == 3:
        row[10] = b"no JSON"
        yield (hostile.DELIVER, log, sequencer, 1, interval, step, -1, [row])
    elif kind == 4:
        for higher in (0, 1, 1 << 40):
            yield (hostile.DELIVER, log, sequencer + higher, 1 << 40, interval, step, -1, [row])
            yield (hostile.ASK, log, sequencer + higher, 1 << 40, interval, 5)
    elif kind == 5:
        yield b"\x94\x06\x02\x03\xdd" + (20_000_000).to_bytes(4) + b"\x92\x01\x01" * 20_000_000
    elif kind == 6:
        yield (hostile.GOODBYE, "so long\n" * 100_000)
    elif kind == 7:
        for epoch in range(1, 60):
            yield (hostile.NOT_MINE, log, epoch, interval)
            yield (hostile.TOO_NEW, log, epoch, interval)
            yield (hostile.GAP, log, epoch, interval, -1)
            yield (hostile.PROGRESS, log, epoch, interval, HUGE, False)
    else:
        row[8] = random.randbytes(16)
        yield (hostile.LOOSE, step, [[random.randrange(1, HUGE), row]])
        yield (hostile.ROOT_REPORT, [[random.randrange(1, HUGE), 0]])


class Service:
    """Two workers over one store, and their input."""

    def __init__(self, directory: Path, rows: int) -> None:
        self.directory = directory
        self.workers: list[subprocess.Popen[bytes]] = []
        self.wanted: dict[str, tuple[int, int]] = {}
        items = [Item(number, f"k{number % KEYS}", number * 3 % 1000) for number in range(rows)]
        for item in items:
            count, total = self.wanted.get(item.key, (0, 0))
            self.wanted[item.key] = (count + 1, total + item.value)
        for file in range(FILES):
            lines = b"".join(msgspec.json.encode(item) + b"\n" for item in items[file::FILES])
            (directory / f"in{file}.jsonl").write_bytes(lines)

    def start(self) -> None:
        """One more worker."""
        root = str(Path(__file__).parents[2])
        command = [
            sys.executable, "-m", "millwheel", "worker", "tests.faults.under_attack:pipeline",
            "--store", "store",
        ]  # fmt: skip
        with (self.directory / "workers.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": root}
            self.workers.append(
                subprocess.Popen(
                    command, cwd=self.directory, env=environment, stdout=log, stderr=log
                )
            )

    def kill_one(self, random: Random) -> None:
        """SIGKILL to a worker, and another in its place."""
        worker = self.workers.pop(random.randrange(len(self.workers)))
        worker.kill()
        worker.wait()
        self.start()

    def read(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the store; nothing if it is not there yet."""
        state = embedded.status(self.directory / "store")
        if not state.running or state.url is None:
            return []
        try:
            with psycopg.connect(state.url, autocommit=True) as connection:
                connection.execute("SET search_path = attacked")
                return connection.execute(sql.SQL(query)).fetchall()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return []


class Attack:
    """Peers that lie to each worker that there is."""

    def __init__(self, service: Service, random: Random, *, knows: bool) -> None:
        self._service = service
        self._random = random
        self._knows = knows
        self.ended: Counter[str] = Counter()
        """What the workers said at the end of each connection."""

    async def once(self) -> None:
        """One connection to each worker."""
        read = self._service.read
        addresses = read("SELECT address FROM worker WHERE NOT stopped AND lease_until > now()")
        secrets = read("SELECT secret FROM peer_secret")
        incarnations = read(
            "SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' || tableoid::text "
            "|| ' ' || id::text FROM incarnation"
        )
        logs = [log for (log,) in read("SELECT id FROM log")]
        rows = read("SELECT id, computation, slot_from, slot_to, sequencer FROM key_interval")
        if not (secrets and incarnations and logs and rows):
            await asyncio.sleep(0.2)
            return
        secret = bytes(secrets[0][0]) if self._knows else None
        for (address,) in addresses:
            with_peer = self._lie(address, secret, incarnations[0][0], logs, list(map(list, rows)))
            try:
                async with asyncio.timeout(30):
                    self.ended[await with_peer] += 1
            except ConnectionRefusedError:
                continue  # that one was killed
            except (OSError, TimeoutError) as error:
                self.ended[type(error).__name__] += 1

    async def _lie(
        self,
        address: str,
        secret: bytes | None,
        incarnation: str,
        logs: list[int],
        rows: list[Any],
    ) -> str:
        attacker = await Attacker.call(address)
        name = f"evil {self._random.randrange(3)}"
        answer = await attacker.greet("attacked", name, secret, "store", incarnation)
        if answer[1:2] != bytes((hostile.PROOF,)):
            await attacker.hang_up()
            return f"not let in: {answer[3:60].decode(errors='replace')}"
        for frame in lies(self._random, logs, rows):
            if isinstance(frame, bytes):
                attacker.send_body(frame)
            else:
                attacker.send(*frame)
            await attacker.writer.drain()
        try:
            async with asyncio.timeout(0.2):
                last = await attacker.end()
        except TimeoutError:
            await attacker.hang_up()
            return "ignored"
        return f"closed: {last[3:45].decode(errors='replace')}"


async def attack(
    directory: Path, rows: int, kills: int, say: Callable[[str], None], *, knows: bool
) -> None:
    """Run it, and compare.

    Raises:
        AssertionError: a row is missing, doubled or wrong; or a worker ended by itself.
    """
    random = Random(1)
    service = Service(directory, rows)
    attackers = Attack(service, random, knows=knows)
    began, killed = time.monotonic(), 0
    service.start()
    try:
        while (done := service.read("SELECT sum(count)::bigint FROM sums")) != [(rows,)]:
            assert time.monotonic() - began < SECONDS, done
            for worker in service.workers:
                assert worker.poll() is None, (directory / "workers.log").read_text()[-3000:]
            await attackers.once()
            if len(service.workers) == 1 and done:
                service.start()
            if (
                done
                and (done[0][0] or 0) > rows * (killed + 1) // (kills + 2)
                and killed < kills
                and len(service.workers) == 2
            ):
                service.kill_one(random)
                killed += 1
                say(
                    f"{time.monotonic() - began:4.0f} s: kill {killed}, counted so far: "
                    f"{done[0][0]:,}"
                )
        found = {key: (count, total) for key, count, total in service.read("TABLE sums")}
        assert found == service.wanted
        assert service.read("SELECT count(*) FROM dead_letter") == [(0,)]
        for worker in service.workers:
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(60) for worker in service.workers] == [128 + signal.SIGTERM] * 2
    finally:
        for worker in service.workers:
            worker.kill()
    for ending, number in sorted(attackers.ended.items()):
        say(f"{number:6,} connections {ending!r}")
    if not knows:
        assert all("not let in" in ending or "Reset" in ending for ending in attackers.ended)
    say(f"{rows:,} rows, {killed} kills, {attackers.ended.total():,} attacks: equal to arithmetic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--without-secret", action="store_true")
    options = parser.parse_args()
    with workplace() as directory:
        asyncio.run(
            attack(
                directory, options.rows, options.kills, lambda t: print(t, flush=True),
                knows=not options.without_secret,
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
