"""Which groups of an aggregate have changed: those of the new rows of the table that it follows."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from psycopg import sql

from millwheel.core.numbered import Vector, between, bounded, distance
from millwheel.spark.aggregation.aggregate_progress import AggregateProgress, Stored
from millwheel.spark.groups import Groups, group_values
from millwheel.spark.lookout import Lookout
from millwheel.spark.relation import describe
from millwheel.spark.store_sessions import reading, statement

log = structlog.get_logger("millwheel.spark")


@dataclass(frozen=True)
class Change:
    read: Vector
    rows: int
    behind: int
    """Rows that wait."""
    groups: Groups | None
    """None means all groups, also those that no longer have rows."""


class Changes:
    def __init__(self, stored: Stored, most_rows: int) -> None:
        self._stored = stored
        self._most_rows = most_rows
        self._lookout = Lookout(stored.store, stored.pipeline, stored.aggregate.follows)

    def after(self, progress: AggregateProgress) -> Change | None:
        _, written = self._lookout.written()
        if progress.read is None:
            return Change(written, distance({}, written), 0, None)
        if any(number > written.get(sender, 0) for sender, number in progress.read.items()):
            log.warning(
                "made_from_all_rows",
                aggregate=self._stored.aggregate.name,
                why="the followed table has fewer rows than were read: the store went back",
            )
            return Change(written, distance({}, written), 0, None)
        end = bounded(progress.read, written, self._most_rows)
        rows = distance(progress.read, end)
        if rows == 0:
            return None
        groups, found = self._groups(progress.read, end)
        if found < rows:
            log.warning(
                "made_from_all_rows",
                aggregate=self._stored.aggregate.name,
                why=f"{rows - found} rows of {self._stored.aggregate.follows} were deleted before "
                "they were read",
            )
            return Change(written, distance(progress.read, written), 0, None)
        return Change(end, rows, distance(end, written), groups)

    def close(self) -> None:
        self._lookout.close()

    def _groups(self, start: Vector, end: Vector) -> tuple[Groups, int]:
        """The groups of the rows between two vectors, and the number of rows."""
        aggregate = self._stored.aggregate
        ranges = between(start, end)
        with reading(self._stored.store) as connection:
            relation = describe(connection, self._stored.pipeline, aggregate.follows)
            values = group_values(aggregate.group, lambda name: relation.column(name).declared)
            places = sql.SQL(", ").join(sql.Literal(n + 1) for n in range(len(values)))
            text = statement(
                "following/changed_groups",
                follows=sql.Identifier(self._stored.pipeline, aggregate.follows),
                values=sql.SQL(", ").join(values),
                places=places,
            )
            rows = connection.execute(
                text,
                {
                    "senders": [r.sender for r in ranges],
                    "firsts": [r.first for r in ranges],
                    "untils": [r.until for r in ranges],
                },
            ).fetchall()
        groups = Groups.of(aggregate.group, [tuple(row[:-1]) for row in rows])
        return groups, sum(row[-1] for row in rows)
