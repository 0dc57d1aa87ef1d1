"""How many instructions of the processor a record takes in its worker, as Valgrind counts them, and
how often it finds something in none of the caches that a core has for itself.

Unlike time and CPU time they do not depend on what else a machine does, so that a change of half a
per cent is seen: time follows them roughly. What is not found it waits for, and how long depends on the
machine and its neighbours; nothing is fetched ahead here, as processors do. Postgres does not
count: commits are put together and packed, and take a while in place of being sent.
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
from millwheel.store.lane import PostgresLane
from millwheel.store.port import Commit

COMMIT_SECONDS = 0.6
"""For so long as Python under Valgrind takes for the next one."""

LARGE = 300
"""Productions in a commit of full load. What is stored before is sent."""

SCHEMA = "bench_instructions"

CACHES = ("--I1=32768,8,64", "--D1=49152,12,64", "--LL=2097152,16,64")
"""Of a server's core: bytes, ways, bytes of a line."""

COUNTED = {
    "instructions": re.compile(r"I\s+refs:\s+([\d,]+)"),
    "misses": re.compile(r"LL misses:\s+([\d,]+)"),
}
"""Where Valgrind says it."""


async def measure(url: str, directory: Path, *, records: int) -> dict[str, Any]:
    """Of a record: what three times as many take more, so that the start does not count.

    Raises:
        SystemExit: there is no Valgrind.
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
        f"a record takes {ours['instructions']:,.0f} instructions of its worker; its JSON by itself "
        f"(decode the row, encode state and output) {least['instructions']:,.0f}: {ratio:.1f} times as "
        f"many. Not in 2 MB of cache: {ours['misses']:.0f} and {least['misses']:.0f} times"
    )
    return {**found, "ratio": ratio}


async def _count(work: str, url: str, directory: Path, records: int) -> dict[str, int]:
    lines_file(directory, records)  # else its making counts
    process = await asyncio.create_subprocess_exec(
        "valgrind", "--tool=cachegrind", "--cache-sim=yes", *CACHES, "--cachegrind-out-file=/dev/null",
        sys.executable, "-m", "bench.instructions", work, url, str(directory), str(records),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, said = await process.communicate()
    said_of = {what: where.search(said.decode()) for what, where in COUNTED.items()}
    counted = {what: int(each[1].replace(",", "")) for what, each in said_of.items() if each}
    if process.returncode or len(counted) < len(COUNTED):
        raise RuntimeError(f"nothing was counted: {(out + said).decode()[-2000:]}")
    return counted


async def engine(url: str, directory: Path, records: int) -> None:
    """The engine over so many payments, with commits that are not sent."""
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
    )  # else chunks would be as short as Valgrind is slow
    await running.start()
    task = asyncio.create_task(running.run())
    while running.processed < records and not task.done():
        await asyncio.sleep(0.02)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task  # if it has failed, too little was counted
    drop(url, SCHEMA)


def json(directory: Path, records: int) -> None:
    """What no engine can do without, for each row of the file."""
    decode = msgspec.json.Decoder(Payment).decode
    encode = msgspec.json.Encoder().encode
    for line in lines_file(directory, records).read_bytes().splitlines():
        payment = decode(line)
        encode(Account(1, payment.amount))
        encode(Balance(payment.account, 1, payment.amount))


def main() -> None:
    """In a process of its own, under Valgrind."""
    work, url, directory, records = sys.argv[1:]
    quiet()
    if work == "json":
        json(Path(directory), int(records))
    else:
        loop.run(engine(url, Path(directory), int(records)))


if __name__ == "__main__":
    main()
