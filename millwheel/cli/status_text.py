"""The status of a pipeline as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import typer

from millwheel.cli.fitted_tables import Cell, Fit, Styled, print_table
from millwheel.cli.printing import seconds_text, tell
from millwheel.cli.terminal import styled
from millwheel.core.counters import COMMON_COUNTERS
from millwheel.core.quantities import byte_text, duration, short_duration
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import (
    BEGIN_OF_TIME,
    END_OF_TIME,
    LATE,
    CodeStatus,
    ComputationStatus,
    Holder,
    IntervalStatus,
    PipelineStatus,
    SinkStatus,
    SourceFlow,
    SparkQueryStatus,
    WorkerStatus,
)
from millwheel.store.console.migrate import HEAD, migrate_command
from millwheel.store.console.worker_ends import in_words

MOVING_SHOWN = 10


DROPPED_FIRST = (
    "held by", "bloom maybes", "input watermark", "duplicates", "out", "at work", "user code",
    "out/s", "late", "processed", "low watermark", "dead letters", "records/s",
)  # fmt: skip
"""Columns in the order in which a narrow terminal has no room for them."""


def print_status(status: PipelineStatus, address: StoreAddress) -> None:
    typer.echo(f"pipeline {styled(status.name, 'heading')}")
    if not status.schema_current:
        tell(
            f"  its schema is at version {status.schema_version}, but this code needs {HEAD}. "
            f"Run: {migrate_command(status.name, address)}",
            "warning",
        )
        return
    if not status.deployed:
        typer.echo("  created, but never run")
        return
    if status.on_spark is not None:
        _print_spark(status.on_spark, labels_of(status))
        return
    for worker in status.workers:
        tell(f"  worker {worker.id[:8]}: {', '.join(_worker(worker))}", style_of(worker.state))
    if status.complete:
        tell("  complete: all input is processed, and event time is at its end", "good")
    elif all(worker.state != "running" for worker in status.workers):
        tell("  no worker is running it", "warning")
    for end in status.ends:
        tell(f"  {in_words(end)}: {end.error}", "error")
    if withheld := withheld_line(status):
        tell(f"  {withheld}", "warning")
    labels = labels_of(status)
    for line in moving(status.intervals, labels):
        tell(f"  {line}")
    for line in unowned(status):
        tell(f"  {line}", "warning")
    paused = {computation.name for computation in status.computations if computation.paused}
    for source in status.sources:
        is_paused = source.computation in paused
        tell(
            f"  {source.computation} reads {source.source}"
            + (", read to its end" if source.ended else "")
            + (", paused" if is_paused else "")
            + ("" if source.flow is None else f", {flow_text(source.flow)}"),
            "warning" if is_paused else None,
        )
    for line in parked(status):
        tell(f"  {line}", "error")
    for state in status.orphaned:
        tell(
            f"  orphaned state: no code reads {state.collection} of {state.computation} since "
            f"generation {state.generation + 1}; the view states shows it. To delete it: millwheel "
            f"migrate {status.name} --allow-drop"
        )
    for sink in status.sinks:
        if sink.open is not None:
            tell(f"  {sink_text(sink)}")
    typer.echo()
    _print_computations(status, labels)
    if status.generations:
        typer.echo()
        typer.echo("workers of several generations run:")
        print_table(
            ["computation", "generation", "keys", "records/s", "out/s", "backlog", "user code"],
            [
                [
                    labels.get(one.computation, one.computation),
                    str(one.generation),
                    f"{one.keys:.1%}",
                    rate_text(one.per_second),
                    rate_text(one.out_per_second),
                    f"{one.backlog:,}",
                    user_code(one.user_code),
                ]
                for one in status.generations
            ],
            Fit(("user code", "out/s")),
        )
    for computation in status.computations:
        if counted := _counted(computation):
            tell(f"  {name_of(computation)} counted: {counted}")


def _print_computations(status: PipelineStatus, labels: Mapping[str, str]) -> None:
    made = print_table(
        ["computation", "processed", "records/s", "out", "out/s", "backlog", "user code", "at work",
         "duplicates", "bloom maybes", "late", "dead letters", "input watermark", "low watermark",
         "lag", "held by"],
        [_row(computation, labels) for computation in status.computations],
        Fit(DROPPED_FIRST, elsewhere=("held by",)),
    )  # fmt: skip
    if "held by" in made.dropped:
        for line in holders(status):
            tell(f"  {line}")


def holders(status: PipelineStatus) -> list[str]:
    """A line for each low watermark that is held, with its holder."""
    labels = labels_of(status)
    return [
        f"{name_of(one)} held by: {held_by(one.holder, labels)}"
        for one in status.computations
        if one.holder is not None and one.low_watermark != END_OF_TIME
    ]


def withheld_line(status: PipelineStatus) -> str:
    """Says that nothing leaves the store; empty: it does."""
    outputs = status.outputs
    if not outputs.withholds:
        return ""
    copy = "" if outputs.origin is None else f" (a copy of {outputs.origin})"
    steps = ", ".join(outputs.steps) or "no step writes outside it"
    return (
        f"withholds what leaves the store{copy}: {steps}. To turn it on: millwheel outputs "
        f"{status.name} on"
    )


def style_of(state: str) -> str:
    """The style of a worker's state."""
    return {"running": "good", "silent": "warning"}.get(state, "error")


def _counted(status: ComputationStatus) -> str:
    """Counters of user code, and rare ones of the engine."""
    return ", ".join(
        f"{total:,} {counter}"
        for counter, total in status.counters.items()
        if counter not in COMMON_COUNTERS and not counter.startswith(LATE)
    )


def _print_spark(query: SparkQueryStatus, labels: Mapping[str, str]) -> None:
    tell(f"  runs on Spark, with the checkpoint {query.checkpoint}")
    if query.batch < 0:
        typer.echo("  no batch is in the tables yet")
        return
    tell(
        f"  batch {query.batch:,} was done {query.age_seconds:,.1f} s ago; the sources had "
        f"promised {moment(query.low_watermark)}"
    )
    typer.echo()
    print_table(
        ["computation", "counter", "total"],
        [
            [labels.get(computation, computation), counter, f"{total:,}"]
            for computation, counters in sorted(query.counters.items())
            for counter, total in sorted(counters.items())
        ],
    )


def flow_text(flow: SourceFlow) -> str:
    text = f"{flow.pending:,} of {flow.cap:,} rows pending"
    if flow.latency is not None:
        text += f", acknowledged in {flow.latency:,.2f} s"
    text += "" if flow.target is None else f" (target {flow.target:,.2f} s)"
    if flow.lag_rows is not None:
        text += f", {flow.lag_rows:,} rows to read"
    if flow.seconds_left is not None:
        text += f" in {flow.seconds_left:,.0f} s at this rate"
    if flow.lag_bytes is not None:
        text += f", {flow.lag_bytes:,} bytes to read"
    return text


def parked(status: PipelineStatus) -> list[str]:
    return [
        f"{one.label or one.name}: {one.parked.keys:,} key{'' if one.parked.keys == 1 else 's'} "
        f"parked, for up to {one.parked.seconds:,.0f} s; {one.parked.records:,} records wait. "
        f"See: millwheel dead-letters list --computation {one.name} --pipeline {status.name}"
        for one in status.computations
        if one.parked.keys
    ]


def sink_text(sink: SinkStatus) -> str:
    return (
        f"{sink.computation} delivers bundle {sink.open} of scope {sink.scope}, "
        f"{sink.open_records:,} records, for {sink.open_seconds or 0.0:,.1f} s"
        + (f"; {sink.waiting:,} records wait" if sink.waiting else "")
    )


def unowned(status: PipelineStatus) -> list[str]:
    """Intervals without a live owner, one line per computation."""
    if status.complete:
        return []
    labels = labels_of(status)
    injectors = {one.name for one in status.computations if one.kind == "injector"}
    alive = {worker.id for worker in status.workers if worker.state == "running"}
    total = Counter(interval.computation for interval in status.intervals)
    free = Counter(i.computation for i in status.intervals if i.owner not in alive)
    return [
        (
            f"{labels[name]}: {number} of {total[name]} partitions unowned; no rows are read"
            if name in injectors
            else (
                f"{labels[name]}: {number} of {total[name]} key intervals unowned; records queue "
                "upstream"
            )
        )
        for name, number in free.items()
    ]


def _worker(worker: WorkerStatus) -> list[str]:
    lease = (
        f"lease expires in {worker.lease_seconds:.0f} s"
        if worker.lease_seconds > 0
        else f"lease expired {-worker.lease_seconds:.0f} s ago"
    )
    return [
        worker.state,
        f"process {worker.pid} on {worker.host}",
        lease,
        f"{worker.intervals} intervals",
        *([f"CPU {worker.cpu:.0%}"] if worker.cpu is not None else []),
        *([byte_text(worker.rss_bytes)] if worker.rss_bytes is not None else []),
        *([f"at {worker.address}"] if worker.address else []),
        f"code of generation {worker.generation}",
        *([f"event loop blocked by {worker.blocked_by}"] if worker.blocked_by else []),
        *([worker.waits] if worker.waits else []),
    ]


def labels_of(status: PipelineStatus) -> dict[str, str]:
    return {one.name: one.label or one.name for one in status.computations}


def moving(intervals: list[IntervalStatus], labels: Mapping[str, str]) -> list[str]:
    found = [interval for interval in intervals if interval.wanted_by is not None]
    lines = [
        f"{labels.get(interval.computation, interval.computation)}"
        f"[{interval.slot_from}:{interval.slot_to}] moving to "
        f"{(interval.wanted_by or '')[:8]}"
        + (", unowned now" if interval.owner is None else f" from {interval.owner[:8]}")
        for interval in found[:MOVING_SHOWN]
    ]
    more = len(found) - len(lines)
    return [*lines, *([f"and {more} more intervals moving"] if more else [])]


def name_of(status: ComputationStatus) -> str:
    label = status.label or status.name
    return f"{label} (paused)" if status.paused else label


def _row(status: ComputationStatus, labels: Mapping[str, str]) -> list[Cell]:
    holder = status.holder
    ended = status.low_watermark == END_OF_TIME
    return [
        name_of(status),
        f"{status.processed:,}",
        rate_text(status.per_second),
        f"{status.records_out:,}",
        rate_text(status.out_per_second),
        f"{status.backlog:,}",
        user_code(status.user_code),
        at_work(status),
        f"{status.duplicates_dropped:,}",
        f"{status.bloom_maybes:,}",
        late(status),
        Styled(f"{status.dead_letters:,}", "error" if status.dead_letters else None),
        moment(status.input_watermark),
        moment(status.low_watermark),
        "" if status.lag_seconds is None or ended else duration(status.lag_seconds),
        "" if holder is None or ended else held_by(holder, labels),
    ]


def rate_text(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


def at_work(status: ComputationStatus) -> str:
    """Keys with user code that waits, and the oldest of them."""
    if not status.at_work:
        return ""
    key = "" if status.oldest_key is None else f", key {status.oldest_key}"
    return f"{status.at_work:,}, oldest {status.oldest_seconds:,.1f} s{key}"


def user_code(code: CodeStatus | None) -> str:
    return "" if code is None else f"{short_duration(code.mean)}, p99 {short_duration(code.p99)}"


def late(status: ComputationStatus) -> str:
    outcomes = [
        f"{total:,} {counter.removeprefix(LATE).replace('_', ' ')}"
        for counter, total in status.counters.items()
        if counter.startswith(LATE)
    ]
    return ", ".join(outcomes) or "0"


def held_by(holder: Holder, labels: Mapping[str, str]) -> str:
    age = holder.age_seconds
    text = holder.root or holder.what
    if len(holder.path) > 1:
        behind = ", behind ".join(labels.get(name, name) for name in holder.path[1:])
        text = f"behind {behind}: {text}"
    return text if age is None else f"{age:,.0f} s, {text}"


def moment(text: str) -> str:
    named = {END_OF_TIME: "end of time", BEGIN_OF_TIME: "not known yet"}.get(text)
    return seconds_text(text) if named is None else named
