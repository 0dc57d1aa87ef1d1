"""States of ten to a hundred thousand bytes; each record changes its state, so all of it is
written."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.apart import apart
from bench.growth.running import run
from bench.server import drop, fresh_store
from bench.workload import PAYMENTS, Payment, payments
from millwheel import Computation, Context, JsonLines, Pipeline, Record

SCHEMA = "bench_sizes"
KEYS = 1000


class Ledger(msgspec.Struct):
    """A state with a text of the wanted size."""

    payments: int = 0
    text: str = ""


class KeepLedger(Computation[Payment, Ledger]):
    """Changes its state with each record."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def process_record(self, record: Record[Payment], ctx: Context[Ledger]) -> None:
        if not ctx.state.text:
            # Random hexadecimal digits compress to a half, about as real text does.
            ctx.state.text = random.Random(record.value.account).randbytes(self._size // 2).hex()
        ctx.state.payments += 1


def pipeline(path: Path, size: int) -> Pipeline:
    """Build a pipeline with few keys and large states."""
    made = Pipeline(SCHEMA)
    made.inject(
        PAYMENTS,
        JsonLines(path),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
    )
    made.add(KeepLedger(size), PAYMENTS.by(lambda payment: payment.account), name="keep_ledger")
    return made


async def point(url: str, path: Path, size: int, rows: int) -> dict[str, Any]:
    """Measure a run with states of one size."""
    store = await fresh_store(url, SCHEMA)
    try:
        return await run(pipeline(path, size), store, rows)
    finally:
        await store.close()


async def measure(url: str, directory: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure one size after the other; large sizes with about the same total number of bytes."""
    found = []
    total = 20_000_000 if quick else 600_000_000
    most = 10_000 if quick else 200_000
    for size in (10, 1_000, 10_000) if quick else (10, 100, 1_000, 10_000, 100_000):
        rows = min(most, total // size)
        path = directory / f"sizes-{size}.jsonl"
        encode = msgspec.json.Encoder().encode
        with path.open("wb") as file:
            for payment in payments(rows):
                payment.account %= KEYS
                file.write(encode(payment) + b"\n")
        line = await apart(point, url, path, size, rows)
        found.append({"bytes": size, "megabytes_per_second": line["rate"] * size / 1e6, **line})
        print(
            f"  {size:7,} bytes: {line['rate']:9,.0f} records/s = "
            f"{line['rate'] * size / 1e6:6.1f} MB/s, peak {line['peak_megabytes']:.0f} MB"
        )
        path.unlink()
    drop(url, SCHEMA)
    return found
