"""How long a reader of committed records waits when a worker that writes to its topic is killed.

The dead worker's transaction stays open, and holds back all that is behind it, until its successor
has ended it. So the reader waits at least for the takeover: until the lease is over, and other
workers have claimed the intervals.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer

from bench.fleet import Fleet, fleet
from bench.kafka import brokers, committed, make
from bench.workload import payments

RATE = 200.0
LEASE_SECONDS = 3.0
AFTER_SECONDS = 5.0
"""Time to read on after the intervals are claimed."""

BLOCKED_SECONDS = 1.0
"""A longer pause is that of an open transaction."""

OWNER = "SELECT id::text FROM {} WHERE pid = %s"
NOT_CLAIMED = "SELECT count(*) FROM {} WHERE owner IS NULL OR owner = %s::uuid"


async def measure(url: str, directory: Path, address: str | None, *, kills: int) -> dict[str, Any]:
    """Kill a worker repeatedly while records pass; measure the reader's longest pause, and the
    takeover."""
    async with brokers(address, directory) as at:
        source, target = await make(at, "payments"), await make(at, "balances")
        read: list[float] = []
        reading = asyncio.create_task(_read(at, target, read))
        writing = asyncio.create_task(_write(at, source))
        try:
            runs = await asyncio.to_thread(
                _kill, url, directory, f"{at} {source} {target}", kills, read
            )
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
    blocked = [(paused, taken) for paused, taken in runs if paused > BLOCKED_SECONDS]
    result: dict[str, Any] = {
        "kills": len(runs),
        "blocked": len(blocked),
        "lease_seconds": LEASE_SECONDS,
        "takeover_seconds": statistics.median(taken for _, taken in runs),
    }
    if blocked:
        result["pause_seconds"] = statistics.median(paused for paused, _ in blocked)
        result["beyond_seconds"] = max(paused - taken for paused, taken in blocked)
        print(
            f"{len(blocked)} of {len(runs)} kills met an open transaction: the reader waits "
            f"{result['pause_seconds']:.2f} s, at most {result['beyond_seconds']:.2f} s longer "
            f"than the takeover; lease {LEASE_SECONDS:g} s"
        )
    else:
        print(f"none of {len(runs)} kills met an open transaction")
    return result


async def _read(address: str, topic: str, read: list[float]) -> None:
    """Note when records were read."""
    async with committed(address, topic) as some:
        while True:
            await some()
            read.append(time.time())


async def _write(address: str, topic: str) -> None:
    """Write payments at a steady rate, for ever."""
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    try:
        began = time.perf_counter()
        for number, payment in enumerate(payments(1 << 30)):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            await producer.send(topic, msgspec.json.encode(payment), partition=0)
    finally:
        await producer.stop()


def _kill(
    url: str, directory: Path, topics: str, kills: int, read: list[float]
) -> list[tuple[float, float]]:
    """The seconds of the reader's longest pause, and of the takeover, of each kill."""
    found = []
    with fleet(
        url, directory, "topics", BENCH_KAFKA=topics, BENCH_LEASE=str(LEASE_SECONDS)
    ) as made:
        made.start(1)
        for _ in range(kills):
            made.start(1)
            time.sleep(3)
            found.append(_takeover(made, read))
    return found


def _takeover(made: Fleet, read: list[float]) -> tuple[float, float]:
    victim = made.processes.pop(0)
    ((worker,),) = made.ask(OWNER, "worker", victim.pid)
    killed = time.time()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    made.wait_until(
        lambda: made.ask(NOT_CLAIMED, "key_interval", worker) == [(0,)], "all intervals claimed"
    )
    taken = time.time() - killed
    time.sleep(AFTER_SECONDS)
    times = [at for at in read if at > killed - 1.0]
    return max(later - earlier for earlier, later in pairwise(times)), taken
