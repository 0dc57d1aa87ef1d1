"""The page of the disk: bytes by kind, and the reasons why they are kept."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

import msgspec

from millwheel.store.console.disk_tables import LeftState, LongSnapshot, TableUse, disk_tables
from millwheel.store.console.inspection import Inspection, KeptBucket
from millwheel.ui.page import NoFilters, Page


class KindUse(msgspec.Struct, frozen=True):
    kind: str
    bytes: int
    dead_rows: int
    tables: list[TableUse]
    """The largest first."""


class KeptPast(msgspec.Struct, frozen=True):
    """A reason why the oldest bucket of records, seen ids and commits is kept."""

    kept_by: str
    """records, last commit, fold or reader."""
    what: str | None
    detail: str | None
    """A reader, with its statement."""
    since: str | None


class DiskFigures(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    """Bytes."""
    kinds: list[KindUse]
    """The largest first."""
    kept: list[KeptPast]
    """Empty: nothing keeps the oldest bucket."""
    unfolded: int
    """Commits that are not in the current states and timers yet."""
    fold_age_seconds: float | None
    """Age of the oldest of them; None: there are none."""
    snapshots: list[LongSnapshot]
    sees_all_sessions: bool
    """Whether the login of the pages sees the snapshots of others."""
    orphaned: list[LeftState]
    """Entries that no code reads any more."""


def look(inspection: Inspection, pipeline: str, filters: NoFilters) -> DiskFigures:
    disk = inspection.disk(pipeline)
    found = disk_tables(inspection.connection, pipeline)
    by_kind = sorted(found.tables, key=attrgetter("kind"))  # stable: the largest first of a kind
    kinds = []
    for kind, rows in groupby(by_kind, key=attrgetter("kind")):
        tables = list(rows)
        dead_rows = sum(one.dead_rows for one in tables)
        kinds.append(KindUse(kind, sum(one.bytes for one in tables), dead_rows, tables))
    kinds.sort(key=attrgetter("bytes"), reverse=True)
    return DiskFigures(
        total=sum(one.bytes for one in kinds),
        kinds=kinds,
        kept=list(map(_kept, disk.oldest)),
        unfolded=disk.unfolded,
        fold_age_seconds=disk.fold_age_seconds,
        snapshots=found.snapshots,
        sees_all_sessions=found.sees_all_sessions,
        orphaned=found.orphaned,
    )


def _kept(one: KeptBucket) -> KeptPast:
    if one.kept_by == "reader":
        return KeptPast(one.kept_by, None, one.what, one.since)
    return KeptPast(one.kept_by, one.what, None, one.since)


DISK: Page[NoFilters] = Page("disk", "Disk", "What is on disk?", "disk.html", look)
