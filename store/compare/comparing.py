"""The comparison of two pipelines: which parts they have, and how far each is compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import psycopg

from millwheel.core.model import MAX_TIME, MIN_TIME, to_micros
from millwheel.core.quantities import duration
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import SchemaBehind, StoreError, UsageError
from millwheel.store.address import StoreAddress
from millwheel.store.compare.comparison import (
    ComparedPart,
    DifferingRow,
    PipelineComparison,
    verdict_on,
)
from millwheel.store.compare.pipeline_place import (
    PipelinePlace,
    are_copies,
    place_of,
    same_place,
)
from millwheel.store.compare.row_pages import (
    BoundedReading,
    RowCounts,
    SharedSteps,
    SlotJoin,
    TableJoin,
)
from millwheel.store.compare.table_shapes import (
    OwnTable,
    PairedColumn,
    TablePair,
    is_end,
    shared_table,
    tables_of,
)
from millwheel.store.console.inspection import time_text
from millwheel.store.console.migrate import HEAD
from millwheel.store.console.presence import present
from millwheel.store.console.snapshot import begin_snapshot, reading, translated
from millwheel.store.postgres.statements import Statements

SECONDS = 600.0

ONE_SECOND = 1_000_000

WHOLE = "whole: both are at the same place"

NO_PROOF = "and a difference proves nothing"

Show = Callable[[str, int, float | None], None]
"""Called with the title of a part, its rows so far, and the share of all; None: not known."""


@dataclass(frozen=True)
class CompareOptions:
    """The parts that are compared, and how far.

    Attributes:
        tables: names; none: all tables, states and timers.
        at: compare below this time; None: below the common low watermark.
        times: the column of time by the name of its table.
        seconds: time for the whole comparison.
    """

    tables: Sequence[str] = ()
    at: datetime | None = None
    times: Mapping[str, str] | None = None
    seconds: float = SECONDS


def compare(
    store: str | None,
    a: str,
    b: str,
    options: CompareOptions = CompareOptions(),
    show: Show | None = None,
) -> PipelineComparison:
    """Compare two pipelines or savepoints of a store at one moment (see `millwheel.store.compare`).

    Args:
        store: as ``--store``: a directory or a Postgres URL; None: ``MILLWHEEL_STORE``, or
            ``.millwheel``.

    Raises:
        UsageError: there is no such pipeline, table or column; or `options.at` is above the common
            low watermark.
        SchemaBehind: one of the schemas is older than this code.
        StoreError: the store cannot be read, or the time is over.
    """
    with present(StoreAddress.parse(store)) as presence:
        with reading(presence.url) as connection, translated():
            _check_names(connection, a, b)
        with (
            reading(presence.url, options.seconds) as connection,
            translated(),
            _ending(options.seconds),
        ):
            begin_snapshot(connection, [a, b])
            for name in (a, b):
                _check_version(connection, name)
            return _Comparing(connection, a, b, options, show or _unseen).run()


@contextlib.contextmanager
def _ending(seconds: float) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise StoreError(
            f"the comparison was ended after {seconds:g} s, since a longer one delays the upkeep "
            "of the store. Give it more time with --limit, compare one table at a time with "
            "--table, or compare savepoints, which nothing changes"
        ) from error


def _unseen(title: str, rows: int, share: float | None) -> None:
    """Show nothing."""


def _check_names(connection: psycopg.Connection[Any], a: str, b: str) -> None:
    names = [name for (name,) in connection.execute(Statements("").get("comparable_schemas"))]
    for wanted in (a, b):
        if wanted not in names:
            message = (
                f"the store has no pipeline or savepoint {wanted!r} that this login has a role "
                f"of; it may read: {', '.join(names) or 'none'}"
            )
            raise UsageError(with_suggestion(message, wanted, names))
    if a == b:
        raise UsageError(
            f"{a!r} is given twice: name two pipelines, or a pipeline and a savepoint of it"
        )


def _check_version(connection: psycopg.Connection[Any], name: str) -> None:
    version = {"alembic_version": "alembic_version"}
    found = connection.execute(Statements(name).get("schema_version", **version)).fetchall()
    if found and found[0][0] == HEAD:
        return
    at = found[0][0] if found else "none"
    remedy = (
        "No command migrates a savepoint: take a new one, or compare with the millwheel that it "
        "is of"
        if "@" in name
        else f"Run: millwheel migrate {name}"
    )
    raise SchemaBehind(
        f"the schema {name!r} of the store is at version {at}, and this code compares schemas of "
        f"version {HEAD}. {remedy}"
    )


@dataclass(frozen=True)
class _Rule:
    """How far a part is compared."""

    text: str
    is_proof: bool
    time: PairedColumn | None = None
    below: int | None = None
    """Microseconds."""


class _Comparing:
    def __init__(
        self,
        connection: psycopg.Connection[Any],
        a: str,
        b: str,
        options: CompareOptions,
        show: Show,
    ) -> None:
        self._connection = connection
        self._options = options
        self._show = show
        self._reading = BoundedReading(connection, options.seconds)
        self._a, self._b = place_of(connection, a), place_of(connection, b)
        self._same, self._reason = same_place(self._a, self._b)
        self._at = None if options.at is None else _micros(options.at)

    def run(self) -> PipelineComparison:
        tables_a, tables_b = (tables_of(self._connection, p.name) for p in (self._a, self._b))
        wanted = self._options.tables
        for name in (*wanted, *(self._options.times or ())):
            self._check_table(name, tables_a, tables_b)
        both = [name for name in tables_a if name in tables_b and (not wanted or name in wanted)]
        joins = [self._joined(shared_table(tables_a[name], tables_b[name])) for name in both]
        steps = [] if wanted else [*self._steps()]
        parts = [self._table(join, rule) for join, rule in joins]
        if steps and not self._on_spark:
            parts += [*self._states(steps), *self._timers(steps)]
        return PipelineComparison(
            self._a.name,
            self._b.name,
            verdict_on(parts),
            self._same,
            self._place(),
            time_text(self._common([*self._a.steps, *self._b.steps])),
            parts,
            *(
                self._lacking(*sides)
                for sides in (
                    (tables_a, tables_b, self._a, self._b),
                    (tables_b, tables_a, self._b, self._a),
                )
            ),
        )

    @property
    def _on_spark(self) -> bool:
        return self._a.on_spark is not None or self._b.on_spark is not None

    def _place(self) -> str:
        if self._same:
            return f"at the same place: {self._reason}"
        return f"at different places: {self._reason}"

    def _lacking(
        self,
        here: Mapping[str, OwnTable],
        there: Mapping[str, OwnTable],
        place: PipelinePlace,
        other: PipelinePlace,
    ) -> list[str]:
        if self._options.tables:
            return []
        tables = [f"table {name}" for name in here if name not in there]
        return tables + [f"step {name}" for name in place.steps if name not in other.steps]

    # -- watermarks --------------------------------------------------------------------------

    def _low(self, place: PipelinePlace, steps: Sequence[str]) -> int:
        return place.low_watermark([step for step in steps if step in place.steps])

    def _common(self, steps: Sequence[str]) -> int:
        return min(self._low(place, steps) for place in (self._a, self._b))

    def _below(self, what: str, low_a: int, low_b: int) -> int:
        """The time below which a part is compared: the option's, or the lesser low watermark."""
        common = min(low_a, low_b)
        if self._at is None:
            return common
        if self._at > common:
            behind, low = (self._a, low_a) if low_a <= low_b else (self._b, low_b)
            raise UsageError(
                f"--at {time_text(self._at)} is above the common low watermark of {what}: "
                f"{behind.name!r} is behind, at {time_text(low)}. Wait until it has come so far, "
                "or give an earlier time"
            )
        return self._at

    # -- tables ------------------------------------------------------------------------------

    def _check_table(
        self, name: str, tables_a: Mapping[str, OwnTable], tables_b: Mapping[str, OwnTable]
    ) -> None:
        for place, tables in ((self._a, tables_a), (self._b, tables_b)):
            if name not in tables:
                message = (
                    f"{place.name!r} has no table {name!r}; it has {', '.join(tables) or 'none'}"
                )
                raise UsageError(with_suggestion(message, name, [*tables]))

    def _joined(self, table: TablePair) -> tuple[TableJoin, _Rule]:
        rule = self._rule_of(table)
        below = None if rule.below is None else time_text(rule.below)
        return TableJoin(self._a.name, self._b.name, table, rule.time, below), rule

    def _rule_of(self, table: TablePair) -> _Rule:
        writers = [place.writers(table.name) for place in (self._a, self._b)]
        below = self._below(
            f"table {table.name!r}",
            self._low(self._a, writers[0]),
            self._low(self._b, writers[1]),
        )
        chosen = (self._options.times or {}).get(table.name)
        times = table.times() if chosen is None else [self._time(table, chosen)]
        if self._same and (self._at is None or len(times) != 1):
            return _Rule(WHOLE, is_proof=True)
        if len(times) != 1:
            names = ", ".join(column.name for column in times)
            why = "no column of time"
            if times:
                why = f"several columns of time ({names}); name one with --time {table.name}.COLUMN"
            return _Rule(f"whole, {NO_PROOF}: {why}", is_proof=False)
        (column,) = times
        if below >= MAX_TIME:
            return _Rule("whole: event time has ended", is_proof=True)
        if is_end(column.name):
            return self._until(column, below, "")
        lengths = [place.windows_before(table.name) for place in (self._a, self._b)]
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            rule = self._until(column, below, "")
            if chosen is not None:
                return rule
            text = f"{rule.text}; {NO_PROOF}: windows of unknown length may change these rows"
            return _Rule(text, self._same, column, below)
        length = max(known)
        why = (
            f": the low watermark less {duration(length / ONE_SECOND)} of windows" if length else ""
        )
        return self._until(column, max(below - length, MIN_TIME), why)

    @staticmethod
    def _until(column: PairedColumn, below: int, why: str) -> _Rule:
        text = f"{column.name} before {time_text(below)}{why}"
        return _Rule(text, is_proof=True, time=column, below=below)

    @staticmethod
    def _time(table: TablePair, name: str) -> PairedColumn:
        times = [column for column in table.columns if column.is_time]
        for column in times:
            if column.name == name:
                return column
        names = [column.name for column in times]
        message = (
            f"--time {table.name}.{name}: both tables need a column {name!r} of type timestamptz; "
            f"they have {', '.join(names) or 'none'}"
        )
        raise UsageError(with_suggestion(message, name, names))

    def _table(self, join: TableJoin, rule: _Rule) -> ComparedPart:
        table = join.table
        title = f"table {table.name}"
        self._show(title, 0, None)
        tally = join.compare(self._reading, lambda rows, share: self._show(title, rows, share))
        remarks = [*self._remarks(table)]
        if tally.first is not None and rule.time is not None:
            remarks.append(
                f"{rule.time.name} of the rows that differ: {tally.first} to {tally.last}"
            )
        return _part("table", table.name, tally, rule, remarks)

    def _remarks(self, table: TablePair) -> Iterator[str]:
        for place, names in zip((self._a, self._b), table.lacking, strict=True):
            if names:
                yield f"not compared, since only {place.name} has them: {', '.join(names)}"
        for column in table.columns:
            a, b = column.types
            if a != b:
                yield (
                    f"compared as text: {column.name} is {a} in {self._a.name}, and {b} in "
                    f"{self._b.name}"
                )
        if table.is_numbered:
            yield "compared without its numbers (sender, sequence), which no run has again"
        if not table.key:
            yield (
                "whole rows are compared, since both have no key in common: the server sorts them, "
                "which may take disk space"
            )
        elif not table.has_pages:
            yield (
                "the keys have other types, or another order: the server sorts both tables, which "
                "may take disk space"
            )

    # -- states and timers -------------------------------------------------------------------

    def _steps(self) -> Iterator[str]:
        for name, mark in self._a.steps.items():
            if mark.kind == "computation" and name in self._b.steps:
                yield name

    def _states(self, steps: Sequence[str]) -> Iterator[ComparedPart]:
        rules, first, last = {}, [], []
        for step in steps:
            rules[step], bounds = self._rule_of_state(step)
            first.append(bounds and bounds[0])
            last.append(bounds and bounds[1])
        join = SlotJoin(
            self._a.name,
            self._b.name,
            "state_rows",
            ("key", "entry"),
            "value",
            self._shared(steps, first, last),
        )
        found = join.compare(self._reading, self._sizes()[0], self._showing("states"))
        for step, tally in found.items():
            if tally.total or any(tally.left_out):
                yield _part("states", step, tally, rules[step])

    def _rule_of_state(self, step: str) -> tuple[_Rule, tuple[int, int] | None]:
        if self._same:
            return _Rule(WHOLE, is_proof=True), None
        lows = [place.low_watermark([step]) for place in (self._a, self._b)]
        entries = [place.window_entries(step) for place in (self._a, self._b)]
        if entries[0] is None or entries[0] != entries[1]:
            text = f"whole, {NO_PROOF}: they change with each record"
            return _Rule(text, is_proof=False), None
        below = self._below(f"step {step!r}", *lows)
        text = f"windows that ended before {time_text(below)}"
        return _Rule(text, True, below=below), entries[0].final(below, max(lows))

    def _timers(self, steps: Sequence[str]) -> Iterator[ComparedPart]:
        is_copy = are_copies(self._a, self._b)
        rules: dict[str, _Rule] = {}
        last: list[int | None] = []
        for step in steps:
            if self._same:
                text = WHOLE if is_copy else "all but wall timers: both are at the same place"
                rules[step] = _Rule(text, is_proof=True)
                last.append(None)
                continue
            lows = [place.low_watermark([step]) for place in (self._a, self._b)]
            below = self._below(f"step {step!r}", *lows)
            rules[step] = _Rule(f"due before {time_text(below)}", is_proof=True, below=below)
            last.append(below)
        join = SlotJoin(
            self._a.name,
            self._b.name,
            "timer_rows",
            ("key", "kind", "tag"),
            "due",
            self._shared(steps, [None] * len(steps), last),
            with_wall_timers=is_copy,
        )
        found = join.compare(self._reading, self._sizes()[1], self._showing("timers"))
        for step, tally in found.items():
            tally.rows = [_with_times(row) for row in tally.rows]
            if tally.total or any(tally.left_out):
                yield _part("timers", step, tally, rules[step])

    def _shared(
        self, steps: Sequence[str], first: list[int | None], last: list[int | None]
    ) -> SharedSteps:
        ids_a, ids_b = ([place.steps[s].id for s in steps] for place in (self._a, self._b))
        return SharedSteps(list(steps), ids_a, ids_b, first, last)

    def _sizes(self) -> tuple[int, int]:
        """Bytes of the larger side's states, and of its timers."""
        found = []
        for place in (self._a, self._b):
            statements = Statements(place.name)
            names = {name: statements.table(name).as_string(None) for name in ("state", "timer")}
            found += self._reading.rows("state_sizes", names)
        return max(row[0] for row in found), max(row[1] for row in found)

    def _showing(self, title: str) -> Callable[[int, float | None], None]:
        return lambda rows, share: self._show(title, rows, share)


def _with_times(timer: DifferingRow) -> DifferingRow:
    """The due time, which is stored as microseconds, as ISO 8601."""
    a, b = (
        None if side is None else {"due": time_text(int(side["due"] or 0))}
        for side in (timer.a, timer.b)
    )
    return msgspec.structs.replace(timer, a=a, b=b)


def _part(
    what: Any, name: str, tally: RowCounts, rule: _Rule, remarks: Sequence[str] = ()
) -> ComparedPart:
    return ComparedPart(
        what,
        name,
        tally.total,
        tally.counts["only in a"],
        tally.counts["only in b"],
        tally.counts["differs"],
        tally.left_out[0],
        tally.left_out[1],
        rule.text,
        None if rule.below is None else time_text(rule.below),
        rule.is_proof,
        list(remarks),
        tally.rows,
    )


def _micros(at: datetime) -> int:
    try:
        return to_micros(at)
    except ValueError as error:
        raise UsageError(f"--at: {error}") from error
