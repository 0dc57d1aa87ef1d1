"""``millwheel publish``, ``published``, ``unpublish``, ``switch``: the names that readers use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from millwheel.cli.command import command
from millwheel.cli.fitted_tables import print_table
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import ChangeOptions, CommonOptions, Json, OptionGroup, PipelineName, Yes
from millwheel.cli.printing import confirm, print_json, print_result, tell
from millwheel.core.quantities import count_of, short_duration
from millwheel.store.copies.publishing import list_published
from millwheel.store.copies.publishing import publish as make_names
from millwheel.store.copies.publishing import unpublish as drop_names
from millwheel.store.copies.standstill import switch_at_standstill
from millwheel.store.copies.switching import ForeseenSwitch, Switched, Takeover, foresee_switch
from millwheel.store.copies.switching import switch as switch_names

app = typer.Typer()

PublishedSchema = Annotated[
    str, typer.Option("--in", metavar="SCHEMA", help="The schema of the names.")
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME", help="A table; may be repeated. Default: all."),
]


@command(
    app,
    examples=[
        "millwheel publish shop --in shop_out",
        "millwheel publish shop --in shop_out --table totals",
    ],
)
def publish(
    pipeline: PipelineName,
    schema: PublishedSchema,
    table: Tables = None,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Let readers use names that stay when another pipeline takes over.

    Each own table of the pipeline gets a view of its name in the schema, which is made if it is
    missing. Roles that may read the table may read the view. Repeat it when a deploy has made
    tables or columns.
    """
    with opened(common) as presence:
        made = make_names(presence.url, pipeline, schema, table or (), actor=actor(change.reason))
    lines = [f"{schema}.{name} leads to {pipeline}.{name}" for name in made.made]
    lines += [f"{schema}.{text}" for text in made.changed]
    if not lines:
        lines = [f"nothing is new: {count_of(len(made.names), 'name')} in {schema}"]
    print_result({"pipeline": pipeline, **made._asdict()}, lines, as_json=change.as_json)


@command(app, examples=["millwheel published", "millwheel published shop"])
def published(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="PIPELINE", help="Default: all pipelines.")
    ] = None,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """List the names that readers use, and the pipeline that each leads to."""
    with opened(common) as presence:
        found = list_published(presence.url, pipeline)
    if as_json:
        print_json({"names": found})
    elif not found:
        tell("nothing is published; publish tables with millwheel publish PIPELINE --in SCHEMA")
    else:
        rows = [[one.words, one.pipeline, one.table] for one in found]
        print_table(["name", "pipeline", "table"], rows)


@command(app, examples=["millwheel unpublish shop --in shop_out --table totals"])
def unpublish(
    pipeline: PipelineName,
    schema: PublishedSchema,
    table: Tables = None,
    yes: Yes = False,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Drop names that readers use. The tables, and the schema of the names, stay."""
    which = f"all names in {schema}" if table is None else f"{', '.join(table)} in {schema}"
    with opened(common) as presence:
        confirm(
            f"readers of {pipeline} lose {which}", f"Drop {which} that lead to {pipeline}?",
            sure=yes,
        )  # fmt: skip
        dropped = drop_names(
            presence.url, pipeline, schema, table or (), actor=actor(change.reason)
        )
    names = [one.words for one in dropped]
    lines = [f"dropped {', '.join(names)}"]
    print_result({"pipeline": pipeline, "dropped": names}, lines, as_json=change.as_json)


@dataclass(frozen=True)
class SwitchOptions(OptionGroup):
    schemas: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="SCHEMA", help="Only names in this schema; may be repeated."),
    ] = None
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Pause the sources of both until they stand at the same rows with nothing on the "
            "way: then nothing is missing or doubled outside the store.",
        ),
    ] = False
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Switch even if the new pipeline is behind.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would change, and change nothing.")
    ] = False
    wait: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="How long to try, while queries use the names or the new pipeline is behind.",
        ),
    ] = 60.0


@command(
    app,
    examples=[
        "millwheel switch shop shop2 --drain",
        "millwheel switch shop2 shop --yes  # and back",
        "millwheel switch shop shop2 --dry-run",
    ],
)
def switch(
    pipeline: PipelineName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The pipeline that takes over.")],
    options: SwitchOptions,
    yes: Yes = False,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Let another pipeline take over: its tables get the names that readers use, its sinks write.

    Readers see the old tables or the new ones, never a mixture. In the same transaction the outputs
    of PIPELINE are turned off, and those of NEW on.
    """
    takeover = Takeover(pipeline, new, options.schemas or ())
    with opened(common) as presence:
        foreseen = foresee_switch(presence.url, takeover)
        if options.dry_run:
            lines = list(_foreseen_lines(foreseen, options))
            print_result(foreseen, lines, as_json=change.as_json)
            return
        if not yes:
            for line in _foreseen_lines(foreseen, options):
                tell(line, err=True)
        confirm(
            f"readers of {pipeline} get {new}, and its sinks write from then on",
            f"Switch from {pipeline} to {new}?",
            sure=yes,
        )
        if options.drain:
            done = switch_at_standstill(
                presence.url, takeover, wait_seconds=options.wait,
                actor=actor(change.reason), tell=lambda text: tell(text, err=True),
            )  # fmt: skip
        else:
            done = switch_names(
                presence.url, takeover, anyway=options.anyway,
                wait_seconds=options.wait, actor=actor(change.reason),
            )  # fmt: skip
    result = {
        **msgspec.structs.asdict(done.foreseen),
        "at": done.at,
        "attempts": done.attempts,
        "blocked_milliseconds": round(done.blocked_milliseconds, 1),
        "drained": options.drain,
    }
    print_result(result, _switched_lines(done, options), as_json=change.as_json)


def _foreseen_lines(found: ForeseenSwitch, options: SwitchOptions) -> Iterator[str]:
    for one in found.names:
        changes = f" ({'; '.join(one.changes)})" if one.changes else ""
        yield f"{one.name} will lead to {found.successor}{changes}"
    for name in found.staying:
        yield f"{name} reads {found.pipeline} by itself, and stays so"
    if found.withheld:
        yield f"{found.pipeline} stops writing outside the store: {', '.join(found.withheld)}"
    if found.delivered:
        yield f"{found.successor} writes outside the store from then on: " + ", ".join(
            found.delivered
        )
        yield from _promise(found, options)
    for stream in found.inboxes:
        when = f"before {found.pipeline} is dropped" if found.is_teed else "from then on"
        yield (
            f"programs that send to stream {stream} of {found.pipeline} must send to "
            f"{found.successor} {when}"
        )
    if not found.is_behind:
        yield f"{found.successor} has caught up with {found.pipeline}"
    elif options.anyway and not options.drain:
        yield f"{found.successor} is behind by {found.behind}: readers see less until it is level"
    else:
        yield f"{found.successor} is behind by {found.behind}: the switch waits until it is level"


def _promise(found: ForeseenSwitch, options: SwitchOptions) -> Iterator[str]:
    if options.drain:
        yield "outside, each result is written once: both stand at the same rows of the input"
    else:
        yield (
            "outside, results of the last seconds may be missing, or there twice, since both are "
            "not at the same row; --drain closes the gap"
        )


def _switched_lines(done: Switched, options: SwitchOptions) -> Iterator[str]:
    found = done.foreseen
    names = ", ".join(one.name for one in found.names) or "no name"
    yield (
        f"switched from {found.pipeline} to {found.successor}: {names}; readers waited for "
        f"{short_duration(done.blocked_milliseconds / 1000)} at the most, attempt {done.attempts}"
    )
    if found.delivered or found.withheld:
        yield (
            f"outputs of {found.pipeline} are off, of {found.successor} on"
            + (
                ""
                if options.drain
                else "; workers notice it with their next heartbeat, within a third of a lease"
            )
        )
    yield f"back: millwheel switch {found.successor} {found.pipeline}"
