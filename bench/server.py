"""The Postgres server of the benchmark, and fresh schemas in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from millwheel.store import embedded
from millwheel.store.console.migrate import migrate
from millwheel.store.postgres import arrays
from millwheel.store.postgres.store import PostgresStore


@contextmanager
def server() -> Iterator[tuple[str, Path]]:
    """Start a server, or use ``MILLWHEEL_BENCH_STORE``; yield its URL and a directory for files."""
    directory = Path(tempfile.mkdtemp(prefix="millwheel-bench-"))
    directory.chmod(0o755)
    url = os.environ.get("MILLWHEEL_BENCH_STORE")
    try:
        if url is not None:
            yield url, directory
            return
        store = directory / "store"
        try:
            tune(embedded.start(store).url)
            embedded.stop(store)
            yield embedded.start(store).url, directory
        finally:
            embedded.remove(store)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def tune(url: str) -> None:
    """Apply the settings of docs/howto/run/scale.md, from the server's next start on.

    They make checkpoints rare, since whole pages go to the WAL after each, and leave memory for the
    indexes that rows are inserted into.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET max_wal_size = '8GB'")
        connection.execute("ALTER SYSTEM SET shared_buffers = '2GB'")


async def connected(url: str, schema: str, connections: int) -> list[psycopg.AsyncConnection[Any]]:
    """Return N connections that find tables in the schema, and take packed arrays."""
    found = [
        await psycopg.AsyncConnection.connect(
            url, autocommit=True, options=f"-c search_path={schema}"
        )
        for _ in range(connections)
    ]
    for connection in found:
        arrays.register(connection.adapters)
    return found


def make_wal_files(url: str, number: int) -> None:
    """Make so many files of 16 MiB for the WAL to come, as a server has them that has run for hours
    with this ``min_wal_size``; otherwise the session that needs the next file makes it first."""
    with psycopg.connect(url, autocommit=True) as connection:
        size = sql.Literal(f"{16 * number}MB")
        connection.execute(sql.SQL("ALTER SYSTEM SET min_wal_size = {}").format(size))
        connection.execute("SELECT pg_reload_conf()")
        for _ in range(number):
            connection.execute("SELECT pg_logical_emit_message(false, 'bench', '')")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")


def drop(url: str, schema: str) -> None:
    """Drop a schema, and run a checkpoint."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema))
        )
        connection.execute("CHECKPOINT")


def settle(url: str, schema: str, *tables: str) -> None:
    """Bring newly filled tables into their usual condition: with statistics, and without pages that
    their first reader would have to write."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in tables:
            name = sql.Identifier(schema, table)
            connection.execute(sql.SQL("VACUUM (FREEZE, ANALYZE) {}").format(name))
        connection.execute("CHECKPOINT")


async def fresh_store(url: str, schema: str) -> PostgresStore:
    """Create an empty store."""
    drop(url, schema)
    migrate(url, schema)
    return await PostgresStore(url, schema).open()
