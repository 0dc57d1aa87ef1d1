"""CPU instructions and cache misses per record in a worker, counted by Valgrind.

A miss is an access to data in none of the caches private to a core. Unlike time and CPU time, the
counts do not depend on other load of the machine, so a change of half a per cent is visible; time
follows them roughly. The time of a miss depends on the machine and its load, and Valgrind does not
simulate prefetching. Postgres is excluded: commits are built and encoded, but a fixed delay
replaces sending them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench import quiet
from bench.server import drop, fresh_store
from bench.workload import Account, Balance, Payment, lines_file, payments_file, pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.services import loop
from millwheel.store.port.commit import Commit
from millwheel.store.postgres.lane import PostgresLane

COMMIT_SECONDS = 0.6
"""Duration of a simulated commit: the time that Python under Valgrind takes for the next one."""

LARGE = 300
"""Productions from which a commit counts as full load; smaller ones before the first are really
sent."""

SCHEMA = "bench_instructions"

CACHES = ("--I1=32768,8,64", "--D1=49152,12,64", "--LL=2097152,16,64")
"""Caches of a server's core: bytes, associativity, bytes per line."""

COUNTED = {
    "instructions": re.compile(r"I\s+refs:\s+([\d,]+)"),
    "misses": re.compile(r"LL misses:\s+([\d,]+)"),
}
"""Patterns of the counts in Valgrind's output."""


async def measure(url: str, directory: Path, *, records: int) -> dict[str, Any]:
    """Measure the counts per record, from the difference of two runs so that the start does not
    count.

    Raises:
        SystemExit: Valgrind is not installed.
    """
    if shutil.which("valgrind") is None:
        raise SystemExit("bench instructions counts with Valgrind: apt-get install valgrind")
    found: dict[str, dict[str, float]] = {}
    for work in ("engine", "json"):
        few, many = [await _count(work, url, directory, n) for n in (records, 3 * records)]
        found[work] = {what: (many[what] - few[what]) / (2 * records) for what in COUNTED}
    ours, least = found["engine"], found["json"]
    ratio = ours["instructions"] / least["instructions"]
    print(
        f"a record takes {ours['instructions']:,.0f} instructions of its worker; its JSON alone "
        f"(decode the row, encode state and output) {least['instructions']:,.0f}: ratio "
        f"{ratio:.1f}. Misses in 2 MB of cache: {ours['misses']:.0f} and {least['misses']:.0f}"
    )
    return {**found, "ratio": ratio}


async def _count(work: str, url: str, directory: Path, records: int) -> dict[str, int]:
    lines_file(directory, records)  # in advance, so that writing it does not count
    process = await asyncio.create_subprocess_exec(
        "valgrind", "--tool=cachegrind", "--cache-sim=yes", *CACHES,
        "--cachegrind-out-file=/dev/null",
        sys.executable, "-m", "bench.instructions", work, url, str(directory), str(records),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    matches = {what: pattern.search(errors.decode()) for what, pattern in COUNTED.items()}
    counted = {what: int(each[1].replace(",", "")) for what, each in matches.items() if each}
    if process.returncode or len(counted) < len(COUNTED):
        raise RuntimeError(f"Valgrind reported no counts: {(out + errors).decode()[-2000:]}")
    return counted


async def engine(url: str, directory: Path, records: int) -> None:
    """Run the engine over N payments, with commits that are not sent."""
    send = PostgresLane._append
    loaded = False

    async def pack(lane: PostgresLane, connection: Any, commit: Commit) -> None:
        nonlocal loaded
        loaded = loaded or len(commit.productions) >= LARGE
        if not loaded:
            await send(lane, connection, commit)
            return
        lane._parts(commit)
        await asyncio.sleep(COMMIT_SECONDS)

    PostgresLane._append = pack  # type: ignore[method-assign, assignment]
    store = await fresh_store(url, SCHEMA)
    running = Engine(
        pipeline(SCHEMA, payments_file(directory, records)), store, process=FREE_OF_CHARGE
    )  # without it, slow execution under Valgrind would shorten the chunks
    await running.start()
    task = asyncio.create_task(running.run())
    while running.processed < records and not task.done():
        await asyncio.sleep(0.02)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task  # raises the error of a failed run
    await store.close()  # dropping would wait for a transaction that this process has open
    drop(url, SCHEMA)


def json(directory: Path, records: int) -> None:
    """Do the JSON work that every engine needs, for each row of the file."""
    decode = msgspec.json.Decoder(Payment).decode
    encode = msgspec.json.Encoder().encode
    for line in lines_file(directory, records).read_bytes().splitlines():
        payment = decode(line)
        encode(Account(1, payment.amount))
        encode(Balance(payment.account, 1, payment.amount))


def main() -> None:
    """Run one side, in a separate process under Valgrind."""
    work, url, directory, records = sys.argv[1:]
    quiet()
    if work == "json":
        json(Path(directory), int(records))
    else:
        loop.run(engine(url, Path(directory), int(records)))


if __name__ == "__main__":
    main()
