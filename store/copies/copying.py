"""Makes a copy of a pipeline's schema, in one transaction and under one snapshot (decision 86).

::

    list the tables ─▶ BEGIN, lock them for reading ─▶ snapshot ─▶ tables ─▶ rows ─▶ keys, indexes
        ─▶ sequences ─▶ functions, views, rights ─▶ rows of the copy's own ─▶ COMMIT

Readers see all of the copy or nothing of it, and a process that is killed leaves nothing behind.
Workers of the origin go on, since the copy takes one core of the server; a deploy that changes a
table waits, and folds wait for the snapshot within their bound (I15).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.errors import StoreError, StoreUnavailable, UsageError
from millwheel.store.console.administration import transaction
from millwheel.store.console.views import install_views
from millwheel.store.copies.layout import (
    Definitions,
    SchemaLayout,
    TableLayout,
    layout_of,
    set_path,
)
from millwheel.store.copies.origins import EMPTY, LOCK_SECONDS, origin_at_one_moment
from millwheel.store.copies.progress import CopyCount, Show, show_nothing
from millwheel.store.postgres.statements import Statements, composed, text_of

CHUNK_BLOCKS = 1024
"""Blocks that one statement copies, 8 MiB: progress is shown in between, or a copy rests."""

ANALYZED_BLOCKS = 100
"""Larger tables get figures for the planner at once; the others wait for the server's own time."""

LAST_BLOCK = 4_294_967_295
"""The greatest number of a block."""


class CopyMarks(NamedTuple):
    """The copy's row of `pipeline`."""

    keep_until: datetime | None = None
    withholds: bool = False
    has_restore_point: bool = False
    """Mark the moment in the WAL too, if the login may."""
    rests: bool = False
    """Rest after each part of the rows for as long as it took."""
    takes_requests: bool = True
    """Whether requests that are open in the origin are open in the copy."""
    present: str | None = None
    """A table that is there already, with the schema: rows that come meanwhile stay in it."""


class MadeCopy(NamedTuple):
    name: str
    """Its schema."""
    origin: str
    copied_at: datetime
    """The moment that it shows."""
    restore_point: str | None
    """Position in the WAL."""
    rows: int
    bytes: int
    """Tables and indexes."""
    left_out: list[str]
    """Objects of users that the copy has not, in words."""


def copy_pipeline(
    url: str, origin: str, name: str, marks: CopyMarks, show: Show = show_nothing
) -> MadeCopy:
    """Copy a pipeline, or a savepoint, to a schema that does not exist yet.

    Raises:
        UsageError: `origin` was never run, its schema is of another version, it runs on Spark, or
            there is a schema `name`.
        StoreError: this login may not do that, or the disk is full; nothing was made.
        StoreUnavailable: another session holds a table of the origin for long.
    """
    with origin_at_one_moment(url, origin, explained(origin, name)) as found:
        return Copying(found.connection, origin, name, marks, show).run(found.at)


def drop_copy(url: str, name: str) -> None:
    """`StoreUnavailable` while another session reads it."""
    with transaction(url) as connection:
        connection.execute(composed("drop_schema", schema=sql.Identifier(name)))


@contextlib.contextmanager
def explained(origin: str, name: str) -> Iterator[None]:
    """Errors of the server in words."""
    try:
        yield
    except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation) as error:
        raise UsageError(
            f"there is a schema {name!r} already; choose another name, or drop it. Nothing was made"
        ) from error
    except psycopg.errors.DiskFull as error:
        raise StoreError(
            f"the disk of the server is full: {str(error).strip()}. Nothing was made, and its "
            "space is free again"
        ) from error
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"another session has held a table of {origin!r}, or the name {name!r}, for "
            f"{LOCK_SECONDS} s: a deploy, or another copy. Nothing was made; try again"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError(
            f"this login may not copy {origin!r}: {str(error).strip()}. It takes the role that "
            f"owns the schema (DATABASE_{origin.partition('@')[0]}_owner), and CREATE on the "
            "database. Nothing was made"
        ) from error


class Copying:
    """One copy, inside a transaction of the caller."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        origin: str,
        name: str,
        marks: CopyMarks,
        show: Show,
    ) -> None:
        self._connection = connection
        self._origin, self._name = origin, name
        self._marks, self._show = marks, show
        self._definitions = Definitions(origin, name)

    def run(self, copied_at: datetime) -> MadeCopy:
        """Copy the pipeline as it was at the moment of the transaction's snapshot."""
        is_marked = self._marks.has_restore_point
        restore_point = mark_in_wal(self._connection, self._name) if is_marked else None
        layout, rows = self.copy_tables()
        self.make_code(layout, self._name)
        own_rows(self._connection, self._name, self._origin, copied_at, self._marks, restore_point)
        size = size_of(self._connection, self._name)
        return MadeCopy(
            self._name, self._origin, copied_at, restore_point, rows, size, layout.left_out
        )

    def copy_tables(self) -> tuple[SchemaLayout, int]:
        """Make the schema with its tables; returns the origin's layout and the number of rows."""
        self._make_schema()
        layout = layout_of(self._connection, self._origin)
        missing = layout.without(self._marks.present)
        count = CopyCount(layout.bytes, self._show)
        self._make_tables(missing)
        if self._marks.present is not None:
            self._run(Statements(self._name).get("forget_teed"))
        for table in layout.tables:
            if table.name not in EMPTY:
                self._copy_rows(table, count)
        self._finish_tables(missing, count)
        return layout, count.rows

    def _make_schema(self) -> None:
        """From here on all is done as the owner of the origin's tables."""
        table = sql.Identifier(self._origin, "generation").as_string(None)
        owner = sql.Identifier(_row(self._connection, "owner_of_table", table=table)[0])
        if self._marks.present is None:
            schema = sql.Identifier(self._name)
            self._connection.execute(composed("make_schema", schema=schema, owner=owner))
        self._connection.execute(text_of("act_as_owner"), {"table": table})

    def _make_tables(self, layout: SchemaLayout) -> None:
        """Sequences and functions first: defaults of columns name them."""
        self._connection.execute(set_path(self._name))
        made = self._definitions
        self._run(text_of("unchecked_bodies"), text_of("one_core"))
        for function in layout.functions:
            if function.is_first:
                self._run(made.function(function))
        for sequence in layout.sequences:
            self._run(*made.sequence(sequence))
        for table in layout.tables:
            self._run(*made.table(table))
        for table in layout.tables:
            self._run(*made.parentage(table))
        for default in layout.defaults:
            self._run(made.default(default))
        for statistics in layout.statistics:
            self._run(made.statistics(statistics))
        for sequence in layout.sequences:
            self._run(*made.ownership(sequence))

    def _copy_rows(self, table: TableLayout, progress: CopyCount) -> None:
        """A table grows while it is copied; rows beyond these blocks are not in the snapshot,
        unless they have moved there."""
        blocks = max(table.blocks, 1)
        for low in range(0, blocks, CHUNK_BLOCKS):
            is_last = low + CHUNK_BLOCKS >= blocks
            high = LAST_BLOCK if is_last else low + CHUNK_BLOCKS
            began = time.monotonic()
            rows = self._connection.execute(self._definitions.rows(table, low, high)).rowcount
            if self._marks.rests:
                time.sleep(time.monotonic() - began)
            done = min(CHUNK_BLOCKS, blocks - low) / blocks
            progress.at(table.name, rows=rows, size=round(table.bytes * done))

    def _finish_tables(self, layout: SchemaLayout, progress: CopyCount) -> None:
        made = self._definitions
        for index in layout.indexes:
            progress.building(index.of_table)
            self._run(made.index(index))
        for key in layout.keys:
            progress.building(key.of_table)
            self._run(made.key(key))
        for sequence in layout.sequences:
            self._run(made.position(sequence))
        for table in layout.tables:
            if table.blocks >= ANALYZED_BLOCKS:
                self._run(made.analysis(table))

    def make_code(self, layout: SchemaLayout, name: str) -> None:
        """Functions and views of the schema, which is called `name` now, and the rights that roles
        have in the origin."""
        definitions = Definitions(self._origin, name)
        install_views(self._connection, name)
        self._connection.execute(set_path(name))
        for function in layout.functions:
            if not function.is_first:
                self._run(definitions.function(function))
        for view in layout.views:
            self._run(*definitions.view(view))
        params = {"schema": self._origin, "target": name}
        for (grant,) in self._connection.execute(text_of("copied_rights"), params).fetchall():
            self._run(grant)
        self._give_to_roles(name)

    def _give_to_roles(self, name: str) -> None:
        """Tables of sinks, and views and functions of states, belong to the role of workers."""
        params = {"schema": self._origin, "target": name}
        owned = self._connection.execute(text_of("copied_owners"), {"schema": self._origin})
        for relation, role in owned.fetchall():
            named = sql.Identifier(name, relation)
            self._run(composed("own_relation", relation=named, role=sql.Identifier(role)))
        routines = self._connection.execute(text_of("copied_routine_owners"), params)
        for signature, role in routines.fetchall():
            routine = sql.SQL(signature)
            self._run(composed("own_routine", routine=routine, role=sql.Identifier(role)))

    def _run(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement)


def own_rows(
    connection: psycopg.Connection[Any],
    name: str,
    origin: str,
    copied_at: datetime,
    marks: CopyMarks,
    restore_point: str | None = None,
) -> None:
    """Make the rows of a copy that name its pipeline and workers its own."""
    statements = Statements(name)
    connection.execute(
        statements.get("own_copy"),
        {
            "name": name,
            "origin": origin,
            "copied_at": copied_at,
            "keep_until": marks.keep_until,
            "restore_point": restore_point,
            "withholds": marks.withholds,
        },
    )
    connection.execute(statements.get("free_intervals"))
    connection.execute(statements.get("free_leadership"))
    if not marks.takes_requests:
        connection.execute(statements.get("forget_open_requests"))


def mark_in_wal(connection: psycopg.Connection[Any], name: str) -> str | None:
    """Position of the restore point; None: this login may not make one, or the server cannot."""
    if not _row(connection, "may_mark_in_wal")[0]:
        return None
    found: str | None = _row(connection, "make_restore_point", name=name)[0]
    return found


def size_of(connection: psycopg.Connection[Any], schema: str) -> int:
    """Bytes of tables and indexes."""
    return int(_row(connection, "schema_size", schema=schema)[1])


def _row(connection: psycopg.Connection[Any], statement: str, /, **params: Any) -> tuple[Any, ...]:
    (row,) = connection.execute(text_of(statement), params or None).fetchall()
    return tuple(row)
