"""Views of one computation's state, with a column per field; each deploy keeps them up to date.

``state_of_<computation>`` shows the plain part of the state of each key,
``state_of_<computation>_<field>`` the entries of a `MapState` or `ListState`, and
``state_of_<computation>_shared`` the tables made from broadcast records. They are built on the view
`states` (committed data at one snapshot).

A deploy without changes touches no view, because it would wait for readers. New fields come after
the existing columns, so that views of the user on top of them stay valid. Any other change drops
the view and creates it again; the deploy is refused while another object depends on it.

A value that is not migrated yet has another type, so its typed columns are NULL: a column `total`
in cents shows no dollars. The view `states` shows it, with its version. A migration of the schema
drops these views with `states`; the next start creates them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import AsyncConnection, sql

from millwheel.errors import DeployRefused
from millwheel.graph.node import STATE_VIEWS
from millwheel.store.port.deploy import NodeDeploy
from millwheel.store.port.state_shape import CollectionShape, StateShape
from millwheel.store.postgres.statements import Statements, composed

OURS = "State of computation "
"""A view without these words was not made by a deploy."""

MOST_VERSION = 32_767
"""Largest smallint."""

NAME_BYTES = 63
"""Postgres cuts longer names."""

Columns = tuple[tuple[str, str, str], ...]

CASTS = {
    "bigint": "json_to_bigint",
    "double precision": "json_to_double",
    "boolean": "json_to_boolean",
    "timestamp with time zone": "json_to_time",
    "date": "json_to_date",
    "numeric": "json_to_numeric",
    "uuid": "json_to_uuid",
    "bytea": "json_to_bytea",
}

FUNCTIONS = (*CASTS.values(), "map_key", "list_number")


class ViewColumn(NamedTuple):
    name: str
    type: str
    comment: str
    source: sql.Composable

    @property
    def shown(self) -> tuple[str, str, str]:
        """Name, type and comment, as in Postgres's catalogue."""
        return self.name, self.type, self.comment


@dataclass(frozen=True)
class StateView:
    name: str
    computation: str
    comment: str
    columns: tuple[ViewColumn, ...]
    rows: sql.Composable
    """The condition that selects rows of `states`."""


@dataclass(frozen=True)
class NamedRelation:
    name: str
    is_view: bool
    comment: str
    columns: Columns

    @property
    def is_ours(self) -> bool:
        return self.is_view and self.comment.startswith(OURS)

    def shows(self, view: StateView) -> bool:
        return (self.comment, self.columns) == (view.comment, tuple(c.shown for c in view.columns))


class Versions(NamedTuple):
    """Versions with stored values that need no migration to this code's version."""

    low: int
    high: int
    version: int
    steps: frozenset[int]
    """Versions from which there is a migration."""

    @classmethod
    def of(cls, version: int, migrates_from: Iterable[int]) -> Versions:
        """The versions from the last migration up to `version`, to the first migration down to
        it."""
        steps = set(migrates_from)
        low = max((step for step in steps if step < version), default=-1) + 1
        high = min((step for step in steps if step > version), default=MOST_VERSION + 1) - 1
        return cls(low, high, version, frozenset(steps))

    def of_field(self, field: str, changed: Mapping[int, Collection[str]]) -> Versions:
        """The versions whose values need no migration of one field."""
        steps = {step for step in self.steps if field in changed.get(step, (field,))}
        return Versions.of(self.version, steps)

    @property
    def is_all(self) -> bool:
        return (self.low, self.high) == (0, MOST_VERSION)

    @property
    def comment(self) -> str:
        """A sentence on rows of other versions, for the comment on the view."""
        if self.is_all:
            return ""
        which = f"below {self.low}" if self.low else f"above {self.high}"
        if self.low and self.high < MOST_VERSION:
            which += f" or above {self.high}"
        return (
            f" A row whose version is {which} waits for a migration, until it is written again or "
            "`millwheel migrate --states` comes to it: columns that a migration may change are "
            "NULL, and the view states shows it as it is stored"
        )

    def only(self, source: sql.Composable) -> sql.Composable:
        """`source` for rows of these versions, NULL for all others."""
        if self.is_all:
            return source
        return sql.SQL("CASE WHEN s.version BETWEEN {} AND {} THEN {} END").format(
            sql.Literal(self.low), sql.Literal(self.high), source
        )


async def keep_state_views(
    connection: AsyncConnection[Any], statements: Statements, nodes: Iterable[NodeDeploy]
) -> None:
    """Create, replace and drop views within a deploy's transaction.

    `DeployRefused` if a name is taken, or another object depends on a view that must be dropped.
    """
    cursor = await connection.execute(
        statements.get("state_relations"), {"schema": statements.schema, "prefix": STATE_VIEWS}
    )
    found = {
        name: NamedRelation(name, is_view, comment, msgspec.json.decode(columns, type=Columns))
        for name, is_view, comment, columns in await cursor.fetchall()
    }
    wanted = {view.name: view for view in _Views(statements).of(nodes)}
    for relation in found.values():
        if relation.is_ours and relation.name not in wanted:
            await _drop(connection, statements, relation, "is no longer needed")
    made = False
    for view in wanted.values():
        there = found.get(view.name)
        if there is not None:
            if not there.is_ours:
                raise DeployRefused(
                    f"{statements.schema}.{view.name} is the name of the view of the state of "
                    f"{view.computation!r}, but another relation has that name; rename or drop it"
                )
            view = _in_order_of(there, view)
            if there.shows(view):
                continue
            if [c[:2] for c in there.columns] != [c.shown[:2] for c in view.columns][
                : len(there.columns)
            ]:
                await _drop(
                    connection, statements, there, "must be created again: its columns change"
                )
        if not made:
            functions = {name: statements.table(name) for name in FUNCTIONS}
            await connection.execute(composed("views/state_functions", **functions), prepare=False)
            made = True
        await _make(connection, statements, view)


def _in_order_of(there: NamedRelation, view: StateView) -> StateView:
    """Existing columns come first, if all of them are still wanted."""
    by_name = {column.name: column for column in view.columns}
    kept = [by_name[name] for name, *_ in there.columns if name in by_name]
    if [c.shown[:2] for c in kept] != [c[:2] for c in there.columns]:
        return view
    return replace(view, columns=(*kept, *(c for c in view.columns if c not in kept)))


async def _drop(
    connection: AsyncConnection[Any], statements: Statements, relation: NamedRelation, why: str
) -> None:
    try:
        await connection.execute(
            composed("drop_state_view", view=statements.table(relation.name)), prepare=False
        )
    except psycopg.errors.DependentObjectsStillExist as error:
        raise DeployRefused(
            f"the view {statements.schema}.{relation.name} {why}, but other objects depend on "
            f"it:\n{error.diag.message_detail}\nDrop these objects, start again, and create them "
            "again"
        ) from error


async def _make(connection: AsyncConnection[Any], statements: Statements, view: StateView) -> None:
    name = statements.table(view.name)
    columns = [
        sql.SQL("{} AS {}").format(column.source, sql.Identifier(column.name))
        for column in view.columns
    ]
    await connection.execute(
        composed(
            "views/state_view",
            view=name,
            columns=sql.SQL(", ").join(columns),
            states=statements.table("states"),
            computation=sql.Literal(view.computation),
            rows=view.rows,
        ),
        prepare=False,
    )
    comments = [composed("comment_on_view", view=name, comment=sql.Literal(view.comment))]
    comments += [
        composed(
            "comment_on_column",
            view=name,
            column=sql.Identifier(column.name),
            comment=sql.Literal(column.comment),
        )
        for column in view.columns
    ]
    await connection.execute(";".join(comments), prepare=False)


class _Views:
    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def of(self, nodes: Iterable[NodeDeploy]) -> Iterator[StateView]:
        computations = [n for n in nodes if n.kind == "computation"]
        taken = {STATE_VIEWS + n.name for n in computations if n.shape is not None}
        for node in computations:
            if node.shape is not None:
                if node.shape.fields or node.shape.whole:
                    yield self._plain(node, node.shape)
                for collection in node.shape.collections:
                    name = _free_name(f"{STATE_VIEWS}{node.name}_{collection.field}", taken)
                    steps = node.entries_migrate_from.get(collection.field, ())
                    versions = Versions.of(node.version, steps)
                    yield self._collection(name, node.name, collection, versions)
            if node.shared is not None:
                name = _free_name(f"{STATE_VIEWS}{node.name}_shared", taken)
                versions = Versions.of(node.version, node.shared_migrates_from)
                yield self._shared(name, node.name, node.shared, versions)

    def _plain(self, node: NodeDeploy, shape: StateShape) -> StateView:
        versions = Versions.of(node.version, node.migrates_from)
        return StateView(
            STATE_VIEWS + node.name,
            node.name,
            f"{OURS}{node.name} as committed, exactly at this snapshot: a row for each key, except "
            f"where all fields have their defaults.{versions.comment}",
            (_KEY, *self._fields(shape, _KEY, versions, node.changed_fields), _VERSION),
            _OF_KEY if node.shared else _PLAIN,
        )

    def _shared(
        self, name: str, computation: str, shape: StateShape, versions: Versions
    ) -> StateView:
        find = self._cast(sql.SQL("s.key -> 'cell'"), "bigint")
        cell = ViewColumn("cell", "bigint", "which part of the slots, from 0", find)
        return StateView(
            name,
            computation,
            f"{OURS}{computation} as committed, exactly at this snapshot: what its keys share, a "
            f"row for each cell, except where all fields have their defaults.{versions.comment}",
            (cell, *self._fields(shape, cell, versions), _VERSION),
            _OF_CELL,
        )

    def _fields(
        self,
        shape: StateShape,
        first: ViewColumn,
        versions: Versions,
        changed: Mapping[int, Collection[str]] = MappingProxyType({}),
    ) -> list[ViewColumn]:
        """`changed` has the fields that some migrations change alone."""
        taken = {first.name, _VERSION.name}
        columns = [
            ViewColumn(
                _free_name(field, taken),
                type_,
                f"field {field} of the state; NULL: not stored, so it has its default, or no "
                f"{type_}",
                versions.of_field(field, changed).only(
                    self._cast(sql.SQL("s.value -> {}").format(sql.Literal(field)), type_)
                ),
            )
            for field, type_ in shape.fields
        ]
        if shape.whole:
            source = versions.only(self._cast(sql.SQL("s.value"), shape.whole))
            columns.append(ViewColumn("value", shape.whole, "the state object", source))
        return columns

    def _collection(
        self, name: str, computation: str, of: CollectionShape, versions: Versions
    ) -> StateView:
        find = sql.SQL("{}(s.entry, {})").format(
            self._statements.table("list_number" if of.is_list else "map_key"),
            sql.Literal(of.field),
        )
        if of.is_list:
            entry = ViewColumn(
                "entry", of.entry, "its number; the first one ever appended has 0", find
            )
        else:
            comment = f"the key in the map; NULL: no {of.entry}"
            entry = ViewColumn("entry", of.entry, comment, self._cast(find, of.entry))
        value = versions.only(self._cast(sql.SQL("s.value"), of.value))
        return StateView(
            name,
            computation,
            f"{OURS}{computation} as committed, exactly at this snapshot: a row for each entry of "
            f"its {'ListState' if of.is_list else 'MapState'} {of.field}.{versions.comment}",
            (
                _KEY,
                entry,
                ViewColumn("value", of.value, f"the value; NULL: no {of.value}", value),
                _VERSION,
            ),
            sql.SQL("{} IS NOT NULL").format(find),
        )

    def _cast(self, source: sql.Composable, type_: str) -> sql.Composable:
        """JSON as a value of a Postgres type; NULL if it does not fit."""
        if type_ == "jsonb":
            return sql.SQL("nullif({}, 'null')").format(source)
        if type_ == "text":
            return sql.SQL("({}) #>> '{{}}'").format(source)
        return sql.SQL("{}({})").format(self._statements.table(CASTS[type_]), source)


_PLAIN = sql.SQL("s.entry = ''")
_OF_KEY = sql.SQL("s.entry = '' AND jsonb_typeof(s.key) <> 'object'")
_OF_CELL = sql.SQL("s.entry = '' AND jsonb_typeof(s.key) = 'object'")
"""Only keys of cells are JSON objects (`millwheel.core.addresses`)."""
_KEY = ViewColumn(
    "key", "jsonb", "the key as JSON, as in states; key #>> '{}' is its text", sql.SQL("s.key")
)
_VERSION = ViewColumn(
    "version", "smallint", "version of the state type it was written by", sql.SQL("s.version")
)


def _free_name(name: str, taken: set[str]) -> str:
    free = _cut(name, NAME_BYTES)
    number = 2
    while free in taken:
        tail = f"_{number}"
        free = _cut(name, NAME_BYTES - len(tail)) + tail
        number += 1
    taken.add(free)
    return free


def _cut(name: str, size: int) -> str:
    return name.encode()[:size].decode(errors="ignore") or "_"
