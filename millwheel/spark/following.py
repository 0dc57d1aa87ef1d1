"""``spark.readStream.format("millwheel")``: the new rows of a numbered table, exactly once.

Where the code runs (seen on Spark 4.2 and 4.3):

=====================  ==================================================================
``schema()``           at ``load()``, as for a batch
`FollowingReader`      in one Python process of the driver for as long as the query runs;
                       all methods but ``read`` are called there
``read(partition)``    in a task's Python worker, with a copy of the reader
=====================  ==================================================================

The offset is a vector (:mod:`millwheel.core.numbered`): by sender, the number of the next row. The
rows between two offsets never change: a batch that is run again gets the same rows, and a task
needs no snapshot, but counts them. The offset also has the pipeline's id and signs of the last rows
of each sender, so that a checkpoint is not used with another pipeline of the same name, or with
other rows under these numbers.

Options, besides those of :mod:`millwheel.spark.stream_source`: ``startingOffsets`` ("earliest" or
"latest"), ``maxRowsPerTrigger``, ``failOnDataLoss`` (false: rows that were deleted before they were
read are skipped, with a warning), and ``stream`` in place of ``table``: the numbered table to which
that stream's values are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millwheel.core.numbered import (
    COMPARED,
    Marks,
    RowRange,
    Sign,
    Vector,
    between,
    bounded,
    distance,
    refuse_older,
    refuse_other_rows,
    shares,
)
from millwheel.errors import MillwheelError, StoreError, UsageError
from millwheel.spark.lookout import Lookout
from millwheel.spark.reading import RelationRows
from millwheel.spark.share_query import Numbers
from millwheel.spark.store_sessions import Connection, redacted

LEAST_ROWS = 1_000
"""A task reads at least this many rows, if there are as many."""

EARLIEST, LATEST = "earliest", "latest"

log = structlog.get_logger("millwheel.spark")


@dataclass
class Share(InputPartition):
    ranges: list[RowRange]


@dataclass(frozen=True)
class StreamOptions:
    start: str = EARLIEST
    most_rows: int | None = None
    """Most rows of a batch; None: all there are."""
    partitions: int = 1
    """Most tasks of a batch."""
    fail_on_loss: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str], partitions: int) -> StreamOptions:
        """`UsageError` if an option has a value that it cannot have."""
        start = options.get("startingOffsets", EARLIEST).lower()
        if start not in (EARLIEST, LATEST):
            raise UsageError(
                f"the option 'startingOffsets' must be {EARLIEST!r} or {LATEST!r}, not {start!r}"
            )
        limit = options.get("maxRowsPerTrigger")
        if limit is not None and not (limit.isdecimal() and int(limit) > 0):
            raise UsageError(
                f"the option 'maxRowsPerTrigger' must be a number from 1, not {limit!r}"
            )
        fail = options.get("failOnDataLoss", "true").lower()
        if fail not in ("true", "false"):
            raise UsageError(f"the option 'failOnDataLoss' must be true or false, not {fail!r}")
        return cls(start, None if limit is None else int(limit), partitions, fail == "true")


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: RelationRows, options: StreamOptions) -> None:
        self._rows = rows
        self._options = options
        self._table = rows.relation.name
        self._lookout: Lookout | None = None
        self._id: str | None = None
        self._last: Vector = {}
        self._target: Vector | None = None
        """Where a query that ends ("available now") ends."""

    # -- in the driver's process ----------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        look = self._look()
        id_, written = look.written()
        if self._options.start == LATEST:
            return _offset(id_, written)
        return _offset(id_, look.first_rows())

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.most_rows
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        _, self._target = self._look().written()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        id_, written = self._look().written()
        self._id = id_
        read = self._vector(start, id_)
        refuse_older(read, written, self._table)
        self._last = written
        if self._target is not None:
            written = {
                sender: min(rows, self._target.get(sender, 0)) for sender, rows in written.items()
            }
        if distance(read, written) == 0:
            return start
        self._refuse_other_rows(start, read)
        if isinstance(limit, ReadMaxRows):
            written = bounded(read, written, limit.max_rows)
        return self._signed(start, read, {**read, **written})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {str(sender): rows for sender, rows in self._last.items()} or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._id is None:  # a batch of before a restart is planned again
            self._id, _ = self._look().written()
            for offset in (start, end):
                self._refuse_other_rows(offset, self._vector(offset, self._id))
        ranges = between(self._vector(start, self._id), self._vector(end, self._id))
        return [Share(share) for share in shares(ranges, self._options.partitions, LEAST_ROWS)]

    def stop(self) -> None:
        if self._lookout is not None:
            self._lookout.close()

    def _look(self) -> Lookout:
        if self._lookout is None:
            relation = self._rows.relation
            self._lookout = Lookout(self._rows.store, relation.pipeline, relation.name)
        return self._lookout

    def _refuse_other_rows(self, offset: Mapping[str, Any], read: Vector) -> None:
        """Refuse a table in which other rows are before an offset than were read."""
        signs = {int(n): Sign.parsed(sign) for n, sign in offset.get("last", {}).items()}
        if signs:
            present = self._marks({sender: read[sender] for sender in signs})
            refuse_other_rows(read, signs, present, self._table)

    def _signed(self, start: Mapping[str, Any], read: Vector, end: Vector) -> dict[str, Any]:
        moved = {sender: rows for sender, rows in end.items() if rows != read.get(sender, 0)}
        signs = {sender: marks.sign(moved[sender]) for sender, marks in self._marks(moved).items()}
        last = {
            sender: sign
            for sender, sign in start.get("last", {}).items()
            if int(sender) not in moved
        }
        last |= {str(sender): sign.written() for sender, sign in signs.items() if sign is not None}
        return {**_offset(start["id"], end), "last": last}

    def _marks(self, before: Vector) -> dict[int, Marks]:
        ranges = [
            RowRange(sender, max(0, rows - COMPARED), rows) for sender, rows in before.items()
        ]
        return self._look().marks(ranges) if ranges else {}

    def _vector(self, offset: Mapping[str, Any], id_: str) -> dict[int, int]:
        """The offset must be of this pipeline."""
        if offset["id"] != id_:
            raise UsageError(
                "the checkpoint was made with another pipeline than "
                f"{self._rows.relation.pipeline!r} in {redacted(self._rows.store)} (its id was "
                f"{offset['id']}, and is {id_}): the pipeline was dropped and made again, or the "
                "store is another one. Give the query a new checkpoint"
            )
        return {int(sender): number for sender, number in offset["next"].items()}

    # -- in a task ------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share), partition
        with self._rows.connection() as connection:
            for piece in partition.ranges:
                yield from self._read(connection, piece)

    def _read(self, connection: Connection, piece: RowRange) -> Iterator[pa.RecordBatch]:
        numbers = Numbers(*piece)
        filtered = bool(self._rows.filters)
        found = self._rows.count(connection, numbers) if filtered else 0
        for batch in self._rows.rows(connection, numbers):
            if not filtered:
                found += batch.num_rows
            yield batch
        if found < piece.rows:
            self._lost(piece, found)

    def _lost(self, piece: RowRange, found: int) -> None:
        text = (
            f"{piece.rows - found} of the rows {piece.first} to {piece.until - 1} of sender "
            f"{piece.sender} were deleted from table {self._table!r} before they were read"
        )
        if self._options.fail_on_loss:
            raise StoreError(
                f"{text}. Nothing after them was read. To continue without them, set the option "
                "failOnDataLoss to false; to keep rows until they are read, delete only rows "
                "that are older than the longest time for which this query may stand still"
            )
        log.warning("rows_lost", what=text)


class RefusedReader(DataSourceStreamReader):
    """Stands for a reader that cannot be made: its first use raises the reason.

    PySpark 4.2 and 4.3 replace an error of ``streamReader`` by an UnboundLocalError, because they
    stop a reader that does not exist.
    """

    def __init__(self, error: MillwheelError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


def _offset(id_: str, vector: Vector) -> dict[str, Any]:
    return {"id": id_, "next": {str(sender): number for sender, number in sorted(vector.items())}}
