"""Records over HTTP and by ``send``: time until a request is answered, beside a raw commit of one
row.

A worker process serves HTTP and processes the records; another one is the clients
(`bench.post_clients`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from bench.apart import apart
from bench.post_clients import JSON, NDJSON, Posted, posted
from bench.server import drop
from bench.workload import PAYMENTS, KeepBalance, payments
from millwheel import Discard, Inbox, Pipeline
from millwheel.client import Client
from millwheel.store.console.migrate import migrate

NAME = "bench_ingest"
CLIENTS = 32
LINES = 500
TURNS = 5

Once = Callable[[], Awaitable[Any]]


def pipeline() -> Pipeline:
    """Payments from an inbox, added up for each account."""
    from bench.workload import BALANCES

    made = Pipeline(NAME)
    made.inject(PAYMENTS, Inbox())
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    made.sink(BALANCES, Discard())
    return made


@asynccontextmanager
async def serving(url: str, directory: Path) -> AsyncIterator[tuple[int, int]]:
    """A worker that serves HTTP; gives its port and process id."""
    drop(url, NAME)
    migrate(url, NAME)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = directory / "ingest.log"
    command = [sys.executable, "-m", "millwheel", "worker", "bench.ingest:pipeline"]
    with log.open("wb") as output:
        worker = await asyncio.create_subprocess_exec(
            *command, "--ingest", f"127.0.0.1:{port}",
            env={**os.environ, "MILLWHEEL_STORE": url}, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        while b'"started"' not in log.read_bytes():
            if worker.returncode is not None:
                raise RuntimeError(log.read_text())
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)
        yield port, worker.pid
    finally:
        worker.terminate()
        await worker.wait()


async def timed(once: Once, samples: int) -> list[float]:
    """Seconds of each of some calls, one after the other."""
    found = []
    for _ in range(samples):
        start = time.perf_counter()
        await once()
        found.append(time.perf_counter() - start)
    return found


async def rate(once: Once, calls: int) -> float:
    """Calls a second, one after the other."""
    start = time.perf_counter()
    for _ in range(calls):
        await once()
    return calls / (time.perf_counter() - start)


async def measure(url: str, directory: Path, *, samples: int) -> dict[str, Any]:
    """Measure in turns: a raw commit of one row, a request, and `Client.send`."""
    bodies = [msgspec.json.encode(payment) for payment in payments(LINES)]
    async with (
        serving(url, directory) as (port, worker),
        Client(NAME, url) as client,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        table = sql.Identifier(NAME, "raw_row")
        await connection.execute(
            sql.SQL(
                "CREATE TABLE {} "
                "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value text)"
            ).format(table)
        )  # fmt: skip
        insert = sql.SQL("INSERT INTO {} (value) VALUES (%s)").format(table)
        text, body = bodies[0].decode(), bodies[0]

        async def raw() -> None:
            await connection.execute(insert, (text,), prepare=True)

        async def send() -> None:
            await client.send_json("payments", [body])

        async def post(
            name: str, requests: int, clients: int = 1, *, body: bytes = body, kind: str = JSON
        ) -> Posted:
            work = partial(
                posted, clients=clients, requests=requests, worker=worker, url=url, kind=kind
            )
            return await apart(work, port, name, body)

        times: dict[str, list[float]] = {"raw": [], "post": [], "send": []}
        for once in (raw, send):
            await timed(once, 50)
        await post("first", 50)
        for turn in range(TURNS):
            times["raw"] += await timed(raw, samples // TURNS)
            times["post"] += (await post(f"alone{turn}", samples // TURNS)).times
            times["send"] += await timed(send, samples // TURNS)
        rates: list[tuple[float, float]] = []
        """Requests, and raw commits, a second."""
        cpu: Counter[str] = Counter()
        requests = 4 * samples // TURNS
        for turn in range(TURNS):
            found = await post(f"many{turn}", requests, CLIENTS)
            rates.append((found.per_second, await rate(raw, samples // TURNS)))
            cpu.update(found.cpu)
        batches = await post("lines", max(2, samples // 50), body=b"\n".join(bodies), kind=NDJSON)
    p50 = {name: statistics.median(found) * 1000 for name, found in times.items()}
    p99 = {name: statistics.quantiles(found, n=100)[98] * 1000 for name, found in times.items()}
    cpu_us = {name: each / (TURNS * requests) * 1e6 for name, each in cpu.items()}
    per_second = statistics.median(found for found, _ in rates)
    raw_rate = statistics.median(found for _, found in rates)
    result = {
        "p50_ms": p50,
        "p99_ms": p99,
        "post_ratio": p50["post"] / p50["raw"],
        "send_ratio": p50["send"] / p50["raw"],
        "requests_per_second": per_second,
        "raw_commits_per_second": raw_rate,
        "requests_ratio": statistics.median(found / commits for found, commits in rates),
        "cpu_us_per_request": cpu_us,
        "lines_per_second": batches.per_second * LINES,
    }
    print(
        f"p50: raw commit {p50['raw']:.2f} ms, POST {p50['post']:.2f} ms "
        f"({result['post_ratio']:.1f} x), send {p50['send']:.2f} ms ({result['send_ratio']:.1f} "
        f"x); p99 of POST {p99['post']:.2f} ms, of raw commits {p99['raw']:.2f} ms"
    )
    print(
        f"{CLIENTS} clients: {per_second:,.0f} requests/s, {result['requests_ratio']:.1f} x the "
        f"rate of raw commits on one connection ({raw_rate:,.0f}/s); CPU of a request, us: "
        f"{', '.join(f'{name} {each:.0f}' for name, each in cpu_us.items())}; {LINES} lines a "
        f"request: {result['lines_per_second']:,.0f} records/s"
    )
    return result
