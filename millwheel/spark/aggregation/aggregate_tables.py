"""Replacing groups of a table, in the transaction that stores the vector."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from millwheel.errors import UserCodeError
from millwheel.sinks import Table
from millwheel.spark.aggregation.aggregate_progress import AggregateProgress, Stored
from millwheel.spark.aggregation.changed_groups import Change
from millwheel.spark.staging import StagingTable, check_columns
from millwheel.spark.store_sessions import statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 3


class TableTarget:
    """The table of an aggregate, and its staging table.

    `options` are those of Spark's tasks, with the store if they do not have it.
    """

    def __init__(self, stored: Stored, table: Table[Any], options: Mapping[str, str]) -> None:
        self._stored = stored
        self._table = table
        self._options = options
        self._names = [column.name for column in table.columns]
        self._types = {column.name: column.type for column in table.columns}
        self._here = sql.Identifier(stored.pipeline, table.name)
        name = f"staging_of_{hashlib.sha256(table.name.encode()).hexdigest()[:12]}"
        self._staged = StagingTable(stored.store, stored.pipeline, name)
        self._batch = ""

    def prepare(self) -> None:
        """It replaces a staging table that a killed process has left."""
        self._staged.make(sql.SQL("LIKE {}").format(self._here))

    def begin(self) -> None:
        self._staged.empty()

    def write(self, result: DataFrame) -> None:
        check_columns(result.schema, self._table.columns, self._stored.aggregate.name)
        self._batch = str(uuid.uuid4())
        result.select(*self._names).write.format("millwheel").mode("append").options(
            pipeline=self._stored.pipeline,
            staging=self._staged.name,
            batch=self._batch,
            json=",".join(column.name for column in self._table.columns if column.is_json),
            **self._options,
        ).save()

    def replace(self, before: AggregateProgress, change: Change) -> int:
        """Put the staged rows in place of the changed groups; returns their number.

        Raises:
            UserCodeError: a row belongs to another group, or does not fit the table.
            StoreUnavailable: see `StagingTable.counted`.
        """
        columns = sql.SQL(", ").join(map(sql.Identifier, self._names))
        with self._stored.transaction() as connection:
            attempts = self._staged.counted(connection, self._batch)
            self._delete(connection, change, attempts)
            try:
                found = connection.execute(
                    self._statement("insert_result", columns=columns), {"attempts": attempts}
                )
            except psycopg.errors.IntegrityError as error:
                raise UserCodeError(
                    f"the result of aggregate {self._stored.aggregate.name!r} does not fit table "
                    f"{self._table.name!r}: {error}"
                ) from error
            self._stored.advance(connection, before, change.read)
            return found.rowcount

    def close(self) -> None:
        self._staged.drop()

    def _delete(
        self, connection: psycopg.Connection[Any], change: Change, attempts: list[str]
    ) -> None:
        if change.groups is None:
            connection.execute(statement("delete_all", target=self._here))
            return
        groups = change.groups.by_begin(self._stored.aggregate.group_names)
        listed, values = groups.listed(self._types.__getitem__), groups.parameters
        names = sql.SQL(", ").join(map(sql.Identifier, self._stored.aggregate.group_names))
        foreign = connection.execute(
            self._statement(
                "foreign_groups",
                names=names,
                groups=listed,
                matches=groups.matches(sql.SQL("staged")),
            ),
            [attempts, *values],
        ).fetchall()
        if foreign:
            raise UserCodeError(
                f"the function of aggregate {self._stored.aggregate.name!r} returned rows of "
                f"groups that it was not given: {_listed(foreign)}. It gets the rows of the "
                "groups that have changed, and may return rows of these only"
            )
        connection.execute(
            self._statement(
                "delete_groups", groups=listed, matches=groups.matches(sql.SQL("kept"))
            ),
            values,
        )

    def _statement(self, name: str, **parts: sql.Composable) -> sql.Composed:
        return self._staged.statement(f"aggregates/{name}", target=self._here, **parts)


def _listed(rows: list[tuple[Any, ...]]) -> str:
    text = "; ".join(" ".join(map(str, row)) for row in rows[:SHOWN])
    return text + (f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")
