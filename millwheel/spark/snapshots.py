"""The snapshot that all reads of one job share, and who holds it.

Postgres lets other transactions join a snapshot (``SET TRANSACTION SNAPSHOT``) as long as the
transaction that exported it is open. So some process must keep a connection open while Spark
reads. Which one:

* Not the reader: it is pickled, and ``reader()`` and ``partitions()`` run in a Python process
  that Spark takes for planning and gives back at once (see :mod:`millwheel.spark.source`).
* Not a process started by ``partitions()``: nobody tells it when the last read is over. A
  DataFrame's plan is made once and computed any number of times (``count()``, then
  ``collect()``), so any time limit is either wrong or holds back vacuum.
* The driver's own Python process, for as long as the ``with`` block of :func:`snapshot` lasts:
  that is where the user knows that the work is done. Its id travels as the option ``snapshot``.

A read without that option takes one partition, which is one transaction, and so consistent by
itself; but two reads, or the two sides of a self-join, are then of two moments.

What a held snapshot costs the store: versions of rows that changed since cannot be vacuumed,
the pipeline's tables cannot be dropped or altered (the engine drops old buckets later), and a
migration waits. It costs nothing per commit: commits only append.

Order matters: first LOCK, then the snapshot. A bucket dropped in between is simply missing, and
a truncated one reads as empty, both without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from millwheel.errors import StoreError, UsageError
from millwheel.spark.connection import (
    Connection,
    lock,
    opened,
    reading,
    redacted,
    statement,
    store_url,
    translated,
)
from millwheel.spark.filters import Filter, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_ATTEMPTS = 5
"""Tables may be dropped between listing and locking them; then the list is made again."""


@dataclass(frozen=True)
class Snapshot:
    """One moment of one pipeline, held open by this process."""

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
        """The options of ``spark.read.format("millwheel")`` for one table or view.

        Only the named `columns` and the rows that all `filters` choose leave Postgres:
        ``filters=[("origin", "in", ["EWR", "JFK"]), ("hour", ">=", moment)]``. Leave the store
        out where the workers find it in MILLWHEEL_STORE.

        Raises UsageError, naming what there is, if there is no such table or view.
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
def snapshot(store: str | None = None, pipeline: str | None = None) -> Iterator[Snapshot]:
    """Hold a snapshot of a pipeline, for any number of reads; run all of them inside the block.

    `store` is a postgresql:// URL, by default MILLWHEEL_STORE's; `pipeline` may be left out
    where the store has only one.
    """
    url = store_url({} if store is None else {"store": store})
    if pipeline is None:
        pipeline = _only_pipeline(url)
    for _ in range(LOCK_ATTEMPTS):
        tables = _lockable(url, pipeline)
        with opened(url) as connection:
            held = _taken(connection, url, pipeline, tables)
            if held is not None:
                yield held
                return
    raise StoreError(
        f"tables of pipeline {pipeline!r} were dropped between listing and locking them, "
        f"{LOCK_ATTEMPTS} times in a row; try again"
    )


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("millwheel")`` known to a session."""
    from millwheel.spark.source import MillwheelSource

    spark.dataSource.register(MillwheelSource)


def no_such_relation(pipeline: str, table: str, known: tuple[str, ...]) -> str:
    """What to say about a table that is not there."""
    listed = ", ".join(known) if known else "nothing (is the pipeline's name right?)"
    return f"pipeline {pipeline!r} has no table or view {table!r}; it has: {listed}"


def _taken(connection: Connection, url: str, pipeline: str, tables: list[str]) -> Snapshot | None:
    """Lock, then take and export; None if a table is gone and the list must be made again."""
    with translated(url):
        try:
            lock(connection, pipeline, tables)
        except psycopg.errors.UndefinedTable:
            return None
        row = connection.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
        assert row is not None
        return Snapshot(row[0], pipeline, url, tuple(_relations(connection, pipeline)))


def _lockable(url: str, pipeline: str) -> list[str]:
    with reading(url) as connection:
        if not _relations(connection, pipeline):
            names = ", ".join(_pipelines(connection)) or "none"
            raise UsageError(
                f"no pipeline {pipeline!r} in {redacted(url)}; pipelines there: {names}"
            )
        rows = connection.execute(statement("lockable"), {"pipeline": pipeline})
        return [name for (name,) in rows]


def _only_pipeline(url: str) -> str:
    with reading(url) as connection:
        names = _pipelines(connection)
    if len(names) == 1:
        return names[0]
    found = f"there are {', '.join(names)}: say which" if names else "there is none"
    raise UsageError(f"no pipeline given, and in {redacted(url)} {found}")


def _pipelines(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute(statement("pipelines"))]


def _relations(connection: Connection, pipeline: str) -> list[str]:
    rows = connection.execute(statement("relations"), {"pipeline": pipeline})
    return [name for (name,) in rows]
