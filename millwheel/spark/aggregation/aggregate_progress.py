"""How far an aggregate has followed its table: one row of the store, which one process advances."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from millwheel.aggregates import Aggregate
from millwheel.core.numbered import Vector
from millwheel.errors import UsageError
from millwheel.spark.store_sessions import Connection, sole, statement, writing


@dataclass(frozen=True)
class AggregateProgress:
    batch: int
    read: Vector | None
    """Number of the next row by sender; None: the next batch is made from all rows."""


class Stored:
    def __init__(self, store: str, pipeline: str, aggregate: Aggregate) -> None:
        self.store = store
        self.pipeline = pipeline
        self.aggregate = aggregate

    def transaction(self) -> AbstractContextManager[Connection]:
        return writing(self.store)

    def sole(self) -> AbstractContextManager[None]:
        """Keep other processes from the aggregate during the block; `UsageError` if another one
        keeps it up to date."""
        return sole(
            self.store,
            self.pipeline,
            f".{self.aggregate.name}",
            f"another process keeps the aggregate {self.aggregate.name!r} of pipeline "
            f"{self.pipeline!r} up to date",
        )

    def begin(self) -> None:
        """Make the row of an aggregate that is new, or that follows another table than before."""
        with self.transaction() as connection:
            connection.execute(
                statement("aggregates/begin_aggregate", self.pipeline),
                {"name": self.aggregate.name, "follows": self.aggregate.follows},
            )

    def load(self) -> AggregateProgress:
        """An aggregate that is new begins with all rows."""
        with self.transaction() as connection:
            rows = connection.execute(
                statement("aggregates/progress", self.pipeline), {"name": self.aggregate.name}
            ).fetchall()
        ((batch, read),) = rows
        return AggregateProgress(
            batch, None if read is None else {int(k): v for k, v in read.items()}
        )

    def start_over(self) -> None:
        with self.transaction() as connection:
            connection.execute(
                statement("aggregates/start_over", self.pipeline), {"name": self.aggregate.name}
            )

    def advance(self, connection: Connection, before: AggregateProgress, read: Vector) -> None:
        """Store, in a transaction, that the batch after `before` is done; `UsageError` if another
        process has done it."""
        done = connection.execute(
            statement("aggregates/advance_aggregate", self.pipeline),
            {
                "name": self.aggregate.name,
                "batch": before.batch,
                "read": Jsonb({str(sender): number for sender, number in read.items()}),
            },
        )
        if done.rowcount != 1:
            raise UsageError(
                f"another process has done batch {before.batch + 1} of the aggregate "
                f"{self.aggregate.name!r}: nothing of this one was kept"
            )
