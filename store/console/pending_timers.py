"""Timers that are to come, by their time, and those that are overdue.

A timer of event time comes when the input watermark of its interval passes its time, a timer of the
clock when the clock does. Up to `MOST_EXACT` timers are counted, with the changes that are not
folded; of more, `SAMPLED_BLOCKS` blocks of the table stand for all. The soonest timers, and those
that are overdue, are read by the index, however many others there are, and so are those of the
counted units of time if these are not too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import psycopg

from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.store.console.inspection import time_text
from millwheel.store.postgres.statements import Statements

MOST_EXACT = 300_000

SAMPLED_BLOCKS = 2_000
"""Blocks of the table `timer` in a sample: some 150,000 timers."""

MOST_CHANGES = 20_000
"""Changes that are not folded are left out if there are more of them, and of estimates."""

MOST_OVERDUE = 2_000
"""Overdue timers of one step and kind that are read."""

SECOND = 1_000_000

Unit = Literal["minute", "hour", "day"]

UNITS: dict[Unit, tuple[int, int]] = {
    "minute": (60, 60),
    "hour": (3_600, 48),
    "day": (86_400, 31),
}
"""Seconds of a unit, and the number of units that are counted one by one."""


class ComingTimers(msgspec.Struct, frozen=True):
    """Timers that come within one unit of time."""

    begins_in: int
    """Seconds from now, by the timers' own clock."""
    watermark: int
    wall: int


class StepTimers(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    watermark: int
    """Timers of event time."""
    wall: int
    """Timers of the clock."""
    holds: int
    """Holds of the low watermark, which never fire."""
    input_watermark: str
    """Of the interval that is furthest behind."""
    soonest_watermark: str | None
    """When its first timer of event time is due; None: it has none."""
    event_seconds: float | None
    """Event time between the input watermark and that; None: one of them is not known, or at an end
    of time."""
    soonest_wall: str | None
    """When its first timer of the clock is due; None: it has none."""


class OverdueTimers(msgspec.Struct, frozen=True):
    step: str
    kind: str
    reason: Literal["unowned", "parked", "owner"]
    """They wait for a worker that claims their interval, for a parked key, or for their owner."""
    timers: int
    has_more: bool
    """Whether only `MOST_OVERDUE` timers of this step and kind were looked at."""
    seconds: float | None
    """How long one of them has been due, at most: of a wall timer by the clock, otherwise by the
    event time of its interval; None: that has ended."""


class PendingTimers(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    """By the database's clock."""
    is_exact: bool
    """Otherwise numbers of timers are estimates, rounded to two digits."""
    units_are_exact: bool
    """Whether those of `coming` are exact even if others are not."""
    sampled_percent: float
    """Part of the table that was read for estimates."""
    leaves_out_changes: bool
    """Whether the newest changes are left out, since too many are not folded."""
    total: int
    """Without holds."""
    coming: list[ComingTimers]
    """Units with timers, the soonest first."""
    due: ComingTimers
    """Timers with a time before the clock of their step: due in all of its intervals."""
    later: ComingTimers
    """After the last unit."""
    at_the_end: ComingTimers
    """When event time ends."""
    unknown: ComingTimers
    """Timers of steps without an event time so far."""
    steps: list[StepTimers]
    """Those that have timers or holds, in the order of the graph."""
    overdue: list[OverdueTimers]
    more_overdue: list[str]
    """Steps of which more may be overdue: only `MOST_OVERDUE` of a kind were looked at."""


NEVER_DEPLOYED = (0, None, 1, 0)
"""Row of ``timer_size`` of a schema that has no pipeline yet."""


class _Clock(NamedTuple):
    computation: int
    name: str
    micros: int


class _Counted(NamedTuple):
    computation: int
    kind: str
    place: int
    folded: int
    changed: int


class _TimerTables:
    """Statements about the timers of one pipeline."""

    def __init__(self, connection: psycopg.Connection[Any], pipeline: str) -> None:
        self._connection = connection
        self._statements = Statements(pipeline)

    def rows(self, name: str, **params: Any) -> list[tuple[Any, ...]]:
        text = self._statements.get(name, latest_commits="latest_commits")
        return self._connection.execute(text, params).fetchall()


def pending_timers(
    connection: psycopg.Connection[Any], pipeline: str, unit: Unit = "minute", step: str = ""
) -> PendingTimers:
    """Timers by their time, on a connection with a snapshot.

    Args:
        unit: the unit of time by which they are counted.
        step: name of the only step to count; empty: all.
    """
    tables = _TimerTables(connection, pipeline)
    ((now,),) = tables.rows("database_time")
    every_clock = [_Clock(*row) for row in tables.rows("timer_clocks")]
    clocks = [clock for clock in every_clock if step in ("", clock.name)]
    sizes = tables.rows("timer_size", most_timers=MOST_EXACT, most_changes=MOST_CHANGES)
    timers, estimated, blocks, changes = sizes[0] if sizes else NEVER_DEPLOYED
    is_exact = timers <= MOST_EXACT
    percent = 100.0 if is_exact else min(100.0 * SAMPLED_BLOCKS / blocks, 100.0)
    wanted = [clock.computation for clock in clocks]
    with_changes = changes <= MOST_CHANGES
    seconds, places = UNITS[unit]

    def count(source: Literal["all", "blocks", "index"], among: Sequence[_Clock]) -> list[_Counted]:
        rows = tables.rows(
            "timers_ahead",
            computations=[clock.computation for clock in among],
            clocks=[clock.micros for clock in among],
            with_changes=with_changes and source != "blocks",
            source=source,
            now=now,
            unit=seconds * SECOND,
            places=places,
            percent=percent,
            most_timers=MOST_EXACT,
            begin_of_time=MIN_TIME,
            end_of_time=MAX_TIME,
        )
        return [_Counted(*row) for row in rows]

    if is_exact:
        whole = near = _Count(count("all", clocks))
    else:
        sample = count("blocks", every_clock)
        weight = _weight(sample, estimated, percent)
        whole = near = _Count([one for one in sample if one.computation in wanted], weight)
        by_index = count("index", clocks)
        if sum(one.folded for one in by_index) <= MOST_EXACT:
            near = _Count(by_index)
    soonest = tables.rows("soonest_of_steps", computations=wanted, with_changes=with_changes)
    due_by_step = {(of, kind): due for of, kind, due in soonest}
    overdue, more_overdue = _overdue(
        tables.rows(
            "overdue_timers",
            with_changes=with_changes,
            now=now,
            most_overdue=MOST_OVERDUE,
            end_of_time=MAX_TIME,
        ),
        clocks,
    )
    every = [near.coming(place, place * seconds) for place in range(places)]
    return PendingTimers(
        at=time_text(now),
        is_exact=is_exact,
        units_are_exact=near.is_exact,
        sampled_percent=percent,
        leaves_out_changes=not with_changes,
        total=whole.of(kinds=("watermark", "wall")),
        coming=[each for each in every if each.watermark or each.wall],
        due=whole.coming(-1, 0),
        later=whole.coming(places, places * seconds),
        at_the_end=whole.coming(places + 1, 0),
        unknown=whole.coming(places + 2, 0),
        steps=[
            one for one in (_step(clock, whole, due_by_step) for clock in clocks) if _has_any(one)
        ],
        overdue=overdue,
        more_overdue=more_overdue,
    )


class _Count:
    """Sums of counted timers.

    Args:
        weight: number of folded timers that each counted one stands for; None: it is the only one.
    """

    def __init__(self, counted: Sequence[_Counted], weight: float | None = None) -> None:
        self._counted = counted
        self._weight = weight
        self.is_exact = weight is None

    def of(
        self,
        *,
        computation: int | None = None,
        kinds: tuple[str, ...],
        place: int | None = None,
    ) -> int:
        found = sum(
            float(one.folded) * (self._weight or 1.0) + one.changed
            for one in self._counted
            if one.kind in kinds
            and computation in (None, one.computation)
            and place in (None, one.place)
        )
        number = max(round(found), 0)
        return number if self.is_exact else _rounded(number)

    def coming(self, place: int, begins_in: int) -> ComingTimers:
        watermark = self.of(kinds=("watermark",), place=place)
        return ComingTimers(begins_in, watermark, self.of(kinds=("wall",), place=place))


def _weight(sample: Sequence[_Counted], estimated: float | None, percent: float) -> float:
    """The statistics of the server give the number of rows better than the size of a sample does,
    which does not always have the number of blocks that was asked for."""
    counted = sum(one.folded for one in sample)
    return estimated / float(counted) if estimated and counted else 100.0 / percent


def _rounded(number: int) -> int:
    """To two digits, the accuracy of a sample."""
    return round(number, 2 - len(str(number)))


def _step(clock: _Clock, count: _Count, soonest: dict[tuple[int, str], int]) -> StepTimers:
    of = clock.computation
    watermark, wall = soonest.get((of, "watermark")), soonest.get((of, "wall"))
    event_seconds = None
    if watermark is not None and watermark < MAX_TIME and MIN_TIME < clock.micros < MAX_TIME:
        event_seconds = (watermark - clock.micros) / SECOND
    return StepTimers(
        name=clock.name,
        watermark=count.of(computation=of, kinds=("watermark",)),
        wall=count.of(computation=of, kinds=("wall",)),
        holds=count.of(computation=of, kinds=("hold",)),
        input_watermark=time_text(clock.micros),
        soonest_watermark=None if watermark is None else time_text(watermark),
        event_seconds=event_seconds,
        soonest_wall=None if wall is None else time_text(wall),
    )


def _has_any(one: StepTimers) -> bool:
    kinds = (one.watermark, one.wall, one.holds)
    return any(kinds) or one.soonest_watermark is not None or one.soonest_wall is not None


def _overdue(
    rows: Sequence[tuple[Any, ...]], clocks: Sequence[_Clock]
) -> tuple[list[OverdueTimers], list[str]]:
    """Overdue timers, and the steps of which there may be more."""
    names = {clock.computation: clock.name for clock in clocks}
    looked_at: Counter[tuple[int, str]] = Counter()
    for of, kind, _, _, folded, _ in rows:
        looked_at[of, kind] += folded
    cut = {of_kind for of_kind, folded in looked_at.items() if folded >= MOST_OVERDUE}
    overdue = [
        OverdueTimers(
            names[of],
            kind,
            reason,
            timers,
            (of, kind) in cut,
            None if micros is None else micros / SECOND,
        )
        for of, kind, reason, timers, _, micros in rows
        if of in names and reason != "early"
    ]
    return overdue, [name for of, name in names.items() if {(of, "watermark"), (of, "wall")} & cut]
