"""Commands on a running pipeline: ``pause``, ``resume``, ``set-aside`` and ``log``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.fitted_tables import Cell, Fit, Styled, print_table
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor, asking
from millwheel.cli.options import (
    ChangeOptions,
    CommonOptions,
    Json,
    OnePipeline,
    OperationOptions,
    PipelineName,
)
from millwheel.cli.printing import print_json, print_result, seconds_text
from millwheel.core.quantities import count_of
from millwheel.core.typed_values import key_of
from millwheel.errors import UsageError
from millwheel.store.console import administration
from millwheel.store.console.administration import Paused
from millwheel.store.console.request_log import LogEntry

NOTICED_SECONDS = 2
"""Upper bound: workers poll every second, and finish the chunk they are reading."""

LOG_ENTRIES = 50

app = typer.Typer()

Injectors = Annotated[
    list[str] | None, typer.Argument(metavar="INJECTOR", help="Names of injectors. Default: all.")
]


@command(
    app,
    examples=[
        "millwheel pause zeitgeist --reason 'the database is being moved'",
        "millwheel pause zeitgeist searches_injector  # only one of them",
    ],
)
def pause(
    pipeline: PipelineName,
    injectors: Injectors = None,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Stop injectors from reading. Rows already read are processed; watermarks stop advancing."""
    _set_paused(pipeline, injectors or [], change, common, paused=True)


@command(
    app,
    examples=[
        "millwheel resume zeitgeist",
    ],
)
def resume(
    pipeline: PipelineName,
    injectors: Injectors = None,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Let paused injectors continue where they stopped."""
    _set_paused(pipeline, injectors or [], change, common, paused=False)


def _set_paused(
    pipeline: str,
    injectors: list[str],
    change: ChangeOptions,
    common: CommonOptions,
    *,
    paused: bool,
) -> None:
    with opened(common) as presence:
        found = administration.pause(
            presence.url, pipeline, injectors, paused=paused, actor=actor(change.reason)
        )
    result = {"pipeline": pipeline, "paused": paused, **found._asdict()}
    print_result(result, _pause_lines(pipeline, found, paused=paused), as_json=change.as_json)


def _pause_lines(pipeline: str, found: Paused, *, paused: bool) -> Iterator[str]:
    names = ", ".join(found.changed)
    yield (
        f"{'paused' if paused else 'resumed'} {count_of(len(found.changed), 'injector')} of "
        f"{pipeline}" + (f": {names}" if names else "")
    )
    if found.unchanged:
        was = "already paused" if paused else "not paused"
        yield f"{was}: {', '.join(found.unchanged)}"
    if found.workers:
        then = "stop reading" if paused else "continue reading"
        yield (
            f"{count_of(found.workers, 'worker')} running: will {then} within {NOTICED_SECONDS} s"
        )
    else:
        yield "no worker is running"


@command(
    app,
    "set-aside",
    examples=[
        "millwheel set-aside searches_injector 1204  # a row of a source",
        "millwheel set-aside count_searches 17-4 --key '\"cats\"'  # a record of a computation",
    ],
)
def set_aside(
    name: Annotated[str, typer.Argument(metavar="COMPUTATION|INJECTOR")],
    item: Annotated[str, typer.Argument(metavar="RECORD|ROW", help="As the error names it.")],
    operation: OperationOptions,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Of a record: its key as JSON.")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a row: its partition. Default: the only one."),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Make a dead letter of a record or row that stops the pipeline. The error of the worker names
    this command."""
    if key is None and not item.isdecimal():
        raise UsageError(
            f"{item!r} is no number of a row. For a record of a computation give --key as well"
        )
    by = actor(operation.reason)
    with (
        asking(common, operation.pipeline, needs_owners=False) as desk,
        desk.transaction() as asked,
    ):
        if key is not None:
            batch = asked.set_aside_item(by, name, key_of(key), item)
        else:
            batch = asked.set_aside(by, name, partition, int(item))
    line = (
        f"{item} of {name} will become a dead letter when a worker that starts from now on meets "
        f"it, unless it is processed already. Take it back with: millwheel log --withdraw {batch} "
        f"--pipeline {desk.pipeline}"
    )
    result = {"pipeline": desk.pipeline, "batch": batch}
    print_result(result, [line], as_json=operation.as_json)


@command(
    app,
    examples=[
        "millwheel log",
        "millwheel log --withdraw 12  # take back what is not carried out yet",
    ],
)
def log(
    pipeline: OnePipeline = None,
    withdraw: Annotated[
        int | None,
        typer.Option(
            metavar="BATCH", help="Take back the requests of a batch that are not carried out yet."
        ),
    ] = None,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """Show the requests and operations of operators. Each has its time, actor, reason and
    outcome."""
    with asking(common, pipeline, needs_owners=False) as desk, desk.transaction() as asked:
        if withdraw is not None:
            count = asked.withdraw(actor(""), withdraw)
            if not count:
                raise UsageError(f"{desk.pipeline!r} has no open request in batch {withdraw}")
            line = (
                f"took back {count:,} requests of batch {withdraw}; one that an owner had begun is "
                "done all the same, and the log says so"
            )
            result = {"pipeline": desk.pipeline, "batch": withdraw, "withdrawn": count}
            print_result(result, [line], as_json=as_json)
            return
        entries = asked.log().entries(LOG_ENTRIES)
    if as_json:
        print_json(entries)
        return
    print_table(
        ["batch", "asked at", "by", "what", "on", "outcome", "reason"],
        [_row(e) for e in entries],
        Fit(("by", "reason", "asked at")),
    )


def _row(entry: LogEntry) -> list[Cell]:
    key = "" if entry.key is None else f" {bytes(entry.key).decode()}"
    on = (entry.computation or "") + key
    what = entry.verb + ("" if entry.payload is None else f" {bytes(entry.payload).decode()}")
    return [
        str(entry.batch), seconds_text(entry.asked_at), entry.actor, what, on, _outcome(entry),
        entry.reason,
    ]  # fmt: skip


def _outcome(entry: LogEntry) -> Styled:
    style = "error" if entry.not_done else "warning" if entry.open else None
    if entry.requests == 1:
        word = "open" if entry.open else "done" if entry.done else "not done"
        return Styled(word + (f": {entry.detail}" if entry.detail else ""), style)
    words = {"done": entry.done, "not done": entry.not_done, "open": entry.open}
    return Styled(", ".join(f"{count:,} {word}" for word, count in words.items() if count), style)
