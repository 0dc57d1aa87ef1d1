"""*Who did what?* The log of operators."""

from __future__ import annotations

import msgspec

from millwheel.store.console.asking import LogEntry
from millwheel.store.console.inspection import Inspection
from millwheel.ui.page import Page

LISTED = 100


class LogFilters(msgspec.Struct, frozen=True):
    batch: int | None = None
    """Only this one."""
    before: int | None = None
    """Only batches with smaller numbers: the next page."""


class OperatorLog(msgspec.Struct, frozen=True):
    batches: list[LogEntry]
    """Newest first."""
    next_before: int | None
    """`LogFilters.before` of the next page; None: this is the last one."""


def look(inspection: Inspection, pipeline: str, filters: LogFilters) -> OperatorLog:
    found = inspection.log(pipeline, LISTED + 1, batch=filters.batch, before=filters.before)
    more = len(found) > LISTED
    return OperatorLog(found[:LISTED], found[LISTED - 1].batch if more else None)


LOG: Page[LogFilters] = Page("log", "Log", "Who did what?", "log.html", look, LogFilters)
