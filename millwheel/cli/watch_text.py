"""The lines of ``millwheel status --watch``."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from rich.text import Text

from millwheel.cli.printing import byte_text, count_of, duration, table
from millwheel.cli.status_text import (
    at_work,
    held_by,
    labels_of,
    moment,
    moving,
    name_of,
    parked,
    rate_text,
    user_code,
)
from millwheel.store.console.inspection import (
    END_OF_TIME,
    ComputationStatus,
    IntervalStatus,
    PipelineStatus,
    WorkerStatus,
)
from millwheel.store.console.migrate import HEAD

HELD_BY = " held by: "


def text_of(line: str) -> Text:
    """A line that a terminal may cut, except for the holder of a watermark."""
    if HELD_BY in line:
        return Text(line)
    return Text(line, no_wrap=True, overflow="ellipsis")


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


def lines(found: list[PipelineStatus]) -> list[str]:
    shown: list[str] = []
    for status in found:
        if shown:
            shown.append("")
        shown += _pipeline(status)
    return shown


def _pipeline(status: PipelineStatus) -> list[str]:
    if not status.schema_current:
        return [
            f"pipeline {status.name}: its schema is at version {status.schema_version}, but this "
            f"code needs {HEAD}. Run: millwheel migrate {status.name}, with the same --store"
        ]
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
    shown = [f"pipeline {status.name} at {at} UTC", f"  {' · '.join(figures)}"]
    if status.workers:
        shown += table(
            ["worker", "state", "process", "host", "address", "code", "lease", "intervals", "CPU",
             "memory"],
            [_worker(worker) for worker in status.workers],
        )  # fmt: skip
    shown += [f"  {line}" for line in moving(status.intervals, labels_of(status))]
    shown += [f"  {line}" for line in parked(status)]
    shown += table(
        ["computation", "records/s", "processed", "out/s", "backlog", "user code", "at work",
         "low watermark", "lag", "owned by"],
        [_computation(one, status) for one in status.computations],
    )  # fmt: skip
    labels = labels_of(status)
    shown += [
        f"  {name_of(one)}{HELD_BY}{held_by(one.holder, labels)}"
        for one in status.computations
        if one.holder is not None and one.low_watermark != END_OF_TIME
    ]
    return shown


def _worker(worker: WorkerStatus) -> list[str]:
    return [
        worker.id[:8],
        worker.state,
        str(worker.pid),
        worker.host,
        worker.address,
        str(worker.generation),
        f"{max(worker.lease_seconds, 0):.0f} s",
        str(worker.intervals),
        "" if worker.cpu is None else f"{worker.cpu:.0%}",
        "" if worker.rss_bytes is None else byte_text(worker.rss_bytes),
    ]


def _computation(one: ComputationStatus, status: PipelineStatus) -> list[str]:
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
