"""The obvious layout as raw SQL, the baseline for the layout in use.

A bundle of records is one transaction: it inserts a row per seen id and per production, upserts
each key's state, and deletes the productions of the previous bundle as acknowledged. It uses one
packed array per column, prepared statements and one pipeline; each connection has its own keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from bench.meter import Cost, metered
from bench.server import connected, drop
from bench.workload import Account, Balance, payments
from millwheel.core.codec import encode_key
from millwheel.core.model import record_id
from millwheel.store.postgres import arrays

SCHEMA = "bench_plain"
TABLES = """
CREATE TABLE seen (interval_id int, id uuid, PRIMARY KEY (interval_id, id));
CREATE TABLE state (computation int, key text, value jsonb, PRIMARY KEY (computation, key));
CREATE TABLE production (
    log int, seq bigint, receiver int, key text, ts bigint, value jsonb, PRIMARY KEY (log, seq)
);
"""
NOTE = "INSERT INTO seen SELECT %s, unnest(%s::uuid[])"
STORE = """
INSERT INTO state SELECT 1, * FROM unnest(%s::text[], %s::jsonb[])
ON CONFLICT (computation, key) DO UPDATE SET value = excluded.value
"""
SEND = """
INSERT INTO production
SELECT %s, seq, 2, key, 0, value FROM unnest(%s::bigint[], %s::text[], %s::jsonb[])
    AS row (seq, key, value)
"""
FORGET = "DELETE FROM production WHERE log = %s AND seq < %s"

Bundle = tuple[int, list[bytes], dict[bytes, bytes], list[int], list[bytes], list[bytes]]


def bundles(number: int, records: int, size: int) -> Iterator[Bundle]:
    """Yield the workload's rows as parameters of the statements."""
    encode = msgspec.json.Encoder().encode
    state = encode(Account(123, 45_678))
    rows = list(payments(records, seed=number))
    for start in range(0, records, size):
        seen, states, seqs, keys, values = [], {}, [], [], []
        for seq, payment in enumerate(rows[start : start + size], start):
            key = b"%d:%b" % (number, encode_key(payment.account)[0])
            seen.append(record_id(1 << 40 | number, seq))
            states[key] = state
            seqs.append(seq)
            keys.append(key)
            values.append(encode(Balance(payment.account, 123, 45_678)))
        yield start, seen, dict(sorted(states.items())), seqs, keys, values


async def write(connection: psycopg.AsyncConnection[Any], number: int, bundle: Bundle) -> None:
    """Write a bundle in one transaction."""
    start, seen, states, seqs, keys, values = bundle
    async with connection.pipeline(), connection.transaction():
        for statement, parameters in (
            (NOTE, (number, arrays.uuids(seen))),
            (STORE, (arrays.texts(list(states)), arrays.jsonbs(list(states.values())))),
            (SEND, (number, arrays.bigints(seqs), arrays.texts(keys), arrays.jsonbs(values))),
            (FORGET, (number, start)),
        ):
            await connection.execute(statement, parameters, prepare=True, binary=True)


async def rate(url: str, bundle: int, records: int, connections: int) -> Cost:
    """Measure raw commits of `bundle` records in this layout."""
    drop(url, SCHEMA)
    schema = sql.Identifier(SCHEMA)
    with psycopg.connect(url, autocommit=True) as first:
        first.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        first.execute(sql.SQL("SET search_path = {}").format(schema))
        first.execute(TABLES)
    share = records // connections
    work = [list(bundles(number, share, bundle)) for number in range(connections)]
    lanes = await connected(url, SCHEMA, connections)

    async def run(number: int) -> None:
        for each in work[number]:
            await write(lanes[number], number, each)

    with metered(url, share * connections) as cost:
        await asyncio.gather(*(run(number) for number in range(connections)))
    for lane in lanes:
        await lane.close()
    drop(url, SCHEMA)
    return cost
