"""Makes a copy in another store, of files or straight from its origin, in one transaction there.

::

    BEGIN ─▶ schema, tables ─▶ rows ─▶ keys, indexes ─▶ sequences ─▶ functions, views
        ─▶ rows of the copy's own ─▶ COMMIT

Rows travel as text, which all versions of Postgres read alike. No row has the number of a
transaction of the origin's server, so none has to be changed: an inbox keeps records by their order
of sending, and its reader keeps the transactions that it waits for in memory only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.errors import MillwheelError, StoreError, StoreUnavailable, UsageError
from millwheel.store.console.views import install_views
from millwheel.store.copies.copying import CopyMarks, MadeCopy, own_rows, size_of
from millwheel.store.copies.file_manifest import FileManifest
from millwheel.store.copies.file_places import FilePlace
from millwheel.store.copies.layout import TableLayout, layout_of, set_path
from millwheel.store.copies.origins import (
    EMPTY,
    LOCK_SECONDS,
    Origin,
    connected,
    origin_at_one_moment,
    reading_explained,
)
from millwheel.store.copies.progress import CopyCount, Show, show_nothing
from millwheel.store.copies.row_files import row_blocks, stored_rows
from millwheel.store.copies.schema_statements import (
    SchemaPart,
    SequencePosition,
    Structure,
    left_behind,
    positions_of,
    rows_in,
    rows_out,
    structure_of,
)
from millwheel.store.postgres.statements import composed
from millwheel.store.postgres.translation import RETRY_CLASSES, translate

OLDEST_POSTGRES = 15

SHOWN_CHARACTERS = 60

ANALYZED_ROWS = 10_000
"""Tables with more rows get figures for the planner at once."""


class NewCopy(NamedTuple):
    """A copy that is to be made in a store."""

    url: str
    """Of the store."""
    store: str
    """The store's address, as messages show it."""
    name: str
    marks: CopyMarks


def load_files(
    place: FilePlace, manifest: FileManifest, new: NewCopy, show: Show = show_nothing
) -> MadeCopy:
    """Make a copy from files.

    Raises:
        UsageError: there is a schema of that name.
        InputError: a file is damaged; nothing was made.
        StoreError: this login may not do that, the disk is full, or the server refuses a part.
    """
    progress = CopyCount(manifest.table_bytes, show)
    share = manifest.table_bytes / max(manifest.rows, 1)
    with _begun(new) as target:
        target.begin(manifest.structure)
        for one in manifest.files:
            progress.at(one.table)
            rows = target.take(one.table, one.columns, stored_rows(place, one))
            progress.at(one.table, rows=rows, size=round(share * rows))
        target.finish(manifest.structure, manifest.sequences, progress)
        origin = f"{manifest.pipeline}@{manifest.label}"
        return target.own(origin, manifest.at, progress.rows, manifest.left_out)


def copy_to_store(url: str, origin_name: str, new: NewCopy, show: Show = show_nothing) -> MadeCopy:
    """Make a copy of a pipeline as it is now, or of a savepoint, in another store.

    The snapshot of the origin ends before indexes are built. Errors as `copy_pipeline` and
    `load_files`.
    """
    with _begun(new) as target:
        with origin_at_one_moment(
            url, origin_name, reading_explained(origin_name), EMPTY
        ) as origin:
            layout = layout_of(origin.connection, origin.name)
            structure = structure_of(origin.connection, origin.name, layout)
            tables = [table for table in layout.tables if table.name not in EMPTY]
            progress = CopyCount(sum(table.bytes for table in tables), show)
            target.begin(structure)
            for table in tables:
                target.take(table.name, table.columns, _sent_rows(origin, table, progress))
            positions = positions_of(origin.connection, origin.name, layout.sequences)
        target.finish(structure, positions, progress)
        return target.own(origin.name, origin.at, progress.rows, left_behind(layout))


def _sent_rows(origin: Origin, table: TableLayout, progress: CopyCount) -> Iterator[bytes]:
    left = table.bytes
    try:
        with origin.connection.cursor().copy(rows_out(origin.name, table)) as copy:
            yield bytes(copy.read())  # the header
            for block in row_blocks(copy):
                yield block.data
                size = min(left, len(block.data))
                left -= size
                progress.at(table.name, rows=block.rows, size=size)
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"the store of {origin.name!r} broke off reading {table.name!r}: {str(error).strip()}. "
            "Nothing was made; try again"
        ) from error
    progress.at(table.name, size=left)


@contextlib.contextmanager
def _begun(new: NewCopy) -> Iterator[_Target]:
    with connected(new.url) as connection:
        version = connection.info.server_version // 10_000
        if version < OLDEST_POSTGRES:
            raise UsageError(
                f"{new.store} is Postgres {version}, and millwheel needs {OLDEST_POSTGRES} or "
                "later. Nothing was made"
            )
        with connection.transaction():
            yield _Target(connection, new)


class _Target:
    """One copy, inside its transaction."""

    def __init__(self, connection: psycopg.Connection[Any], new: NewCopy) -> None:
        self._connection = connection
        self._new = new
        self._analyzed: list[str] = []

    def begin(self, structure: Structure) -> None:
        """Make the schema, and its tables without keys."""
        with self._explained("the schema"):
            schema = sql.Identifier(self._new.name)
            self._connection.execute(composed("make_own_schema", schema=schema))
            self._connection.execute(set_path(self._new.name))
        for part in structure.before_rows:
            self._run(part)

    def take(self, table: str, columns: list[str], blocks: Iterable[bytes]) -> int:
        """Take rows as CSV; returns their number."""
        with self._explained(f"rows of table {table!r}"):
            cursor = self._connection.cursor()
            with cursor.copy(rows_in(self._new.name, table, columns)) as copy:
                for block in blocks:
                    copy.write(block)
        if cursor.rowcount >= ANALYZED_ROWS and table not in self._analyzed:
            self._analyzed.append(table)
        return cursor.rowcount

    def finish(
        self, structure: Structure, positions: list[SequencePosition], progress: CopyCount
    ) -> None:
        """Build keys and indexes, and make functions and views."""
        for part in structure.after_rows:
            progress.building(part.of_table)
            self._run(part)
        for position in positions:
            self._run(SchemaPart("", position.statement()))
        for table in self._analyzed:
            name = sql.Identifier(self._new.name, table)
            self._run(SchemaPart(table, composed("copy_analyze", table=name)))
        with self._explained("the views of this version"):
            install_views(self._connection, self._new.name)
            self._connection.execute(set_path(self._new.name))
        for part in structure.code:
            self._run(part)

    def own(self, origin: str, at: datetime, rows: int, left_out: list[str]) -> MadeCopy:
        name = self._new.name
        with self._explained("the row of the pipeline"):
            own_rows(self._connection, name, origin, at, self._new.marks)
            size = size_of(self._connection, name)
        return MadeCopy(name, origin, at, None, rows, size, left_out)

    def _run(self, part: SchemaPart) -> None:
        first = part.statement.lstrip().partition("\n")[0][:SHOWN_CHARACTERS]
        with self._explained(f"{part.of_table!r} ({first})" if part.of_table else first):
            self._connection.execute(part.statement)

    @contextlib.contextmanager
    def _explained(self, part: str) -> Iterator[None]:
        """Errors of the server in words."""
        store, name = self._new.store, self._new.name
        try:
            yield
        except psycopg.errors.DuplicateSchema as error:
            raise _taken(name, store) from error
        except psycopg.errors.UniqueViolation as error:
            if error.diag.table_name == "pg_namespace":
                raise _taken(name, store) from error
            raise self._refused(part, error) from error
        except psycopg.errors.DiskFull as error:
            raise StoreError(
                f"the disk of {store} is full: {str(error).strip()}. Nothing was made, and its "
                "space is free again"
            ) from error
        except psycopg.errors.LockNotAvailable as error:
            raise StoreUnavailable(
                f"another session has held the name {name!r} in {store} for {LOCK_SECONDS} s. "
                "Nothing was made; try again"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                f"this login may not make {name!r} in {store}: {str(error).strip()}. It takes "
                "CREATE on the database. Nothing was made"
            ) from error
        except psycopg.Error as error:
            raise self._refused(part, error) from error

    def _refused(self, part: str, error: psycopg.Error) -> MillwheelError:
        if not error.sqlstate or error.sqlstate[:2] in RETRY_CLASSES:
            return translate(error)
        text = str(error).strip().rstrip(".")
        return StoreError(
            f"{self._new.store} refuses {part}: {text}. If it is something of the origin's "
            "database that is not in the pipeline's schema, an extension or a type for example, "
            "make that first. Nothing was made"
        )


def _taken(name: str, store: str) -> UsageError:
    return UsageError(
        f"there is a schema {name!r} in {store} already; choose another name, or drop it. Nothing "
        "was made"
    )
