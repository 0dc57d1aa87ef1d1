"""Publishes the tables of a pipeline: makes the names that readers use (decision 87)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import StoreError, StoreUnavailable, UsageError
from millwheel.store.console.administration import LOCK_SECONDS, locked_pipeline, transaction
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.published_names import (
    PublishedName,
    columns_of,
    comment_on,
    lead,
    own_tables,
    published_names,
    quoted,
    rights_of_owner,
    view_of,
)
from millwheel.store.console.snapshot import list_pipelines
from millwheel.store.copies.origins import SIGN
from millwheel.store.postgres.statements import composed, text_of


class Publication(NamedTuple):
    """The result of one call."""

    schema: str
    made: list[str]
    """Names that readers did not have before."""
    changed: list[str]
    """Names with other columns than before, and the changes."""
    names: list[str]
    """All names in the schema that lead to the pipeline."""


def list_published(url: str, pipeline: str | None = None) -> list[PublishedName]:
    """The names that lead to a pipeline (None: to any)."""
    with transaction(url) as connection:
        return published_names(connection, pipeline)


def publish(
    url: str,
    pipeline: str,
    schema: str,
    tables: Sequence[str] = (),
    *,
    actor: Actor = UNNAMED,
) -> Publication:
    """Let readers use names in `schema` for tables of the pipeline (none named: all its own).

    May be repeated: tables that a deploy has made since get names, and views the new columns.

    Raises:
        UsageError: there is no such pipeline or table, the schema is that of a pipeline, or one of
            the names leads elsewhere.
        StoreError: this login may not do that; nothing was made.
        StoreUnavailable: another session uses a name for long.
    """
    with locked_pipeline(url, pipeline) as connection, _explained(pipeline, schema):
        Inspection(connection).require_current(pipeline)
        _refuse_schema(connection, schema)
        found = own_tables(connection, pipeline)
        chosen = _chosen(pipeline, found, tables)
        publishing = _Publishing(connection, pipeline, schema)
        publishing.make_schema()
        for table in chosen:
            publishing.publish(table)
        names = [one.name for one in published_names(connection, pipeline, [schema])]
        result = Publication(schema, publishing.made, publishing.changed, names)
        if result.made or result.changed:
            payload = {"in": schema, "made": result.made, "changed": result.changed}
            Asking(connection, pipeline).note(actor, "publish", payload)
        return result


def unpublish(
    url: str,
    pipeline: str,
    schema: str,
    tables: Sequence[str] = (),
    *,
    actor: Actor = UNNAMED,
) -> list[PublishedName]:
    """Drop names that lead to a pipeline (none named: all in the schema), and return them.

    Raises:
        UsageError: there is no such name, or other objects use one; nothing was dropped.
        StoreUnavailable: another session uses a name for long.
    """
    with transaction(url) as connection, _explained(pipeline, schema):
        there = {one.name: one for one in published_names(connection, pipeline, [schema])}
        missing = [name for name in tables if name not in there]
        if missing or not there:
            message = (
                f"{schema!r} has no published name {', '.join(missing) or 'at all'} of pipeline "
                f"{pipeline!r}; it has: {', '.join(there) or 'none'}. Nothing was dropped"
            )
            raise UsageError(with_suggestion(message, "".join(missing[:1]), list(there)))
        dropped = [there[name] for name in tables or there]
        for one in dropped:
            view = sql.Identifier(one.schema, one.name)
            connection.execute(composed("drop_published_view", view=view))
        if pipeline in list_pipelines(connection):
            payload = {"in": schema, "names": [one.name for one in dropped]}
            Asking(connection, pipeline).note(actor, "unpublish", payload)
        return dropped


class _Publishing:
    """One call, inside its transaction."""

    def __init__(self, connection: psycopg.Connection[Any], pipeline: str, schema: str) -> None:
        self._connection = connection
        self._pipeline, self._schema = pipeline, schema
        self._published = {one.name: one for one in published_names(connection, None, [schema])}
        generation = quoted(pipeline, "generation")
        row = connection.execute(text_of("owner_of_table"), {"table": generation}).fetchone()
        assert row is not None
        self._owner: str = row[0]
        """The views belong to the owner of the pipeline."""
        self.made: list[str] = []
        self.changed: list[str] = []

    def make_schema(self) -> None:
        self._connection.execute(
            composed(
                "make_published_schema",
                schema=sql.Identifier(self._schema),
                owner=sql.Identifier(self._owner),
            )
        )

    def publish(self, table: str) -> None:
        view, like = quoted(self._schema, table), quoted(self._pipeline, table)
        columns = [column.name for column in columns_of(self._connection, like)]
        former = self._published.get(table)
        if former is not None and former.pipeline != self._pipeline:
            raise UsageError(
                f"{former.words} leads to pipeline {former.pipeline!r}: millwheel switch "
                f"{former.pipeline} {self._pipeline}. Nothing was made"
            )
        if former is not None:
            self._refresh(former)
        else:
            self._make(table, columns)
        params = {"table": like, "view": view, "schema": self._schema, "columns": columns}
        for (grant,) in self._connection.execute(text_of("readers_of_table"), params).fetchall():
            self._connection.execute(grant)

    def _make(self, table: str, columns: list[str]) -> None:
        view, like = quoted(self._schema, table), quoted(self._pipeline, table)
        if columns_of(self._connection, view):
            raise UsageError(
                f"there is a {self._schema}.{table} already, which is not published; rename or "
                "drop it, or publish in another schema. Nothing was made"
            )
        for grant in rights_of_owner(self._connection, self._owner, like):
            self._connection.execute(grant)
        self._connection.execute(view_of(self._schema, table, like, columns))
        self._connection.execute(
            composed(
                "own_view",
                view=sql.Identifier(self._schema, table),
                owner=sql.Identifier(self._owner),
            )
        )
        self._connection.execute(comment_on(self._schema, table, table))
        self.made.append(table)

    def _refresh(self, former: PublishedName) -> None:
        """Only a view that differs is locked: readers of the others do not wait."""
        leading = lead(self._connection, former, self._pipeline)
        if leading.in_the_way:
            raise UsageError(
                f"the columns of {former.words} have changed ({'; '.join(leading.changes)}), and "
                f"other objects use it: {', '.join(leading.in_the_way)}. Drop them, and make them "
                "again afterwards. Nothing was changed"
            )
        if leading.changes:
            for statement in (*leading.before, *leading.statements):
                self._connection.execute(statement)
            self.changed.append(f"{former.name}: {'; '.join(leading.changes)}")


def _chosen(pipeline: str, found: dict[str, str], tables: Sequence[str]) -> list[str]:
    missing = [table for table in tables if table not in found]
    if missing:
        message = (
            f"pipeline {pipeline!r} has no table {', '.join(map(repr, missing))} of its own; it "
            f"has: {', '.join(found) or 'none'}. Nothing was made"
        )
        raise UsageError(with_suggestion(message, missing[0], found))
    if not found:
        raise UsageError(
            f"pipeline {pipeline!r} has no table of its own yet: a worker makes those of its sinks "
            "when it starts first. Nothing was made"
        )
    return list(tables or found)


def _refuse_schema(connection: psycopg.Connection[Any], schema: str) -> None:
    if SIGN in schema or schema in list_pipelines(connection):
        raise UsageError(
            f"{schema!r} is the schema of a pipeline, with tables of the same names: publish in a "
            "schema that belongs to readers"
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise UsageError(f"{schema!r} is a schema of Postgres itself: choose another one")


@contextlib.contextmanager
def _explained(pipeline: str, schema: str) -> Iterator[None]:
    """Errors of the server in words."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"another session has used names in {schema!r} for {LOCK_SECONDS} s: a long query, or "
            "a transaction that is left open. Nothing was changed; try again"
        ) from error
    except psycopg.errors.DependentObjectsStillExist as error:
        raise UsageError(
            f"other objects use names in {schema!r}: {error.diag.message_detail or error}. Drop "
            "them first; nothing was dropped"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError(
            f"this login may not publish {pipeline!r} in {schema!r}: {str(error).strip()}. It "
            "takes the roles that own the schema and the tables of the pipeline, and CREATE on the "
            "database or on the schema. Nothing was changed"
        ) from error
