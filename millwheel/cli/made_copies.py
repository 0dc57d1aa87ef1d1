"""For the commands that copy pipelines: sizes, moments and progress."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from millwheel.cli.printing import confirm
from millwheel.cli.shown_line import shown_line
from millwheel.core.quantities import byte_text, short_duration
from millwheel.errors import UsageError
from millwheel.store.console import administration
from millwheel.store.console.presence import Presence
from millwheel.store.copies.progress import CopyProgress, Show

ASKED_BYTES = 1 << 30
"""A larger copy is asked about."""


def moment_text(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def pipeline_size(presence: Presence, pipeline: str) -> int:
    """Bytes of tables and indexes."""
    return administration.schema_size(presence.url, pipeline)[1]


def confirm_size(presence: Presence, size: int, *, sure: bool) -> None:
    """Ask before much disk is taken. A server does not say how much it has; that of an embedded one
    is here.

    `UsageError` if the disk has too little.
    """
    directory = presence.address.directory
    if directory is not None and (free := shutil.disk_usage(directory).free) < size:
        raise UsageError(
            f"the copy takes about {byte_text(size)}, and the disk of {directory} has "
            f"{byte_text(free)} left. Nothing was made: drop a savepoint (millwheel savepoints "
            "list), or write it to files elsewhere (millwheel savepoint --to)"
        )
    if size >= ASKED_BYTES:
        confirm(
            f"the copy takes about {byte_text(size)} of the server's disk",
            f"The copy takes about {byte_text(size)} of the server's disk. Make it?",
            sure=sure,
        )


@contextmanager
def copy_progress() -> Iterator[Show]:
    with shown_line() as show:
        yield lambda progress: show(_progress_text(progress))


def _progress_text(progress: CopyProgress) -> str:
    copied = f"{progress.rows:,} rows · {byte_text(progress.bytes)}"
    if progress.is_building:
        return f"{copied} · indexes of {progress.table}"
    left = progress.seconds_left
    text = f"{progress.share:.0%} · {copied} · {progress.table}"
    return text if left is None else f"{text} · {short_duration(left)} left"
