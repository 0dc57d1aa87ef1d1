"""Compares two tables, or two sets of states or timers, page by page, by joins in the server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.core.model import SLOTS
from millwheel.store.compare.comparison import MOST_ROWS, MOST_TEXT, DifferingRow
from millwheel.store.compare.table_shapes import PairedColumn, TablePair
from millwheel.store.postgres.statements import Statements, composed

PAGE_BYTES = 80_000_000
MOST_PAGE_ROWS = 1_000_000
LEAST_PAGE_ROWS = 10_000

Part = Mapping[str, sql.Composable]
Advance = Callable[[int, float | None], None]
"""Called after each page with the rows so far, and the share of all; None: not known."""

NOTHING = sql.SQL("NULL")
TRUE, FALSE = sql.SQL("true"), sql.SQL("false")
COMMA, AND, OR = sql.SQL(", "), sql.SQL(" AND "), sql.SQL(" OR ")


class ShownNames(NamedTuple):
    """Names of the columns of rows that are shown, and the order of these rows."""

    keys: Sequence[str]
    values: Sequence[str]
    order: sql.Composable


@dataclass
class RowCounts:
    """Rows of a part by their kind, and the first ones that differ."""

    counts: Counter[str] = field(default_factory=Counter)
    left_out: list[int] = field(default_factory=lambda: [0, 0])
    first: str | None = None
    """The least time of the rows that differ, as Postgres writes it."""
    last: str | None = None
    rows: list[DifferingRow] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def differences(self) -> int:
        return self.total - self.counts["equal"]

    def add(self, kind: str, in_a: int, in_b: int, first: str | None, last: str | None) -> None:
        if kind == "left out":
            self.left_out[0] += in_a
            self.left_out[1] += in_b
            return
        self.counts[kind] += max(in_a, in_b)
        if kind != "equal" and first is not None and last is not None:
            self.first = first if self.first is None else min(self.first, first)
            self.last = last if self.last is None else max(self.last, last)


class BoundedReading:
    """Statements of one snapshot, which all end within a time."""

    def __init__(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def rows(
        self,
        name: str,
        params: Mapping[str, Any],
        parts: Part = MappingProxyType({}),
        *,
        whole: bool = True,
    ) -> list[Any]:
        """The rows of a statement; `psycopg.errors.QueryCanceled` if the time is over.

        Args:
            whole: it reads whole tables, and not a page of them.
        """
        left = max(self._end - time.monotonic(), 0.001)
        settings = {"timeout": f"{int(left * 1000)}ms", "whole": "on" if whole else "off"}
        self._connection.execute(composed("settle_comparison"), settings)
        text = composed(name, **parts)
        return self._connection.execute(text, params, prepare=False).fetchall()


# -- tables ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableJoin:
    """Two tables of one shape, and the rows of them that are compared."""

    a: str
    """Schema of the first one."""
    b: str
    table: TablePair
    time: PairedColumn | None = None
    below: str | None = None
    """Rows of this time or later are left out; ISO 8601."""

    def compare(self, reading: BoundedReading, advance: Advance) -> RowCounts:
        if not self.table.key:
            return self._compare_bags(reading, advance)
        counts = RowCounts()
        for low, high in self._pages(reading):
            params = {"below": self.below, **_bounds("low", low), **_bounds("high", high)}
            parts = self._page(low, high)
            _count(reading, parts, params, {"": counts}, self._shown_names)
            share = counts.total / self.table.rows if self.table.rows > 0 else None
            advance(counts.total, share)
        return counts

    @property
    def _shown_names(self) -> ShownNames:
        order = COMMA.join(self._names("p", "k"))
        return ShownNames(
            [c.name for c in self.table.key], [c.name for c in self.table.values], order
        )

    def _pages(
        self, reading: BoundedReading
    ) -> Iterator[tuple[Sequence[str] | None, Sequence[str] | None]]:
        """The last key of the page before, and the last of the page, as texts."""
        size = min(PAGE_BYTES / max(self.table.row_bytes, 1.0), MOST_PAGE_ROWS)
        rows = {"rows": max(int(size), LEAST_PAGE_ROWS)}
        low: Sequence[str] | None = None
        while self.table.has_pages:
            params = {**rows, **_bounds("low", low)}
            ends = reading.rows("page_end", params, self._ends(low), whole=False)
            if not ends:
                break
            yield low, ends[0]
            low = ends[0]
        yield low, None

    def _ends(self, low: Sequence[str] | None) -> Part:
        names = [sql.Identifier(column.name) for column in self.table.key]
        return {
            "a": sql.Identifier(self.a, self.table.name),
            "b": sql.Identifier(self.b, self.table.name),
            "keys": COMMA.join(sql.SQL("t.{}").format(name) for name in names),
            "order": COMMA.join(sql.SQL("t.{}").format(name) for name in names),
            "first": COMMA.join(sql.SQL("x.{}").format(name) for name in names),
            "texts": COMMA.join(sql.SQL("x.{}::text").format(name) for name in names),
            "after": self._beyond(">", "low", low),
        }

    def _beyond(self, operator: str, bound: str, values: Sequence[str] | None) -> sql.Composable:
        if values is None:
            return TRUE
        key = self.table.key
        return sql.SQL("({}) {} ({})").format(
            COMMA.join(sql.SQL("t.{}").format(sql.Identifier(column.name)) for column in key),
            sql.SQL(operator),
            COMMA.join(
                sql.SQL("{}::{}").format(sql.Placeholder(f"{bound}_{n}"), sql.SQL(column.cast))
                for n, column in enumerate(key)
            ),
        )

    def _page(self, low: Sequence[str] | None, high: Sequence[str] | None) -> Part:
        page = AND.join([self._beyond(">", "low", low), self._beyond("<=", "high", high)])
        keys, values = self._names("", "k"), self._names("", "c")
        return {
            "part": sql.SQL("''::text"),
            "time": self._time_of_pair(),
            "shown": COMMA.join(
                [
                    *(sql.SQL("coalesce(a.{0}, b.{0}) AS {0}").format(name) for name in keys),
                    *_shown(keys, values),
                ]
            ),
            "left_out": OR.join([self._is_late("a"), self._is_late("b")]),
            "differs": _any_differs(values),
            "a": self._rows(self.a, page),
            "b": self._rows(self.b, page),
            "on": AND.join(sql.SQL("a.{0} = b.{0}").format(name) for name in keys),
        }

    def _rows(self, schema: str, page: sql.Composable) -> sql.Composable:
        table = sql.Identifier(schema, self.table.name)
        return sql.SQL(composed("table_rows", columns=self._columns(), table=table, page=page))

    def _columns(self) -> sql.Composable:
        forms = [_form(column) for column in self.table.columns]
        names = [*self._names("", "k"), *self._names("", "c")]
        found = [sql.SQL("{} AS {}").format(*one) for one in zip(forms, names, strict=True)]
        return COMMA.join(found)

    def _names(self, side: str, letter: str) -> list[sql.Composable]:
        """Names of the columns of the key (``k``), or of the others (``c``)."""
        columns = self.table.key if letter == "k" else self.table.values
        dot = f"{side}." if side else ""
        return [sql.SQL(f"{dot}{letter}{n}") for n in range(len(columns))]

    def _time(self, side: str) -> sql.Composable | None:
        if self.time is None:
            return None
        columns = self.table.columns
        names = [*self._names(side, "k"), *self._names(side, "c")]
        return names[columns.index(self.time)]

    def _is_late(self, side: str) -> sql.Composable:
        name = self._time(side)
        if name is None or self.below is None:
            return FALSE
        return sql.SQL("coalesce({} >= %(below)s::timestamptz, false)").format(name)

    def _time_of_pair(self) -> sql.Composable:
        a, b = self._time("a"), self._time("b")
        return NOTHING if a is None or b is None else sql.SQL("coalesce({}, {})").format(a, b)

    # -- without a key ----------------------------------------------------------------------

    def _compare_bags(self, reading: BoundedReading, advance: Advance) -> RowCounts:
        names = self._names("", "c")
        if not names:
            return RowCounts()
        bags = composed(
            "row_bags",
            names=COMMA.join(names),
            columns=self._columns(),
            a=sql.Identifier(self.a, self.table.name),
            b=sql.Identifier(self.b, self.table.name),
        )
        params = {"below": self.below, "most": MOST_ROWS}
        late, moment = self._is_late("r"), self._time("r") or NOTHING
        parts: Part = {"bags": sql.SQL(bags), "left_out": late}
        ((equal, only_a, only_b, out_a, out_b, first, last),) = reading.rows(
            "count_bags", params, {"time": moment, **parts}
        )
        counts = RowCounts(left_out=[out_a, out_b], first=first, last=last)
        counts.counts.update({"equal": equal, "only in a": only_a, "only in b": only_b})
        if counts.differences:
            values = [column.name for column in self.table.values]
            shown = _texts([sql.SQL("r.{}").format(name) for name in names])
            found = reading.rows(
                "differing_bags", params, {"shown": shown, "names": COMMA.join(names), **parts}
            )
            counts.rows += [_row(row[1:], [], values) for row in found]
        advance(counts.total, 1.0)
        return counts


def _bounds(name: str, values: Sequence[str] | None) -> dict[str, str]:
    return {f"{name}_{n}": value for n, value in enumerate(values or ())}


# -- states and timers ----------------------------------------------------------------------


@dataclass(frozen=True)
class SharedSteps:
    """Steps of both pipelines, of which states or timers are compared: a list for each of their
    properties."""

    names: list[str]
    ids_a: list[int]
    ids_b: list[int]
    first: list[int | None]
    """Of states: the first start of windows with entries that are compared; None: all are."""
    last: list[int | None]
    """Of states the last one. Of timers: those due then or later are left out."""


@dataclass(frozen=True)
class SlotJoin:
    """The states of two pipelines, or their timers."""

    a: str
    b: str
    rows: str
    """Name of the statement."""
    key: Sequence[str]
    value: str
    steps: SharedSteps
    with_wall_timers: bool = False

    def compare(self, reading: BoundedReading, size: int, advance: Advance) -> dict[str, RowCounts]:
        """Counts by step.

        Args:
            size: bytes of the larger side.
        """
        names = self.steps.names
        by_step = {name: RowCounts() for name in names}
        pages = max(min(size // PAGE_BYTES + 1, SLOTS), 1)
        bounds = [SLOTS * n // pages for n in range(pages + 1)]
        fixed = {
            "names": names,
            "ids_a": self.steps.ids_a,
            "ids_b": self.steps.ids_b,
            "first": self.steps.first,
            "last": self.steps.last,
            "walls": self.with_wall_timers,
        }
        order = COMMA.join([sql.SQL("p.slot"), *(sql.SQL(f"p.c{n}") for n in range(len(self.key)))])
        shown = ShownNames(self.key, [self.value], order)
        for number in range(pages):
            params = {"slot_from": bounds[number], "slot_to": bounds[number + 1], **fixed}
            _count(reading, self._page(), params, by_step, shown)
            done = sum(counts.total for counts in by_step.values())
            advance(done, (number + 1) / pages)
        return by_step

    def _page(self) -> Part:
        keys = [sql.SQL(f"c{n}") for n in range(len(self.key))]
        value = sql.SQL(f"c{len(keys)}")
        both = [sql.SQL("slot"), *keys]
        is_state = self.rows == "state_rows"
        return {
            "part": sql.SQL("(%(names)s::text[])[coalesce(a.step, b.step)]"),
            "time": NOTHING,
            "shown": COMMA.join(
                [
                    *(sql.SQL("coalesce(a.{0}, b.{0}) AS {0}").format(name) for name in both),
                    *_shown(keys, [value]),
                ]
            ),
            "left_out": (
                OR.join([self._unclosed("a"), self._unclosed("b")])
                if is_state
                else AND.join([self._not_due("a"), self._not_due("b")])
            ),
            "differs": _any_differs([value]),
            "a": self._side(self.a, "ids_a"),
            "b": self._side(self.b, "ids_b"),
            "on": AND.join(
                sql.SQL("a.{0} = b.{0}").format(name) for name in [sql.SQL("step"), *both]
            ),
        }

    @staticmethod
    def _unclosed(side: str) -> sql.Composable:
        """Whether an entry belongs to no window that is final."""
        return sql.SQL(
            "({0}.is_there AND (%(last)s::bigint[])[{0}.step] IS NOT NULL AND NOT coalesce("
            "{0}.start BETWEEN (%(first)s::bigint[])[{0}.step] AND (%(last)s::bigint[])[{0}.step], "
            "false))"
        ).format(sql.SQL(side))

    @staticmethod
    def _not_due(side: str) -> sql.Composable:
        """Whether a timer may be set on one side only; with no timer, it may."""
        return sql.SQL(
            "coalesce({0}.c1 = 'wall' AND NOT %(walls)s "
            "OR {0}.c3 >= (%(last)s::bigint[])[{0}.step], NOT {0}.is_there, true)"
        ).format(sql.SQL(side))

    def _side(self, schema: str, ids: str) -> sql.Composable:
        statements = Statements(schema)
        tables = ("fold", "key_interval", "state", "timer", "state_changes", "timer_change")
        parts: dict[str, sql.Composable] = {name: statements.table(name) for name in tables}
        return sql.SQL(composed(self.rows, ids=sql.Placeholder(ids), **parts))


# -- statements -----------------------------------------------------------------------------


def _count(
    reading: BoundedReading,
    parts: Part,
    params: Mapping[str, Any],
    by_step: Mapping[str, RowCounts],
    shown: ShownNames,
) -> None:
    """Add a page to the by_step, by part."""
    pairs = sql.SQL(composed("paired_rows", **parts))
    different = set()
    whole = not params.keys() & {"low_0", "high_0", "slot_from"}
    of_pairs: Part = {"pairs": pairs, "order": shown.order}
    for part, kind, *rest in reading.rows("count_pairs", params, of_pairs, whole=whole):
        by_step[part].add(kind, *rest)
        if kind not in ("equal", "left out"):
            different.add(part)
    for part in sorted(different):
        rows = by_step[part].rows
        if len(rows) < MOST_ROWS:
            more = {**params, "part": part, "most": MOST_ROWS - len(rows)}
            found = reading.rows("differing_pairs", more, of_pairs, whole=whole)
            rows += [_row(row, shown.keys, shown.values) for row in found]


def _row(found: Sequence[Any], keys: Sequence[str], values: Sequence[str]) -> DifferingRow:
    kind, key, of_a, of_b, marks, times = found
    return DifferingRow(
        kind,
        dict(zip(keys, key, strict=True)),
        None if of_a is None else dict(zip(values, of_a, strict=True)),
        None if of_b is None else dict(zip(values, of_b, strict=True)),
        [name for name, mark in zip(values, marks, strict=False) if mark] if of_a and of_b else [],
        times,
    )


def _form(column: PairedColumn) -> sql.Composable:
    """A column's value in the form in which it is compared."""
    name = sql.SQL("t.{}").format(sql.Identifier(column.name))
    if column.by_text:
        return sql.SQL('{}::text COLLATE "C"').format(name)
    return sql.SQL('{} COLLATE "C"').format(name) if column.has_collation else name


def _any_differs(names: Sequence[sql.Composable]) -> sql.Composable:
    found = [sql.SQL("a.{0} IS DISTINCT FROM b.{0}").format(name) for name in names]
    return OR.join(found) if found else FALSE


def _shown(
    keys: Sequence[sql.Composable], values: Sequence[sql.Composable]
) -> list[sql.Composable]:
    """Columns with the texts of a pair."""
    of_pair = [sql.SQL("coalesce(a.{0}, b.{0})").format(name) for name in keys]
    sides = [
        sql.SQL("CASE WHEN {}.is_there THEN {} END AS {}").format(
            sql.SQL(side),
            _texts([sql.SQL("{}.{}").format(sql.SQL(side), name) for name in values]),
            sql.SQL(f"of_{side}"),
        )
        for side in ("a", "b")
    ]
    marks = [sql.SQL("a.{0} IS DISTINCT FROM b.{0}").format(name) for name in values]
    return [
        sql.SQL("{} AS key").format(_texts(of_pair)),
        *sides,
        sql.SQL("ARRAY[{}]::boolean[] AS marks").format(COMMA.join(marks)),
    ]


def _texts(names: Sequence[sql.Composable]) -> sql.Composable:
    most = sql.Literal(MOST_TEXT)
    texts = [sql.SQL("left({}::text, {})").format(name, most) for name in names]
    return sql.SQL("ARRAY[{}]::text[]").format(COMMA.join(texts))
