"""Commands on a store: migrate, status, sql, pause, drop, remove, url and stop."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Literal

import typer

from millwheel.cli.asking import actor
from millwheel.cli.output import (
    confirm,
    count_of,
    print_csv,
    print_json,
    print_rows_as_json,
    print_table,
    say,
)
from millwheel.cli.target import load_pipeline
from millwheel.core.counters import COMMON_COUNTERS
from millwheel.core.names import check_name
from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.services.endpoint import Endpoint
from millwheel.store import embedded
from millwheel.store.address import StoreAddress
from millwheel.store.console import administration
from millwheel.store.console.inspection import (
    BEGIN_OF_TIME,
    END_OF_TIME,
    LATE,
    ComputationStatus,
    Holder,
    IntervalStatus,
    PipelineStatus,
    SinkStatus,
    SourceFlow,
    SparkQueryStatus,
    WorkerStatus,
    inspect,
)
from millwheel.store.console.migrate import HEAD, migrate_command, require_version, schema_version
from millwheel.store.console.presence import present
from millwheel.store.console.roles import make_roles
from millwheel.store.console.selection import Selection, select

Format = Literal["table", "csv", "json"]

NOTICED_SECONDS = 2
"""Upper bound: workers poll every second, and finish the chunk they are reading."""

MOVING_SHOWN = 10
"""Largest number of moving intervals listed one by one."""


def migrate(target: str, store: str | None, *, roles: bool) -> None:
    """Create a pipeline's schema, or upgrade it to this code's version; register its inboxes; make
    its roles."""
    pipeline = load_pipeline(target) if ":" in target else None
    name = check_name(target, "pipeline") if pipeline is None else pipeline.name
    address = StoreAddress.parse(store)
    with present(address, create=True) as presence:
        before = schema_version(presence.url, name)
        require_version(presence.url, name, address=address, migrate_now=True)
        streams = [] if pipeline is None else _registered(pipeline, presence.url)
        made = make_roles(presence.url, name) if roles else ()
    if before == HEAD:
        typer.echo(f"schema {name} is already at version {HEAD}")
    elif before:
        typer.echo(f"migrated schema {name} from version {before} to version {HEAD}")
    else:
        typer.echo(f"created schema {name} at version {HEAD}")
    for stream in streams:
        typer.echo(f"stream {stream} takes records")
    for role in made:
        typer.echo(f"role {role} has its rights; next: GRANT {role} TO a login")


def _registered(pipeline: Pipeline, url: str) -> list[str]:
    from millwheel.services.registering import (
        register_inboxes,
    )  # the engine, which is slow to import

    return register_inboxes(pipeline, url)


def status(pipeline: str | None, store: str | None, *, as_json: bool) -> None:
    """Print the status of a pipeline, or of all pipelines of a store."""
    address = StoreAddress.parse(store)
    with present(address) as presence, inspect(presence.url) as inspection:
        names = [inspection.choose(pipeline)] if pipeline else inspection.pipelines()
        found = [inspection.status(name) for name in names]
    if as_json:
        print_json({"store": address.redacted(), "pipelines": found})
        return
    if not found:
        typer.echo(f"no pipeline in {address.redacted()} yet")
    for number, one in enumerate(found):
        if number:
            typer.echo()
        _print_status(one, address)


def disk(pipeline: str | None, store: str | None, *, as_json: bool) -> None:
    """Print the size of a pipeline on disk, why the oldest bucket is kept, and how far folds are
    behind."""
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        name = inspection.choose(pipeline)
        found = inspection.disk(name)
    if as_json:
        print_json(found)
        return
    kinds = sorted(found.kinds.items(), key=itemgetter(1), reverse=True)
    print_table(["kind", "on disk"], [[kind, byte_text(size)] for kind, size in kinds])
    typer.echo()
    for kept in found.oldest:
        typer.echo(f"the oldest bucket is kept by {kept.kept_by}: {kept.what}")
    if found.fold_age_seconds is not None:
        typer.echo(
            f"{found.unfolded:,} commits are not folded, the oldest for "
            f"{found.fold_age_seconds:,.0f} s"
        )
    if found.snapshot is not None:
        typer.echo(
            f"{found.dead_rows:,} dead rows; none that is newer can be removed until this ends: "
            f"{found.snapshot}"
        )


def serve_status(pipeline: str | None, store: str | None, http: str) -> None:
    """Serve the status over HTTP until a signal ends it."""
    from millwheel.services.store_endpoint import StoreEndpoint, look

    with present(StoreAddress.parse(store)) as presence:
        look(presence.url, pipeline)  # a store that cannot be reached is an error at the start
        service = StoreEndpoint(lambda: look(presence.url, pipeline), Endpoint.parse(http))
        service.start()
        typer.echo(f"serving {service.url}/metrics; Ctrl-C ends it", err=True)
        try:
            threading.Event().wait()  # a signal raises
        finally:
            service.stop()


def _print_status(status: PipelineStatus, address: StoreAddress) -> None:
    typer.echo(f"pipeline {status.name}")
    if not status.schema_current:
        typer.echo(
            f"  its schema is at version {status.schema_version}, but this code needs {HEAD}. "
            f"Run: {migrate_command(status.name, address)}"
        )
        return
    if not status.deployed:
        typer.echo("  created, but never run")
        return
    if status.on_spark is not None:
        _print_spark(status.on_spark, labels_of(status))
        return
    for worker in status.workers:
        typer.echo(f"  worker {worker.id[:8]}: {', '.join(_worker(worker))}")
    if status.complete:
        typer.echo("  complete: all input is processed, and event time is at its end")
    elif all(worker.state != "running" for worker in status.workers):
        typer.echo("  no worker is running it")
    labels = labels_of(status)
    for line in (*moving(status.intervals, labels), *unowned(status)):
        typer.echo(f"  {line}")
    paused = {computation.name for computation in status.computations if computation.paused}
    for source in status.sources:
        say(
            f"  {source.computation} reads {source.source}"
            + (", read to its end" if source.ended else "")
            + (", paused" if source.computation in paused else "")
            + ("" if source.flow is None else f", {flow_text(source.flow)}")
        )
    for line in parked(status):
        typer.echo(f"  {line}")
    for sink in status.sinks:
        if sink.open is not None:
            typer.echo(f"  {sink_text(sink)}")
    typer.echo()
    print_table(
        ["computation", "processed", "records/s", "out", "out/s", "backlog", "user code", "at work",
         "duplicates",
         "bloom maybes", "late", "dead letters", "input watermark", "low watermark", "held by"],
        [_row(computation, labels) for computation in status.computations],
    )  # fmt: skip
    for computation in status.computations:
        if counted := _counted(computation):
            typer.echo(f"  {name_of(computation)} counted: {counted}")


def _counted(status: ComputationStatus) -> str:
    """Format the counters without a column of their own: those of user code, and rare ones of the
    engine."""
    return ", ".join(
        f"{total:,} {counter}"
        for counter, total in status.counters.items()
        if counter not in COMMON_COUNTERS and not counter.startswith(LATE)
    )


def _print_spark(query: SparkQueryStatus, labels: Mapping[str, str]) -> None:
    """Print the state of a pipeline on Spark, where its states, timers and records in flight
    are."""
    typer.echo(f"  runs on Spark, with the checkpoint {query.checkpoint}")
    if query.batch < 0:
        typer.echo("  no batch is in the tables yet")
        return
    typer.echo(
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
    """Format the flow of a source: pending rows, time to acknowledgement, rows and bytes to
    read."""
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
    """Format the parked keys, one line per computation."""
    return [
        f"{one.label or one.name}: {one.parked.keys:,} key{'' if one.parked.keys == 1 else 's'} "
        f"parked, for up to {one.parked.seconds:,.0f} s; {one.parked.records:,} records wait. "
        f"See: millwheel dead-letters list --computation {one.name} --pipeline {status.name}"
        for one in status.computations
        if one.parked.keys
    ]


def sink_text(sink: SinkStatus) -> str:
    """Format the bundle that a sink is delivering, and for how long it has been."""
    return (
        f"{sink.computation} delivers bundle {sink.open} of scope {sink.scope}, "
        f"{sink.open_records:,} records, for {sink.open_seconds or 0.0:,.1f} s"
        + (f"; {sink.waiting:,} records wait" if sink.waiting else "")
    )


def unowned(status: PipelineStatus) -> list[str]:
    """Format the intervals without a live owner, one line per computation.

    Empty for a complete pipeline.
    """
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
    """Format the facts about a worker."""
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
    """The label of each computation, by its name."""
    return {one.name: one.label or one.name for one in status.computations}


def moving(intervals: list[IntervalStatus], labels: Mapping[str, str]) -> list[str]:
    """Format the intervals that move to another worker, one line each, up to `MOVING_SHOWN`."""
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
    """A computation's label, marked if it is paused."""
    label = status.label or status.name
    return f"{label} (paused)" if status.paused else label


def _row(status: ComputationStatus, labels: Mapping[str, str]) -> list[str]:
    holder = status.holder
    ended = status.low_watermark == END_OF_TIME
    return [
        name_of(status),
        f"{status.processed:,}",
        rate_text(status.per_second),
        f"{status.records_out:,}",
        rate_text(status.out_per_second),
        f"{status.backlog:,}",
        user_code(status),
        at_work(status),
        f"{status.duplicates_dropped:,}",
        f"{status.bloom_maybes:,}",
        late(status),
        f"{status.dead_letters:,}",
        moment(status.input_watermark),
        moment(status.low_watermark),
        "" if holder is None or ended else held_by(holder, labels),
    ]


def rate_text(rate: float | None) -> str:
    """Format a rate; empty: it is not known."""
    return "" if rate is None else f"{rate:,.0f}"


def at_work(status: ComputationStatus) -> str:
    """Format the keys with user code that waits, and the oldest of them."""
    if not status.at_work:
        return ""
    key = "" if status.oldest_key is None else f", key {status.oldest_key}"
    return f"{status.at_work:,}, oldest {status.oldest_seconds:,.1f} s{key}"


def user_code(status: ComputationStatus) -> str:
    """Format the time of one call of user code."""
    code = status.user_code
    return "" if code is None else f"{_short_time(code.mean)}, p99 {_short_time(code.p99)}"


def _short_time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:,.0f} µs"
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def late(status: ComputationStatus) -> str:
    """Format the number of late records by outcome."""
    outcomes = [
        f"{total:,} {counter.removeprefix(LATE).replace('_', ' ')}"
        for counter, total in status.counters.items()
        if counter.startswith(LATE)
    ]
    return ", ".join(outcomes) or "0"


def held_by(holder: Holder, labels: Mapping[str, str]) -> str:
    """Format a watermark's holder: its age, the computations in between, and the key first in its
    description."""
    age = holder.age_seconds
    text = holder.root or holder.what
    if len(holder.path) > 1:
        behind = ", behind ".join(labels.get(name, name) for name in holder.path[1:])
        text = f"behind {behind}: {text}"
    return text if age is None else f"{age:,.0f} s, {text}"


def moment(text: str) -> str:
    """Format a time of a status: the ends of time get words."""
    return {END_OF_TIME: "end of time", BEGIN_OF_TIME: "not known yet"}.get(text, text)


def sql(
    statements: list[str], store: str | None, pipeline: str | None, form: Format, seconds: float
) -> None:
    """Run read-only statements on one snapshot, and print the rows of each."""
    with (
        present(StoreAddress.parse(store)) as presence,
        select(
            presence.url, statements, pipeline=pipeline, seconds=seconds, as_json=form == "json"
        ) as answers,
    ):
        for number, answer in enumerate(answers):
            if number and form != "json":
                typer.echo()
            _print_answer(answer, form)


def _print_answer(answer: Selection, form: Format) -> None:
    if form == "csv":
        print_csv(answer.columns, answer.rows)
    elif form == "table":
        count = print_table(answer.columns, answer.rows)
        typer.echo(f"({count:,} row{'' if count == 1 else 's'})")
    else:
        _require_distinct(answer.columns)
        print_rows_as_json(answer.columns, answer.rows)


def _require_distinct(columns: list[str]) -> None:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UsageError(
            f"several columns are named {', '.join(twice)}, and JSON would keep only one of them: "
            "rename them with AS"
        )


def pause(
    pipeline: str, injectors: list[str], store: str | None, *, paused: bool, reason: str
) -> None:
    """Pause or resume injectors; print which changed and when workers notice."""
    with present(StoreAddress.parse(store)) as presence:
        found = administration.pause(
            presence.url, pipeline, injectors, paused=paused, actor=actor(reason)
        )
    done = "paused" if paused else "resumed"
    names = ", ".join(found.changed)
    typer.echo(
        f"{done} {count_of(len(found.changed), 'injector')} of {pipeline}"
        + (f": {names}" if names else "")
    )
    if found.unchanged:
        was = "already paused" if paused else "not paused"
        typer.echo(f"{was}: {', '.join(found.unchanged)}")
    if found.workers:
        change = "stop reading" if paused else "continue reading"
        typer.echo(
            f"{count_of(found.workers, 'worker')} running: will {change} within {NOTICED_SECONDS} s"
        )
    else:
        typer.echo("no worker is running")


def drop(pipeline: str, store: str | None, *, sure: bool) -> None:
    """Drop a pipeline with all its data, after confirmation unless `sure`."""
    address = StoreAddress.parse(store)
    with present(address) as presence:
        tables, size = administration.schema_size(presence.url, pipeline)
        what = f"pipeline {pipeline!r} in {address.redacted()}"
        data = f"{count_of(tables, 'table')}, {byte_text(size)}"
        confirm(
            f"dropping {what} deletes all its data ({data})",
            f"Drop {what} with its state, its results and all its other data ({data})?",
            sure=sure,
        )
        administration.drop_pipeline(presence.url, pipeline)
    typer.echo(f"dropped pipeline {pipeline}")


def remove(pipeline: str, names: list[str], store: str | None, *, sure: bool, reason: str) -> None:
    """Remove computations or injectors with their state, after confirmation unless `sure`."""
    address = StoreAddress.parse(store)
    what = f"{', '.join(names)} of pipeline {pipeline!r} in {address.redacted()}"
    with present(address) as presence:
        data = "its state, its timers and the records it has sent that are not processed yet"
        confirm(f"removing {what} deletes {data}", f"Remove {what} with {data}?", sure=sure)
        rows = administration.remove_computations(
            presence.url, pipeline, names, actor=actor(reason)
        )
    typer.echo(f"removed {', '.join(names)} from {pipeline}: {rows:,} rows of state and timers")
    typer.echo("next: start workers with code from which it is removed")


def byte_text(size: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:,.0f} {unit}"
        size /= 1024
    raise AssertionError


def stop(directory: Path | None, store: str | None) -> None:
    """Stop the embedded server of a directory."""
    directory = _existing(directory, store, "stop it there")
    stopped = embedded.stop(directory)
    typer.echo(
        f"stopped the server of {directory}" if stopped else f"{directory}: no server is running"
    )


def url(directory: Path | None, store: str | None) -> None:
    """Print the URL of the embedded server of a directory."""
    directory = _existing(directory, store, "its URL is the one that you gave")
    found = embedded.status(directory).url
    if found is None:
        raise UsageError(
            f"{directory}: no server is running. It runs while a worker, or another command, uses "
            "the directory"
        )
    typer.echo(found)


def _existing(directory: Path | None, store: str | None, instead: str) -> Path:
    """The directory of a store, by argument or option; None: the default one."""
    if directory is not None and store is not None:
        raise UsageError("give the directory once: DIR or --store DIR")
    if directory is None:
        directory = StoreAddress.parse(store).directory
        if directory is None:
            raise UsageError(f"the store is a Postgres that millwheel did not start; {instead}")
    if embedded.status(directory).state == "absent":
        raise UsageError(f"there is no store in {directory}")
    return directory
