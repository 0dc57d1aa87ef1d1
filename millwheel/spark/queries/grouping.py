"""Queries with groups over windows, as Spark's SQL."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.spark.queries.query_steps import WINDOW as WINDOW_COLUMN
from millwheel.spark.queries.query_steps import WindowGroups
from millwheel.spark.queries.translating import Translator
from millwheel.sql import typed as t
from millwheel.sql.analysis import Analyzed
from millwheel.sql.loops import GROUP, RESULT
from millwheel.sql.scopes import WINDOW

_PARTS = {"window_start": "start", "window_end": "end"}


class _Results:
    """Replaces groups and aggregates in results by columns of the grouped rows."""

    def __init__(self, query: Analyzed) -> None:
        self._keys = query.keys
        self.aggregates: list[t.AggregateValue] = []

    def of(self, value: t.Typed) -> t.Typed:
        return t.rewrite(value, self._change)

    def _change(self, node: t.Typed) -> t.Typed | None:
        if node in self._keys:
            return _column(node, GROUP, self._keys.index(node))
        if isinstance(node, t.AggregateValue):
            if node not in self.aggregates:
                self.aggregates.append(node)
            return _column(node, RESULT, self.aggregates.index(node))
        return None


def _column(node: t.Typed, table: str, number: int) -> t.ColumnValue:
    return t.ColumnValue(node.type, node.nullable, node.place, table, str(number))


def _of_group(node: t.ColumnValue) -> str:
    if node.table == WINDOW:
        return f"`{WINDOW_COLUMN}`.`{_PARTS[node.name]}`"
    return f"`__{'k' if node.table == GROUP else 'a'}{node.name}`"


def grouping(
    query: Analyzed,
    column: Callable[[t.ColumnValue], str],
    target: str,
    size: int,
    slide: int,
) -> tuple[WindowGroups, bool]:
    """The step of a query with groups, and whether one of its values may fail.

    Args:
        column: gives Spark's SQL for a column of the input.
        size: of the windows, in microseconds.
        slide: microseconds between the starts of two windows.

    Raises:
        NotTheSame: Spark has no expression with the same meaning.
    """
    before, after = Translator(column), Translator(_of_group)
    where = None if query.where is None else before.truth(query.where)
    keys = [(f"__k{number}", before.value(value)) for number, value in enumerate(query.keys)]
    results = _Results(query)
    columns = [
        (name, after.value(results.of(value)))
        for name, value in zip(query.columns.names, query.columns.values, strict=True)
    ]
    having = None if query.having is None else after.truth(results.of(query.having))
    aggregates = [
        (f"__a{number}", before.value(value)) for number, value in enumerate(results.aggregates)
    ]
    step = WindowGroups(
        query.source.name, target, where, size, slide, keys, aggregates, having, columns
    )
    return step, before.may_fail or after.may_fail
