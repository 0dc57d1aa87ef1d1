"""The log of operators, and the progress of one batch of requests."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.store.console.inspection import Inspection
from millwheel.store.console.request_log import LogEntry, LogFilter, OneRequest
from millwheel.ui.page import Page

LISTED = 100

MOST_BYTES = 2_000
"""Of a payload in the list, as the store keeps it. That of one batch is shown whatever its size."""

OUTCOMES = ("open", "done", "refused", "failed", "withdrawn")

BEFORE = "was "
"""Begins the detail of a changed state; the former value follows."""


class LogFilters(msgspec.Struct, frozen=True):
    batch: int | None = None
    """Only this one, with its requests."""
    verb: str | None = None
    """Only batches with this verb."""
    actor: str | None = None
    """Only batches of this person."""
    outcome: str | None = None
    """Of a batch: only requests with this outcome."""
    before: int | None = None
    """Only batches with smaller numbers: the next page."""
    below: int | None = None
    """Of a batch: only requests with smaller numbers, the next page of them."""


class OutcomeCount(msgspec.Struct, frozen=True):
    outcome: str
    """open, done, refused, failed or withdrawn."""
    requests: int
    detail: str | None
    """Words of the newest request with this outcome."""


class FormerValue(msgspec.Struct, frozen=True):
    """The value before a change, of a state or a record."""

    value: Any


class BatchProgress(msgspec.Struct, frozen=True):
    """How the requests of a batch go."""

    outcomes: list[OutcomeCount]
    requests: list[OneRequest]
    """Those asked last first."""
    next_below: int | None
    """`LogFilters.below` of the next page of requests; None: this is the last one."""
    before: FormerValue | None
    """The state or the record before the change; None: the store does not know it."""


class OperatorLog(msgspec.Struct, frozen=True):
    batches: list[LogEntry]
    """Newest first."""
    next_before: int | None
    """`LogFilters.before` of the next page; None: this is the last one."""
    progress: BatchProgress | None
    """Of the batch that the filters name."""


def look(inspection: Inspection, pipeline: str, filters: LogFilters) -> OperatorLog:
    log = inspection.log(pipeline)
    wanted = LogFilter(filters.batch, filters.before, filters.verb, filters.actor)
    if filters.batch is None:
        found = log.entries(LISTED + 1, wanted, most_bytes=MOST_BYTES)
        more = len(found) > LISTED
        return OperatorLog(found[:LISTED], found[LISTED - 1].batch if more else None, None)
    found = log.entries(1, wanted)
    if not found:
        return OperatorLog([], None, None)
    counts, details = log.outcomes(filters.batch)
    requests = log.requests(filters.batch, LISTED + 1, outcome=filters.outcome, below=filters.below)
    more = len(requests) > LISTED
    return OperatorLog(
        found,
        None,
        BatchProgress(
            [
                OutcomeCount(name, counts[name], details.get(name))
                for name in OUTCOMES
                if name in counts
            ],
            requests[:LISTED],
            requests[LISTED - 1].id if more else None,
            _former(found[0]),
        ),
    )


def _former(entry: LogEntry) -> FormerValue | None:
    """The value before: a retry with another value has it among its arguments, and the owner of a
    state writes it into its answer."""
    try:
        if entry.verb == "retry" and entry.payload is not None:
            payload = msgspec.json.decode(entry.payload)
            return FormerValue(payload["was"]) if "was" in payload else None
        if entry.verb in ("set_state", "delete_state") and entry.done and entry.requests == 1:
            detail = entry.detail or ""
            if detail.startswith(BEFORE):
                return FormerValue(msgspec.json.decode(detail.removeprefix(BEFORE)))
    except (msgspec.DecodeError, TypeError):  # a request that was written by hand
        pass
    return None


LOG: Page[LogFilters] = Page("log", "Log", "Who did what?", "log.html", look, LogFilters)
