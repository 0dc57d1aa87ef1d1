"""The query that runs a pipeline, in the store: its last batch, beside the results of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from millwheel.core.model import MIN_TIME
from millwheel.errors import UsageError
from millwheel.spark.engine.checkpoints import is_elsewhere
from millwheel.spark.store_sessions import Connection, sole, statement, writing

FIRST = -1


@dataclass(frozen=True)
class QueryProgress:
    number: int
    id: str | None
    checkpoint: str
    levels: dict[str, int]
    begins_with: dict[str, Any] | None
    """The offset of the sources with which it begins; None: at their beginning."""
    sender: int
    batch: int
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    table_rows: dict[str, int] = field(default_factory=dict)

    def refuse_lost_checkpoint(self, pipeline: str) -> None:
        """`UsageError` before Spark starts if the checkpoint, a directory of this machine, is
        missing; one that is elsewhere is compared later."""
        if self.batch == FIRST or is_elsewhere(self.checkpoint):
            return
        if not (Path(self.checkpoint) / "metadata").exists():
            raise UsageError(
                f"the tables of pipeline {pipeline!r} hold {self.batch + 1} batches, and their "
                f"checkpoint {self.checkpoint} was deleted, or is on another machine: with it, "
                "the state and the place in the input are lost. Restore it, or run the command "
                "there. To start again, remove the pipeline with all its results (millwheel drop "
                f"{pipeline})"
            )

    def refuse_foreign_checkpoint(self, pipeline: str) -> None:
        """`UsageError` if the checkpoint has batches, and the store has none."""
        if self.batch == FIRST:
            raise UsageError(
                f"the checkpoint {self.checkpoint} has batches, and the store has none of this "
                f"query of pipeline {pipeline!r}: it is that of an earlier query, or the store is "
                "a backup. Nothing was written. Delete the checkpoint's contents, and give the "
                "command again: the query begins where the store is"
            )

    @property
    def may_have_start(self) -> bool:
        """Whether it may begin with states and timers that it has not taken over: Spark's first
        commit decides."""
        return self.begins_with is not None and self.batch <= FIRST + 1

    @property
    def floor(self) -> int:
        """The low watermark with which it begins: Spark's own begins in 1970."""
        return MIN_TIME if self.begins_with is None else int(self.begins_with["mark"])

    def counted(self, found: list[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
        totals = {name: dict(of) for name, of in self.counters.items()}
        for computation, name, by in found:
            of = totals.setdefault(computation, {})
            of[name] = of.get(name, 0) + by
        return totals


class StoredQuery:
    def __init__(self, store: str, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline

    def load(self) -> QueryProgress:
        """`UsageError` if the pipeline does not run on Spark any more."""
        with writing(self.store) as connection:
            rows = connection.execute(statement("query/progress", self.pipeline)).fetchall()
        if not rows:
            raise UsageError(
                f"pipeline {self.pipeline!r} was moved away from Spark: this query is over"
            )
        return QueryProgress(*rows[0])

    def sole(self) -> AbstractContextManager[None]:
        """Keep other processes from the query during the block; `UsageError` if another one runs or
        moves it."""
        return sole(
            self.store,
            self.pipeline,
            " on Spark",
            f"another process runs pipeline {self.pipeline!r} on Spark",
        )

    def forget_start(self) -> None:
        with writing(self.store) as connection:
            target = sql.Identifier(self.pipeline, "spark_start")
            connection.execute(statement("delete_all", target=target))

    def next_of(self, query: str, batch: int) -> QueryProgress | None:
        """The progress before a batch of a query; None: the batch is in the tables already.

        `UsageError` if the checkpoint and the tables are not of the same time, or not of the same
        query.
        """
        stored = self.load()
        out = (
            "To start again, remove the pipeline with all its results (millwheel drop "
            f"{self.pipeline}) and the checkpoint"
        )
        if stored.batch > FIRST and stored.id != query:
            raise UsageError(
                f"the tables of pipeline {self.pipeline!r} hold {stored.batch + 1} batches of the "
                f"query {stored.id}, and the checkpoint {stored.checkpoint} is that of another "
                f"one ({query}): the checkpoint was deleted, or replaced. Nothing was written. "
                f"Restore it. {out}"
            )
        if batch == stored.batch:
            return None
        if batch < stored.batch:
            raise UsageError(
                f"the checkpoint {stored.checkpoint} is older than the tables of pipeline "
                f"{self.pipeline!r}: it would do batch {batch} again, and they have batch "
                f"{stored.batch} already. Nothing was written. Restore the newest checkpoint, or "
                f"a store of the same time as this one. {out}"
            )
        if batch > 0:
            stored.refuse_foreign_checkpoint(self.pipeline)
        if batch > stored.batch + 1:
            raise UsageError(
                f"the store of pipeline {self.pipeline!r} is older than the checkpoint "
                f"{stored.checkpoint}: it has batch {stored.batch}, and batch {batch} is next; "
                "those in between would be missing. Nothing was written. Restore a checkpoint of "
                f"the same time as the store. {out}"
            )
        return stored

    def advance(
        self,
        connection: Connection,
        before: QueryProgress,
        query: str,
        *,
        low_watermark: int,
        counters: dict[str, dict[str, int]],
        table_rows: dict[str, int],
    ) -> None:
        """Store, in a transaction, that the batch after `before` is done; `UsageError` if another
        process has done it."""
        done = connection.execute(
            statement("query/advance_query", self.pipeline),
            {
                "id": query,
                "number": before.number,
                "before": before.batch,
                "batch": before.batch + 1,
                "low": low_watermark,
                "counters": Jsonb(counters),
                "table_rows": Jsonb(table_rows),
            },
        )
        if done.rowcount != 1:
            raise UsageError(
                f"another process has done batch {before.batch + 1} of pipeline {self.pipeline!r}: "
                "nothing of this one was kept"
            )
