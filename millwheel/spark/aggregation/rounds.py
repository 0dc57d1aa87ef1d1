"""Batches of aggregates: one after the other, until nothing is new or for as long as the process
runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from millwheel.errors import StoreError
from millwheel.sinks import Table
from millwheel.spark.aggregation.aggregate_progress import AggregateProgress, Stored
from millwheel.spark.aggregation.aggregate_tables import TableTarget
from millwheel.spark.aggregation.changed_groups import Change, Changes
from millwheel.spark.aggregation.files import FilesTarget
from millwheel.spark.failures import user_error
from millwheel.spark.groups import Groups
from millwheel.spark.patience import Patience
from millwheel.spark.snapshots import Snapshot, snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
"""Tasks that read a table for a batch, on this machine."""
IDLE_SECONDS = 0.2
"""Pause between two looks while nothing is new."""


class ResultTarget(Protocol):
    def prepare(self) -> None: ...
    def begin(self) -> None: ...
    def write(self, result: DataFrame) -> None: ...
    def replace(self, before: AggregateProgress, change: Change) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class DoneBatch:
    aggregate: str
    number: int
    rows: int
    groups: int | None
    """Groups that were replaced; None: all."""
    behind: int
    seconds: float


class AggregateRunner:
    def __init__(
        self,
        spark: SparkSession,
        stored: Stored,
        *,
        most_rows: int,
        options: Mapping[str, str],
        partitions: int = PARTITIONS,
    ) -> None:
        self._spark = spark
        self._stored = stored
        self._options = dict(options)
        self._partitions = partitions
        self._changes = Changes(stored, most_rows)
        to = stored.aggregate.to
        self._target: ResultTarget = (
            TableTarget(stored, to, options) if isinstance(to, Table) else FilesTarget(stored, to)
        )
        self._target.prepare()

    def step(self) -> DoneBatch | None:
        """Do the next batch; None: nothing is new."""
        began = time.monotonic()
        before = self._stored.load()
        change = self._changes.after(before)
        if change is None:
            return None
        aggregate = self._stored.aggregate
        self._target.begin()
        # for as long as the batch takes: with a limit, one that takes longer would never be done
        with (
            snapshot(self._stored.store, self._stored.pipeline, most_seconds=None) as held,
            user_error(f"aggregate {aggregate.name!r}"),
        ):
            tables = [self._table(held, name, change.groups) for name in aggregate.reads]
            self._target.write(aggregate.function(*tables))
            self._target.replace(before, change)
        return DoneBatch(
            aggregate.name,
            before.batch + 1,
            change.rows,
            None if change.groups is None else len(change.groups.values),
            change.behind,
            time.monotonic() - began,
        )

    def close(self) -> None:
        """The staging table is dropped if the store is there."""
        self._changes.close()
        with suppress(StoreError):
            self._target.close()

    def _table(self, held: Snapshot, name: str, groups: Groups | None) -> DataFrame:
        chosen = held.options(name, with_store=False) | self._options
        chosen["partitions"] = str(self._partitions)
        if groups is not None:
            chosen["groups"] = groups.written()
        return self._spark.read.format("millwheel").options(**chosen).load()


def run_batches(
    runners: Sequence[AggregateRunner],
    *,
    until_caught_up: bool,
    patience_seconds: float,
    done: Callable[[DoneBatch], None],
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Do batches of each aggregate in turn, again if the store is away.

    Args:
        until_caught_up: return as soon as nothing is new.
        patience_seconds: longest time for which the store may be away; then `StoreUnavailable` or
            `SnapshotGone`.
        done: called after each batch.
        idle: called while nothing is new.
    """
    patience = Patience(patience_seconds, "the batch")
    while True:
        batches = patience.call(
            lambda: [batch for runner in runners if (batch := runner.step()) is not None]
        )
        for batch in batches:
            done(batch)
        if not batches:
            if until_caught_up:
                return
            idle()
            time.sleep(IDLE_SECONDS)
