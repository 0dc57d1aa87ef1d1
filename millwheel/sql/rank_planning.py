"""Turns queries for first rows into computations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millwheel.computations import Expiring, Windowed
from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.accumulating.row_order import check_ordered
from millwheel.sql.analysis import Analyzed, ResultColumns, length_of
from millwheel.sql.first_rows import FirstRows, Ranker, fold_of_rows
from millwheel.sql.generated import Generated
from millwheel.sql.generating import Generator
from millwheel.sql.keys import check_key, key_of
from millwheel.sql.loops import select_source
from millwheel.sql.planned import Assembly
from millwheel.sql.ranking import Ranking
from millwheel.sql.schemas import struct_of
from millwheel.sql.scopes import NoScope
from millwheel.sql.steps import Loop
from millwheel.sql.types import INT8
from millwheel.sql.window_tables import END, ROWS
from millwheel.streams import Stream, StreamFacts


def rows_only(found: Analyzed, ranking: Ranking) -> Analyzed:
    """The query for the rows, without the column of the rank."""
    columns = found.columns
    kept = [number for number, name in enumerate(columns.names) if name != ranking.name]
    return found.with_columns(
        ResultColumns([columns.names[n] for n in kept], [columns.values[n] for n in kept])
    )


class RankPlanner:
    """Plans the first rows of a query.

    Args:
        ranking: the query.
        found: the query for the rows.
        rows: its stream.
    """

    def __init__(
        self, assembly: Assembly, ranking: Ranking, found: Analyzed, rows: Stream[Any]
    ) -> None:
        self._assembly = assembly
        self._ranking = ranking
        self._rows = rows
        names, values = list(found.columns.names), list(found.columns.values)
        visible = len(names) - ranking.hidden
        self._visible = list(zip(names[:visible], values[:visible], strict=True))
        """The columns of the result; that of the rank has a zero as its value."""
        self._by = [self._shown(value) for value in values[visible:][: ranking.partition]]
        """For each part of the partition, the column of the result that shows it."""
        keys = [
            t.ColumnValue(value.type, value.nullable, value.place, rows.name, name)
            for name, value in zip(names[visible:], values[visible:], strict=True)
        ]
        self._partition, self._order = keys[: ranking.partition], keys[ranking.partition :]
        written = [t.written(value) for value in values]
        directions = [f"{o.descending} {o.nulls_first}" for o in ranking.order]
        self._meaning = "; ".join(
            [ranking.function, str(ranking.limit), *names, *written, *directions]
        )

    def plan(self, name: str) -> Stream[Any]:
        """Add the steps; returns the stream of ranked rows.

        The step for rows without windows, which replace others, is added by `make`.
        """
        described = [
            (name, INT8 if name == self._ranking.name else value.type, value.nullable)
            for name, value in self._visible
        ]
        ranked: Stream[Any] = Stream(name, struct_of(name, described))
        for key in self._partition:
            check_key(key)
        for key in self._order:
            check_ordered(key)
        instants = self._rows.facts.instants or {}
        if any(key.name in instants for key in self._partition):
            self._in_windows(ranked)
            names = [name for name, _ in self._visible]
            ranked.facts = StreamFacts(
                instants={name: how for name, how in instants.items() if name in names},
                spreads={name: (-1, -1) for name, how in instants.items() if how == END},
            )
        else:
            self._check_kept()
            ranked.facts = StreamFacts(is_updating=True)
        return ranked

    def _shown(self, value: t.Typed) -> str | None:
        return next((name for name, each in self._visible if each == value), None)

    def _ranker(self) -> Ranker:
        """Keeps the first rows by the order of the query."""
        order = tuple(
            (place, each.descending, each.nulls_first)
            for place, each in enumerate(self._ranking.order)
        )
        names = [value.name for value in self._order]
        return Ranker(self._ranking.function, self._ranking.limit, names, order)

    def _of_row(self, column: str) -> str:
        """The Python for a column of a row with its rank."""
        return "rank" if column == self._ranking.name else f"row.{column}"

    def _in_windows(self, ranked: Stream[Any]) -> None:
        """The rows of a window are ranked when it is complete."""
        if self._ranking.retain is not None:
            raise SqlError(
                "these rows are kept until their window closes",
                self._ranking.retain.place,
                "Leave RETAIN out",
            )
        best: Any = msgspec.defstruct(
            "Best",
            [("rows", list[self._rows.value_type])],  # type: ignore[name-defined]
        )
        panes: Stream[Any] = Stream(self._assembly.name(f"{ranked.name}_by_window"), best)
        ranker = self._ranker()
        fold = fold_of_rows(ranker, self._rows.value_type, self._meaning)
        row = Generated(
            "row", "def row(pane):\n    return Best(pane.value)\n", {"Best": best}, self._meaning
        )
        windowed = Windowed(ROWS, fold, to=panes, row=row)
        self._assembly.add(windowed, self._rows.by(key_of(self._partition, self._meaning)))
        heads = ["for rank, row in zip(ranks(record.rows), record.rows):"]
        fields = ", ".join(f"{name}={self._of_row(name)}" for name, _ in self._visible)
        source = select_source((), (), heads, "", f"Row({fields})")
        names = {"ranks": ranker.ranks, "Row": ranked.value_type}
        self._assembly.add(
            Loop(Generated("select", source, names, self._meaning), ranked), panes.spread()
        )

    def _check_kept(self) -> None:
        """Refuse rows without windows that could not be kept, or not replaced."""
        ranking, place = self._ranking, self._ranking.rows.place
        if ranking.function != "row_number":
            raise SqlError(
                f"{ranking.function}() of rows without windows is not available",
                place,
                "Several rows would have one rank, and none could replace the other: use "
                "ROW_NUMBER()",
            )
        if ranking.retain is None:
            raise SqlError(
                "the first rows of each partition would be kept for ever",
                place,
                "Say for how long after its last record: RETAIN INTERVAL '30 days' at the end, or "
                "RETAIN UNBOUNDED; or partition by the end of a window",
            )
        if self._rows.facts.is_updating:
            raise SqlError(
                f'rows of "{self._rows.name}" are replaced by newer ones, which would be ranked '
                "as well",
                place,
                "Rank the input of that query; or the rows of its table, where it is read",
            )

    def make(
        self, columns: ResultColumns, target: Stream[Any]
    ) -> tuple[frozenset[str], ...] | None:
        """Add the step that sends rows without windows when their rank changes.

        Args:
            columns: of the query over the ranked rows.

        Returns:
            The columns that identify a row: those of the partition and the rank; None: the
            partition is not among them.

        Raises:
            SqlError: the rank is not in the result, so that no row could replace another.
        """
        generator = Generator(lambda column: self._of_row(column.name))
        fields = ", ".join(
            f"{name}={generator.value(value)}"
            for name, value in zip(columns.names, columns.values, strict=True)
        )
        generator.names["Row"] = target.value_type
        source = f"def row(row, rank):\n    return Row({fields})\n"
        written = "; ".join([self._meaning, *columns.names, *map(t.written, columns.values)])
        row = Generated("row", source, generator.names, written, generator.places)
        first: Any = FirstRows(self._ranker(), row, self._rows.value_type, target, self._meaning)
        after = length_of(self._ranking.retain, NoScope())
        computation = first if after is None else Expiring(first, after=after)
        self._assembly.add(computation, self._rows.by(key_of(self._partition, self._meaning)))
        shown = {
            value.name: name
            for name, value in zip(columns.names, columns.values, strict=True)
            if isinstance(value, t.ColumnValue)
        }
        by = list(self._by)
        if self._ranking.limit > 1:
            self._check_rank(shown)
            by.append(self._ranking.name)
        owners = [shown.get(name or "") for name in by]
        return tuple(frozenset([each]) for each in owners if each) if all(owners) else None

    def _check_rank(self, shown: Mapping[str, str]) -> None:
        if self._ranking.name not in shown:
            raise SqlError(
                "rows that leave the first ones would stay in the result",
                self._ranking.outer.place,
                f"Add {self._ranking.name} to the columns: then a row replaces the one with its "
                "rank",
            )
