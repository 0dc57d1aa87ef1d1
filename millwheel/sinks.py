"""Sinks: tables of the same Postgres, files, the terminal, and systems outside.

Rows of a `Table` and lines of `JsonLinesFiles` are written exactly once: in the transaction of
their record, or cut back to the committed length after a crash. `Console` prints before the commit.
A `BundleSink` can write exactly once to another system, such as `millwheel.kafka.KafkaSink`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    get_origin,
)

from millwheel.bundles import Bundles
from millwheel.context import BundleContext
from millwheel.core.codec import shown
from millwheel.core.columns import NUMBERS, Column, columns_of, key_part, stored_form
from millwheel.core.model import Key, Record
from millwheel.core.names import check_name
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import GraphError, UserCodeError

__all__ = ["BundleSink", "Console", "Discard", "JsonLinesFiles", "Sink", "Table"]

R = TypeVar("R")

RESERVED_TABLES = frozenset(
    [
        "aggregate",
        "aggregates",
        "alembic_version",
        "blocking_item",
        "bucket",
        "commit_record",
        "computation",
        "dead_letter",
        "dead_letters",
        "disk_use",
        "ended_sender",
        "fold",
        "fold_lag",
        "generation",
        "horizon",
        "inbox",
        "incarnation",
        "key_interval",
        "latest_commits",
        "leader",
        "log",
        "numbered_rows",
        "old_snapshots",
        "oldest_bucket",
        "parked_keys",
        "peer_secret",
        "pending_productions",
        "pipeline",
        "placement_event",
        "placement_events",
        "production",
        "query",
        "request",
        "seen_record",
        "seen_run",
        "sent_id",
        "sent_record",
        "sequence_number",
        "sinks",
        "source_partition",
        "source_partitions",
        "spark_queries",
        "spark_query",
        "spark_start",
        "state",
        "state_change",
        "state_changes",
        "states",
        "straggler",
        "stream",
        "taken_record",
        "timer",
        "timer_change",
        "timers",
        "watermark_holders",
        "watermarks",
        "worker",
        "worker_end",
        "worker_ends",
        "workers",
    ]
)
BUCKET = re.compile(
    r"(?:commit_record|production|seen_record|seen_run|state_change|straggler|timer_change)_\d+"
)


class Table(Generic[R]):
    """A table in the pipeline's schema with rows made from values of `row_type`.

    ```python
    class Bill(Struct):
        customer: str
        cents: int

    BILLS = Table("bills", Bill, key=("customer",))
    pipeline.sink(ORDERS, BILLS, row=lambda order: Bill(order.customer, order.cents))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK)
        assert harness.rows("bills") == [("ann", 90)]  # the later row replaces the earlier one
    ```

    The table is created from the type, or an existing table with matching columns is used. None is
    NULL, also in ``jsonb``. A time needs a zone. NaN and infinities fit only a ``double precision``
    column, from a `row` function; in JSON (streams, ``jsonb``) they fail their record.

    Args:
        name: the table's name in the pipeline's schema.
        row_type: a msgspec.Struct or dataclass, with one column per field (not per class variable).
        key: columns that identify a row: a later value replaces the earlier one. Keys are equal if
            Postgres takes them for equal. Without `key` every value is a new row.
        producer_key: the columns of `key` with the producing computation's own key. The producer's
            own commit then writes the row, which no other key can write; otherwise an upsert is a
            step of its own, keyed by `key`.
        numbered: adds the columns `sender` and `sequence`, so that others can follow the table
            (:mod:`millwheel.spark`, :mod:`millwheel.following`). Each sender numbers its rows from
            0, without gaps, in the order of its commits; ordered by both columns, the rows of one
            producing key are in the order of production. The view ``numbered_rows`` counts them by
            sender. Old rows may be deleted.
        renamed_from: former names of columns in a deployed table, by the new name; a deploy renames
            them (``docs/howto/compute/change-tables.md``).

    Raises:
        GraphError: the name of the table or of a column is reserved, a key names no column or one
            that may be None, `renamed_from` names no column or one that there still is, or
            `row_type` has no fields.
    """

    def __init__(
        self,
        name: str,
        row_type: type[R],
        *,
        key: tuple[str, ...] = (),
        producer_key: tuple[str, ...] = (),
        numbered: bool = False,
        renamed_from: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = check_name(name, "table")
        if name in RESERVED_TABLES or BUCKET.fullmatch(name):
            raise GraphError(f"the table {name!r} is one of the engine's own; choose another name")
        if isinstance(key, str) or isinstance(producer_key, str):
            raise GraphError(
                f"Table({name!r}): give key and producer_key as tuples of column names"
            )
        self.row_type = row_type
        self.columns = columns_of(name, row_type, numbered=numbered)
        names = [column.name for column in self.columns]
        for name_ in (*key, *producer_key):
            if name_ not in names:
                message = (
                    f"Table({name!r}): there is no column {name_!r} in {row_type.__name__}; "
                    f"there are {', '.join(names)}"
                )
                raise GraphError(with_suggestion(message, name_, names))
        if not set(producer_key) <= set(key):
            raise GraphError(f"Table({name!r}): producer_key must name columns of key {key!r}")
        for column in self.columns:
            if column.name in key and column.nullable:
                raise GraphError(f"Table({name!r}): the key column {column.name!r} may not be None")
        for new, former in renamed_from.items():
            if new not in names or former in names:
                raise GraphError(
                    f"Table({name!r}): renamed_from has the former name of a column by the new "
                    f"one, but {new!r} is no field of {row_type.__name__}, or {former!r} still is"
                )
        self.renamed_from = dict(renamed_from)
        self.key = tuple(key)
        self.producer_key = tuple(producer_key)
        self.numbered = numbered
        if numbered:
            if key:
                raise GraphError(f"Table({name!r}): only an append-only table can be numbered")
            self.columns += tuple(Column(number, "bigint", False) for number in NUMBERS)
        self.key_positions = tuple(names.index(column) for column in self.key)
        self.producer_positions = tuple(names.index(column) for column in self.producer_key)
        self._fields = tuple(names)
        self._forms = tuple(
            stored_form(name, column, in_key=column.name in key)
            for column in self.columns[: len(names)]
        )
        self._key_parts = tuple(
            (position, key_part(self.columns[position])) for position in self.key_positions
        )

    @property
    def unique(self) -> tuple[str, ...]:
        """The columns that no two rows may share: the key, or those of a numbered table."""
        return NUMBERS if self.numbered else self.key

    @property
    def in_producers_commit(self) -> bool:
        """Whether rows are written in the commit of the computation that produces them."""
        return not self.key or bool(self.producer_key)

    def values(self, row: R) -> tuple[Any, ...]:
        """The column values of one row.

        Raises:
            TypeError: the row is not of the table's type.
            UserCodeError: a jsonb column would hold NaN, an infinity or NUL, or a time has no zone.
        """
        if not isinstance(row, get_origin(self.row_type) or self.row_type):
            raise TypeError(
                f"table {self.name!r} takes rows of type {self.row_type.__name__}, not "
                f"{type(row).__name__}; give the sink a `row` function that makes one"
            )
        return tuple(
            getattr(row, name) if form is None else form(getattr(row, name))
            for name, form in zip(self._fields, self._forms, strict=True)
        )

    def key_of(self, values: Sequence[Any]) -> tuple[str | int, ...]:
        """The key of a row by its column values: with an order, and equal if Postgres takes rows
        for one.

        Raises:
            UserCodeError: a column of the key holds a value of another type.
        """
        try:
            return tuple(part(values[position]) for position, part in self._key_parts)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserCodeError(
                f"table {self.name!r}: {', '.join(self.key)} of {shown(values)} cannot be a key: "
                f"{error}"
            ) from error

    def default_of(self, column: Column) -> Any:
        """The default of a column's field, as it is stored; None: NULL.

        Raises:
            UserCodeError: it is no value of the column.
        """
        form = self._forms[self.columns.index(column)]
        return column.default if form is None else form(column.default)

    def describe(self) -> dict[str, Any]:
        return {
            "table": self.name,
            "columns": [[c.name, c.type, c.nullable] for c in self.columns],
            "key": list(self.key),
            "producer_key": list(self.producer_key),
        }


@dataclass(frozen=True)
class JsonLinesFiles:
    """JSON Lines, one part file per key interval in `directory`; exactly once despite crashes.

    ```python
    pipeline.sink(ORDERS, JsonLinesFiles("orders"))
    pipeline.sink(ORDERS, JsonLinesFiles("in_one_file", by=lambda order: 0))
    ```

    A part file is named after its interval's id. New intervals (after a split or merge) get new
    files: read all of them.

    Args:
        directory: the directory of the part files.
        by: returns the key that distributes values over part files, which a separate step then
            writes; a constant gives one file, in the order in which values arrive. None: each
            interval of the producing computation writes a file in its own commits, or one file is
            written where that is not possible (rows of a source, weak productions,
            ``exactly_once=False``, numbered bundles, a second set of files).
    """

    directory: Path | str
    by: Callable[[Any], Key] | None = None

    @property
    def path(self) -> Path:
        return Path(self.directory)

    def describe(self) -> dict[str, Any]:
        return {"json_lines": str(self.directory)}


@dataclass(frozen=True)
class Console:
    """Prints each value as a line of JSON, before the commit: after a crash, perhaps twice.

    ```python
    pipeline.sink(ORDERS, Console("order: "))
    ```
    """

    prefix: str = ""

    def describe(self) -> dict[str, Any]:
        return {"console": self.prefix}


@dataclass(frozen=True)
class Discard:
    """Acknowledges records and drops them; for measurements.

    ```python
    pipeline.sink(ORDERS, Discard())
    ```

    The records are ordinary productions: they are stored before they are sent.
    """

    def describe(self) -> dict[str, Any]:
        return {"discard": True}


class BundleSink(Protocol):
    """A sink outside the store, which receives numbered bundles (decision 30); write one for your
    system.

    ```python
    from collections.abc import Sequence
    from typing import Any

    from millwheel.context import BundleContext

    class Ledger:
        bundles, key = Bundles(records=100), None
        lines: list[Order] = []  # in place of another database, which has both
        last: dict[int, int] = {}

        def describe(self) -> dict[str, str]:
            return {"ledger": "orders"}

        async def deliver(
            self, records: Sequence[Record[Order]], ctx: BundleContext[Any, Any]
        ) -> None:
            if self.last.get(ctx.bundle_id.scope, 0) < ctx.bundle_id.number:
                self.lines.extend(record.value for record in records)
                self.last[ctx.bundle_id.scope] = ctx.bundle_id.number

        async def close(self) -> None: ...

    pipeline.sink(ORDERS, Ledger())
    ```

    `deliver` makes a bundle's records durable together with the bundle's number, and recognizes a
    number that comes again. Then each record is written exactly once. See
    ``docs/howto/connect/own-sink.md``.
    """

    @property
    def bundles(self) -> Bundles: ...

    @property
    def key(self) -> Callable[[Any], Key] | None:
        """Returns the key of a value: values of a key are delivered in order; None: all, by one
        worker."""
        ...

    def describe(self) -> dict[str, Any]:
        """The description stored in the graph, without secrets."""
        ...

    async def deliver(self, records: Sequence[Record[Any]], ctx: BundleContext[Any, Any]) -> None:
        """Deliver a bundle. ``ctx.bundle_id`` has its scope and its number.

        It may be cancelled: then another worker, or this one later, delivers the bundle.

        Raises:
            RecordsRefused: some records cannot be delivered; none was.
        """
        ...

    async def close(self) -> None:
        """Close connections: the worker ends."""
        ...


Sink = Table[Any] | JsonLinesFiles | Console | Discard | BundleSink


@dataclass(frozen=True)
class SinkUse:
    sink: Sink
    row: Callable[[Any], Any] | None = field(default=None)
    apart: bool = False
    on_error: Literal["fail", "dead_letter"] = "fail"
