"""Commands about a store: what is in it, how it does, and what is taken out of it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Literal

import typer

from millwheel.cli.output import print_csv, print_json, print_rows_as_json, print_table
from millwheel.cli.target import load_pipeline
from millwheel.errors import UsageError
from millwheel.store import administration, embedded
from millwheel.store.address import StoreAddress
from millwheel.store.inspection import (
    BEGIN_OF_TIME,
    END_OF_TIME,
    LATE,
    ComputationStatus,
    DeadLetterEntry,
    Holder,
    IntervalStatus,
    PipelineStatus,
    SourceFlow,
    WorkerStatus,
    inspect,
)
from millwheel.store.migrate import HEAD, migrate_command, require_version, schema_version
from millwheel.store.presence import present
from millwheel.store.selection import Selection, select
from millwheel.streams import check_name

Format = Literal["table", "csv", "json"]

NOTICED_SECONDS = 2
"""Workers look every second, and have a chunk in hand."""

MOVING_SHOWN = 10
"""Intervals on their way to another worker that are told one by one."""

LIMIT_WIDTH = 60
"""Longest cell in the lists for people; `--json` and `show` tell all."""


def migrate(target: str, store: str | None) -> None:
    """Bring a pipeline's schema to this code's version."""
    name = load_pipeline(target).name if ":" in target else check_name(target, "pipeline")
    address = StoreAddress.parse(store)
    with present(address, create=True) as presence:
        before = schema_version(presence.url, name)
        require_version(presence.url, name, address=address, migrate_now=True)
    if before == HEAD:
        typer.echo(f"schema {name} is at version {HEAD} already")
    else:
        typer.echo(f"schema {name} is at version {HEAD} now (was: {before or 'not there'})")


def status(pipeline: str | None, store: str | None, *, as_json: bool) -> None:
    """Tell how the pipelines of a store are doing."""
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


def _print_status(status: PipelineStatus, address: StoreAddress) -> None:
    typer.echo(f"pipeline {status.name}")
    if not status.schema_current:
        typer.echo(
            f"  its schema is at version {status.schema_version}, and this code needs {HEAD}. "
            f"Run: {migrate_command(status.name, address)}"
        )
        return
    if not status.deployed:
        typer.echo("  made, but never run")
        return
    for worker in status.workers:
        typer.echo(f"  worker {worker.id[:8]}: {', '.join(_worker(worker))}")
    if status.complete:
        typer.echo("  complete: all input is processed, and event time is at its end")
    elif not status.workers:
        typer.echo("  no worker runs it")
    for line in (*moving(status.intervals), *unowned(status)):
        typer.echo(f"  {line}")
    paused = {computation.name for computation in status.computations if computation.paused}
    for source in status.sources:
        typer.echo(
            f"  {source.computation} reads {source.source}"
            + (", read to its end" if source.ended else "")
            + (", paused" if source.computation in paused else "")
            + ("" if source.flow is None else f", {flow_text(source.flow)}")
        )
    typer.echo()
    print_table(
        ["computation", "processed", "backlog", "duplicates", "bloom maybes", "late",
         "dead letters", "input watermark", "low watermark", "held by"],
        [_row(computation) for computation in status.computations],
    )  # fmt: skip


def flow_text(flow: SourceFlow) -> str:
    """How much of a source is on its way, and for how long."""
    text = f"{flow.pending:,} of {flow.cap:,} rows pending"
    if flow.latency is not None:
        text += f", acknowledged in {flow.latency:,.2f} s"
    text += "" if flow.target is None else f" (target {flow.target:,.2f} s)"
    if flow.lag_rows is not None:
        text += f", {flow.lag_rows:,} rows to read"
    if flow.lag_bytes is not None:
        text += f", {flow.lag_bytes:,} bytes to read"
    return text


def unowned(status: PipelineStatus) -> list[str]:
    """The intervals that no live worker has, a line for each computation; none if all is done."""
    if status.complete:
        return []
    injectors = {one.name for one in status.computations if one.kind == "injector"}
    alive = {worker.id for worker in status.workers if worker.state == "running"}
    total = Counter(interval.computation for interval in status.intervals)
    free = Counter(i.computation for i in status.intervals if i.owner not in alive)
    return [
        f"{name}: {number} of {total[name]} partitions unowned; no rows are read"
        if name in injectors
        else f"{name}: {number} of {total[name]} key intervals unowned; records queue upstream"
        for name, number in free.items()
    ]


def _worker(worker: WorkerStatus) -> list[str]:
    """What there is to say of a worker."""
    lease = (
        f"lease for {worker.lease_seconds:.0f} s more"
        if worker.lease_seconds > 0
        else f"lease ran out {-worker.lease_seconds:.0f} s ago"
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
    ]


def moving(intervals: list[IntervalStatus]) -> list[str]:
    """The intervals that are to have another owner, a line each."""
    found = [interval for interval in intervals if interval.wanted_by is not None]
    lines = [
        f"{interval.computation}[{interval.slot_from}:{interval.slot_to}] moving to "
        f"{(interval.wanted_by or '')[:8]} from {(interval.owner or 'nobody')[:8]}"
        for interval in found[:MOVING_SHOWN]
    ]
    more = len(found) - len(lines)
    return [*lines, *([f"and {more} more intervals moving"] if more else [])]


def name_of(status: ComputationStatus) -> str:
    """A computation's name, and whether it rests."""
    return f"{status.name} (paused)" if status.paused else status.name


def _row(status: ComputationStatus) -> list[str]:
    holder = status.holder
    ended = status.low_watermark == END_OF_TIME
    figures = (
        status.processed,
        status.backlog,
        status.duplicates_dropped,
        status.bloom_maybes,
    )
    return [
        name_of(status),
        *(f"{figure:,}" for figure in figures),
        late(status),
        f"{status.dead_letters:,}",
        moment(status.input_watermark),
        moment(status.low_watermark),
        "" if holder is None or ended else held_by(holder),
    ]


def late(status: ComputationStatus) -> str:
    """How many were late, and what became of them."""
    outcomes = [
        f"{total:,} {counter.removeprefix(LATE).replace('_', ' ')}"
        for counter, total in status.counters.items()
        if counter.startswith(LATE)
    ]
    return ", ".join(outcomes) or "0"


def held_by(holder: Holder) -> str:
    """What holds a watermark, over which computations, and since when."""
    age = holder.age_seconds
    what = f"{holder.kind}: {holder.what}"
    if len(holder.path) > 1:
        what = f"{' < '.join(holder.path[1:])}: {holder.root}"
    return what + (f", {age:,.0f} s old" if age is not None else "")


def moment(text: str) -> str:
    """A time of a status for people."""
    return {END_OF_TIME: "end of time", BEGIN_OF_TIME: "not known yet"}.get(text, text)


def sql(
    statements: list[str], store: str | None, pipeline: str | None, form: Format, seconds: float
) -> None:
    """Print the rows of statements. Several read one snapshot, and their answers follow each other."""
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
            f"several columns are called {', '.join(twice)}; give them names of their own with AS, "
            "or JSON keeps only one"
        )


def list_dead_letters(
    store: str | None, pipeline: str | None, limit: int, *, as_json: bool
) -> None:
    """Print the newest dead letters."""
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        found = inspection.dead_letters(inspection.choose(pipeline), limit)
    if as_json:
        print_json([_letter(entry) for entry in found])
        return
    print_table(
        ["id", "given up at", "computation", "stream", "place", "error", "value"],
        [
            [
                str(entry.id),
                entry.given_up_at,
                entry.computation,
                entry.stream,
                entry.place,
                *(_cut(text) for text in (entry.error, entry.value)),
            ]
            for entry in found
        ],
    )


def _letter(entry: DeadLetterEntry) -> dict[str, object]:
    names = [name for name in entry.__struct_fields__ if name != "traceback"]
    return {name: getattr(entry, name) for name in names}


def _cut(text: str) -> str:
    return text if len(text) <= LIMIT_WIDTH else text[: LIMIT_WIDTH - 1] + "…"


def show_dead_letter(
    number: int, store: str | None, pipeline: str | None, *, as_json: bool
) -> None:
    """Print one dead letter with its traceback."""
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        entry = inspection.dead_letter(inspection.choose(pipeline), number)
    if as_json:
        print_json(entry)
        return
    for name, value in _letter(entry).items():
        typer.echo(f"{name.replace('_', ' '):12}  {'' if value is None else value}")
    if entry.traceback:
        typer.echo()
        typer.echo(entry.traceback.rstrip())


def discard_dead_letters(
    numbers: list[int], store: str | None, pipeline: str | None, *, all_of_them: bool
) -> None:
    """Forget some dead letters, or all."""
    if all_of_them == bool(numbers):
        raise UsageError("give the numbers of the dead letters to discard, or --all")
    with present(StoreAddress.parse(store)) as presence:
        with inspect(presence.url) as inspection:
            name = inspection.choose(pipeline)
        gone = administration.discard_dead_letters(
            presence.url, name, None if all_of_them else numbers
        )
    typer.echo(f"discarded {len(gone)} dead letter{'' if len(gone) == 1 else 's'} of {name}")


def pause(pipeline: str, injectors: list[str], store: str | None, *, paused: bool) -> None:
    """Let injectors rest, or go on; tell what that changes, and when."""
    with present(StoreAddress.parse(store)) as presence:
        found = administration.pause(presence.url, pipeline, injectors, paused=paused)
    done = "paused" if paused else "resumed"
    names = ", ".join(found.changed)
    typer.echo(
        f"{done} {_count(len(found.changed), 'injector')} of {pipeline}"
        + (f": {names}" if names else "")
    )
    if found.unchanged:
        was = "paused already" if paused else "not paused"
        typer.echo(f"{was}: {', '.join(found.unchanged)}")
    if found.workers:
        soon = "stop reading" if paused else "read on"
        typer.echo(
            f"{_count(found.workers, 'worker')} running: will {soon} within {NOTICED_SECONDS} s"
        )
    else:
        typer.echo("no worker is running")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def drop(pipeline: str, store: str | None, *, sure: bool) -> None:
    """Remove a pipeline with all its data."""
    address = StoreAddress.parse(store)
    with present(address) as presence:
        tables, size = administration.schema_size(presence.url, pipeline)
        if not sure:
            what = f"pipeline {pipeline!r} in {address.redacted()}"
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise UsageError(
                    f"removing {what} takes all its data with it ({tables} tables, "
                    f"{byte_text(size)}); say --yes to do so"
                )
            typer.confirm(
                f"Remove {what} with its state, its results and everything else "
                f"({tables} tables, {byte_text(size)})?",
                abort=True,
            )
        administration.drop_pipeline(presence.url, pipeline)
    typer.echo(f"removed pipeline {pipeline}")


def remove(pipeline: str, names: list[str], store: str | None, *, sure: bool) -> None:
    """Take nodes away from a pipeline, with their state."""
    address = StoreAddress.parse(store)
    what = f"{', '.join(names)} of pipeline {pipeline!r} in {address.redacted()}"
    with present(address) as presence:
        if not sure:
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise UsageError(
                    f"removing {what} takes state and timers with it, and what it has sent and "
                    "nobody has processed yet; say --yes to do so"
                )
            typer.confirm(
                f"Remove {what} with state and timers, and with what it has sent and nobody has "
                "processed yet?",
                abort=True,
            )
        rows = administration.remove_computations(presence.url, pipeline, names)
    typer.echo(f"removed {', '.join(names)} from {pipeline}: {rows:,} rows of state and timers")
    typer.echo("next: start workers with code that does not have it")


def byte_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:,.0f} {unit}"
        size /= 1024
    raise AssertionError


def stop(directory: Path | None) -> None:
    """Stop the embedded server of a directory."""
    if directory is None:
        directory = StoreAddress.parse(None).directory
        if directory is None:
            raise UsageError("the store is a Postgres that millwheel does not run; stop it there")
    if embedded.status(directory).state == "absent":
        raise UsageError(f"there is no store in {directory}")
    stopped = embedded.stop(directory)
    typer.echo(f"stopped the server of {directory}" if stopped else f"{directory}: no server runs")
