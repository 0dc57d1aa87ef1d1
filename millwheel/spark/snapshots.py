"""The snapshot that all reads of one job share, held by the driver.

Postgres lets other transactions join a snapshot (``SET TRANSACTION SNAPSHOT``) as long as the
transaction that exported it is open. The process that keeps it open while Spark reads is the
driver's Python process, during the ``with`` block of :func:`snapshot`: there the user knows when
the work is done. The reader's processes do other work (see `millwheel.spark.stream_source`); one
started by ``partitions()`` does not learn when the last read has finished: a DataFrame's plan is
made once and computed any number of times, so any time limit would be wrong, or hold back vacuum.
The option ``snapshot`` passes the snapshot's id on.

Without that option two reads, or the two sides of a self-join, see different moments.

While a snapshot is held, row versions that were replaced since cannot be vacuumed, the pipeline's
tables cannot be dropped or altered (the engine drops old buckets later), and a migration waits. It
costs nothing per commit. It is released after an hour, unless `most_seconds` says otherwise.

LOCK comes first, then the snapshot. In the reverse order, a bucket dropped in between would be
missing, and a truncated one would read as empty, both without an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import structlog

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import StoreError, UsageError
from millwheel.spark.filters import Filter, written
from millwheel.spark.store_sessions import (
    Connection,
    lock,
    opened,
    reading,
    redacted,
    statement,
    store_url,
    translated,
)

MOST_SECONDS = 3600.0
"""Longest time for which a snapshot is held by default."""

LOCK_ATTEMPTS = 5
"""Attempts to list and lock the tables, which may be dropped in between."""


log = structlog.get_logger("millwheel.spark")


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a pipeline, held open by this process.

    ```python
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    with snapshot("postgresql://app@db/shop", "shop") as held:
        hours = spark.read.format("millwheel").options(**held.options("airport_hour")).load()
    ```
    """

    id: str
    pipeline: str
    store: str = field(repr=False)  # may hold a password
    relations: tuple[str, ...]

    def options(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
        with_store: bool = True,
    ) -> dict[str, str]:
        """The options of ``spark.read.format("millwheel")`` for a table or view.

        Args:
            table: its name.
            columns: names of the columns to read; None: all.
            filters: conditions that Postgres applies, all of which must hold:
                ``[("origin", "in", ["EWR", "JFK"]), ("hour", ">=", moment)]``.
            with_store: False to leave out the store, if workers have it in MILLWHEEL_STORE.

        Raises:
            UsageError: there is no such table or view; the message lists those that exist.
        """
        if table not in self.relations:
            raise UsageError(no_such_relation(self.pipeline, table, self.relations))
        options = {"pipeline": self.pipeline, "table": table, "snapshot": self.id}
        if columns is not None:
            options["columns"] = ",".join(columns)
        if filters is not None:
            options["filters"] = written(filters)
        return options | {"store": self.store} if with_store else options


@contextmanager
def snapshot(
    store: str | None = None,
    pipeline: str | None = None,
    *,
    most_seconds: float | None = MOST_SECONDS,
) -> Iterator[Snapshot]:
    """Hold a snapshot of a pipeline for any number of reads, all of which must run inside the
    block.

    ```python
    with snapshot("postgresql://app@db/shop", "shop", most_seconds=600) as held:
        options = held.options("airport_hour", filters=[("origin", "=", "JFK")])
    ```

    Args:
        store: a postgresql:// URL; None: the value of MILLWHEEL_STORE.
        pipeline: the pipeline's name; None: the store's only pipeline.
        most_seconds: time after which it is released, and reads that begin later fail; None: there
            is no limit.
    """
    url = store_url({} if store is None else {"store": store})
    if pipeline is None:
        pipeline = _only_pipeline(url)
    for _ in range(LOCK_ATTEMPTS):
        tables = _lockable(url, pipeline)
        with opened(url) as connection:
            held = _taken(connection, url, pipeline, tables)
            if held is not None:
                with _limited(connection, pipeline, most_seconds):
                    yield held
                return
    raise StoreError(
        f"tables of pipeline {pipeline!r} were dropped between listing and locking them, "
        f"{LOCK_ATTEMPTS} times in a row; try again"
    )


@contextmanager
def _limited(connection: Connection, pipeline: str, most_seconds: float | None) -> Iterator[None]:
    """It keeps Postgres from cleaning up."""

    def let_go() -> None:
        connection.close()
        log.warning(
            "snapshot_let_go",
            pipeline=pipeline,
            after_seconds=most_seconds,
            why="while it is held, Postgres cannot remove old row versions",
        )

    if most_seconds is None:
        yield
        return
    timer = threading.Timer(most_seconds, let_go)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def no_such_relation(pipeline: str, table: str, known: tuple[str, ...]) -> str:
    listed = ", ".join(known) if known else "none (is the pipeline's name right?)"
    message = f"pipeline {pipeline!r} has no table or view {table!r}; it has: {listed}"
    return with_suggestion(message, table, known)


def _taken(connection: Connection, url: str, pipeline: str, tables: list[str]) -> Snapshot | None:
    """None if a table was dropped since listed."""
    with translated(url):
        try:
            lock(connection, pipeline, tables)
        except psycopg.errors.UndefinedTable:
            return None
        row = connection.execute(statement("sessions/export_snapshot")).fetchone()
        assert row is not None
        return Snapshot(row[0], pipeline, url, tuple(_relations(connection, pipeline)))


def _lockable(url: str, pipeline: str) -> list[str]:
    with reading(url) as connection:
        if not _relations(connection, pipeline):
            names = ", ".join(_pipelines(connection)) or "none"
            raise UsageError(
                f"no pipeline {pipeline!r} in {redacted(url)}; pipelines there: {names}"
            )
        rows = connection.execute(statement("sessions/lockable"), {"pipeline": pipeline})
        return [name for (name,) in rows]


def _only_pipeline(url: str) -> str:
    with reading(url) as connection:
        names = _pipelines(connection)
    if len(names) == 1:
        return names[0]
    found = f"has several: {', '.join(names)}. Name one" if names else "has none"
    raise UsageError(f"no pipeline given, and the store {redacted(url)} {found}")


def _pipelines(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute(statement("reading/pipelines"))]


def _relations(connection: Connection, pipeline: str) -> list[str]:
    rows = connection.execute(statement("reading/relations"), {"pipeline": pipeline})
    return [name for (name,) in rows]
