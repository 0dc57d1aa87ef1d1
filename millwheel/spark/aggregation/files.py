"""Replacing groups of Parquet files: each group has a directory.

Spark writes the groups of a batch beside the others, and only when all of them are there, and
belong to groups that have changed, their directories change places::

    DIR/_incoming/origin=JFK/month=2013-01-01/   written by Spark's tasks; left by a failed batch
    DIR/origin=JFK/month=2013-01-01/             seen by readers, which leave out names with "_"
    DIR/_outgoing/origin=JFK/month=2013-01-01/   the former one, until the batch is in place

Files are replaced before the store notes the batch. If the process ends in between, the next one
moves back directories without a successor, and does the batch again. A reader may see some groups
of a batch before others.

Directories of times are named in UTC: in local time, two hours of the end of daylight saving time
have one name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

import structlog

from millwheel.aggregates import Parquet
from millwheel.errors import UsageError, UserCodeError
from millwheel.spark.aggregation.aggregate_progress import AggregateProgress, Stored
from millwheel.spark.aggregation.changed_groups import Change
from millwheel.spark.groups import Groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Group: TypeAlias = tuple[str, ...]

INCOMING, OUTGOING = "_incoming", "_outgoing"

log = structlog.get_logger("millwheel.spark")

EMPTY = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name of the directory for an empty text."""


class FilesTarget:
    def __init__(self, stored: Stored, files: Parquet) -> None:
        self._stored = stored
        self._path = files.path.resolve()
        self._incoming = self._path / INCOMING
        self._outgoing = self._path / OUTGOING
        self._names = list(stored.aggregate.group_names)
        self._kinds: dict[str, str] = {}
        self._told_empty = False

    def prepare(self) -> None:
        """`UsageError` for a directory with other files: all of them are replaced when the
        aggregate is made from all rows."""
        ours = (f"{self._names[0]}=", "_", ".")
        entries = sorted(self._path.iterdir()) if self._path.is_dir() else []
        if foreign := [entry.name for entry in entries if not entry.name.startswith(ours)]:
            raise UsageError(
                f"the directory {self._path} of aggregate {self._stored.aggregate.name!r} has "
                f"{foreign[0]!r}, which is none of its groups: all that is in the directory may "
                "be replaced, so give the aggregate one of its own"
            )

    def begin(self) -> None:
        """Undo the moves of a batch that was not finished, and remove its files."""
        for directory, _, files in os.walk(self._outgoing):
            place = Path(directory).relative_to(self._outgoing)
            if files and not (self._path / place).exists():
                _move(self._outgoing, self._path, place)
        self._clear()

    def write(self, result: DataFrame) -> None:
        """Let Spark's tasks write the result beside the present groups. `UserCodeError` if it lacks
        a column of the group."""
        missing = [name for name in self._names if name not in result.columns]
        if missing:
            raise UserCodeError(
                f"the function of aggregate {self._stored.aggregate.name!r} returned no column "
                f"{', '.join(missing)}: its files are divided by {', '.join(self._names)}; it "
                f"returned {', '.join(result.columns)}"
            )
        self._kinds = dict(result.dtypes)
        result.write.mode("overwrite").options(
            timeZone="UTC", partitionOverwriteMode="static"
        ).partitionBy(*self._names).parquet(str(self._incoming))

    def replace(self, before: AggregateProgress, change: Change) -> int:
        """Put the written groups in place of the changed ones, and note the batch; returns the
        number of groups with rows.

        Raises:
            UserCodeError: a row belongs to a group that has not changed.
            UsageError: another process has removed the written files.
        """
        if not self._incoming.is_dir():
            raise UsageError(
                f"another process has removed {self._incoming}, which this one wrote for the "
                f"aggregate {self._stored.aggregate.name!r}: nothing of this batch was kept"
            )
        present = dict(self._groups(self._incoming))
        if change.groups is None:
            # Whole trees: the former result may have been divided by other columns.
            places = {*self._trees(self._path), *self._trees(self._incoming)}
        else:
            changed = self._changed(change.groups)
            if foreign := present.keys() - changed:
                raise UserCodeError(
                    f"the function of aggregate {self._stored.aggregate.name!r} returned rows of "
                    f"groups that it was not given, such as {' '.join(min(foreign))} (times are "
                    "UTC). It gets the rows of the groups that have changed, and may return rows "
                    "of these only"
                )
            there = dict(self._groups(self._path))
            places = {there[group] for group in there.keys() & changed} | {*present.values()}
        for place in sorted(places):
            self._exchange(place)
        self._clear()  # before the batch counts: from then on nothing of it is undone
        with self._stored.transaction() as connection:
            self._stored.advance(connection, before, change.read)
        self._log_empty(present)
        return len(present)

    def close(self) -> None:
        """Nothing is left to close."""

    def _clear(self) -> None:
        for left in (self._outgoing, self._incoming):
            if left.exists():
                shutil.rmtree(left)

    def _exchange(self, place: Path) -> None:
        """Move a directory out, and its successor, if there is one, in."""
        if (self._path / place).exists():
            _move(self._path, self._outgoing, place)
        if (self._incoming / place).exists():
            _move(self._incoming, self._path, place)
        for parent in place.parents[:-1]:  # of which the last group may be gone
            with suppress(OSError):
                (self._path / parent).rmdir()

    def _changed(self, groups: Groups) -> set[Group]:
        return {
            tuple(
                _as_spark(value, self._kinds[name])
                for name, value in zip(self._names, values, strict=True)
            )
            for values in groups.by_begin(self._names).values
        }

    def _trees(self, path: Path) -> Iterator[Path]:
        """The directories of the first column of the group, relative to a path."""
        return (tree.relative_to(path) for tree in path.glob(f"{self._names[0]}=*"))

    def _groups(self, path: Path) -> Iterator[tuple[Group, Path]]:
        for directory in path.glob("/".join(f"{name}=*" for name in self._names)):
            place = directory.relative_to(path)
            values = (unquote(part.partition("=")[2]) for part in place.parts)
            yield tuple("" if value == EMPTY else value for value in values), place

    def _log_empty(self, present: Collection[Group]) -> None:
        if not self._told_empty and any("" in group for group in present):
            self._told_empty = True
            log.warning(
                "empty_text_reads_as_null",
                aggregate=self._stored.aggregate.name,
                directory=EMPTY,
                why="Spark and Parquet readers take the directory of an empty text for that of "
                "NULL",
            )


def _move(from_: Path, to: Path, place: Path) -> None:
    (to / place).parent.mkdir(parents=True, exist_ok=True)
    (from_ / place).rename(to / place)


def _as_spark(value: str, kind: str) -> str:
    if kind == "date":
        return value[:10]
    return value.removesuffix("+00") if kind.startswith("timestamp") else value
