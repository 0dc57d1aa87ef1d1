"""The commands that change one key, or failed records: `state`, `timers`, `dead-letters` and
`log`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import typer

from millwheel.cli.options import Debug, Json, OnePipeline, Reason, Store, Yes
from millwheel.cli.reporting import command

state = typer.Typer(no_args_is_help=True)
timers = typer.Typer(no_args_is_help=True)
dead_letters = typer.Typer(no_args_is_help=True)

ComputationName = Annotated[
    str, typer.Argument(help="Name of the computation.", show_default=False)
]
OneKey = Annotated[
    str,
    typer.Argument(
        help="The key as JSON, for example 13 or '[\"JFK\", 4]'; other words are text.",
        show_default=False,
    ),
]
Tag = Annotated[str, typer.Argument(help="The timer's tag; without it, the one without a tag.")]
Kind = Annotated[Literal["watermark", "wall"], typer.Option(help="Kind of the timer.")]
Condition = Annotated[
    str | None,
    typer.Option(
        "--if", metavar="JSON", help="Only if the state has these fields with these values.",
        show_default=False,
    ),
]  # fmt: skip
Wait = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the outcome.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID...", show_default=False)]
OfComputation = Annotated[
    str | None, typer.Option("--computation", metavar="NAME", help="Only those of a computation.")
]
OfStream = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help="Only records of a stream, or: timer."),
]
OfKey = Annotated[str | None, typer.Option("--key", help="Only those of a key; JSON, or a text.")]
OfError = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Only those with this in the error.")
]
Waiting = Annotated[
    bool, typer.Option("--waiting", help="Also records that only wait in parked keys.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say which match, and end.")]
Since = Annotated[datetime | None, typer.Option(help="Only those given up since then, UTC.")]


@state.command("get")
@command
def get_state(
    computation: ComputationName,
    key: OneKey,
    store: Store = None,
    pipeline: OnePipeline = None,
    limit: Annotated[int, typer.Option(min=1, help="Most entries and most timers.")] = 100,
    skip: Annotated[
        int, typer.Option(min=0, help="Leave out the first ones: show those after so many.")
    ] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the state, the timers and the pending records of one key; fast with any number of
    keys."""
    from millwheel.cli.state import get
    from millwheel.store.console.one_key import Page

    get(computation, key, store, pipeline, page=Page(limit, skip), as_json=as_json)


@state.command("set")
@command
def set_state(
    computation: ComputationName,
    key: OneKey,
    merge: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Fields to change; the others stay (RFC 7396)."),
    ] = None,
    value: Annotated[str | None, typer.Option(metavar="JSON", help="The whole new state.")] = None,
    condition: Condition = None,
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    wait: Wait = 30.0,
    debug: Debug = False,
) -> None:
    """Change the state of a key. Its owner does it between two records, or refuses; collections
    stay."""
    from millwheel.cli.state import set_state

    set_state(
        computation, key, store, pipeline, merge=merge, value=value, condition=condition,
        reason=reason, wait=wait,
    )  # fmt: skip


@state.command("delete")
@command
def delete_state(
    computation: ComputationName,
    key: OneKey,
    condition: Condition = None,
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    wait: Wait = 30.0,
    debug: Debug = False,
) -> None:
    """Empty the state of a key, with its collections. Its timers stay."""
    from millwheel.cli.state import delete_state

    delete_state(computation, key, store, pipeline, condition=condition, reason=reason, wait=wait)


@timers.command("cancel")
@command
def cancel_timer(
    computation: ComputationName,
    key: OneKey,
    tag: Tag = "",
    kind: Kind = "watermark",
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    wait: Wait = 30.0,
    debug: Debug = False,
) -> None:
    """Cancel a timer of a key."""
    from millwheel.cli.state import change_timer

    change_timer(
        "cancel_timer",
        computation,
        key,
        store,
        pipeline,
        tag=tag,
        kind=kind,
        reason=reason,
        wait=wait,
    )


@timers.command("fire")
@command
def fire_timer(
    computation: ComputationName,
    key: OneKey,
    tag: Tag = "",
    kind: Kind = "watermark",
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    wait: Wait = 30.0,
    debug: Debug = False,
) -> None:
    """Run process_timer now, with the time that the timer was set for."""
    from millwheel.cli.state import change_timer

    change_timer(
        "fire_timer",
        computation,
        key,
        store,
        pipeline,
        tag=tag,
        kind=kind,
        reason=reason,
        wait=wait,
    )


@dead_letters.command("list")
@command
def list_dead_letters(
    ids: Ids = None,
    computation: OfComputation = None,
    stream: OfStream = None,
    key: OfKey = None,
    error: OfError = None,
    since: Since = None,
    group_by: Annotated[
        Literal["error"] | None,
        typer.Option(help="Count them instead, by computation and error.", show_default=False),
    ] = None,
    waiting: Waiting = False,
    store: Store = None,
    pipeline: OnePipeline = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list.")] = 100,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the newest dead letters."""
    from millwheel.cli.dead_letters import list_letters, selected

    letters = selected(ids or [], computation, stream, key, error, since, waiting=waiting)
    list_letters(letters, store, pipeline, limit, by_error=group_by is not None, as_json=as_json)


@dead_letters.command("show")
@command
def show_dead_letter(
    number: Annotated[int, typer.Argument(metavar="ID", show_default=False)],
    store: Store = None,
    pipeline: OnePipeline = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a dead letter with its traceback."""
    from millwheel.cli.dead_letters import show

    show(number, store, pipeline, as_json=as_json)


@dead_letters.command("export")
@command
def export_dead_letters(
    ids: Ids = None,
    computation: OfComputation = None,
    stream: OfStream = None,
    key: OfKey = None,
    error: OfError = None,
    since: Since = None,
    waiting: Waiting = False,
    store: Store = None,
    pipeline: OnePipeline = None,
    debug: Debug = False,
) -> None:
    """Print dead letters as JSON Lines, the oldest first."""
    from millwheel.cli.dead_letters import export, selected

    export(
        selected(ids or [], computation, stream, key, error, since, waiting=waiting),
        store,
        pipeline,
    )


@dead_letters.command("retry")
@command
def retry_dead_letters(
    ids: Ids = None,
    computation: OfComputation = None,
    stream: OfStream = None,
    key: OfKey = None,
    error: OfError = None,
    since: Since = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Retry all of the pipeline.")] = False,
    edit: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|-|@FILE",
            help="Give one record another value: JSON, standard input, or a file.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="N", help="At most N a second.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    wait: Wait = 30.0,
    debug: Debug = False,
) -> None:
    """Process dead letters again: each in its key's turn, and once. It goes on if this command
    ends."""
    from millwheel.cli.dead_letters import retry, selected

    letters = selected(ids or [], computation, stream, key, error, since)
    retry(
        letters, store, pipeline, edit=edit, rate=rate, reason=reason, wait=wait, dry_run=dry_run,
        all_of_them=all_of_them,
    )  # fmt: skip


@dead_letters.command("discard")
@command
def discard_dead_letters(
    ids: Ids = None,
    computation: OfComputation = None,
    stream: OfStream = None,
    key: OfKey = None,
    error: OfError = None,
    since: Since = None,
    all_of_them: Annotated[
        bool, typer.Option("--all", help="Discard all dead letters of the pipeline.")
    ] = False,
    waiting: Waiting = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    wait: Wait = 30.0,
    debug: Debug = False,
) -> None:
    """Delete dead letters. This cannot be undone; export them first."""
    from millwheel.cli.dead_letters import discard, selected

    letters = selected(ids or [], computation, stream, key, error, since, waiting=waiting)
    discard(
        letters, store, pipeline, reason=reason, wait=wait, dry_run=dry_run, sure=yes,
        all_of_them=all_of_them,
    )  # fmt: skip


@command
def log(
    store: Store = None,
    pipeline: OnePipeline = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list.")] = 50,
    withdraw: Annotated[
        int | None,
        typer.Option(
            metavar="BATCH",
            help="Take back what a batch has asked for and nobody has done yet.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the requests and operations of operators: by whom, when, why, and the outcome."""
    from millwheel.cli.asking import log

    log(store, pipeline, limit, withdraw, as_json=as_json)
