"""The manifest of a savepoint in files: what belongs to it, with a digest of each file.

It is JSON of an envelope, which each version of the format has, and of the savepoint, which the
digest in the envelope covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from millwheel.errors import InputError, UsageError
from millwheel.store.console.migrate import HEAD
from millwheel.store.copies.file_places import MANIFEST, FilePlace
from millwheel.store.copies.schema_statements import SequencePosition, Structure

FORMAT: Final = 1
"""Of the files. A change that former code cannot read raises it."""

MOST_BYTES = 1 << 30
"""No manifest is larger."""

MISSING_SHOWN = 5

REMEDY = "Copy it again from where it was written, or use another savepoint. Nothing was made"


class RowFile(msgspec.Struct, frozen=True):
    """Rows of one table: CSV as ``COPY ... WITH (FORMAT csv, HEADER)`` writes it, in gzip."""

    file: str
    table: str
    columns: list[str]
    """In the order of the file."""
    rows: int
    bytes: int
    """Of the file."""
    sha256: str
    """Of the file."""


class FileManifest(msgspec.Struct, frozen=True):
    pipeline: str
    label: str
    at: datetime
    """The moment that the rows show."""
    schema_version: str
    """Revision of the migrations."""
    postgres: str
    """Version of the server."""
    restore_point: str | None
    """Position in its WAL of the restore point ``PIPELINE@LABEL``; null: there is none."""
    rows: int
    table_bytes: int
    """Of the tables in the origin, without indexes."""
    left_out: list[str]
    """Objects of users that the files have not, in words."""
    files: list[RowFile]
    sequences: list[SequencePosition]
    structure: Structure

    @property
    def file_bytes(self) -> int:
        return sum(one.bytes for one in self.files)


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    written_by: str
    """The version of millwheel."""
    sha256: str = ""
    """Of the text of the savepoint."""
    savepoint: msgspec.Raw = msgspec.Raw(b"null")


def manifest_text(manifest: FileManifest, written_by: str) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode(_Envelope(FORMAT, written_by, digest, msgspec.Raw(body)))


def read_manifest(place: FilePlace) -> FileManifest:
    """Read the manifest, and look for the files that it names.

    Raises:
        UsageError: there is none, or code of another version wrote it.
        InputError: it is damaged, or files are missing or have other sizes.
    """
    if place.size(MANIFEST) is None:
        raise UsageError(
            f"{place.text} has no {MANIFEST}, so it is no savepoint, or one that was interrupted "
            "or is still being written"
        )
    with place.reading(MANIFEST) as read:
        envelope, manifest = _decoded(_all(read), f"{place.text}/{MANIFEST}")
    _require_head(manifest, envelope.written_by, place.text)
    sizes = {one.file: place.size(one.file) for one in manifest.files}
    wrong = [
        f"{one.file} is missing"
        if sizes[one.file] is None
        else f"{one.file} has {sizes[one.file]:,} of {one.bytes:,} bytes"
        for one in manifest.files
        if sizes[one.file] != one.bytes
    ]
    if wrong:
        more = f" and {len(wrong) - MISSING_SHOWN:,} more" if len(wrong) > MISSING_SHOWN else ""
        shown = "; ".join(wrong[:MISSING_SHOWN])
        raise InputError(f"{place.text} is damaged: {shown}{more}. {REMEDY}")
    return manifest


def _all(read: Callable[[int], bytes]) -> bytes:
    blocks, size = [], 0
    while block := read(1 << 20):
        blocks.append(block)
        size += len(block)
        if size > MOST_BYTES:
            break
    return b"".join(blocks)


def _decoded(text: bytes, name: str) -> tuple[_Envelope, FileManifest]:
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is damaged: {error}. {REMEDY}") from error
    if envelope.format != FORMAT:
        raise UsageError(
            f"{name} is of format {envelope.format}, and this millwheel reads format {FORMAT}. "
            f"Load it with millwheel {envelope.written_by}, which wrote it"
        )
    body = bytes(envelope.savepoint)
    if hashlib.sha256(body).hexdigest() != envelope.sha256:
        raise InputError(f"{name} is damaged: its digest is another one. {REMEDY}")
    try:
        return envelope, msgspec.json.decode(body, type=FileManifest)
    except msgspec.DecodeError as error:
        raise InputError(f"{name} cannot be read: {error}. {REMEDY}") from error


def _require_head(manifest: FileManifest, written_by: str, text: str) -> None:
    version = manifest.schema_version
    if version == HEAD:
        return
    remedy = (
        "Install a newer millwheel"
        if version > HEAD
        else f"Migrate the original (millwheel migrate {manifest.pipeline}), and write a savepoint "
        f"of it; or fork this one with millwheel {written_by}, and then migrate the fork"
    )
    raise UsageError(
        f"{text} is of a schema at version {version}, and this code needs {HEAD}. {remedy}. "
        "Nothing was made"
    )
