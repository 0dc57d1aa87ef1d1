"""``millwheel run``: run a pipeline in this process, or in several."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import structlog
import typer

from millwheel.cli.command import command
from millwheel.cli.display import log_boundedness, log_doubts, showing
from millwheel.cli.opened_store import opened_for
from millwheel.cli.options import CodeOptions, CommonOptions, InputOptions, Json, ServingOptions
from millwheel.cli.printing import print_json, tell
from millwheel.cli.run_summary import summary_json, summary_lines
from millwheel.core.clock import SystemClock
from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.services import loop
from millwheel.services.crew import Crew, CrewProgress, read_totals
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside
from millwheel.services.ingesting import IngestOptions, ingesting
from millwheel.services.interruption import Interruption
from millwheel.services.run import Outcome, Run, Summary
from millwheel.store.console.presence import Presence

app = typer.Typer()


@dataclass(frozen=True)
class RunInputOptions(InputOptions):
    inject_twice: Annotated[bool, typer.Option("--inject-twice", hidden=True)] = False


@dataclass(frozen=True)
class RunServingOptions(ServingOptions):
    ui: Annotated[
        bool,
        typer.Option(
            "--ui", help="Serve pages that show it, as `millwheel ui` does, while it runs."
        ),
    ] = False


@command(
    app,
    examples=[
        "millwheel run zeitgeist:pipeline",
        "millwheel run zeitgeist:pipeline --workers 4  # in four processes",
        "millwheel run zeitgeist:pipeline --keep-open --json  # rows may be appended later",
    ],
)
def run(
    code: CodeOptions,
    inputs: RunInputOptions,
    serving: RunServingOptions,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, metavar="N", help="Run in N processes. Default: in this process."
        ),
    ] = None,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """Run a pipeline until its input is processed. Run again, it resumes where it stopped."""
    pipeline = code.load()
    if workers is not None:
        _refuse_for_crew(inputs, serving)
    http, ingestion = serving.endpoint(), serving.ingestion()
    with (
        opened_for(pipeline.name, common) as presence,
        _page(pipeline, presence, wanted=serving.ui),
    ):
        log_boundedness(pipeline, keep_open=inputs.keep_open)
        log_doubts(pipeline)
        work = (
            _run(pipeline, presence, inputs, http, ingestion)
            if workers is None
            else _run_crew(pipeline, code, workers, presence, inputs)
        )
        summary, interruption = loop.run(work)
    if as_json:
        print_json(summary_json(summary, interruption))
    else:
        for line in summary_lines(summary, keep_open=inputs.keep_open):
            typer.echo(line)
    if presence.left_running:
        structlog.get_logger().info(
            "server_left_running",
            store=str(presence.address),
            to_stop=f"millwheel stop {presence.directory}",
        )
    if summary.outcome == "stopped":
        sys.stdout.flush()
        raise typer.Exit(interruption.exit_code)


@contextmanager
def _page(pipeline: Pipeline, presence: Presence, *, wanted: bool) -> Iterator[None]:
    """Serve pages during the block, if they are wanted."""
    if not wanted:
        yield
        return
    from millwheel.cli.page_beside import can_be_served, page_beside
    from millwheel.ui import NEEDS_UI

    if not can_be_served():
        raise UsageError(NEEDS_UI)
    with page_beside(presence.address, pipeline.name) as url:
        tell(f"{url} shows {pipeline.name} while it runs", err=True)
        yield


def _refuse_for_crew(inputs: RunInputOptions, serving: ServingOptions) -> None:
    if serving.ingest is not None or serving.http is not None:
        raise UsageError(
            "--workers serves neither --http nor --ingest: start processes of `millwheel worker` "
            "instead"
        )
    if inputs.keep_open or inputs.inject_twice:
        raise UsageError(
            "--workers runs to the end of the input and closes all windows there, so it cannot be "
            "combined with --keep-open"
        )


async def _run(
    pipeline: Pipeline,
    presence: Presence,
    inputs: RunInputOptions,
    http: Endpoint | None,
    ingestion: IngestOptions | None,
) -> tuple[Summary, Interruption]:
    with (
        Interruption() as interruption,
        showing(pipeline.name, pipeline.settings.progress_seconds) as (show, show_seconds),
    ):
        run = Run(
            pipeline,
            presence.url,
            keep_open=inputs.keep_open,
            accept_late=inputs.accept_late,
            inject_copies=2 if inputs.inject_twice else 1,
            http=http,
            beside=Beside(show, show_seconds, presence.renew),
        )
        async with ingesting(pipeline, presence.url, ingestion):
            return await run.run(interruption.asked), interruption


async def _run_crew(
    pipeline: Pipeline, code: CodeOptions, workers: int, presence: Presence, inputs: InputOptions
) -> tuple[Summary, Interruption]:
    clock = SystemClock()
    options = [*code.options, *(["--accept-late"] if inputs.accept_late else [])]
    name = pipeline.name
    with (
        Interruption() as interruption,
        showing(name, pipeline.settings.progress_seconds) as (show, show_seconds),
    ):
        before = read_totals(presence.url, name)
        progress = CrewProgress(presence.url, name, before, show, clock, show_seconds)
        following = asyncio.create_task(progress.run())
        address = presence.address
        try:
            store = address.url or str(address.directory)
            crew = Crew(code.target, store, workers, _relay, clock, options=options)
            outcome: Outcome = await crew.run(interruption.asked)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        after = read_totals(presence.url, name)
    counted = after.counters - before.counters
    processed = counted.pop("processed", 0)
    if outcome == "complete" and not counted and not processed:
        outcome = "nothing to do"
    summary = Summary(
        name, outcome, processed, None, progress.seconds, after.low_watermark, dict(counted)
    )
    return summary, interruption


def _relay(worker: int, line: dict[str, object] | str) -> None:
    """Relay a worker's log line, unless it is progress, which the crew reports."""
    if isinstance(line, str):
        typer.echo(line, err=True)
    elif (event := line.pop("event", "")) != "progress":
        level = logging.getLevelNamesMapping().get(str(line.pop("level", "info")).upper(), 20)
        line.pop("timestamp", None)
        structlog.get_logger().log(level, event, **{**line, "process": worker})
