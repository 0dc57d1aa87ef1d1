"""First rows of each partition: ROW_NUMBER, RANK and DENSE_RANK with a limit, and DISTINCT ON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millwheel.errors import SqlError
from millwheel.sql import syntax as s

FUNCTIONS = ("row_number", "rank", "dense_rank")


@dataclass(frozen=True)
class Ranking:
    """A query for the first rows of each partition."""

    function: str
    limit: int
    name: str | None
    """The column with the rank; None: there is none."""
    rows: s.Select
    """The query for the rows; a column of zeros has the place of the rank, and its last columns
    are those of partition and order."""
    partition: int
    """Number of the columns of the partition."""
    order: tuple[s.Order, ...]
    retain: s.Bound | None
    outer: s.Select
    """The query over the ranked rows, which are its FROM."""

    @property
    def hidden(self) -> int:
        """Number of the columns that are not in the result."""
        return self.partition + len(self.order)


def ranking_of(query: s.Select, *, is_named: bool) -> Ranking | None:
    """A query as one for first rows; None: it is none.

    Args:
        is_named: whether its columns need names.

    Raises:
        SqlError: there is no limit on the rank, or it has a form that is not available.
    """
    if query.distinct_on:
        return _of_distinct(query, is_named=is_named)
    source = query.source
    if not isinstance(source, s.Subquery) or not isinstance(source.query, s.Select):
        return None
    ranks = [
        column
        for column in source.query.columns
        if isinstance(column, s.ResultColumn) and isinstance(column.value, s.Over)
    ]
    if not ranks:
        return None
    rank, over = ranks[0], ranks[0].value
    assert isinstance(over, s.Over)
    if source.query.distinct:
        raise SqlError(
            "DISTINCT in a query with a rank removes rows after they are ranked", over.place,
            "Leave it out, or rank the rows of FROM (SELECT DISTINCT ...) AS x",
        )  # fmt: skip
    if len(ranks) > 1 or query.joins:
        raise SqlError(
            "one rank can be computed at a time, without joins", over.place,
            "Give it a stream of its own: CREATE STREAM ... AS SELECT",
        )  # fmt: skip
    _check_function(over)
    name = rank.name or over.call.function
    limit, rest = _limit(query.where, name, source.alias)
    if limit is None:
        raise SqlError(
            f"{over.call.function}() without a limit would keep all rows for ever",
            over.place,
            f"Add WHERE {name} <= 10 to the query around it",
        )
    place = s.ResultColumn(s.Number(over.place, "0"), name)
    columns = tuple(place if column is rank else column for column in source.query.columns)
    rows = _with_keys(replace(source.query, columns=columns), over.partition, over.order)
    retain = query.emit.retain or source.query.emit.retain
    return Ranking(
        over.call.function,
        limit,
        name,
        replace(rows, emit=_kept_by_joins(rows, retain)),
        len(over.partition),
        over.order,
        retain,
        replace(query, where=rest, emit=_without_retain(query.emit)),
    )


def _check_function(over: s.Over) -> None:
    call = over.call
    if call.function not in FUNCTIONS:
        raise SqlError(
            f"{call.function}() OVER is not available", over.place,
            "Available are ROW_NUMBER, RANK and DENSE_RANK, with a limit on the result",
        )  # fmt: skip
    if call.arguments or call.star or call.distinct or call.filter or call.order:
        raise SqlError(f"{call.function}() has no arguments", over.place)
    if not over.order:
        raise SqlError(
            f"{call.function}() OVER needs an order", over.place,
            "Write OVER (PARTITION BY ... ORDER BY ...)",
        )  # fmt: skip


def _limit(
    where: s.Expression | None, name: str, alias: str | None
) -> tuple[int | None, s.Expression | None]:
    """The limit on the rank, and the rest of the condition."""
    parts = list(where.operands) if isinstance(where, s.Logic) and where.kind == "AND" else [where]
    limit, rest = None, []
    for part in parts:
        found = _as_limit(part, name, alias)
        if found is None:
            rest.append(part)
            continue
        most, is_exact = found
        limit = most if limit is None else min(limit, most)
        if is_exact and most > 1:
            rest.append(part)
    kept = [part for part in rest if part is not None]
    if len(kept) > 1:
        assert isinstance(where, s.Logic)
        return limit, s.Logic(where.place, "AND", tuple(kept))
    return limit, kept[0] if kept else None


def _as_limit(part: s.Expression | None, name: str, alias: str | None) -> tuple[int, bool] | None:
    """The greatest rank that a condition allows, and whether it allows this one alone."""
    if not isinstance(part, s.Operation) or len(part.operands) != 2:
        return None
    first, second = part.operands
    operator = part.operator
    if isinstance(first, s.Number):
        first, second = second, first
        operator = {">=": "<=", ">": "<"}.get(operator, "=" if operator == "=" else "")
    is_rank = isinstance(first, s.Name) and first.column == name
    if not is_rank or not isinstance(second, s.Number) or not second.text.isdigit():
        return None
    assert isinstance(first, s.Name)
    if first.table not in (None, alias) or operator not in ("<=", "<", "="):
        return None
    most = int(second.text) - (operator == "<")
    if most < 1:
        raise SqlError("ranks begin with 1, so there are no such rows", part.place)
    return most, operator == "="


def _of_distinct(query: s.Select, *, is_named: bool) -> Ranking:
    """DISTINCT ON as the first row of each partition."""
    columns = query.columns
    partition: tuple[s.Expression, ...] = ()
    for value in query.distinct_on:
        found = _of_result(value, columns, "DISTINCT ON")
        partition += (found,) if found not in partition else ()
    orders = tuple(
        replace(order, value=_of_result(order.value, columns, "ORDER BY")) for order in query.order
    )
    count = len(partition)
    if any(order.value not in partition for order in orders[:count]):
        raise SqlError(
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
            query.order[0].value.place,
            "Begin ORDER BY with the expressions of DISTINCT ON",
        )
    if not is_named:
        columns = tuple(
            replace(column, name=column.name or f"column_{number}")
            if isinstance(column, s.ResultColumn)
            else column
            for number, column in enumerate(columns)
        )
    order = orders[count:]
    inner = replace(query, columns=columns, distinct=False, distinct_on=(), order=())
    kept = _kept_by_joins(query, query.emit.retain)
    rows = _with_keys(replace(inner, emit=kept), partition, order)
    subquery = s.Subquery(rows, None, query.place)
    outer = s.Select(
        (s.Star(query.place, None),), subquery, (), None, (), None, False, (), (), s.Emit(),
        query.place,
    )  # fmt: skip
    return Ranking("row_number", 1, None, rows, count, order, query.emit.retain, outer)


def _of_result(
    value: s.Expression, columns: Sequence[s.ResultColumn | s.Star], clause: str
) -> s.Expression:
    """An expression of ORDER BY or DISTINCT ON: a number or a name may be that of a result column.

    Raises:
        SqlError: there is no such column, or several.
    """
    if isinstance(value, s.Number) and value.text.isdigit():
        place = int(value.text)
        before = columns[:place]
        if any(isinstance(column, s.Star) for column in before):
            raise SqlError(
                f"{clause} position {place} comes after *", value.place, "Name the column"
            )
        found = before[place - 1] if 1 <= place <= len(columns) else None
        if not isinstance(found, s.ResultColumn):
            raise SqlError(f"{clause} position {place} is not in select list", value.place)
        return found.value
    if isinstance(value, s.Name) and value.table is None:
        named: list[s.Expression] = []
        for column in columns:
            if isinstance(column, s.ResultColumn) and value.column == _name_in_result(column):
                named += [column.value] if column.value not in named else []
        if len(named) > 1:
            raise SqlError(f'{clause} "{value.column}" is ambiguous', value.place)
        return named[0] if named else value
    return value


def _name_in_result(column: s.ResultColumn) -> str | None:
    own = column.value.column if isinstance(column.value, s.Name) else None
    return column.name or own


def _with_keys(
    query: s.Select, partition: Sequence[s.Expression], order: Sequence[s.Order]
) -> s.Select:
    """A query with the expressions of partition and order as further columns."""
    values = [*partition, *(each.value for each in order)]
    keys = [s.ResultColumn(value, f"rank_key_{number}") for number, value in enumerate(values)]
    return replace(query, columns=(*query.columns, *keys))


def _kept_by_joins(query: s.Select, retain: s.Bound | None) -> s.Emit:
    """The clauses of a query for rows: the bound of their ranks is that of its joins as well."""
    found = _without_retain(query.emit)
    return replace(found, retain=retain) if query.joins else found


def _without_retain(emit: s.Emit) -> s.Emit:
    places = {word: place for word, place in emit.places.items() if word != "retain"}
    return replace(emit, retain=None, places=places)
