"""Troubles of a pipeline in words, from one look at its status."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millwheel.core.quantities import count_of, duration
from millwheel.store.console.inspection import (
    END_OF_TIME,
    ComputationStatus,
    PipelineStatus,
    WorkerStatus,
)
from millwheel.store.console.migrate import HEAD
from millwheel.store.console.worker_ends import in_words

SILENT_SECONDS = 300.0
"""A low watermark that one record, row or timer has held for longer is worth a word."""

AT_WORK_SECONDS = 60.0
"""User code that has waited for longer with one key is worth a word, as it is an alert."""

REQUEST_SECONDS = 60.0
"""Workers carry a request out within a second or two, unless its key waits."""

SNAPSHOT_SECONDS = 1800.0
"""As the alert."""

STOPPED_SHARE = 0.87
"""A source that is at its limit reads again when an eighth of the limit is free."""

FIRST_PAGE = ""
"""The name of the page of the steps."""


class Trouble(msgspec.Struct, frozen=True):
    """A fault or a warning, with the page that shows more."""

    text: str
    """It quotes no key and no value."""
    detail: str | None = None
    """More of it, which may."""
    page: str | None = None
    """None: no page has more."""
    filters: dict[str, str] = {}


def troubles_of(status: PipelineStatus) -> list[Trouble]:
    """The worst first: faults of the pipeline, of its workers, and of its steps."""
    if not status.schema_current:
        return [_of_schema(status)]
    if not status.deployed:
        return [
            Trouble(
                "created, but never run: start a worker with millwheel worker MODULE:PIPELINE",
                page=FIRST_PAGE,
            )
        ]
    if status.on_spark is not None:
        return []
    return [
        *troubles_of_workers(status),
        *(trouble for one in status.computations for trouble in _of_step(one, status)),
        *_of_waits(status),
        *_of_left_data(status),
    ]


def _of_schema(status: PipelineStatus) -> Trouble:
    version = status.schema_version
    if version is not None and version > HEAD:
        return Trouble(
            f"its schema is at version {version}, and these pages know versions up to {HEAD}: a "
            "newer millwheel made it. Serve the pages with that one"
        )
    return Trouble(
        f"its schema is at version {version}, and these pages need {HEAD}: run millwheel migrate "
        f"{status.name}, with the same --store"
    )


def troubles_of_workers(status: PipelineStatus) -> list[Trouble]:
    """Those that concern all steps. None of a pipeline that runs on Spark."""
    return [] if status.on_spark is not None else list(_of_workers(status))


def _of_workers(status: PipelineStatus) -> Iterator[Trouble]:
    running = {worker.id for worker in status.workers if worker.state == "running"}
    owners = {interval.owner for interval in status.intervals}
    if not running and not status.complete:
        yield Trouble(
            "no worker runs it: start one with millwheel worker MODULE:PIPELINE", page="workers"
        )
    for end in status.ends:
        yield Trouble(in_words(end), end.error, "workers")
    replaced: list[WorkerStatus] = []
    for worker in status.workers:
        if running and worker.state != "running" and worker.id not in owners:
            replaced.append(worker)
        elif (text := _of_worker(worker)) is not None:
            is_up = worker.state == "running"
            detail = (worker.blocked_by or worker.waits) if is_up else None
            yield Trouble(text, detail, "workers")
    unowned = sum(interval.owner not in running for interval in status.intervals)
    if running and unowned and not status.complete:
        yield Trouble(f"{count_of(unowned, 'key interval')} without a live owner", page="workers")
    if replaced:  # their rows stay for a day
        text = (
            f"{_of_worker(replaced[0])}. It owns"
            if len(replaced) == 1
            else f"{len(replaced):,} workers are gone. They own"
        )
        yield Trouble(
            f"{text} no interval any more: no harm is done",
            page="workers",
        )


def _of_worker(worker: WorkerStatus) -> str | None:
    name = f"worker {worker.id[:8]}"
    if worker.state == "dead":
        return f"{name} on {worker.host} is dead: its process {worker.pid} has ended without a word"
    if worker.state == "silent":
        ended = duration(-worker.lease_seconds)
        return f"{name} on {worker.host} is silent: its lease ended {ended} ago"
    if worker.blocked_by:
        return f"user code blocks the event loop of {name}"
    return f"{name} waits for the store" if worker.waits else None


def _of_waits(status: PipelineStatus) -> Iterator[Trouble]:
    waits = status.waits
    if waits.request_seconds > REQUEST_SECONDS:
        yield Trouble(
            f"{count_of(waits.requests, 'request')} of operators not carried out for up to "
            f"{duration(waits.request_seconds)}",
            page="log",
        )
    if waits.snapshot_seconds > SNAPSHOT_SECONDS:
        yield Trouble(
            f"a session has kept a snapshot for {duration(waits.snapshot_seconds)}: dead rows of "
            "all tables stay until it ends",
            page="disk",
        )


def _of_step(one: ComputationStatus, status: PipelineStatus) -> Iterator[Trouble]:
    name, of = one.label or one.name, {"step": one.name}
    if one.paused:
        yield Trouble(f"{name} is paused", page=FIRST_PAGE)
    if one.parked.keys:
        yield Trouble(
            f"{count_of(one.parked.keys, 'key')} of {name} parked for up to "
            f"{duration(one.parked.seconds)}, "
            f"with {count_of(one.parked.records, 'record')} waiting",
            page="letters",
            filters={**of, "group": "key"},
        )
    if one.dead_letters_kept > one.parked.keys:  # each parked key has one, which stops it
        yield Trouble(
            f"{count_of(one.dead_letters_kept, 'dead letter')} of {name}",
            page="letters",
            filters=of,
        )
    if one.at_work and one.oldest_seconds > AT_WORK_SECONDS:
        yield Trouble(
            f"user code of {name} has worked on one key for {duration(one.oldest_seconds)}",
            None if one.oldest_key is None else f"key {one.oldest_key}",
            "late",
            of,
        )
    yield from _of_source(one, status)
    holder = one.holder
    # A step that waits for another one has no trouble of its own.
    if holder is None or len(holder.path) > 1 or one.low_watermark == END_OF_TIME:
        return
    if (holder.age_seconds or 0.0) > SILENT_SECONDS:
        held = [other.holder for other in status.computations if other.holder is not None]
        behind = sum(one.name in other.path[1:] for other in held)
        waiting = f", with {count_of(behind, 'step')} behind it" if behind else ""
        age = duration(holder.age_seconds or 0.0)
        since = f"by a timer set {age} ago" if holder.kind == "timer" else f"for {age}"
        yield Trouble(
            f"the low watermark of {name} is held {since}{waiting}",
            holder.what,
            "late",
            of,
        )


def _of_source(one: ComputationStatus, status: PipelineStatus) -> Iterator[Trouble]:
    flows = [
        source.flow
        for source in status.sources
        if source.computation == one.name and source.flow is not None
    ]
    at_limit = sum(flow.pending > STOPPED_SHARE * flow.cap for flow in flows)
    if at_limit and one.per_second == 0 and not one.paused:
        yield Trouble(
            f"{one.label or one.name} reads no further: {count_of(at_limit, 'partition')} at the "
            "limit of rows that are not acknowledged",
            page="late",
            filters={"step": one.name},
        )


def _of_left_data(status: PipelineStatus) -> Iterator[Trouble]:
    for state in status.orphaned:
        yield Trouble(
            f"no code reads {state.collection} of {state.computation} since generation "
            f"{state.generation + 1}: millwheel migrate {status.name} --allow-drop deletes it",
            page="disk",
        )
