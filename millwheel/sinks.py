"""Where results go: tables of the same Postgres, files, the terminal.

A row of a `Table` is written in the very transaction that commits the record it comes
from, so it is there once. Lines of `JsonLinesFiles` are cut back to the committed length
after a crash, so they are there once too. `Console` prints before the commit: a line may
come twice after a crash.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from millwheel.errors import GraphError
from millwheel.model import Key
from millwheel.streams import check_name

R = TypeVar("R")

COLUMN_TYPES: dict[Any, str] = {
    str: "text",
    int: "bigint",
    float: "double precision",
    bool: "boolean",
    datetime: "timestamp with time zone",
    date: "date",
    bytes: "bytea",
    Decimal: "numeric",
    UUID: "uuid",
}
RESERVED_TABLES = frozenset(
    [
        "alembic_version",
        "bucket",
        "commit_record",
        "computation",
        "dead_letter",
        "dead_letters",
        "fold",
        "generation",
        "horizon",
        "incarnation",
        "key_interval",
        "latest_commits",
        "log",
        "pending_productions",
        "pipeline",
        "placement_event",
        "placement_events",
        "production",
        "seen_record",
        "straggler",
        "sequence_number",
        "source_partition",
        "state",
        "state_change",
        "states",
        "stream",
        "timer",
        "timer_change",
        "timers",
        "watermark_holders",
        "watermarks",
        "worker",
        "workers",
    ]
)
BUCKET = re.compile(
    r"(?:commit_record|production|seen_record|state_change|straggler|timer_change)_\d+"
)
"""The tables that are made and dropped while a pipeline runs."""


@dataclass(frozen=True)
class Column:
    """One column of a table sink."""

    name: str
    type: str
    nullable: bool
    is_json: bool = False


class Table(Generic[R]):
    """Rows of a table in the pipeline's schema, made from values of `row_type`.

    The table is created from the type, or an existing one with fitting columns is used.

    Args:
        name: the table's name; it lives in the pipeline's schema.
        row_type: a msgspec.Struct or dataclass; one column per field.
        key: columns that identify a row: a later value for the same key replaces the
            earlier one. Without `key` every value is a new row.
        producer_key: the columns of `key` that hold the producing computation's own key.
            Then no other key can write the row, and it is written in the producer's own
            commit. Without it an upsert runs as a step of its own, keyed by `key`.
        numbered: two more columns, `sender` and `sequence`: ordered by them, the rows of
            one producing key stand in the order in which they were produced.
    """

    def __init__(
        self,
        name: str,
        row_type: type[R],
        *,
        key: tuple[str, ...] = (),
        producer_key: tuple[str, ...] = (),
        numbered: bool = False,
    ) -> None:
        self.name = check_name(name, "table")
        if name in RESERVED_TABLES or BUCKET.fullmatch(name):
            raise GraphError(f"the table {name!r} is one of the engine's own; choose another name")
        if isinstance(key, str) or isinstance(producer_key, str):
            raise GraphError(
                f"Table({name!r}): give key and producer_key as tuples of column names"
            )
        self.row_type = row_type
        self.columns = _columns(name, row_type)
        names = [column.name for column in self.columns]
        for name_ in (*key, *producer_key):
            if name_ not in names:
                raise GraphError(
                    f"Table({name!r}): there is no column {name_!r} in {row_type.__name__}; "
                    f"there are {', '.join(names)}"
                )
        if not set(producer_key) <= set(key):
            raise GraphError(f"Table({name!r}): producer_key must name columns of key {key!r}")
        for column in self.columns:
            if column.name in key and column.nullable:
                raise GraphError(f"Table({name!r}): the key column {column.name!r} may not be None")
        self.key = tuple(key)
        self.producer_key = tuple(producer_key)
        self.numbered = numbered
        if numbered:
            if key:
                raise GraphError(f"Table({name!r}): only an append-only table can be numbered")
            self.columns += (Column("sender", "bigint", False), Column("sequence", "bigint", False))
        self.key_positions = tuple(names.index(column) for column in self.key)
        self.producer_positions = tuple(names.index(column) for column in self.producer_key)
        self._fields = tuple(names)
        self._json = tuple(c.is_json for c in self.columns[: len(names)])

    @property
    def in_producers_commit(self) -> bool:
        """Whether rows ride in the commit of the computation that produces them."""
        return not self.key or bool(self.producer_key)

    def values(self, row: R) -> tuple[Any, ...]:
        """The column values of one row."""
        if not isinstance(row, get_origin(self.row_type) or self.row_type):
            raise TypeError(
                f"table {self.name!r} takes rows of type {self.row_type.__name__}, not "
                f"{type(row).__name__}; give the sink a `row` function that makes one"
            )
        return tuple(
            msgspec.json.encode(getattr(row, name)).decode() if is_json else getattr(row, name)
            for name, is_json in zip(self._fields, self._json, strict=True)
        )

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {
            "table": self.name,
            "columns": [[c.name, c.type, c.nullable] for c in self.columns],
            "key": list(self.key),
            "producer_key": list(self.producer_key),
        }


def _columns(table: str, row_type: Any) -> tuple[Column, ...]:
    origin = get_origin(row_type) or row_type
    if not isinstance(origin, type) or not (
        issubclass(origin, msgspec.Struct) or dataclasses.is_dataclass(origin)
    ):
        raise GraphError(f"Table({table!r}): the row type must be a msgspec.Struct or a dataclass")
    columns = []
    for name, hint in get_type_hints(origin).items():
        nullable = False
        if get_origin(hint) in (Union, types.UnionType):
            members = [member for member in get_args(hint) if member is not type(None)]
            nullable = len(members) < len(get_args(hint))
            hint = members[0] if len(members) == 1 else typing.Any
        column_type = COLUMN_TYPES.get(hint)
        columns.append(
            Column(
                check_name(name, "column"), column_type or "jsonb", nullable, column_type is None
            )
        )
    if not columns:
        raise GraphError(
            f"Table({table!r}): {row_type.__name__} has no fields, so there are no columns"
        )
    return tuple(columns)


@dataclass(frozen=True)
class JsonLinesFiles:
    """JSON Lines, one part file per key interval in `directory`; exactly once across crashes.

    A part file is called after its interval's id. When intervals are split or merged, those that
    are made get files of their own, and what is written stays where it is: read all of them.

    Args:
        by: the key that spreads values over part files, which a step of their own writes: a
            constant for one file, in the order in which values arrive. Without it each interval of
            the computation that produces the values has a file, written in its own commit. Where
            that cannot be (rows of a source, weak productions, ``exactly_once=False``, numbered
            bundles, a second set of files) one file is written, as by a constant.
    """

    directory: Path | str
    by: Callable[[Any], Key] | None = None

    @property
    def path(self) -> Path:
        """The directory as a path."""
        return Path(self.directory)

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {"json_lines": str(self.directory)}


@dataclass(frozen=True)
class Console:
    """Prints each value as a line of JSON; after a crash a line may come twice."""

    prefix: str = ""

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {"console": self.prefix}


@dataclass(frozen=True)
class Discard:
    """Acknowledges what it is sent and forgets it; for measurements.

    The records are productions like any other: stored before they are sent.
    """

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {"discard": True}


Sink = Table[Any] | JsonLinesFiles | Console | Discard


@dataclass(frozen=True)
class SinkUse:
    """A sink as one stream feeds it."""

    sink: Sink
    row: Callable[[Any], Any] | None = field(default=None)
    apart: bool = False
    """It is written by a step of its own, although it could ride in the producer's commit."""
