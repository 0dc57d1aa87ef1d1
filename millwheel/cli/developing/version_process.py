"""One version of the code, in a process of its own: imports, plans, deploys and runs it.

It is started by the session, with the descriptor of the pipe for reports, and the options as JSON.
Its standard input is a pipe: a line there confirms a deploy; it stops when the pipe closes, and so
does not outlive the session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from millwheel.cli.developing.reports import (
    DEPLOY,
    Checked,
    Delivered,
    Finished,
    Imported,
    PlannedDeploy,
    ReportPipe,
    VersionOptions,
    VersionRunning,
    as_raw,
)
from millwheel.cli.display import log_doubts
from millwheel.cli.opened_store import opened_for
from millwheel.cli.options import CommonOptions
from millwheel.cli.plan_text import plan_lines
from millwheel.cli.progress_line import moment
from millwheel.cli.reporting import configure_log, foreign_paths, reporting
from millwheel.cli.run_summary import summary_lines
from millwheel.cli.sql_files import SUFFIX
from millwheel.cli.target import load_pipeline
from millwheel.core.model import MIN_TIME, Record
from millwheel.errors import DeployRefused
from millwheel.files.file_sources import FilePartition
from millwheel.graph.outside import own_directory
from millwheel.pipeline import Pipeline
from millwheel.services import loop, planning
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside
from millwheel.services.ingesting import IngestOptions, ingesting
from millwheel.services.interruption import Interruption, stop_at_end_of_input
from millwheel.services.run import Run, Summary
from millwheel.sinks import BundleSink, Console, Discard, JsonLinesFiles, Table
from millwheel.store.console.presence import Presence

PLACES = 8
"""Most lines of an error's traceback."""

IMPORTS_SECONDS = 1.0
"""Period of a look for modules that functions have imported."""


class ImportedCode:
    """Reports the files of the code, and again when there are more."""

    def __init__(self, target: str, reports: ReportPipe) -> None:
        self._target = target
        self._reports = reports
        self._reported: list[str] = []

    def report(self) -> None:
        found = sorted(self._files())
        if found != self._reported:
            self._reported = found
            self._reports.send(Imported(found))

    def _files(self) -> set[str]:
        files = {os.path.abspath(self._target)} if self._target.endswith(SUFFIX) else set()
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not file.startswith(foreign_paths()):
                files.add(os.path.abspath(file))
        return files


def run_version(options: VersionOptions, reports: ReportPipe) -> None:
    """Run the code until it is stopped, or all its input is processed.

    Raises:
        MillwheelError: the code is wrong, or does not fit the stored data.
    """
    code = ImportedCode(options.target, reports)
    try:
        pipeline = load_pipeline(options.target, options.other_name)
    finally:
        code.report()
    http = None if options.http is None else Endpoint.parse(options.http)
    tokens = None if options.ingest_tokens is None else Path(options.ingest_tokens)
    ingestion = IngestOptions.parse(options.ingest, tokens)
    with opened_for(pipeline.name, CommonOptions()) as presence:
        reports.send(_checked(pipeline))
        log_doubts(pipeline)
        _deploy(pipeline, presence, reports)
        _report_deliveries(pipeline, reports)
        served = {"figures": http, "records": None if ingestion is None else ingestion.address}
        reports.send(
            VersionRunning([f"{what}: http://{where}" for what, where in served.items() if where])
        )
        run = Run(
            pipeline,
            presence.url,
            keep_open=True,
            http=http,
            beside=Beside(lambda progress: code.report(), IMPORTS_SECONDS, presence.renew),
        )
        summary, interruption = loop.run(_run(run, pipeline, presence, ingestion))
    if interruption.signal is not None:
        raise typer.Exit(interruption.exit_code)
    if summary.outcome != "stopped":
        reports.send(Finished(_lines(summary)))


async def _run(
    run: Run, pipeline: Pipeline, presence: Presence, ingestion: IngestOptions | None
) -> tuple[Summary, Interruption]:
    with Interruption() as interruption:
        stop_at_end_of_input(interruption.asked)
        async with ingesting(pipeline, presence.url, ingestion):
            return await run.run(interruption.asked), interruption


def _lines(summary: Summary) -> list[str]:
    first, *_ = summary_lines(summary, keep_open=True)
    if summary.low_watermark <= MIN_TIME:
        return [first]
    return [
        first,
        f"  event time is {moment(summary.low_watermark)}: windows that end later wait for more "
        "input",
    ]


# -- sources and sinks -----------------------------------------------------------------------------


def _checked(pipeline: Pipeline) -> Checked:
    injections = [node.injection for node in pipeline.graph().nodes if node.injection is not None]
    sinks = [use.sink for _, use in pipeline.sinks]
    return Checked(
        pipeline.name,
        [
            partition.absolute
            for injection in injections
            if injection.source.bounded
            for partition in injection.source.partitions()
            if isinstance(partition, FilePartition)
        ],
        {sink.name: bool(sink.key) for sink in sinks if isinstance(sink, Table)},
        [_directory(pipeline, sink) for sink in sinks if isinstance(sink, JsonLinesFiles)],
    )


def _report_deliveries(pipeline: Pipeline, reports: ReportPipe) -> None:
    """Let sinks outside the store report each bundle that they have taken."""
    for _, use in pipeline.sinks:
        sink = use.sink
        if not isinstance(sink, Table | JsonLinesFiles | Console | Discard):
            # An attribute of the object, whose class may be frozen.
            object.__setattr__(sink, "deliver", _reporting(sink, reports))


def _reporting(sink: BundleSink, reports: ReportPipe) -> Callable[..., Any]:
    deliver = sink.deliver
    name = type(sink).__name__

    async def deliver_and_report(records: Sequence[Record[Any]], ctx: Any) -> None:
        await deliver(records, ctx)
        for record in records:
            reports.send(Delivered(name, as_raw(record.value)))

    return deliver_and_report


# -- the deploy ------------------------------------------------------------------------------------


def _directory(pipeline: Pipeline, sink: JsonLinesFiles) -> str:
    """The directory of the part files; a fork has its own (decision 86)."""
    is_own = pipeline.name != pipeline.name_in_code
    return str(sink.path / own_directory(pipeline.name) if is_own else sink.path)


def _deploy(pipeline: Pipeline, presence: Presence, reports: ReportPipe) -> None:
    """Report the changes, and wait for an answer where stored data changes.

    Code of a former generation is deployed again: the last change was undone.

    Raises:
        DeployRefused: a migration fails on a stored state.
        Exit: the code does not fit the stored data, or is not to be deployed.
    """
    found = planning.plan(pipeline, presence.url)
    lines = [line for line, _ in plan_lines(pipeline.name, found)]
    if found.is_refused:
        reports.send(PlannedDeploy(lines, "refused"))
        raise typer.Exit(DeployRefused.exit_code)
    goes_back = found.older is not None
    asks = planning.changes_data(found) or (goes_back and presence.directory is None)
    reports.send(PlannedDeploy(lines, "asks" if asks else "fits"))
    if asks and sys.stdin.buffer.readline() != DEPLOY:
        raise typer.Exit(0)
    if goes_back:
        deployment = planning.roll_back(pipeline, presence.url)
        line = f"pipeline {pipeline.name!r}: generation {deployment.generation} is deployed"
        reports.send(PlannedDeploy([line], "fits"))


def main() -> None:
    descriptor, text = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    options = msgspec.json.decode(text, type=VersionOptions)
    try:
        with reporting(debug=options.debug, places=PLACES):
            configure_log()
            run_version(options, ReportPipe(int(descriptor)))
    except typer.Exit as ended:
        sys.exit(ended.exit_code)


if __name__ == "__main__":
    main()
