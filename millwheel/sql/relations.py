"""The input of a SELECT: a stream, windows over it, several streams that are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.resolving import Resolver
from millwheel.sql.schemas import Field, fields_of
from millwheel.sql.scopes import WINDOW_COLUMNS, WINDOW_FIELDS, Scope, TableColumns
from millwheel.sql.types import INT8, shown
from millwheel.sql.window_tables import Window, window_of
from millwheel.streams import Stream

JOINED = "joined"
"""Stands for the table of the columns of all joined streams."""

ITEM = "item"
"""Stands for the table of the columns of `unnest`."""


@dataclass(frozen=True)
class FromItem:
    """A stream in FROM, maybe with windows."""

    stream: Stream[Any]
    alias: str
    fields: Sequence[Field]
    """Its columns, without those of windows."""
    window: Window | None
    place: Any

    @property
    def all_fields(self) -> list[Field]:
        return [*self.fields, *([] if self.window is None else WINDOW_FIELDS)]

    @property
    def columns(self) -> TableColumns:
        return TableColumns(self.stream.name, self.alias, self.fields)


@dataclass(frozen=True)
class JoinStep:
    """A join of the tables so far with the next one."""

    kind: str
    on: t.Typed | None
    as_of: t.Typed | None
    retain: s.Bound | None
    place: Any

    @property
    def keeps_left(self) -> bool:
        """Whether a left row without a partner is in the result."""
        return self.kind in ("LEFT", "FULL")

    @property
    def keeps_right(self) -> bool:
        return self.kind in ("RIGHT", "FULL")


@dataclass(frozen=True)
class JoinedTables:
    """Streams that are joined one after the other."""

    items: Sequence[FromItem]
    attributes: Sequence[Mapping[str, str]]
    """For each item: where the joined records have its columns."""
    steps: Sequence[JoinStep]
    optional: frozenset[str]
    """Attributes that are NULL in rows without a partner."""

    def nullable(self, item: int, upto: int) -> bool:
        """Whether the columns of an item may be missing after the first `upto` joins."""
        return any(
            step.keeps_right if number >= item else number == item - 1 and step.keeps_left
            for number, step in enumerate(self.steps[:upto])
        )


@dataclass(frozen=True)
class Expansion:
    """``unnest``: a row for each item of an array."""

    array: t.Typed
    item: str
    """The Python name of the item."""
    number: str | None
    """The one of its number."""
    keeps_empty: bool
    """Whether an array without items gives one row, of NULL."""

    @property
    def meaning(self) -> str:
        """A text that a deploy compares."""
        return t.written(self.array) + (" or NULL" if self.keeps_empty else "")


@dataclass(frozen=True)
class Relation:
    """The input of a SELECT."""

    scope: Scope
    stream: Stream[Any] | None
    """None: `joined` says it."""
    window: Window | None = None
    joined: JoinedTables | None = None
    expansions: Sequence[Expansion] = ()

    @property
    def name(self) -> str:
        return self.scope.tables[0].alias if self.stream is None else self.stream.name

    @property
    def is_updating(self) -> bool:
        return self.stream is not None and self.stream.facts.is_updating


def from_item(named: s.Source, stream: Stream[Any]) -> FromItem:
    """A stream in FROM.

    Raises:
        SqlError: its values have no columns, or its windows are wrong.
    """
    table = named.table if isinstance(named, s.WindowTable) else named
    fields = fields_of(stream.value_type)
    if fields is None:
        raise SqlError(
            f"the values of {stream.name!r} are {stream.value_type!r}, which has no columns",
            table.place,
            "Give the stream a msgspec.Struct or a dataclass",
        )
    own = table.name if isinstance(table, s.NamedStream) else ""
    alias = named.alias or table.alias or own
    window = None
    if isinstance(named, s.WindowTable):
        window = window_of(named, Scope([TableColumns(stream.name, alias, fields)]))
    return FromItem(stream, alias, fields, window, named.place)


def relation_of(query: s.Select, items: Sequence[FromItem]) -> Relation:
    """The input of a SELECT, given the streams of its FROM in their order.

    Raises:
        SqlError: a condition of a join has no meaning.
    """
    if len(items) == 1:
        (item,) = items
        scope = Scope([item.columns], has_windows=item.window is not None)
        found = Relation(scope, item.stream, item.window)
    else:
        found = _joined(query, items)
    for number, join in enumerate(_unnested(query)):
        found = _expanded(found, join, number)
    return found


def _unnested(query: s.Select) -> list[s.Join]:
    """The joins with `unnest`, which come after the others."""
    found = [join for join in query.joins if isinstance(join.right, s.Unnested)]
    if list(query.joins[len(query.joins) - len(found) :]) != found:
        raise SqlError("unnest comes after the other joins", found[0].place)
    return found


def _joined(query: s.Select, items: Sequence[FromItem]) -> Relation:
    _check_aliases(items)
    attributes = _attributes(items)
    tables = [
        TableColumns(JOINED, item.alias, item.all_fields, where)
        for item, where in zip(items, attributes, strict=True)
    ]
    steps: list[JoinStep] = []
    joins = [join for join in query.joins if not isinstance(join.right, s.Unnested)]
    for number, join in enumerate(joins, 1):
        resolver = Resolver(Scope(tables[: number + 1]), no_aggregates_in="JOIN conditions")
        on = None if join.on is None else resolver.condition(join.on, "ON")
        as_of = None if join.as_of is None else resolver.value(join.as_of)
        kind = "INNER" if join.kind == "CROSS" else join.kind
        step = JoinStep(kind, on, as_of, join.retain, join.place)
        steps.append(step)
        if step.keeps_left:
            tables[number] = _optional(tables[number])
        if step.keeps_right:
            tables[:number] = map(_optional, tables[:number])
    optional = {
        name
        for table in tables
        for field, name in zip(table.fields, (table.attributes or {}).values(), strict=True)
        if field.nullable
    }
    joined = JoinedTables(items, attributes, steps, frozenset(optional))
    return Relation(Scope(tables), None, joined=joined)


def _check_aliases(items: Sequence[FromItem]) -> None:
    aliases: set[str] = set()
    for item in items:
        if item.alias in aliases:
            raise SqlError(
                f'table name "{item.alias}" specified more than once',
                item.place,
                "Give one of them another name: ... AS other",
            )
        aliases.add(item.alias)
        own = [field.name for field in item.fields if field.name in WINDOW_COLUMNS]
        if item.window is not None and own:
            raise SqlError(
                f'"{item.alias}" has a column {own[0]}, and its windows have one as well',
                item.place,
                f"Give it another name: FROM (SELECT {own[0]} AS other, ...) AS x",
            )
        if item.window is not None and not item.window.is_tumbling:
            raise SqlError(
                "HOP and SESSION need GROUP BY", item.place, "Join the result of such a query"
            )


def _attributes(items: Sequence[FromItem]) -> list[dict[str, str]]:
    """Names for the columns of all items: their own ones where these are unique."""
    every = [field.name for item in items for field in item.all_fields]
    taken = set(every)
    found = []
    for number, item in enumerate(items):
        prefix = item.alias if item.alias.isidentifier() and item.alias.islower() else f"t{number}"
        names = {}
        for field in item.all_fields:
            name = field.name
            if every.count(name) > 1:
                name = f"{prefix.strip('_')}_{name}"
                while name in taken:
                    name += "_"
                taken.add(name)
            names[field.name] = name
        found.append(names)
    return found


def _optional(table: TableColumns) -> TableColumns:
    return replace(table, fields=[replace(field, nullable=True) for field in table.fields])


def _expanded(relation: Relation, join: s.Join, number: int) -> Relation:
    unnested = join.right
    assert isinstance(unnested, s.Unnested)
    scope = relation.scope
    if unnested.alias in [table.alias for table in scope.tables]:
        raise SqlError(
            f'table name "{unnested.alias}" specified more than once', unnested.place,
            "Give it another name: unnest(...) AS other",
        )  # fmt: skip
    array = Resolver(scope, no_aggregates_in="FROM").value(unnested.array)
    element = array.type.element
    if element is None:
        raise SqlError(f"unnest takes an array, not {shown(array.type)}", unnested.array.place)
    keeps_empty = join.kind == "LEFT"
    if join.kind not in ("CROSS", "INNER", "LEFT"):
        raise SqlError(f"{join.kind} JOIN with unnest is not available", join.place)
    if join.on is not None and join.on != s.Truth(join.on.place, True):
        raise SqlError("unnest is joined ON true", join.on.place, "Write the condition in WHERE")
    fields = [Field(unnested.column, element, True, shown(element))]
    # Names that no function of a user gets in the generated Python.
    attributes = {unnested.column: f"_item{number}"}
    if unnested.ordinality is not None:
        fields.append(Field(unnested.ordinality, INT8, keeps_empty, "int"))
        attributes[unnested.ordinality] = f"_number{number}"
    table = TableColumns(ITEM, unnested.alias, fields, attributes)
    numbered = None if unnested.ordinality is None else f"_number{number}"
    expansion = Expansion(array, f"_item{number}", numbered, keeps_empty)
    return replace(
        relation,
        scope=replace(scope, tables=[*scope.tables, table]),
        expansions=[*relation.expansions, expansion],
    )
