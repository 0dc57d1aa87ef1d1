"""*Where does it stand?* The graph of the deployed code, with rate, waiting records and lag."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import datetime

import msgspec

from millwheel.core.counters import WITHHELD
from millwheel.core.quantities import count_of, duration
from millwheel.graph.picture import Arrow, Box
from millwheel.graph.stored_picture import stored_picture
from millwheel.store.console.inspection import (
    ComputationStatus,
    Inspection,
    SinkStatus,
    SourceStatus,
    SparkQueryStatus,
)
from millwheel.store.console.outputs import OutputStatus
from millwheel.store.console.step_names import stored_nodes
from millwheel.ui.page import NoFilters, Page
from millwheel.ui.rate_history import WHOLE, RateHistory, RatePoint
from millwheel.ui.troubles import Trouble, troubles_of_workers

MUCH_RECORDS = 10
MUCH_SECONDS = 5.0
"""Least number of records that wait at a marked step, and least time that it needs for them."""
LITTLE = 0.1
"""Most records that wait at each step behind it, as a share of its own."""


class SourceLeft(msgspec.Struct, frozen=True):
    """The input that an injector has not read yet. None: not known."""

    step: str
    partitions: int
    ended: int
    """Partitions that are read to their ends."""
    paused: bool
    rows_left: int | None
    bytes_left: int | None
    seconds_left: float | None
    """Time for these rows at the present rate, of the slowest partition."""
    pending: int
    """Rows that were read and are not acknowledged."""
    pending_limit: int | None
    """Most of them that the partitions may have; an injector at its limit reads no more."""


class Undelivered(msgspec.Struct, frozen=True):
    """Records that are on their way to a sink outside the store."""

    step: str
    scopes: int
    records: int
    """In open bundles, and waiting for the next ones."""
    open_seconds: float | None
    """How long the oldest open bundle has been delivered; None: none is open."""


class StandingSteps(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    at: str
    schema_version: str | None
    schema_current: bool
    deployed: bool
    complete: bool
    on_spark: SparkQueryStatus | None
    computations: list[ComputationStatus]
    """The steps, writers before readers."""
    stopped: list[Trouble]
    """Reasons for which a worker, and so each of its steps, stands still."""
    waiting_for_themselves: dict[str, str]
    """The slow steps, for which the others wait, each with the reason in words."""
    marks: dict[str, list[str]]
    """Short words about steps that stand out."""
    sources: list[SourceLeft]
    sinks: list[Undelivered]
    outputs: OutputStatus = OutputStatus()
    """Whether its steps may write outside the store."""
    withheld: dict[str, int] = {}
    """Records and lines that were not written there, by step."""
    boxes: list[Box]
    """Of the picture: steps, and sinks that are written in commits of steps."""
    arrows: list[Arrow]
    rates: dict[str, list[RatePoint]] = {}
    """Records per second that viewers have seen of late, by step; of all steps together under the
    empty name."""


def look(inspection: Inspection, pipeline: str, filters: NoFilters) -> StandingSteps:
    status = inspection.status(pipeline)
    nodes = stored_nodes(inspection.connection, pipeline) if status.schema_current else {}
    order = {one.name: number for number, one in enumerate(status.computations)}
    known = {name: nodes[name] for name in sorted(nodes, key=lambda n: order.get(n, len(order)))}
    picture = stored_picture(pipeline, known)
    running = [worker for worker in status.workers if worker.state == "running"]
    # A worker that is blocked stops all of its steps.
    is_stopped = any(worker.blocked_by or worker.waits for worker in running)
    steps = [] if is_stopped else status.computations
    themselves = waiting_for_themselves(steps, picture.arrows)
    return StandingSteps(
        name=pipeline,
        at=status.at,
        schema_version=status.schema_version,
        schema_current=status.schema_current,
        deployed=status.deployed,
        complete=status.complete,
        on_spark=status.on_spark,
        computations=status.computations,
        stopped=troubles_of_workers(status) if status.deployed else [],
        waiting_for_themselves=themselves,
        marks={
            one.name: found for one in status.computations if (found := _marks(one, themselves))
        },
        sources=sources_left(
            status.sources, {one.name for one in status.computations if one.paused}
        ),
        sinks=undelivered(status.sinks),
        outputs=status.outputs,
        withheld={
            one.name: one.counters[WITHHELD]
            for one in status.computations
            if WITHHELD in one.counters
        },
        boxes=list(picture.boxes),
        arrows=list(picture.arrows),
    )


def waiting_for_themselves(
    steps: Iterable[ComputationStatus], arrows: Iterable[Arrow]
) -> dict[str, str]:
    """The slow steps: many records wait at them, and few at the steps behind them.

    Many records also wait upstream of a slow step, which takes no more of them.
    """
    by_name = {one.name: one for one in steps}
    readers: dict[str, list[str]] = {}
    for arrow in arrows:
        readers.setdefault(arrow.start, []).append(arrow.end)
    found: dict[str, str] = {}
    for one in by_name.values():
        if one.kind == "injector" or not _has_much_waiting(one):
            continue
        behind = _behind(one.name, readers) & by_name.keys()
        if all(by_name[name].backlog <= one.backlog * LITTLE for name in behind):
            found[one.name] = _reason(one, bool(behind))
    return found


def _has_much_waiting(one: ComputationStatus) -> bool:
    if one.per_second is None:  # no worker says how fast it is
        return False
    if not one.per_second:  # all steps stand still if their worker does
        return one.backlog >= MUCH_RECORDS and one.oldest_seconds >= MUCH_SECONDS
    return one.backlog >= max(MUCH_RECORDS, one.per_second * MUCH_SECONDS)


def _behind(step: str, readers: Mapping[str, list[str]]) -> set[str]:
    """All steps downstream of a step."""
    found: set[str] = set()
    left = list(readers.get(step, ()))
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += readers.get(name, ())
    return found


def _reason(one: ComputationStatus, has_readers: bool) -> str:
    waiting = count_of(one.backlog, "record")
    pace = (
        f"which take {duration(one.backlog / one.per_second)} at its rate"
        if one.per_second
        else f"behind user code that began {duration(one.oldest_seconds)} ago"
    )
    rest = "little waits at the steps behind it" if has_readers else "no step is behind it"
    return f"{waiting} wait here, {pace}, and {rest}: it is the slow one"


def _marks(one: ComputationStatus, themselves: Mapping[str, str]) -> list[str]:
    marks = ["paused"] if one.paused else []
    marks += ["waits for itself"] if one.name in themselves else []
    return marks + ([f"{count_of(one.parked.keys, 'key')} parked"] if one.parked.keys else [])


def sources_left(sources: Iterable[SourceStatus], paused: Container[str]) -> list[SourceLeft]:
    """Input that is not read yet, by injector."""
    by_step: dict[str, list[SourceStatus]] = {}
    for source in sources:
        by_step.setdefault(source.computation, []).append(source)
    return [_left_of(step, parts, is_paused=step in paused) for step, parts in by_step.items()]


def _left_of(step: str, parts: list[SourceStatus], *, is_paused: bool) -> SourceLeft:
    flows = [one.flow for one in parts if one.flow is not None]
    is_known = len(flows) == len(parts)
    rows = [flow.lag_rows for flow in flows]
    sizes = [flow.lag_bytes for flow in flows]
    seconds = [flow.seconds_left for flow in flows if flow.seconds_left is not None]
    return SourceLeft(
        step,
        len(parts),
        sum(one.ended for one in parts),
        is_paused,
        _sum(rows) if is_known else None,
        _sum(sizes) if is_known else None,
        max(seconds, default=None),
        sum(flow.pending for flow in flows),
        sum(flow.cap for flow in flows) if is_known else None,
    )


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def undelivered(sinks: Iterable[SinkStatus]) -> list[Undelivered]:
    """Records on their way to sinks outside the store, by step."""
    by_step: dict[str, list[SinkStatus]] = {}
    for sink in sinks:
        by_step.setdefault(sink.computation, []).append(sink)
    return [
        Undelivered(
            step,
            len(scopes),
            sum((one.open_records or 0) + (one.waiting or 0) for one in scopes),
            max((one.open_seconds for one in scopes if one.open_seconds is not None), default=None),
        )
        for step, scopes in by_step.items()
    ]


def remember(figures: StandingSteps, history: RateHistory) -> StandingSteps:
    if not figures.at:
        return figures
    at = datetime.fromisoformat(figures.at).timestamp()
    rates = {one.name: one.per_second for one in figures.computations}
    history.note(figures.name, at, {**rates, WHOLE: whole_rate(figures.computations)})
    names = [WHOLE, *rates]
    return msgspec.structs.replace(
        figures, rates={name: history.of(figures.name, name, at) for name in names}
    )


def whole_rate(steps: Iterable[ComputationStatus]) -> float | None:
    """Records per second of all steps together; None: no worker has reported one."""
    known = [one.per_second for one in steps if one.per_second is not None]
    return sum(known) if known else None


STEPS: Page[NoFilters] = Page(
    "", "Steps", "Where does it stand?", "steps.html", look, remember=remember
)
