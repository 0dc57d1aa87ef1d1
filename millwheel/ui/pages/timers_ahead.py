"""The page of timers: Pending timers by their time, by step, and those that are overdue."""

from __future__ import annotations

import msgspec

from millwheel.store.console.inspection import Inspection
from millwheel.store.console.pending_timers import (
    MOST_OVERDUE,
    PendingTimers,
    Unit,
    pending_timers,
)
from millwheel.store.console.step_names import name_of_step
from millwheel.ui.page import Page


class TimerFilters(msgspec.Struct, frozen=True):
    by: Unit = "minute"
    """The unit of time by which timers are counted."""
    step: str | None = None
    """Only timers of this step, by its name or label; None: of all."""


class TimerFigures(msgspec.Struct, frozen=True):
    timers: PendingTimers
    labels: dict[str, str]
    """Names for display, by the names of steps."""
    step: str | None
    """Name of the only step that is counted."""
    most_overdue: int
    """Overdue timers of one step and kind that are looked at."""


def look(inspection: Inspection, pipeline: str, filters: TimerFilters) -> TimerFigures:
    inspection.require_current(pipeline)
    connection = inspection.connection
    step = None if filters.step is None else name_of_step(connection, pipeline, filters.step)
    found = pending_timers(connection, pipeline, filters.by, step or "")
    return TimerFigures(found, inspection.labels(pipeline), step, MOST_OVERDUE)


TIMERS: Page[TimerFilters] = Page(
    "timers", "Timers", "What is to come?", "timers.html", look, TimerFilters
)
