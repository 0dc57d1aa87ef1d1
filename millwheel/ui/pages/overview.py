"""*How is it?* All pipelines of the store, and their troubles in words."""

from __future__ import annotations

from datetime import datetime

import msgspec

from millwheel.store.console.inspection import Inspection, PipelineStatus, SparkQueryStatus
from millwheel.ui.page import NoFilters, Page
from millwheel.ui.pages.steps_page import whole_rate
from millwheel.ui.rate_history import WHOLE, RateHistory, RatePoint
from millwheel.ui.troubles import Trouble, troubles_of


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
    late_dropped: int
    """Late records that had no effect, so far."""
    furthest_behind: str | None
    """The step with that lag; None: no lag is known."""
    complete: bool
    deployed: bool
    on_spark: SparkQueryStatus | None
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
    late = max(
        (one for one in reversed(each) if one.lag_seconds is not None),
        key=lambda one: one.lag_seconds or 0.0,
        default=None,
    )
    return PipelineHealth(
        name=status.name,
        per_second=whole_rate(each),
        lag_seconds=None if late is None else late.lag_seconds,
        furthest_behind=None if late is None else late.name,
        backlog=sum(one.backlog for one in each),
        workers=sum(worker.state == "running" for worker in status.workers),
        dead_letters=sum(one.dead_letters_kept for one in each),
        parked_keys=sum(one.parked.keys for one in each),
        late_dropped=sum(one.counters.get("late_dropped", 0) for one in each),
        complete=status.complete,
        deployed=status.deployed,
        on_spark=status.on_spark,
        troubles=troubles_of(status),
    )


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
