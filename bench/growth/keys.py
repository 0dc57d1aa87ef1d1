"""From 10^3 to 10^7 keys, each with its state already in the store.

The cache holds the states of a tenth of the keys, and the warm-up fills it with the most frequent
ones. *Zipf*: the k-th most frequent key occurs about 1/k as often as the first, so most records
find their state in memory. *Uniform*: nine of ten records do not; for comparison, raw SQL reads
states in chunks of the engine's size. *All cached*: Zipf over few keys, as the reference.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from bench.apart import apart
from bench.growth.running import run
from bench.server import drop, fresh_store, settle
from bench.workload import START, Payment
from bench.workload import pipeline as workload
from millwheel import JsonLines, Pipeline, Settings
from millwheel.core.codec import encode_key
from millwheel.runtime.engine import Engine
from millwheel.runtime.keys.key_state import KEY_BYTES
from millwheel.store.postgres.store import PostgresStore

SCHEMA = "bench_keys"
STATE = b'{"total":500,"payments":1}'
CACHED = 0.1
"""Share of the keys whose states fit into the cache."""
BASE = 10_000
"""Number of keys of the reference."""
ALL = "all cached"
CHUNK = Settings().chunk_records
STRIDE = 2_654_435_761
"""Coprime to every power of ten, so that it spreads the frequent keys over all keys."""


def draw(way: str, keys: int, rows: int) -> Iterator[int]:
    """Draw the key of each row."""
    chance = random.Random(keys)
    for _ in range(rows):
        if way == "uniform":
            yield chance.randrange(keys)
        else:
            yield ranked(int((keys + 1) ** chance.random() - 1), keys)


def ranked(rank: int, keys: int) -> int:
    """The key that comes so often; the most frequent one has rank 0."""
    return rank * STRIDE % keys


def warm_rows(way: str, keys: int, rows: int) -> int:
    """Return the number of warm-up rows: one per cached key, at least a tenth of the rows."""
    return max(int(keys * CACHED), rows // 10) if way != ALL else keys + rows // 10


def warm(keys: int, rows: int) -> Iterator[int]:
    """Return the keys of the warm-up rows, the most frequent ones last."""
    for number in reversed(range(rows)):
        yield ranked(number % keys, keys)


def write_rows(directory: Path, way: str, keys: int, rows: int) -> Path:
    """Write the payments of a point, including its warm-up."""
    path = directory / f"keys-{way}-{keys}.jsonl"
    encode = msgspec.json.Encoder().encode
    drawn = chain(warm(keys, warm_rows(way, keys, rows)), draw(way, keys, rows))
    with path.open("wb") as file:
        for number, key in enumerate(drawn):
            at = START + timedelta(milliseconds=number)
            file.write(encode(Payment(at, key, 1 + number % 999)) + b"\n")
    return path


def pipeline(path: Path, way: str, keys: int) -> Pipeline:
    """Build the workload, with a cache for the share of the keys."""
    settings = replace(Settings(), cache_bytes=cache_bytes(way, keys))
    return workload(SCHEMA, JsonLines(path), settings)


def cache_bytes(way: str, keys: int) -> int:
    """Return the cache size for the share of the keys, as the engine counts it."""
    part = 2 if way == ALL else CACHED
    return int(keys * part * (KEY_BYTES + len(STATE)))


async def deployed(url: str, made: Pipeline) -> int:
    """Create the pipeline's tables; return the id of its only computation."""
    store = await fresh_store(url, made.name)
    engine = Engine(made, store)
    await engine.start()
    await engine.stop()
    await store.close()
    return next(id_ for id_, step in engine.exchange.steps.items() if step.name == "keep_balance")


def fill(url: str, computation: int, keys: int) -> None:
    """Write the state of every key into the table that folds write, in its order."""
    with psycopg.connect(url) as connection:
        connection.execute('CREATE TEMPORARY TABLE key_slot (slot integer, key text COLLATE "C")')
        with connection.cursor().copy("COPY key_slot FROM STDIN") as copy:
            for first in range(0, keys, 10_000):
                copy.write(_lines(range(first, min(first + 10_000, keys))))
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (slot, computation, key, entry, value, version) "
                "SELECT slot, %s, key, '', %s::jsonb, 1 FROM key_slot ORDER BY slot, key"
            ).format(sql.Identifier(SCHEMA, "state")),
            (computation, STATE.decode()),
        )
    settle(url, SCHEMA, "state")


def _lines(keys: range) -> bytes:
    lines = []
    for key in keys:
        text, slot = encode_key(key)
        lines.append(b"%d\t%s\n" % (slot, text))
    return b"".join(lines)


async def point(url: str, path: Path, way: str, keys: int, rows: int) -> dict[str, Any]:
    """Measure a run on the filled store."""
    store = await PostgresStore(url, SCHEMA).open()
    before = warm_rows(way, keys, rows)
    try:
        return await run(pipeline(path, way, keys), store, before + rows, warm=before)
    finally:
        await store.close()


async def raw_reads(url: str, computation: int, keys: int, rows: int) -> float:
    """Return the states per second that the engine's statement reads for uniformly drawn keys."""
    store = await PostgresStore(url, SCHEMA).open()
    chance = random.Random(7)
    chunks = [
        [encode_key(chance.randrange(keys))[::-1] for _ in range(CHUNK)]
        for _ in range(max(1, rows // CHUNK))
    ]
    before = time.perf_counter()
    for chunk in chunks:
        await store.load_keys(computation, chunk, 64)
    seconds = time.perf_counter() - before
    await store.close()
    return len(chunks) * CHUNK / seconds


async def measure(url: str, directory: Path, quick: bool) -> list[dict[str, Any]]:
    """Measure both distributions at each number of keys; the largest between two reference runs."""
    rows = 30_000 if quick else 300_000
    numbers = (1_000, 10_000, 100_000) if quick else (10**3, 10**4, 10**5, 10**6, 10**7)

    async def one(way: str, keys: int) -> dict[str, Any]:
        path = write_rows(directory, way, keys, rows)
        computation = await deployed(url, pipeline(path, way, keys))
        fill(url, computation, keys)
        raw = await raw_reads(url, computation, keys, rows // 5)
        line = await apart(point, url, path, way, keys, rows)
        cache = cache_bytes(way, keys) / 1e6
        print(
            f"  {keys:10,} keys, {way:10}: {line['rate']:9,.0f} records/s, peak "
            f"{line['peak_megabytes']:.0f} MB (cache: {cache:.1f}); raw SQL reads {raw:,.0f} "
            "states/s"
        )
        path.unlink()
        return {"keys": keys, "way": way, "raw_reads": raw, "cache_megabytes": cache, **line}

    *fewer, most = numbers
    found = [await one(way, keys) for keys in fewer for way in ("zipf", "uniform")]
    for way in ("zipf", "uniform"):
        before, line, after = await one(ALL, BASE), await one(way, most), await one(ALL, BASE)
        beside = (before["rate"] + after["rate"]) / 2
        found += [before, {**line, "beside": beside}, after]
    drop(url, SCHEMA)
    return found
