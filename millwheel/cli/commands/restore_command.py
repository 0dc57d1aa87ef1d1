"""``millwheel restore``: a pipeline as it was at a savepoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.made_copies import confirm_size, copy_progress, moment_text
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import ChangeOptions, CommonOptions, PipelineName
from millwheel.cli.printing import confirm, print_result, tell
from millwheel.core.quantities import count_of
from millwheel.errors import UsageError
from millwheel.store.copies.replacing import (
    DeliveredSince,
    ForeseenRestore,
    Restored,
    foresee_restore,
)
from millwheel.store.copies.replacing import restore as restore_pipeline
from millwheel.store.copies.savepoints import savepoint_name

app = typer.Typer()


@command(
    app,
    examples=[
        "millwheel restore shop before-march --reason 'a wrong price list'",
        "millwheel restore shop replaced-1 --confirm shop  # back again, in a script",
    ],
)
def restore(
    pipeline: PipelineName,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Of the savepoint.")],
    confirm_name: Annotated[
        str | None,
        typer.Option("--confirm", metavar="PIPELINE", help="Its name again, to ask nothing."),
    ] = None,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Bring a pipeline back to a savepoint. Its workers start over by themselves."""
    name = savepoint_name(pipeline, label)
    with opened(common) as presence:
        foreseen = foresee_restore(presence.url, name)
        confirm_size(presence, foreseen.savepoint.bytes, sure=confirm_name is not None)
        _confirm_restore(foreseen, confirm_name)
        with copy_progress() as show:
            made = restore_pipeline(presence.url, name, actor=actor(change.reason), show=show)
    print_result(made._asdict(), _restored_lines(made), as_json=change.as_json)


def _confirm_restore(foreseen: ForeseenRestore, name: str | None) -> None:
    savepoint = foreseen.savepoint
    pipeline = savepoint.pipeline
    if name is not None and name != pipeline:
        raise UsageError(f"--confirm {name}: the pipeline is {pipeline!r}. Nothing was changed")
    if name is None:
        for line in _delivered_lines(foreseen.delivered):
            tell(line, "warning", err=True)
    since = moment_text(savepoint.at)
    losses = f"all that {pipeline!r} has done since {since} is undone in its tables"
    sure = name is not None
    confirm(losses, f"{losses}. Restore it?", sure=sure, option=f"--confirm {pipeline}")
    if name is None and typer.prompt("Its name once more", err=True) != pipeline:
        raise UsageError("that is another name: nothing was changed")


def _restored_lines(made: Restored) -> Iterator[str]:
    yield f"restored {made.pipeline} as it was at {moment_text(made.at)}: {made.rows:,} rows"
    yield f"as it was until now: {made.replaced}, kept until {moment_text(made.keep_until)}"
    yield from _delivered_lines(made.delivered)
    if made.sent_again:
        yield f"{count_of(made.sent_again, 'record')} sent since wait again"
    if made.not_sent_again:
        yield (
            "sent since to inboxes, processed, and not there again: up to "
            f"{count_of(made.not_sent_again, 'record')}. Send them once more; their ids are free"
        )
    if made.sessions:
        yield "its workers start over"


def _delivered_lines(delivered: list[DeliveredSince]) -> Iterator[str]:
    for one in delivered:
        yield (
            f"left the store since: bundles {one.first} to {one.last} of {one.sink}, scope "
            f"{one.scope}"
        )
