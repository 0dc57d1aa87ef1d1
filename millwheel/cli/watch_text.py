"""The lines of ``millwheel status --watch``."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from millwheel.cli.fitted_tables import Cell, Fit, Styled, layout
from millwheel.cli.printing import sentence_lines
from millwheel.cli.status_text import (
    at_work,
    holders,
    labels_of,
    moment,
    moving,
    name_of,
    parked,
    rate_text,
    style_of,
    user_code,
    withheld_line,
)
from millwheel.cli.terminal import styled
from millwheel.core.quantities import byte_text, count_of, duration
from millwheel.store.console.inspection import (
    ComputationStatus,
    IntervalStatus,
    PipelineStatus,
    WorkerStatus,
)
from millwheel.store.console.migrate import HEAD

WORKERS_DROPPED = ("address", "code", "memory", "CPU", "process", "host", "intervals", "lease")
COMPUTATIONS_DROPPED = (
    "owned by", "at work", "user code", "out/s", "processed", "low watermark", "records/s",
)  # fmt: skip
"""Columns in the order in which a narrow terminal has no room for them."""


class Rates:
    """Records per second between two refreshes."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, dict[str, tuple[int, int]]]] = {}

    def fill(self, found: list[PipelineStatus]) -> None:
        """Set rates since the previous refresh; at first those of the heartbeats stay."""
        for status in found:
            if not status.at:
                continue
            now = datetime.fromisoformat(status.at).timestamp()
            totals = {one.name: (one.processed, one.records_out) for one in status.computations}
            then, before = self._before.get(status.name, (now, {}))
            self._before[status.name] = now, totals
            for one in status.computations:
                if now <= then or one.name not in before:
                    continue
                processed, out = before[one.name]
                # Below the previous total: the computation was removed and added again in between.
                if one.processed >= processed and one.records_out >= out:
                    if one.kind != "injector":  # its rate is of rows read, which no total counts
                        one.per_second = (one.processed - processed) / (now - then)
                    one.out_per_second = (one.records_out - out) / (now - then)


def lines(found: list[PipelineStatus], width: int | None = None) -> list[str]:
    """The lines for a terminal of a width; None: for a pipe."""
    shown: list[str] = []
    for status in found:
        if shown:
            shown.append("")
        shown += _pipeline(status, width)
    return shown


def _pipeline(status: PipelineStatus, width: int | None) -> list[str]:
    if not status.schema_current:
        text = (
            f"pipeline {status.name}: its schema is at version {status.schema_version}, but this "
            f"code needs {HEAD}. Run: millwheel migrate {status.name}, with the same --store"
        )
        return sentence_lines(text, width)
    if not status.deployed:
        return [f"pipeline {status.name}: created, but never run"]
    backlog = sum(one.backlog for one in status.computations)
    injectors = [one for one in status.computations if one.kind == "injector"]
    rates = [one.per_second for one in injectors if one.per_second is not None]
    figures = [
        count_of(sum(worker.state == "running" for worker in status.workers), "worker"),
        count_of(len(status.intervals), "interval"),
        *([f"{sum(rates):,.0f} rows/s"] if rates else []),
        f"backlog {backlog:,}",
        *(["complete"] if status.complete else []),
    ]
    at = status.at[:19].replace("T", " ")
    shown = [f"pipeline {styled(status.name, 'heading')} at {at} UTC"]
    shown += sentence_lines(f"  {' · '.join(figures)}", width)
    if status.workers:
        shown += layout(
            ["worker", "state", "process", "host", "address", "code", "lease", "intervals", "CPU",
             "memory"],
            [_worker(worker) for worker in status.workers],
            width,
            Fit(WORKERS_DROPPED),
        ).lines(width)  # fmt: skip
    if withheld := withheld_line(status):
        shown += [styled(part, "warning") for part in sentence_lines(f"  {withheld}", width)]
    for line in moving(status.intervals, labels_of(status)):
        shown += sentence_lines(f"  {line}", width)
    for line in parked(status):
        shown += [styled(part, "error") for part in sentence_lines(f"  {line}", width)]
    shown += layout(
        ["computation", "records/s", "processed", "out/s", "backlog", "user code", "at work",
         "low watermark", "lag", "owned by"],
        [_computation(one, status) for one in status.computations],
        width,
        Fit(COMPUTATIONS_DROPPED),
    ).lines(width)  # fmt: skip
    for line in holders(status):
        shown += sentence_lines(f"  {line}", width)
    return shown


def _worker(worker: WorkerStatus) -> list[Cell]:
    return [
        worker.id[:8],
        Styled(worker.state, style_of(worker.state)),
        str(worker.pid),
        worker.host,
        worker.address,
        str(worker.generation),
        f"{max(worker.lease_seconds, 0):.0f} s",
        str(worker.intervals),
        "" if worker.cpu is None else f"{worker.cpu:.0%}",
        "" if worker.rss_bytes is None else byte_text(worker.rss_bytes),
    ]


def _computation(one: ComputationStatus, status: PipelineStatus) -> list[Cell]:
    return [
        name_of(one),
        rate_text(one.per_second),
        f"{one.processed:,}",
        rate_text(one.out_per_second),
        f"{one.backlog:,}",
        user_code(one.user_code),
        at_work(one),
        moment(one.low_watermark[:19] if one.lag_seconds is not None else one.low_watermark),
        "" if one.lag_seconds is None else duration(one.lag_seconds),
        owners([i for i in status.intervals if i.computation == one.name], status.workers),
    ]


def owners(intervals: list[IntervalStatus], workers: list[WorkerStatus]) -> str:
    alive = [worker.id for worker in workers if worker.state == "running"]
    found = Counter(i.owner if i.owner in alive else None for i in intervals)
    parts = [f"{worker[:8]}: {found[worker]}" for worker in alive if found[worker]]
    return ", ".join([*parts, *([f"unowned: {found[None]}"] if found[None] else [])])
