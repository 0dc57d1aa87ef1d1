"""Names that readers use: views in a schema of their own, each of which leads to a table of a
pipeline (decision 87).

The views are the only record of published tables: Postgres knows their columns, rights and
dependent objects, and the tables that they lead to. The beginning of their comment marks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from millwheel.store.postgres.statements import TABLES, composed, text_of

MARK = "Published by millwheel"
"""Beginning of the comment of a published view."""


class PublishedName(msgspec.Struct, frozen=True):
    schema: str
    name: str
    pipeline: str
    """The pipeline that it leads to."""
    table: str
    owner: str
    options: str
    """``WITH (...)``, or empty."""

    @property
    def words(self) -> str:
        return f"{self.schema}.{self.name}"


class RelationColumn(NamedTuple):
    name: str
    type: str
    """With its modifiers and collation."""


class Leading(NamedTuple):
    """How a published name is led to another table."""

    before: tuple[str, ...]
    """Statements that lock nothing that readers use."""
    statements: tuple[str, ...]
    """Statements that lock the name."""
    changes: tuple[str, ...]
    """Differences of the columns that readers meet, in words."""
    in_the_way: tuple[str, ...]
    """Objects that use the view, which has to be made again."""


def published_names(
    connection: psycopg.Connection[Any],
    pipeline: str | None = None,
    schemas: Sequence[str] = (),
) -> list[PublishedName]:
    """Those that lead to a pipeline (None: to any), in these schemas (none: in all)."""
    found = [
        PublishedName(*row)
        for row in connection.execute(text_of("published_views"), {"mark": MARK}).fetchall()
    ]
    return [
        one
        for one in found
        if pipeline in (None, one.pipeline) and (not schemas or one.schema in schemas)
    ]


def other_readers(connection: psycopg.Connection[Any], pipeline: str) -> list[str]:
    """Views in other schemas that read the pipeline's relations, and are not published."""
    published = {one.words for one in published_names(connection, pipeline)}
    rows = connection.execute(text_of("outside_views"), {"schema": pipeline}).fetchall()
    found = sorted(f"{schema}.{view}" for schema, view, *_ in rows)
    return [name for name in found if name not in published]


def own_tables(connection: psycopg.Connection[Any], pipeline: str) -> dict[str, str]:
    """The owners of a pipeline's own tables, by name: those of sinks, and those of users."""
    known = [*TABLES, "alembic_version"]
    rows = connection.execute(text_of("tables_to_publish"), {"schema": pipeline, "known": known})
    return dict(rows.fetchall())


def quoted(schema: str, name: str) -> str:
    return sql.Identifier(schema, name).as_string(None)


def columns_of(connection: psycopg.Connection[Any], relation: str) -> list[RelationColumn]:
    """Those of a table or view, given by its quoted name; empty: there is none."""
    rows = connection.execute(text_of("columns_of_relation"), {"relation": relation})
    return [RelationColumn(*row) for row in rows.fetchall()]


def view_of(schema: str, name: str, table: str, columns: Sequence[str], options: str = "") -> str:
    """The statement that makes a view, or leads it to a table.

    Args:
        table: with its schema, quoted.
    """
    return composed(
        "lead_view",
        view=sql.Identifier(schema, name),
        options=sql.SQL(options),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        table=sql.SQL(table),
    )


def comment_on(schema: str, name: str, table: str) -> str:
    return composed(
        "copy_comment",
        kind=sql.SQL("VIEW"),
        relation=sql.Identifier(schema, name),
        comment=sql.Literal(f"{MARK}: the table {table}. `millwheel published` shows of which one"),
    )


def rights_of_owner(connection: psycopg.Connection[Any], owner: str, table: str) -> list[str]:
    """Statements that let the owner of a view read a table, if it may not yet."""
    rows = connection.execute(text_of("rights_of_owner"), {"owner": owner, "table": table})
    return [text for (text,) in rows.fetchall()]


def lead(connection: psycopg.Connection[Any], published: PublishedName, pipeline: str) -> Leading:
    """How a name is led to the table of the same name of another pipeline, or gets the columns
    that its table has now.

    A view is replaced in place if the table has all of its columns with the same types: its rights,
    comments and dependent objects stay. Otherwise it is dropped and made again.
    """
    view, table = quoted(published.schema, published.name), quoted(pipeline, published.table)
    shown, there = columns_of(connection, view), columns_of(connection, table)
    before = (*rights_of_owner(connection, published.owner, table),)
    types = dict(there)
    if all(types.get(column.name) == column.type for column in shown):
        kept = [column.name for column in shown]
        columns = [*kept, *(name for name in types if name not in kept)]
        replaced = view_of(published.schema, published.name, table, columns, published.options)
        changes = (*(f"new column {name}" for name in types if name not in kept),)
        return Leading(before, (replaced,), changes, ())
    params = {"relation": view}
    dependents = connection.execute(text_of("dependents_of_view"), params).fetchall()
    made = _made_again(connection, published, table, list(types))
    return Leading(
        before, (*made,), (*_differences(shown, there),), tuple(text for (text,) in dependents)
    )


def _made_again(
    connection: psycopg.Connection[Any],
    published: PublishedName,
    table: str,
    columns: list[str],
) -> Iterator[str]:
    """The owner comes before the rights, so that they are its own grants."""
    view = sql.Identifier(published.schema, published.name)
    yield composed("drop_published_view", view=view)
    yield view_of(published.schema, published.name, table, columns, published.options)
    yield composed("own_view", view=view, owner=sql.Identifier(published.owner))
    params = {"relation": view.as_string(None), "columns": columns}
    for statement in ("rights_on_view", "comments_on_view"):
        for (text,) in connection.execute(text_of(statement), params).fetchall():
            yield text


def _differences(shown: list[RelationColumn], there: list[RelationColumn]) -> Iterator[str]:
    types, former = dict(there), dict(shown)
    for name, type_ in shown:
        if name not in types:
            yield f"without column {name}"
        elif types[name] != type_:
            yield f"column {name} is {types[name]}, not {type_}"
    yield from (f"new column {name}" for name in types if name not in former)
