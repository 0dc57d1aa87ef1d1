"""Cost in Postgres of each part of a record, measured by leaving it out.

The commits are those of `bench.rate`'s ceiling: a seen id, a state change and a production per
record. Each variant leaves one of them out, packs it or stores it in another form. The commits of a
variant are complete in themselves, but only the usual ones could be recovered from.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from bench.apart import apart
from bench.meter import Cost, metered, wal_position
from bench.rate import raw_store
from bench.server import drop
from millwheel.core.chunk import Chunks
from millwheel.store.port.commit import Commit
from millwheel.store.port.seen import SeenIds

SCHEMA = "bench_shares"
BUNDLE = 500
CONNECTIONS = 2

Change = Callable[[Commit], None]


def _ids_as_rows(commit: Commit) -> None:
    """Give each id of a commit a row, as those of weak productions have: with the first bit set."""
    for bucket, seen in commit.seen.items():
        rows = [(0, computation, bytes([id_[0] | 0x80]) + id_[1:]) for computation, id_ in seen]
        commit.seen[bucket] = SeenIds(rows)


def _without_ids(commit: Commit) -> None:
    commit.seen = {}


def _without_states(commit: Commit) -> None:
    commit.states = []


def _without_productions(commit: Commit) -> None:
    commit.productions = Chunks()


def _nothing(commit: Commit) -> None:
    """Leave a commit as it is."""


UNLOGGED = "unlogged"
"""The variant with all rows, in tables without WAL."""

VARIANTS: dict[str, Change] = {
    "all": _nothing,
    "a row for each id": _ids_as_rows,
    "no ids": _without_ids,
    "no state changes": _without_states,
    "no productions": _without_productions,
    UNLOGGED: _nothing,
}


async def variant(url: str, name: str, records: int) -> tuple[Cost, float]:
    """Measure the commits of a variant; returns their cost and WAL bytes per record."""
    async with raw_store(url, SCHEMA, BUNDLE, records, CONNECTIONS) as (lanes, work):
        for commits in work:
            for commit in commits:
                VARIANTS[name](commit)
        if name == UNLOGGED:
            _make_unlogged(url)

        async def run(number: int) -> None:
            for commit in work[number]:
                await lanes[number].commit(commit)

        before = wal_position(url)
        with metered(url, sum(len(commits) for commits in work) * BUNDLE) as cost:
            await asyncio.gather(*map(run, range(len(work))))
        wal = (wal_position(url) - before) / records
    drop(url, SCHEMA)
    return cost, wal


def _make_unlogged(url: str) -> None:
    """Turn off the WAL of the buckets: an upper bound for all that could be saved there."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace "
            "AND relname ~ '^(seen_record|seen_run|state_change|production)_[0-9]+$'",
            (SCHEMA,),
        ).fetchall()
        for (table,) in tables:
            name = sql.Identifier(SCHEMA, table)
            connection.execute(sql.SQL("ALTER TABLE {} SET UNLOGGED").format(name))


async def measure(url: str, *, rounds: int, records: int) -> dict[str, Any]:
    """Measure all variants in turns; take medians over the rounds."""
    found: dict[str, list[tuple[Cost, float]]] = {}
    for _ in range(rounds):
        for name in VARIANTS:
            found.setdefault(name, []).append(await apart(partial(variant, url), name, records))
    result = {}
    for name, of_rounds in found.items():
        beside = [(each, usual) for each, usual in zip(of_rounds, found["all"], strict=True)]
        result[name] = {
            "rate": statistics.median(each.rate / usual.rate for (each, _), (usual, _) in beside),
            "postgres": statistics.median(
                each.postgres_us / usual.postgres_us for (each, _), (usual, _) in beside
            ),
            "postgres_us": statistics.median(cost.postgres_us for cost, _ in of_rounds),
            "wal_bytes": statistics.median(wal for _, wal in of_rounds),
        }
        figures = result[name]
        print(
            f"{name:18}: {figures['rate']:.2f} of the rate, {figures['postgres']:.2f} of Postgres' "
            f"CPU ({figures['postgres_us']:.1f} us), {figures['wal_bytes']:.0f} bytes of WAL a "
            "record"
        )
    return {"shares": result}
