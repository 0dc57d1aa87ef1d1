"""Savepoints: copies of a pipeline at one moment, named ``PIPELINE@LABEL``."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.snapshot import iso_text, list_pipelines
from millwheel.store.copies.copying import CopyMarks, MadeCopy, copy_pipeline
from millwheel.store.copies.origins import SIGN
from millwheel.store.copies.progress import Show, show_nothing
from millwheel.store.postgres.statements import Statements, composed, text_of

NAME_BYTES = 63
"""Postgres cuts longer names."""

_LABEL = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")


class Savepoint(msgspec.Struct, frozen=True):
    name: str
    """``PIPELINE@LABEL``, which is also its schema."""
    pipeline: str
    label: str
    at: datetime
    """The moment that it shows."""
    bytes: int
    """Tables and indexes on disk."""
    generation: int
    """Of the code that was deployed."""
    low_watermark: str
    """The least of all steps."""
    keep_until: datetime | None
    """When the next savepoint of the pipeline drops it; None: it is kept until it is dropped."""
    is_expired: bool
    restore_point: str | None
    """Position in the WAL of the restore point that has its name; None: there is none."""


def savepoint_name(pipeline: str, label: str) -> str:
    """`UsageError` if the label is not valid."""
    room = NAME_BYTES - len(f"{pipeline}{SIGN}".encode())
    if not _LABEL.match(label) or len(label) > room:
        raise UsageError(
            f"{label!r} cannot name a savepoint of {pipeline!r}: use lower-case letters, digits, - "
            f"and _, {room} characters at the most"
        )
    return f"{pipeline}{SIGN}{label}"


def make_savepoint(
    url: str,
    pipeline: str,
    label: str,
    *,
    keep_until: datetime | None = None,
    actor: Actor = UNNAMED,
    show: Show = show_nothing,
) -> tuple[MadeCopy, list[str]]:
    """Copy the pipeline as it is now; also drops its savepoints whose time is over, and returns
    their names. Errors as `copy_pipeline`."""
    name = savepoint_name(pipeline, label)
    marks = CopyMarks(keep_until=keep_until, has_restore_point=True, rests=True)
    made = copy_pipeline(url, pipeline, name, marks, show)
    dropped = []
    for one in list_savepoints(url, pipeline):
        if one.is_expired and one.name != name:
            drop_savepoint(url, one.name)
            dropped.append(one.name)
    payload = {"savepoint": name, "rows": made.rows, "bytes": made.bytes, "expired": dropped}
    with transaction(url) as connection:
        Asking(connection, pipeline).note(actor, "savepoint", payload)
    return made, dropped


def list_savepoints(url: str, pipeline: str | None = None) -> list[Savepoint]:
    """Those of a pipeline (None: of all), the newest first."""
    found = []
    with transaction(url) as connection:
        for name, size in connection.execute(text_of("savepoint_schemas")).fetchall():
            if pipeline is None or name.startswith(f"{pipeline}{SIGN}"):
                with (
                    contextlib.suppress(psycopg.errors.UndefinedTable),  # it was dropped meanwhile
                    connection.transaction(),
                ):
                    found.append(_savepoint(connection, name, size))
    return sorted(found, key=lambda one: one.at, reverse=True)


def find_savepoint(url: str, name: str) -> Savepoint:
    """`UsageError` if there is none."""
    known = list_savepoints(url)
    for one in known:
        if one.name == name:
            return one
    names = [one.name for one in known]
    message = f"there is no savepoint {name!r}; there are: {', '.join(names) or 'none'}"
    raise UsageError(with_suggestion(message, name, names))


def drop_savepoint(url: str, name: str, *, actor: Actor = UNNAMED) -> Savepoint:
    """`UsageError` if there is no such savepoint; `StoreUnavailable` while another session reads
    it."""
    found = find_savepoint(url, name)
    with transaction(url) as connection:
        connection.execute(composed("drop_schema", schema=sql.Identifier(name)))
        if found.pipeline in list_pipelines(connection):
            note = Asking(connection, found.pipeline).note
            note(actor, "drop savepoint", {"savepoint": name, "bytes": found.bytes})
    return found


def _savepoint(connection: psycopg.Connection[Any], name: str, size: int) -> Savepoint:
    pipeline, _, label = name.partition(SIGN)
    row = connection.execute(Statements(name).get("savepoint_row", watermarks="watermarks"))
    found = row.fetchone()
    assert found is not None
    at, keep_until, is_expired, restore_point, generation, low_watermark = found
    return Savepoint(
        name, pipeline, label, at, size, generation, iso_text(low_watermark) or "", keep_until,
        is_expired, restore_point,
    )  # fmt: skip
