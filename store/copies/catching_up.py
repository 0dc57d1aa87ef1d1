"""How far a pipeline is behind another one that reads the same input."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.core.quantities import duration
from millwheel.store.postgres.statements import composed

SECOND = 1_000_000


class CatchUp(NamedTuple):
    """Times of events are microseconds."""

    former: int | None
    """Least low watermark of the pipeline that is ahead; None: it has no commit."""
    new: int | None
    """That of the one that follows."""
    newest: int | None
    """Newest event time that the sources of the former have shown."""
    at: float
    """When this was read, seconds by the database's clock."""

    @property
    def is_complete(self) -> bool:
        """Whether all that is final in the former is in the new one as well."""
        return self.former is not None and self.new is not None and self.new >= self.former

    @property
    def behind_seconds(self) -> float | None:
        """Event time between both; None: one of them has not begun. After the end of its input a
        pipeline's watermark is infinite, and its newest row counts."""
        end = self.newest if self.former == MAX_TIME else self.former
        if self.is_complete:
            return 0.0
        if end is None or self.new is None or self.new <= MIN_TIME or end <= MIN_TIME:
            return None
        return max(0.0, (end - self.new) / SECOND)

    @property
    def words(self) -> str:
        """How far it is behind."""
        seconds = self.behind_seconds
        if self.is_complete:
            return "nothing"
        if seconds is None:
            return "all of its event time: one of them has not begun"
        ended = " and the end of the input" if self.former == MAX_TIME else ""
        return f"{duration(seconds)} of event time{ended}"


def catch_up(connection: psycopg.Connection[Any], pipeline: str, successor: str) -> CatchUp:
    text = composed(
        "two_watermarks",
        former_commits=sql.Identifier(pipeline, "latest_commits"),
        new_commits=sql.Identifier(successor, "latest_commits"),
    )
    return CatchUp(*connection.execute(text).fetchall()[0])


class CatchUpSpeed:
    """Speed of event time between two looks at a pipeline that catches up."""

    def __init__(self) -> None:
        self._before: CatchUp | None = None
        self.per_second: float | None = None
        """Seconds of event time per second; None: not known yet."""
        self.seconds_left: float | None = None
        """Until both are level, at this speed."""

    def add(self, found: CatchUp) -> None:
        before, self._before = self._before, found
        if before is None or found.at <= before.at:
            return
        own, others = (_advance(before, found, whose) for whose in ("new", "former"))
        self.per_second = own
        behind = found.behind_seconds
        gained = None if own is None else own - (others or 0.0)
        self.seconds_left = None
        if behind is not None and gained is not None and gained > 0:
            self.seconds_left = behind / gained


def _advance(before: CatchUp, found: CatchUp, whose: str) -> float | None:
    first, last = getattr(before, whose), getattr(found, whose)
    ends = (None, MIN_TIME, MAX_TIME)
    if first in ends or last in ends:
        return None
    return float((last - first) / SECOND / (found.at - before.at))
