"""Keys from 10^3 to 10^7, each with its state in the store already.

The cache holds the state of a tenth of them, and is full of the most frequent ones before anything
counts. *Zipf*: the k-th most frequent key comes about 1/k as often as the first, so that most records find
their state in memory. *Uniform*: nine of ten do not; beside it stands how fast raw SQL reads as many
states, a chunk of the engine's at a time. *All cached*: Zipf over few keys, for comparison.
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
from millwheel.codec import encode_key
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.key_state import KEY_BYTES
from millwheel.store.postgres import PostgresStore

SCHEMA = "bench_keys"
STATE = b'{"total":500,"payments":1}'
CACHED = 0.1
"""Part of the keys whose state fits into the cache."""
BASE = 10_000
"""Keys to compare with."""
ALL = "all cached"
CHUNK = Settings().chunk_records
STRIDE = 2_654_435_761
"""Odd, and prime to every power of ten: it spreads the frequent keys over all of them."""


def draw(way: str, keys: int, rows: int) -> Iterator[int]:
    """The key of each row."""
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
    """Rows that do not count: one for each key that the cache holds, or a tenth."""
    return max(int(keys * CACHED), rows // 10) if way != ALL else keys + rows // 10


def warm(keys: int, rows: int) -> Iterator[int]:
    """Their keys, the most frequent ones last."""
    for number in reversed(range(rows)):
        yield ranked(number % keys, keys)


def write_rows(directory: Path, way: str, keys: int, rows: int) -> Path:
    """The payments of a point, those before that do not count."""
    path = directory / f"keys-{way}-{keys}.jsonl"
    encode = msgspec.json.Encoder().encode
    drawn = chain(warm(keys, warm_rows(way, keys, rows)), draw(way, keys, rows))
    with path.open("wb") as file:
        for number, key in enumerate(drawn):
            at = START + timedelta(milliseconds=number)
            file.write(encode(Payment(at, key, 1 + number % 999)) + b"\n")
    return path


def pipeline(path: Path, way: str, keys: int) -> Pipeline:
    """The workload, with a cache for its part of the keys."""
    settings = replace(Settings(), cache_bytes=cache_bytes(way, keys))
    return workload(SCHEMA, JsonLines(path), settings)


def cache_bytes(way: str, keys: int) -> int:
    """What the part of the keys that is cached takes, as the engine counts it."""
    part = 2 if way == ALL else CACHED
    return int(keys * part * (KEY_BYTES + len(STATE)))


async def deployed(url: str, made: Pipeline) -> int:
    """Lay out the pipeline's tables; gives the number of its one computation."""
    store = await fresh_store(url, made.name)
    engine = Engine(made, store)
    await engine.start()
    await engine.stop()
    await store.close()
    return next(id_ for id_, step in engine.steps.items() if step.name == "keep_balance")


def fill(url: str, computation: int, keys: int) -> None:
    """Put the state of every key where folds leave it, in the order of the table."""
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
    """A run over what is filled."""
    store = await PostgresStore(url, SCHEMA).open()
    before = warm_rows(way, keys, rows)
    try:
        return await run(pipeline(path, way, keys), store, before + rows, warm=before)
    finally:
        await store.close()


async def raw_reads(url: str, computation: int, keys: int, rows: int) -> float:
    """States a second that the engine's own statement reads, drawn evenly."""
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
    """Both ways at each number of keys; those with the most between two that are all cached."""
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
            f"  {keys:10,} keys, {way:10}: {line['rate']:9,.0f} records/s, at most "
            f"{line['peak_megabytes']:.0f} MB (cache: {cache:.1f}); raw SQL reads {raw:,.0f} states/s"
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
