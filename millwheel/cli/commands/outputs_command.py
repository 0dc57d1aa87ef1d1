"""``millwheel outputs``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import ChangeOptions, CommonOptions, PipelineName, Yes
from millwheel.cli.printing import confirm, print_result
from millwheel.core.quantities import count_of
from millwheel.store.console.inspection import inspect
from millwheel.store.console.outputs import (
    SwitchedOutputs,
    delivering_origin,
    output_status,
    switch_outputs,
)

app = typer.Typer()


@command(
    app,
    examples=[
        "millwheel outputs zeitgeist_2 on --reason 'it takes over'",
        "millwheel outputs zeitgeist off",
    ],
)
def outputs(
    pipeline: PipelineName,
    state: Annotated[
        Literal["on", "off"],
        typer.Argument(metavar="on|off", help="off: withhold them."),
    ],
    yes: Yes = False,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Let a pipeline write outside the store, or not. A fork does not until this turns it on.

    It is about sinks: Kafka, webhooks, your own, numbered bundles, part files and the terminal.
    Tables are always written. Workers that run start over when they notice it.
    """
    on = state == "on"
    with opened(common) as presence:
        if loss := _twice(presence.url, pipeline) if on else _never(presence.url, pipeline):
            confirm(loss, f"{loss}. Turn the outputs of {pipeline} {state} all the same?", sure=yes)
        found = switch_outputs(presence.url, pipeline, on=on, actor=actor(change.reason))
    result = {"pipeline": pipeline, "outputs": state, **found._asdict()}
    print_result(result, _lines(pipeline, state, found), as_json=change.as_json)


def _twice(url: str, pipeline: str) -> str:
    """Why outputs should not be turned on; empty: nothing is against it."""
    origin = delivering_origin(url, pipeline)
    if origin is None:
        return ""
    return (
        f"{origin.name}, of which {pipeline} is a copy, has its outputs on "
        f"({count_of(origin.workers, 'worker')} running it): results of both are written"
    )


def _never(url: str, pipeline: str) -> str:
    """Why outputs should not be turned off; empty: nothing is against it."""
    with inspect(url) as inspection:
        outputs = output_status(inspection.connection, inspection.choose(pipeline))
    if outputs.withholds or not outputs.steps:
        return ""
    return (
        f"results of {pipeline} for {', '.join(outputs.steps)} are dropped from then on, and not "
        "written when the outputs are turned on again"
    )


def _lines(pipeline: str, state: str, found: SwitchedOutputs) -> Iterator[str]:
    steps = ", ".join(found.steps) or "no step of it writes outside the store"
    if not found.changed:
        yield f"outputs of {pipeline} are {state} already: {steps}"
        return
    yield f"turned {state} the outputs of {pipeline}: {steps}"
    if found.workers:
        yield (
            f"{count_of(found.workers, 'worker')} running: each starts over when its next "
            "heartbeat shows the change, within a third of a lease"
        )
    else:
        yield "no worker is running: the next one that starts heeds it"
