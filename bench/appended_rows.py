"""The same commits as rows: one for each seen id, changed state and production, as the engine wrote
them before they became runs and columns (decisions 69 and 75), and as SQL by hand would append
them."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from bench.server import connected
from millwheel.core.chunk import Chunk, Chunks
from millwheel.store.port.commit import Commit
from millwheel.store.postgres import arrays

TABLES = """
CREATE TABLE row_commit (interval_id bigint, n bigint, stamp bigint, PRIMARY KEY (interval_id, n));
CREATE TABLE row_seen (
    slot integer, computation smallint, id uuid, PRIMARY KEY (computation, id, slot)
);
CREATE TABLE row_state (
    interval_id bigint, n bigint, computation smallint, slot integer, key text COLLATE "C",
    entry text COLLATE "C", value jsonb, version smallint
);
CREATE INDEX ON row_state (interval_id, n);
CREATE TABLE row_production (
    log bigint, seq bigint, stream smallint, receiver smallint, slot integer, key text COLLATE "C",
    value text, version smallint, ts bigint, hold bigint, stamp bigint, PRIMARY KEY (log, seq)
);
"""

APPEND = """
WITH seen AS (
    INSERT INTO row_seen SELECT * FROM unnest(%s::integer[], %s::smallint[], %s::uuid[])
), states AS (
    INSERT INTO row_state SELECT * FROM unnest(
        %s::bigint[], %s::bigint[], %s::smallint[], %s::integer[], %s::text[], %s::text[],
        %s::jsonb[], %s::smallint[]
    )
), productions AS (
    INSERT INTO row_production SELECT * FROM unnest(
        %s::bigint[], %s::bigint[], %s::smallint[], %s::smallint[], %s::integer[], %s::text[],
        %s::text[], %s::smallint[], %s::bigint[], %s::bigint[], %s::bigint[]
    )
)
INSERT INTO row_commit VALUES (%s, %s, %s)
"""


async def opened(url: str, schema: str, connections: int) -> list[psycopg.AsyncConnection[Any]]:
    """Create the tables; return N connections."""
    with psycopg.connect(url, autocommit=True) as first:
        first.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        first.execute(TABLES)
    return await connected(url, schema, connections)


def ids_of(commit: Commit) -> list[bytes]:
    """Make the ids of a commit's numbers."""
    return [id_ for seen in commit.seen.values() for _, id_ in seen]


async def append(
    connection: psycopg.AsyncConnection[Any], commit: Commit, ids: list[bytes]
) -> None:
    """Write a commit with one interval, one chunk of productions, and ids that are numbers."""
    (link,), (states,) = commit.intervals, commit.states
    assert isinstance(commit.productions, Chunks)
    (chunk,) = commit.productions.chunks
    changed, sent = len(states.slots), len(chunk)
    await connection.execute(
        APPEND,
        (
            arrays.integers(chunk.slots),
            arrays.smallints([states.computation] * sent),
            arrays.uuids(ids),
            arrays.bigints([states.interval_id] * changed),
            arrays.bigints([states.n] * changed),
            arrays.smallints([states.computation] * changed),
            arrays.integers(states.slots),
            arrays.texts(states.keys),
            arrays.texts([b""] * changed),
            arrays.jsonbs(states.values),
            arrays.smallints([states.version] * changed),
            *_production_columns(chunk),
            link.interval_id,
            link.n,
            commit.stamp,
        ),
        prepare=True,
    )


def _production_columns(chunk: Chunk) -> list[arrays.Packed]:
    count = len(chunk)
    return [
        arrays.bigints([chunk.log] * count),
        arrays.bigints(chunk.numbers),
        arrays.smallints([1] * count),
        arrays.smallints([1] * count),
        arrays.integers(chunk.slots),
        arrays.texts(chunk.key_texts),
        arrays.texts(chunk.encoded),
        arrays.smallints([1] * count),
        arrays.bigints(chunk.micros),
        arrays.bigints(chunk.holds),
        arrays.bigints([chunk.stamp] * count),
    ]
