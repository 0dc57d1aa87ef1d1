"""The parts of a query with groups: partial sums, the step that keeps the groups, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel.computations import Expiring, Fold, Windowed
from millwheel.errors import SqlError
from millwheel.sql import accumulating as a
from millwheel.sql import typed as t
from millwheel.sql.analysis import (
    Analyzed,
    is_window,
)
from millwheel.sql.keys import check_key, key_maker
from millwheel.sql.loops import (
    GROUP,
    RESULT,
    GroupedRecords,
    GroupRow,
    adder,
    adding_loop,
    fold_of,
    record_key,
    row_fold,
    row_maker,
    sums_of,
)
from millwheel.sql.schemas import python_type
from millwheel.sql.scopes import WINDOW
from millwheel.sql.steps import GroupTotals, NewGroups
from millwheel.streams import Stream
from millwheel.windows import Early


class GroupParts:
    """The parts of a query with groups."""

    def __init__(self, query: Analyzed, target: Stream[Any]) -> None:
        self._query = query
        self._target = target
        keys = query.keys
        for value in keys:
            check_key(value)
        grouping = _Grouping(keys)
        results = [grouping.of(value) for value in query.columns.values]
        having = None if query.having is None else grouping.of(query.having)
        self._plans = grouping.plans
        self._slots = [slot for plan in self._plans for slot in plan.slots]
        nodes = [plan.node for plan in self._plans]
        parts = [query.where, *keys, *nodes, *results, having]
        unnested = [each.meaning for each in query.source.expansions]
        self._meaning = "; ".join([*query.columns.names, *map(t.written, parts), *unnested])
        self.partial = _partial(keys, self._slots)
        records = GroupedRecords(
            keys, self._plans, query.where, query.window, query.source.expansions
        )
        _check_windows(query, records)
        self.loop = adding_loop(records, self.partial, self._meaning)
        self.key = key_maker(keys, self._meaning)
        self.record_key = record_key(keys, self._meaning)
        row = GroupRow(query.columns.names, results, having, target)
        of_pane = query.window is not None
        self._row = row_maker(row, self._plans, keys, self._meaning, of_pane=of_pane)

    def kept_by_record(self, late: Stream[Any]) -> Any:
        """The computation that keeps groups with windows, given the records themselves."""
        fold = row_fold(self._plans, self._slots, self._meaning)
        return self._windowed(fold, late)

    def _windowed(self, fold: Fold[Any, Any, Any], late: Any) -> Any:
        emission, window = self._query.emission, self._query.window
        assert window is not None
        return Windowed(
            window.assigner,
            fold,
            to=self._target,
            late=late,
            allowed_lateness=emission.lateness,
            early=Early(records=1) if emission.on_update else None,
            row=self._row,
        )

    def kept(self) -> Any:
        """The computation that keeps the groups."""
        emission, window = self._query.emission, self._query.window
        if window is None and not self._query.has_aggregates:
            groups = NewGroups(self._row, self._target)
            return groups if emission.retain is None else Expiring(groups, after=emission.retain)
        if window is None:
            sums = sums_of(self._slots)
            totals = GroupTotals(sums, adder(self._plans, self._meaning), self._row, self._target)
            return totals if emission.retain is None else Expiring(totals, after=emission.retain)
        fold = fold_of(self._plans, self._slots, self._meaning)
        return self._windowed(fold, "amend" if emission.amends else "drop")


def _check_windows(query: Analyzed, records: GroupedRecords) -> None:
    """Refuse expressions over a record and its window where a record has several windows, or one
    that is not known yet.

    Raises:
        SqlError: there is one.
    """
    is_known = query.window is None or query.window.is_tumbling
    if is_known and query.emission.late_into is None:
        return
    for value in records.of_record:
        for part in t.walk(value):
            if is_window(part) and isinstance(part, t.ColumnValue):
                raise SqlError(
                    f"{part.name} is not known before the records are grouped",
                    part.place,
                    "In a condition on windows alone, use HAVING; or compute it in a query around "
                    "this one",
                )


class _Grouping:
    """Replaces groups and aggregates in result columns by their later names."""

    def __init__(self, keys: Sequence[t.Typed]) -> None:
        self._keys = keys
        self.plans: list[a.AggregatePlan] = []

    def of(self, value: t.Typed) -> t.Typed:
        """Raises:
        SqlError: a column is neither grouped nor in an aggregate.
        """
        return t.rewrite(value, self._change)

    def _change(self, node: t.Typed) -> t.Typed | None:
        if node in self._keys:
            name = str(self._keys.index(node))
            return t.ColumnValue(node.type, node.nullable, node.place, GROUP, name)
        if isinstance(node, t.AggregateValue):
            number = self._plan(node)
            return t.ColumnValue(node.type, node.nullable, node.place, RESULT, str(number))
        if isinstance(node, t.ColumnValue) and node.table not in (WINDOW, ""):
            raise SqlError(
                f'column "{node.name}" must appear in the GROUP BY clause or be used in an '
                "aggregate function",
                node.place,
                f"Write max({node.name}), say",
            )
        return None

    def _plan(self, node: t.AggregateValue) -> int:
        for number, plan in enumerate(self.plans):
            if plan.node == node:
                return number
        first = sum(len(plan.slots) for plan in self.plans)
        self.plans.append(a.plan_of(node, first))
        return len(self.plans) - 1


def _partial(keys: Sequence[t.Typed], slots: Sequence[a.Slot]) -> type[msgspec.Struct]:
    """The type of a group of records: the key's parts, and the slots of the aggregates."""
    fields = [
        (f"k{number}", python_type(key.type, nullable=key.nullable))
        for number, key in enumerate(keys)
    ]
    fields += [(f"s{number}", slot.type) for number, slot in enumerate(slots)]
    made: type[msgspec.Struct] = msgspec.defstruct("Partial", fields, gc=False)
    return made
