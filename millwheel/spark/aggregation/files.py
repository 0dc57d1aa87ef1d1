"""Replacing groups of Parquet files: each group has a directory, and Spark replaces the directories of a batch.

Files are replaced before the store notes the batch. If the process ends in between, the batch is done again, with the
groups as they are then: the result is the same as if it had been done once. A reader may see some groups of a batch
before others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from millwheel.aggregates import Parquet
from millwheel.errors import UsageError, UserCodeError
from millwheel.spark.aggregation.following import Change
from millwheel.spark.aggregation.progress import AggregateProgress, Stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Place: TypeAlias = tuple[str, ...]
"""The values of a group, as the names of its directories have them."""

EMPTY = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name of the directory for an empty text."""


class FilesTarget:
    """The Parquet files of an aggregate."""

    def __init__(self, stored: Stored, files: Parquet) -> None:
        self._stored = stored
        self._path = files.path.resolve()
        self._names = list(stored.aggregate.group_names)
        self._result: DataFrame

    def prepare(self) -> None:
        """Refuse a directory with other files: all of them are replaced when the aggregate is made from all rows.

        Raises:
            UsageError: it has some.
        """
        ours = (f"{self._names[0]}=", "_", ".")
        entries = sorted(self._path.iterdir()) if self._path.is_dir() else []
        if foreign := [entry.name for entry in entries if not entry.name.startswith(ours)]:
            raise UsageError(
                f"the directory {self._path} of aggregate {self._stored.aggregate.name!r} has {foreign[0]!r}, which is none "
                "of its groups: all that is in the directory may be replaced, so give the aggregate one of its own"
            )

    def begin(self) -> None:
        """Nothing is needed."""

    def write(self, result: DataFrame) -> None:
        """Take the result; it is written by `replace`."""
        missing = [name for name in self._names if name not in result.columns]
        if missing:
            raise UserCodeError(
                f"the function of aggregate {self._stored.aggregate.name!r} returned no column {', '.join(missing)}: its "
                f"files are divided by {', '.join(self._names)}; it returned {', '.join(result.columns)}"
            )
        self._result = result

    def replace(self, before: AggregateProgress, change: Change) -> int:
        """Replace the directories of the changed groups, delete those of groups without rows, and note the batch.

        Returns:
            The number of groups with rows.

        Raises:
            UserCodeError: a row belongs to a group that has not changed.
        """
        result = self._result.persist()
        try:
            texts = [f"CAST({name} AS STRING) AS {name}" for name in map(_quoted, self._names)]
            present = {tuple(row) for row in result.selectExpr(*texts).distinct().collect()}
            vanished = self._vanished(change, present)
            result.write.mode("overwrite").option(
                "partitionOverwriteMode", "static" if change.groups is None else "dynamic"
            ).partitionBy(*self._names).parquet(str(self._path))
        finally:
            result.unpersist()
        for directory, place in self._directories():
            if place in vanished:
                shutil.rmtree(directory)
        with self._stored.transaction() as connection:
            self._stored.advance(connection, before, change.read)
        return len(present)

    def close(self) -> None:
        """Nothing is left."""

    def _vanished(self, change: Change, present: set[Place]) -> set[Place]:
        """The changed groups that have no rows any more."""
        if change.groups is None:
            return set()  # all files are replaced
        kinds = dict(self._result.dtypes)
        changed = {
            tuple(
                _as_spark(value, kinds[name])
                for name, value in zip(self._names, values, strict=True)
            )
            for values in change.groups.by_begin(self._names).values
        }
        if foreign := present - changed:
            raise UserCodeError(
                f"the function of aggregate {self._stored.aggregate.name!r} returned rows of groups that it was not "
                f"given, such as {' '.join(min(foreign))}. It gets the rows of the groups that have changed, and may "
                "return rows of these only"
            )
        return changed - present

    def _directories(self) -> Iterator[tuple[Path, Place]]:
        """The directories of all groups."""
        if not self._path.is_dir():
            return
        for directory in self._path.glob("/".join(f"{name}=*" for name in self._names)):
            parts = directory.relative_to(self._path).parts
            values = (unquote(part.partition("=")[2]) for part in parts)
            yield directory, tuple("" if value == EMPTY else value for value in values)


def _as_spark(value: str, kind: str) -> str:
    """A value as Spark writes it, from Postgres' text."""
    if kind == "date":
        return value[:10]
    return value.removesuffix("+00") if kind == "timestamp" else value


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
