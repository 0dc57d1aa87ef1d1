"""Records over HTTP and by ``send``: time until a request is answered, beside a raw commit of one
row.

A worker process serves HTTP and processes the records; this process is the clients.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from bench.server import drop
from bench.workload import PAYMENTS, KeepBalance, payments
from millwheel import Discard, Inbox, Pipeline
from millwheel.client import Client
from millwheel.store.console.migrate import migrate

NAME = "bench_ingest"
CLIENTS = 32
LINES = 500

Once = Callable[[], Awaitable[Any]]


def pipeline() -> Pipeline:
    """Payments from an inbox, added up for each account."""
    from bench.workload import BALANCES

    made = Pipeline(NAME)
    made.inject(PAYMENTS, Inbox())
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    made.sink(BALANCES, Discard())
    return made


class Connection:
    """A connection that stays open: one request at a time, as a client with keep-alive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = 0

    async def open(self, name: str) -> Connection:
        self._name = name
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def post(self, body: bytes, kind: str = "application/json") -> None:
        """Send one request, and check its answer."""
        self._number += 1
        self._writer.write(
            f"POST /streams/payments HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n"
            f"idempotency-key: {self._name}-{self._number}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def serving(url: str, directory: Path) -> AsyncIterator[int]:
    """A worker that serves HTTP; gives its port."""
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
        yield port
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


async def rate(clients: list[Once], seconds: float) -> float:
    """Calls a second, by some clients at once."""
    calls = 0
    end = time.perf_counter() + seconds

    async def go(once: Once) -> None:
        nonlocal calls
        while time.perf_counter() < end:
            await once()
            calls += 1

    start = time.perf_counter()
    await asyncio.gather(*map(go, clients))
    return calls / (time.perf_counter() - start)


async def measure(url: str, directory: Path, *, samples: int) -> dict[str, Any]:
    """Measure in turns: a raw commit of one row, a request, and `Client.send`."""
    bodies = [msgspec.json.encode(payment) for payment in payments(LINES)]
    async with (
        serving(url, directory) as port,
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
        alone = await Connection(port).open("alone")

        async def raw() -> None:
            await connection.execute(insert, (text,), prepare=True)

        async def post() -> None:
            await alone.post(body)

        async def send() -> None:
            await client.send_json("payments", [body])

        times: dict[str, list[float]] = {"raw": [], "post": [], "send": []}
        for once in (raw, post, send):
            await timed(once, 50)
        for _ in range(5):
            for name, once in (("raw", raw), ("post", post), ("send", send)):
                times[name] += await timed(once, samples // 5)
        many = [await Connection(port).open(f"many{number}") for number in range(CLIENTS)]
        requests = await rate([lambda each=each: each.post(body) for each in many], samples / 100)  # type: ignore[misc]
        raw_rate = await rate([raw], samples / 200)
        lines = b"\n".join(bodies)

        async def post_lines() -> None:
            await alone.post(lines, "application/x-ndjson")

        batches = await rate([post_lines], samples / 200)
        for each in (alone, *many):
            each.close()
    p50 = {name: statistics.median(found) * 1000 for name, found in times.items()}
    p99 = {name: statistics.quantiles(found, n=100)[98] * 1000 for name, found in times.items()}
    result = {
        "p50_ms": p50,
        "p99_ms": p99,
        "post_ratio": p50["post"] / p50["raw"],
        "send_ratio": p50["send"] / p50["raw"],
        "requests_per_second": requests,
        "raw_commits_per_second": raw_rate,
        "requests_ratio": requests / raw_rate,
        "lines_per_second": batches * LINES,
    }
    print(
        f"p50: raw commit {p50['raw']:.2f} ms, POST {p50['post']:.2f} ms "
        f"({result['post_ratio']:.1f} x), send {p50['send']:.2f} ms ({result['send_ratio']:.1f} "
        f"x); p99 of POST {p99['post']:.2f} ms"
    )
    print(
        f"{CLIENTS} clients: {requests:,.0f} requests/s, {result['requests_ratio']:.1f} x the rate "
        f"of raw commits on one connection ({raw_rate:,.0f}/s); {LINES} lines a request: "
        f"{result['lines_per_second']:,.0f} records/s"
    )
    return result
