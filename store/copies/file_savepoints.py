"""Writes a savepoint to files, under one snapshot.

::

    snapshot ─▶ structure ─▶ rows of each table ─▶ sequences ─▶ end of the snapshot
        ─▶ load.sql ─▶ manifest.json

The manifest comes last, so an interrupted savepoint is never taken for one. Tables that are about
the processes that run the origin have no rows in it: the workers' secret is not in the files.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from psycopg import sql

from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.migrate import HEAD
from millwheel.store.console.views import view_statements
from millwheel.store.copies.copying import mark_in_wal
from millwheel.store.copies.file_manifest import FileManifest, RowFile, manifest_text
from millwheel.store.copies.file_places import MANIFEST, FilePlace
from millwheel.store.copies.layout import TableLayout, layout_of
from millwheel.store.copies.origins import EMPTY, Origin, origin_at_one_moment, reading_explained
from millwheel.store.copies.progress import CopyCount, Show, show_nothing
from millwheel.store.copies.row_files import RowFiles, row_blocks
from millwheel.store.copies.savepoints import savepoint_name
from millwheel.store.copies.schema_statements import (
    left_behind,
    positions_of,
    rows_in_by_psql,
    rows_out,
    structure_of,
)
from millwheel.store.postgres.statements import Statements, composed

LOAD_SCRIPT = "load.sql"

ROOM = 0.3
"""A disk must have this share of the tables' bytes free before the first file is written. JSON
takes a tenth to a third; with the disk full in the middle nothing is made either."""


class FileLabel(NamedTuple):
    """How a savepoint in files is called, and by which program and person it is made."""

    label: str
    written_by: str
    """Version of millwheel."""
    actor: Actor = UNNAMED


class MadeFiles(NamedTuple):
    name: str
    """``PIPELINE@LABEL``"""
    place: str
    copied_at: datetime
    """The moment that the files show."""
    restore_point: str | None
    """Position in the WAL."""
    rows: int
    files: int
    bytes: int
    """Of the files."""
    left_out: list[str]
    """Objects of users that the files have not, in words."""


def write_savepoint(
    url: str, pipeline: str, place: FilePlace, label: FileLabel, show: Show = show_nothing
) -> MadeFiles:
    """Write the pipeline as it is now to files.

    Raises:
        UsageError: there are files already, the label is not valid, or as `copy_pipeline`.
        OutputError: the files cannot be written, the disk is full for example; no savepoint was
            made.
        StoreError: this login may not read all of the pipeline.
        StoreUnavailable: another session holds a table of the pipeline for long.
    """
    name = savepoint_name(pipeline, label.label)
    place.begin()
    try:
        with origin_at_one_moment(url, pipeline, reading_explained(pipeline), EMPTY) as origin:
            manifest = _Writing(origin, place, show).run(name, label.label)
        _write(place, LOAD_SCRIPT, _load_script(manifest).encode())
        _write(place, MANIFEST, manifest_text(manifest, label.written_by))
        place.finish()
    except BaseException:
        place.discard()
        raise
    made = MadeFiles(
        name,
        place.text,
        manifest.at,
        manifest.restore_point,
        manifest.rows,
        len(manifest.files),
        manifest.file_bytes,
        manifest.left_out,
    )
    payload = {"savepoint": name, "to": made.place, "rows": made.rows, "bytes": made.bytes}
    with transaction(url) as connection:
        Asking(connection, pipeline).note(label.actor, "savepoint", payload)
    return made


def _write(place: FilePlace, name: str, content: bytes) -> None:
    with place.writing(name) as write:
        write(content)


class _Writing:
    """One savepoint, inside the transaction that has its snapshot."""

    def __init__(self, origin: Origin, place: FilePlace, show: Show) -> None:
        self._connection = origin.connection
        self._origin, self._at = origin.name, origin.at
        self._place, self._show = place, show

    def run(self, name: str, label: str) -> FileManifest:
        restore_point = mark_in_wal(self._connection, name)
        layout = layout_of(self._connection, self._origin)
        structure = structure_of(self._connection, self._origin, layout)
        tables = [table for table in layout.tables if table.name not in EMPTY]
        size = sum(table.bytes for table in tables)
        self._place.require_room(round(size * ROOM))
        progress = CopyCount(size, self._show)
        files = [
            file for number, table in enumerate(tables, 1)
            for file in self._files_of(table, number, progress)
        ]  # fmt: skip
        return FileManifest(
            pipeline=self._origin,
            label=label,
            at=self._at,
            schema_version=HEAD,
            postgres=self._server_version(),
            restore_point=restore_point,
            rows=progress.rows,
            table_bytes=size,
            left_out=left_behind(layout),
            files=files,
            sequences=positions_of(self._connection, self._origin, layout.sequences),
            structure=structure,
        )

    def _files_of(self, table: TableLayout, number: int, progress: CopyCount) -> list[RowFile]:
        files = RowFiles(self._place, table, number)
        left = table.bytes
        with self._connection.cursor().copy(rows_out(self._origin, table)) as copy:
            header = bytes(copy.read())
            for block in files.write(header, row_blocks(copy)):
                size = min(left, len(block.data))
                left -= size
                progress.at(table.name, rows=block.rows, size=size)
        progress.at(table.name, size=left)
        return files.made

    def _server_version(self) -> str:
        return self._connection.info.parameter_status("server_version") or ""


def _load_script(manifest: FileManifest) -> str:
    """For psql: all of the savepoint into a schema of the pipeline's name."""
    structure = manifest.structure
    statements = Statements(manifest.pipeline)
    made = [
        *(part.statement for part in structure.before_rows),
        *(
            rows_in_by_psql(one.table, one.columns, f"gzip -dc {one.file}")
            for one in manifest.files
        ),
        *(part.statement for part in structure.after_rows),
        *(one.statement() for one in manifest.sequences),
        *view_statements(manifest.pipeline),
        *(part.statement for part in structure.code),
        statements.get("free_intervals"),
        statements.get("free_leadership"),
    ]
    ended = [one if one.startswith("\\") else f"{one};" for one in made]
    return composed(
        "load_by_psql",
        schema=sql.Identifier(manifest.pipeline),
        statements=sql.SQL("\n".join(ended)),
    )
