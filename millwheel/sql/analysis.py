"""The meaning of a SELECT: its columns, groups and conditions, with their types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.place import Place
from millwheel.sql.relations import ITEM, Relation
from millwheel.sql.resolving import Resolver
from millwheel.sql.schemas import check_held, check_name
from millwheel.sql.scopes import WINDOW, WINDOW_COLUMNS, NoScope, Scope
from millwheel.sql.types import UNKNOWN, SqlType
from millwheel.sql.window_tables import END, Window, microseconds, window_of_rows
from millwheel.windows import Session

Spread = tuple[int, int]
"""The least and the greatest number of microseconds from a time to the timestamp of its row."""


def common_spreads(
    one: Mapping[str, Spread] | None, other: Mapping[str, Spread] | None
) -> dict[str, Spread] | None:
    """Those of rows of which each has one of two origins."""
    if one is None or other is None:
        return None
    return {
        name: (min(one[name][0], other[name][0]), max(one[name][1], other[name][1]))
        for name in one
        if name in other
    }


@dataclass(frozen=True)
class ResultColumns:
    """The result columns of a query."""

    names: Sequence[str]
    values: Sequence[t.Typed]
    untyped: Collection[int] = ()
    """Numbers of the columns that are a text or NULL without a type, which their use decides."""

    @property
    def given(self) -> list[t.Typed]:
        """The values, those without a type as they were written."""
        return [
            replace(value, type=UNKNOWN) if number in self.untyped else value
            for number, value in enumerate(self.values)
        ]

    def described(self) -> list[tuple[str, SqlType, bool]]:
        """Name, type, and whether NULL may occur."""
        return [
            (name, value.type, value.nullable)
            for name, value in zip(self.names, self.values, strict=True)
        ]


@dataclass(frozen=True)
class Emission:
    """When rows of groups are sent, and for how long groups are kept."""

    on_update: bool
    retain: timedelta | None
    """None: groups without windows are kept for ever."""
    amends: bool
    """Whether late records amend windows that have closed."""
    lateness: timedelta | None
    """For how long they do; None: for ever."""
    late_into: str | None
    """The stream of late records."""


@dataclass(frozen=True)
class Analyzed:
    """A SELECT."""

    source: Relation
    window: Window | None
    """None: its groups, if it has some, have no end."""
    where: t.Typed | None
    columns: ResultColumns
    groups: Sequence[t.Typed]
    has_groups: bool
    """Whether it has groups or aggregates; without GROUP BY there is one group."""
    having: t.Typed | None
    emission: Emission
    place: Place

    @property
    def values(self) -> list[t.Typed]:
        """All expressions besides the condition."""
        found = [*self.columns.values, *self.groups]
        found += [] if self.having is None else [self.having]
        return found + [each.array for each in self.source.expansions]

    @property
    def keys(self) -> list[t.Typed]:
        """The groups besides the windows."""
        return [value for value in self.groups if not is_of_window(value)]

    @property
    def has_aggregates(self) -> bool:
        """Whether rows have values of several records."""
        return any(isinstance(part, t.AggregateValue) for v in self.values for part in t.walk(v))

    @property
    def updates(self) -> bool:
        """Whether later rows replace former ones."""
        emission = self.emission
        kept = self.has_groups and self.window is None and self.has_aggregates
        return kept or emission.on_update or emission.amends or self.source.is_updating

    @property
    def owners(self) -> tuple[frozenset[str], ...] | None:
        """For each part of the key of the step that makes the rows, the result columns with it;
        None: a part is in none.

        Of windows that may send a row again, the window is a part: an older one may do so after a
        newer one.
        """
        if not self.has_groups:
            return None
        named = list(zip(self.columns.names, self.columns.values, strict=True))
        found = [frozenset(n for n, value in named if value == key) for key in self.keys]
        if self.emission.on_update or self.emission.amends:
            windows = frozenset(name for name, value in named if is_window(value))
            found += [windows] if self.window is not None and not self.window.is_of_rows else []
        return tuple(found) if all(found) else None

    def instants(self, known: Mapping[str, str]) -> dict[str, str]:
        """The result columns from which the timestamp of a row follows, and how.

        Args:
            known: those of the rows that it reads.
        """
        if self.updates or (self.has_groups and self.window is None):
            return {}
        of_windows = known
        if self.has_groups and self.window is not None and not self.window.is_of_rows:
            of_windows = {}
        found = {}
        for name, value in zip(self.columns.names, self.columns.values, strict=True):
            if not isinstance(value, t.ColumnValue):
                continue
            if value.table == WINDOW and self.has_groups and self.window is not None:
                how = self.window.instants.get(value.name)
            else:
                how = of_windows.get(value.name) if value.table != ITEM else None
            if how is not None:
                found[name] = how
        return found

    def spreads(self, known: Mapping[str, Spread] | None) -> dict[str, Spread] | None:
        """The result columns that are times near the timestamp of a row, and how near.

        Args:
            known: those of the rows that it reads.
        """
        if self.has_groups and self.window is not None:
            stream = self.source.stream
            ends = self.instants({} if stream is None else stream.facts.instants or {})
            return {name: (-1, -1) for name, how in ends.items() if how == END}
        if self.has_groups or known is None:
            return None
        return {
            name: known[value.name]
            for name, value in zip(self.columns.names, self.columns.values, strict=True)
            if isinstance(value, t.ColumnValue)
            and value.table not in (WINDOW, ITEM)
            and value.name in known
        }

    def with_columns(self, columns: ResultColumns) -> Analyzed:
        return replace(self, columns=columns)


def is_window(value: t.Typed) -> bool:
    """Whether a value is the start or the end of a window."""
    return isinstance(value, t.ColumnValue) and value.table == WINDOW


def is_of_window(value: t.Typed) -> bool:
    """Whether a value follows from the window alone."""
    columns = [part for part in t.walk(value) if isinstance(part, t.ColumnValue)]
    return bool(columns) and all(map(is_window, columns))


def analyze(query: s.Select, source: Relation, *, is_named: bool) -> Analyzed:
    """Resolve a SELECT, given the relation that it reads.

    Args:
        is_named: whether its columns need names: in a union those of the first part count.

    Raises:
        SqlError: it has no meaning, or is not available.
    """
    scope, window = source.scope, source.window
    where = having = None
    if query.where is not None:
        where = Resolver(scope, no_aggregates_in="WHERE").condition(query.where, "WHERE")
    columns = _columns(query, scope, is_named=is_named)
    groups = _distinct(query, columns) if query.distinct else _groups(query, scope, columns)
    if query.having is not None:
        having = Resolver(scope).condition(query.having, "HAVING")
    values = [*columns.values, *([having] if having is not None else [])]
    has_aggregates = any(isinstance(part, t.AggregateValue) for v in values for part in t.walk(v))
    return Analyzed(
        source, window, where, columns, groups, bool(groups) or has_aggregates, having,
        _emission(query.emit, scope), query.place,
    )  # fmt: skip


def composed(inner: Analyzed, outer: Analyzed) -> Analyzed:
    """A query with the columns of the one around it, which reads its result."""
    assert outer.source.stream is not None
    table = outer.source.stream.name
    values = dict(zip(inner.columns.names, inner.columns.values, strict=True))

    def replaced(node: t.Typed) -> t.Typed | None:
        if isinstance(node, t.ColumnValue) and node.table == table:
            return values[node.name]
        return None

    columns = [t.rewrite(value, replaced) for value in outer.columns.values]
    return inner.with_columns(ResultColumns(outer.columns.names, columns))


def settled(query: s.Select, found: Analyzed, *, is_made_there: bool) -> Analyzed:
    """A SELECT with the windows that follow from its groups, once the stream is known that it
    reads.

    Args:
        is_made_there: whether its columns are computed by the step that makes the rows that it
            reads.

    Raises:
        SqlError: it would keep groups for ever, or would have to take rows back.
    """
    assert found.source.stream is not None
    if found.window is None:
        known = found.source.stream.facts.instants or {}
        found = replace(found, window=_window_of_groups(found.groups, known, query.place))
    _check_groups(query, found)
    _check_updating(query, found, is_made_there=is_made_there)
    return found


def _check_groups(query: s.Select, found: Analyzed) -> None:
    places = query.emit.places
    if not found.has_groups:
        if query.having is not None:
            raise SqlError("HAVING is for groups", query.having.place, "Use WHERE")
        for word, place in places.items():
            if word == "retain" and found.source.joined is not None:
                continue
            raise SqlError(f"{word.upper()} is for groups", place, "This query keeps nothing")
    elif found.window is not None:
        if not any(map(is_window, found.groups)) and not found.window.is_of_rows:
            raise SqlError(
                "groups over windows contain the window",
                query.place,
                f"Add window_start to {'the columns' if query.distinct else 'GROUP BY'}",
            )
        if "retain" in places:
            raise SqlError(
                "RETAIN is for groups without windows",
                places["retain"],
                "A window is kept until it closes; ALLOWED LATENESS keeps it longer",
            )
        _check_amended(query, found.window)
    else:
        _check_kept_groups(query)


def _check_amended(query: s.Select, window: Window) -> None:
    """Refuse windows that would take back rows that they have sent."""
    places = query.emit.places
    lateness = query.emit.lateness
    if query.emit.late_into is not None and lateness is not None and lateness.length is None:
        raise SqlError(
            "no record is late if lateness is unbounded", places["late"], "Leave LATE INTO out"
        )
    word = "allowed" if "allowed" in places else "emit" if query.emit.on_update else None
    if word is None:
        return
    clause = "ALLOWED LATENESS" if word == "allowed" else "EMIT ON UPDATE"
    if isinstance(window.assigner, Session):
        raise SqlError(
            f"{clause} would take back rows of sessions that a later record joins",
            places[word],
            "Leave it out: then a session sends one row, when it is complete",
        )
    if query.having is not None:
        raise SqlError(
            f"HAVING with {clause} would take back rows that were sent",
            query.having.place,
            "Leave one of them out; or filter where the rows are read",
        )


def _check_updating(query: s.Select, found: Analyzed, *, is_made_there: bool) -> None:
    """Refuse a query that would have to take back results when a row of its input is replaced."""
    if not found.source.is_updating:
        return
    replaced = f'rows of "{found.source.name}" are replaced by newer ones'
    if found.has_groups:
        raise SqlError(
            f"{replaced}, which would be counted as well",
            query.place,
            "Group the input of that query; or read its table, which has the newest rows alone",
        )
    if query.where is not None:
        raise SqlError(
            f"{replaced}, and one that no longer fits would stay",
            query.where.place,
            "Filter where the table is read",
        )
    if found.source.expansions or not is_made_there:
        raise SqlError(
            f"{replaced}, and would no longer be in their order after another query",
            query.place,
            "Compute these columns in that query; or where its table is read",
        )


def _check_kept_groups(query: s.Select) -> None:
    places = query.emit.places
    for word in ("allowed", "late"):
        if word in places:
            raise SqlError("nothing is late without windows", places[word], "Leave it out")
    if query.emit.on_update is False:
        raise SqlError(
            "groups without windows never close", places["emit"], "Write EMIT ON UPDATE or nothing"
        )
    if query.emit.retain is None:
        raise SqlError(
            "these groups would be kept for ever",
            query.place,
            "Say for how long a group is kept after its last record: RETAIN INTERVAL '30 days' at "
            "the end, or RETAIN UNBOUNDED; or group by windows: FROM TUMBLE(stream, time, INTERVAL "
            "'1 minute') ... GROUP BY window_start",
        )
    if query.having is not None:
        raise SqlError(
            "HAVING would take back rows that were sent",
            query.having.place,
            "Without windows a group's row is replaced by newer ones; filter where they are read",
        )


def _columns(query: s.Select, scope: Scope, *, is_named: bool) -> ResultColumns:
    names: list[str] = []
    values: list[t.Typed] = []
    untyped: list[int] = []
    resolver = Resolver(scope)
    for column in query.columns:
        if isinstance(column, s.Star):
            found = scope.all(column)
            place = column.place
        else:
            place = column.value.place
            name = column.name or (_name_of(column.value) if is_named else "")
            found = [(name, resolver.value(column.value))]
            if isinstance(column.value, (s.Text, s.Null)):
                untyped.append(len(values))
        for name, value in found:
            if is_named:
                check_name(name, names, place)
            check_held(value.type, value.place)
            names.append(name)
            values.append(value)
    return ResultColumns(names, values, untyped)


def _name_of(value: s.Expression) -> str:
    """The name that Postgres gives a column without one."""
    match value:
        case s.Name():
            return value.column
        case s.FunctionCall():
            return value.function
        case s.CastTo():
            return _name_of(value.value) if isinstance(value.value, s.Name) else value.to.name
        case s.Choice():
            return value.kind.lower()
        case s.Case():
            return "case"
        case _:
            raise SqlError("this column has no name", value.place, "Add one: ... AS name")


def _distinct(query: s.Select, columns: ResultColumns) -> list[t.Typed]:
    """The groups of DISTINCT: all result columns."""
    if query.group or any(
        isinstance(p, t.AggregateValue) for v in columns.values for p in t.walk(v)
    ):
        raise SqlError(
            "DISTINCT with groups is not available",
            query.place,
            "Write the query with groups in FROM: SELECT DISTINCT ... FROM (SELECT ...) AS x",
        )
    found: list[t.Typed] = []
    for value in columns.values:
        if value not in found and not isinstance(value, t.ConstantValue):
            found.append(value)
    return found or list(columns.values[:1])


def _window_of_groups(
    groups: Sequence[t.Typed], known: Mapping[str, str], place: Place
) -> Window | None:
    """The window of groups by a column from which the timestamp follows; None: there is none."""
    found = {
        value.name: known[value.name]
        for value in groups
        if isinstance(value, t.ColumnValue) and value.table != ITEM and value.name in known
    }
    if not found:
        return None
    ends = [name for name, how in found.items() if how == END]
    return window_of_rows(ends[0] if ends else None, place)


def _groups(query: s.Select, scope: Scope, columns: ResultColumns) -> list[t.Typed]:
    resolver = Resolver(scope, no_aggregates_in="GROUP BY")
    found: list[t.Typed] = []
    for item in query.group:
        value = _group(item, scope, columns, resolver)
        if value not in found:
            found.append(value)
    return found


def _group(item: s.Expression, scope: Scope, columns: ResultColumns, resolver: Resolver) -> t.Typed:
    """A group: a column by its number, by its name in the result, or an expression."""
    if isinstance(item, s.Number) and item.text.isdigit():
        place = int(item.text)
        if not 1 <= place <= len(columns.values):
            raise SqlError(f"GROUP BY position {place} is not in select list", item.place)
        return columns.values[place - 1]
    if isinstance(item, s.Name) and item.table is None:
        name = item.column
        if name in columns.names and name not in (*scope.names, *WINDOW_COLUMNS):
            return columns.values[columns.names.index(name)]
    return resolver.value(item)


def _emission(emit: s.Emit, scope: Scope) -> Emission:
    return Emission(
        on_update=bool(emit.on_update),
        retain=length_of(emit.retain, scope),
        amends=emit.lateness is not None,
        lateness=length_of(emit.lateness, scope),
        late_into=emit.late_into,
    )


def length_of(bound: s.Bound | None, scope: Scope | NoScope) -> timedelta | None:
    """A length of time; None: there is no bound."""
    if bound is None or bound.length is None:
        return None
    value = replace(Resolver(scope).value(bound.length), place=bound.place)
    return timedelta(microseconds=microseconds(value))
