"""*How is it?* All pipelines of the store, and what is wrong with them, in words."""

from __future__ import annotations

from datetime import datetime

import msgspec

from millwheel.store.console.inspection import END_OF_TIME, Inspection, PipelineStatus
from millwheel.ui.page import NoFilters, Page
from millwheel.ui.pages.steps import whole_rate
from millwheel.ui.rate_history import WHOLE, RateHistory, RatePoint

SILENT_SECONDS = 300.0
"""A low watermark that stands still for longer is worth a word (the alert
``MillwheelWatermarkHeld``)."""


class Trouble(msgspec.Struct, frozen=True):
    """Something that is wrong, in words, with the page that shows more."""

    text: str
    page: str = ""
    filters: dict[str, str] = {}


class PipelineHealth(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    per_second: float | None
    """Records processed per second, by all steps."""
    lag_seconds: float | None
    """Of the step that is furthest behind."""
    backlog: int
    workers: int
    """Workers with a valid lease."""
    dead_letters: int
    parked_keys: int
    complete: bool
    troubles: list[Trouble]


class StoreHealth(msgspec.Struct, frozen=True):
    at: str
    pipelines: list[PipelineHealth]
    rates: dict[str, list[RatePoint]] = {}
    """Records per second that viewers have seen of late, by pipeline."""


def look(inspection: Inspection, pipeline: str, filters: NoFilters) -> StoreHealth:
    names = [pipeline] if pipeline else inspection.pipelines()
    found = [inspection.status(name) for name in names]
    return StoreHealth(max((one.at for one in found), default=""), list(map(_health, found)))


def _health(status: PipelineStatus) -> PipelineHealth:
    each = status.computations
    return PipelineHealth(
        name=status.name,
        per_second=whole_rate(each),
        lag_seconds=max(
            (one.lag_seconds for one in each if one.lag_seconds is not None), default=None
        ),
        backlog=sum(one.backlog for one in each),
        workers=sum(worker.state == "running" for worker in status.workers),
        dead_letters=sum(one.dead_letters_kept for one in each),
        parked_keys=sum(one.parked.keys for one in each),
        complete=status.complete,
        troubles=list(_troubles(status)),
    )


def _troubles(status: PipelineStatus) -> list[Trouble]:
    if not status.schema_current:
        return [
            Trouble(
                f"the schema is at version {status.schema_version}, which this code cannot read: "
                f"millwheel migrate {status.name}"
            )
        ]
    if not status.deployed:
        return [Trouble("created, but never run: start a worker with millwheel worker")]
    if status.on_spark is not None:
        return []
    found: list[Trouble] = []
    running = {worker.id for worker in status.workers if worker.state == "running"}
    if not running and not status.complete:
        found.append(Trouble("no worker is running it: start one with millwheel worker", "workers"))
    for worker in status.workers:
        if worker.state != "running":
            found.append(
                Trouble(f"worker {worker.id[:8]} on {worker.host} is {worker.state}", "workers")
            )
        if worker.blocked_by:
            found.append(
                Trouble(f"user code blocks worker {worker.id[:8]}: {worker.blocked_by}", "workers")
            )
        if worker.waits:
            found.append(Trouble(f"worker {worker.id[:8]} waits: {worker.waits}", "workers"))
    unowned = sum(interval.owner not in running for interval in status.intervals)
    if running and unowned:
        found.append(Trouble(f"{unowned:,} key intervals have no live owner", "workers"))
    for one in status.computations:
        name, of = one.label or one.name, {"step": one.name}
        if one.paused:
            found.append(Trouble(f"{name} is paused"))
        if one.parked.keys:
            found.append(Trouble(f"{one.parked.keys:,} keys of {name} are parked", "letters", of))
        if one.dead_letters_kept:
            found.append(
                Trouble(f"{one.dead_letters_kept:,} dead letters of {name}", "letters", of)
            )
        holder = one.holder
        if (
            holder is not None
            and one.low_watermark != END_OF_TIME
            and (holder.age_seconds or 0.0) > SILENT_SECONDS
        ):
            found.append(Trouble(f"the low watermark of {name} is held: {holder.what}", "late", of))
    found += [
        Trouble(f"no code reads {state.collection} of {state.computation} any more", "disk")
        for state in status.orphaned
    ]
    return found


def remember(figures: StoreHealth, history: RateHistory) -> StoreHealth:
    if not figures.at:
        return figures
    at = datetime.fromisoformat(figures.at).timestamp()
    for one in figures.pipelines:
        history.note(one.name, at, {WHOLE: one.per_second})
    rates = {one.name: history.of(one.name, WHOLE, at) for one in figures.pipelines}
    return msgspec.structs.replace(figures, rates=rates)


OVERVIEW: Page[NoFilters] = Page(
    "", "All pipelines", "How is it?", "overview.html", look, remember=remember
)
