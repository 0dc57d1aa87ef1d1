"""*Why is it late?* The way from a step to the root that holds its low watermark."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError
from millwheel.store.console.held_watermarks import DueNext, HolderRoot, due_next, root_of
from millwheel.store.console.inspection import (
    BEGIN_OF_TIME,
    END_OF_TIME,
    ComputationStatus,
    Inspection,
    PipelineStatus,
)
from millwheel.ui.page import Page
from millwheel.ui.remedies import LateFacts, Remedy, remedy_for


class LateFilters(msgspec.Struct, frozen=True):
    step: str | None = None
    """Its name, or its label; None: the step that is furthest behind."""


class LateStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step with its holder, for the list of all."""

    name: str
    label: str
    low_watermark: str
    lag_seconds: float | None
    kind: str | None
    """Of its own holder; None: nothing holds it."""
    behind: list[str]
    """Labels of the steps upstream, to the root's."""
    root: str
    age_seconds: float | None


class StepOfPath(msgspec.Struct, frozen=True, kw_only=True):
    """A step on the way upstream."""

    name: str
    label: str
    low_watermark: str
    lag_seconds: float | None
    backlog: int
    paused: bool


class WhyLate(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    at: str
    deployed: bool
    complete: bool
    on_spark: bool
    step: StepOfPath | None
    """The step in question; None: there is none yet."""
    is_chosen: bool
    """Whether the address names it; otherwise it is the one furthest behind."""
    path: list[StepOfPath]
    """From the step upstream to the one that has the root."""
    root: HolderRoot | None
    """None: nothing holds it back."""
    reader: StepOfPath | None
    """Of a record on its way: the step that has to take it."""
    age_seconds: float | None
    """Since the root's timer or hold was set, its record sent, or its row read."""
    remedy: Remedy | None
    due: DueNext
    steps: list[LateStep]


def look(inspection: Inspection, pipeline: str, filters: LateFilters) -> WhyLate:
    status = inspection.status(pipeline)
    steps = {one.name: one for one in status.computations}
    chosen = _chosen(status, filters.step)
    labels = {one.name: one.label or one.name for one in status.computations}
    root = None if chosen is None else root_of(inspection, status, chosen.name)
    holder = None if chosen is None else chosen.holder
    age = None if holder is None else holder.age_seconds
    path = [] if holder is None or root is None else holder.path
    reader = root.step if root is not None and root.kind == "record" else None
    return WhyLate(
        name=pipeline,
        at=status.at,
        deployed=status.deployed,
        complete=status.complete,
        on_spark=status.on_spark is not None,
        step=None if chosen is None else _on_path(chosen),
        is_chosen=filters.step is not None,
        path=[_on_path(steps[name]) for name in path if name in steps],
        root=root,
        reader=_on_path(steps[reader]) if reader in steps else None,
        age_seconds=age,
        remedy=None if root is None else remedy_for(root, _facts(status, root, labels, age)),
        due=DueNext([], 0) if chosen is None else due_next(inspection, pipeline, chosen.name),
        steps=[_listed(one, labels) for one in status.computations],
    )


def _chosen(status: PipelineStatus, given: str | None) -> ComputationStatus | None:
    if not status.computations:
        return None
    if given is None:
        # Of several with the same low watermark the last one, whose way to the root is longest.
        return max(reversed(status.computations), key=_behindness)
    for one in status.computations:
        if given in (one.name, one.label):
            return one
    names = [one.name for one in status.computations]
    message = f"pipeline {status.name!r} has no step {given!r}; it has: {', '.join(names)}"
    raise UsageError(with_suggestion(message, given, names))


def _behindness(one: ComputationStatus) -> float:
    if one.low_watermark == BEGIN_OF_TIME:
        return float("inf")
    return float("-inf") if one.lag_seconds is None else one.lag_seconds


def _on_path(one: ComputationStatus) -> StepOfPath:
    return StepOfPath(
        name=one.name,
        label=one.label or one.name,
        low_watermark=one.low_watermark,
        lag_seconds=one.lag_seconds,
        backlog=one.backlog,
        paused=one.paused,
    )


def _listed(one: ComputationStatus, labels: dict[str, str]) -> LateStep:
    holder = None if one.low_watermark == END_OF_TIME else one.holder
    return LateStep(
        name=one.name,
        label=one.label or one.name,
        low_watermark=one.low_watermark,
        lag_seconds=one.lag_seconds,
        kind=None if holder is None else holder.kind,
        behind=[] if holder is None else [labels.get(name, name) for name in holder.path[1:]],
        root="" if holder is None else holder.root or holder.what,
        age_seconds=None if holder is None else holder.age_seconds,
    )


def _facts(
    status: PipelineStatus, root: HolderRoot, labels: dict[str, str], age: float | None
) -> LateFacts:
    running = [worker for worker in status.workers if worker.state == "running"]
    sources = [one for one in status.sources if one.computation == root.step]
    left: list[Any] = [None if one.flow is None else one.flow.lag_rows for one in sources]
    return LateFacts(
        pipeline=status.name,
        labels=labels,
        age_seconds=age,
        has_worker=bool(running),
        blocked_by=next((one.blocked_by for one in running if one.blocked_by), None),
        waits=next((one.waits for one in running if one.waits), None),
        ended=bool(sources) and all(one.ended for one in sources),
        rows_left=None if None in left else sum(left),
    )


LATE: Page[LateFilters] = Page("late", "Late", "Why is it late?", "late.html", look, LateFilters)
