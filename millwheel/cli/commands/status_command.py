"""``millwheel status``, once or repeatedly, on the terminal or over HTTP."""

from __future__ import annotations

import threading
from functools import partial
from operator import itemgetter
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.fitted_tables import print_table
from millwheel.cli.opened_store import inspecting, opened
from millwheel.cli.options import CommonOptions, Json
from millwheel.cli.printing import print_json, print_json_line, sentence_lines, tell
from millwheel.cli.refreshing import WatchOptions, refreshed
from millwheel.cli.status_text import print_status
from millwheel.cli.watch_text import Rates, lines
from millwheel.core.quantities import byte_text
from millwheel.errors import StoreUnavailable
from millwheel.services.endpoint import Endpoint
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import Inspection, PipelineStatus, inspect

app = typer.Typer()


@command(
    app,
    examples=[
        "millwheel status",
        "millwheel status zeitgeist --watch  # refreshed until Ctrl-C",
        "millwheel status --json",
    ],
)
def status(
    pipeline: Annotated[
        str | None, typer.Argument(help="Name of a pipeline. Default: all pipelines.")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /healthz, /metrics and /status on this address until Ctrl-C or SIGTERM, "
            "from the store alone: no worker is needed.",
        ),
    ] = None,
    disk: Annotated[
        bool, typer.Option("--disk", help="Show disk use instead, and the reasons for it.")
    ] = False,
    as_json: Json = False,
    *,
    watching: WatchOptions,
    common: CommonOptions,
) -> None:
    """Show workers, watermarks, backlog and counters."""
    seconds = watching.seconds
    if disk:
        _print_disk(pipeline, common, as_json=as_json)
    elif http is not None:
        _serve(pipeline, common, http)
    elif seconds is not None:
        _watch(pipeline, common, seconds=seconds, as_json=as_json)
    else:
        _print(pipeline, common, as_json=as_json)


def _print(pipeline: str | None, common: CommonOptions, *, as_json: bool) -> None:
    with inspecting(common) as inspection:
        found = _read(inspection, pipeline)
    address = common.address
    if as_json:
        print_json({"store": address.redacted(), "pipelines": found})
        return
    if not found:
        typer.echo(f"no pipeline in {address.redacted()} yet")
    for number, one in enumerate(found):
        if number:
            typer.echo()
        print_status(one, address)


def _read(inspection: Inspection, pipeline: str | None) -> list[PipelineStatus]:
    names = [inspection.choose(pipeline)] if pipeline else inspection.pipelines()
    return [inspection.status(name) for name in names]


def _print_disk(pipeline: str | None, common: CommonOptions, *, as_json: bool) -> None:
    with inspecting(common) as inspection:
        found = inspection.disk(inspection.choose(pipeline))
    if as_json:
        print_json(found)
        return
    kinds = sorted(found.kinds.items(), key=itemgetter(1), reverse=True)
    print_table(["kind", "on disk"], [[kind, byte_text(size)] for kind, size in kinds])
    typer.echo()
    for kept in found.oldest:
        tell(f"the oldest bucket is kept by {kept.kept_by}: {kept.what}")
    if found.fold_age_seconds is not None:
        tell(
            f"{found.unfolded:,} commits are not folded, the oldest for "
            f"{found.fold_age_seconds:,.0f} s"
        )
    if found.snapshot is not None:
        tell(
            f"{found.dead_rows:,} dead rows; none that is newer can be removed until this ends: "
            f"{found.snapshot}"
        )


def _serve(pipeline: str | None, common: CommonOptions, http: str) -> None:
    from millwheel.services.store_endpoint import StoreEndpoint, look  # slow to import

    with opened(common) as presence:
        look(presence.url, pipeline)  # a store that cannot be reached is an error at the start
        service = StoreEndpoint(lambda: look(presence.url, pipeline), Endpoint.parse(http))
        service.start()
        typer.echo(f"serving {service.url}/metrics; Ctrl-C ends it", err=True)
        try:
            threading.Event().wait()  # a signal raises
        finally:
            service.stop()


def _watch(pipeline: str | None, common: CommonOptions, *, seconds: float, as_json: bool) -> None:
    """Print the status until interrupted; a store that becomes unreachable is retried.

    Each refresh is a transaction of its own.
    """
    address = common.address
    rates = Rates()
    with opened(common) as presence, refreshed() as watch:
        found = _read_once(presence.url, pipeline)
        while True:
            rates.fill(found)
            if as_json:
                print_json_line({"store": address.redacted(), "pipelines": found})
            else:
                watch.show(partial(_lines, found, address))
            watch.wait(seconds)
            while True:
                try:
                    found = _read_once(presence.url, pipeline)
                    break
                except StoreUnavailable as error:
                    if as_json:
                        print_json_line({"store": address.redacted(), "error": str(error)})
                    else:
                        watch.show(partial(sentence_lines, str(error)))
                    watch.wait(seconds)


def _lines(found: list[PipelineStatus], address: StoreAddress, width: int | None) -> list[str]:
    return lines(found, width) or [f"no pipeline in {address.redacted()} yet"]


def _read_once(url: str, pipeline: str | None) -> list[PipelineStatus]:
    with inspect(url) as inspection:
        return _read(inspection, pipeline)
