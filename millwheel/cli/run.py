"""``millwheel run``: run a pipeline in this process or in several, creating the store if needed."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog
import typer

from millwheel.cli.display import log_boundedness, moment, showing
from millwheel.cli.output import print_json
from millwheel.core.clock import SystemClock
from millwheel.pipeline import Pipeline
from millwheel.services import loop
from millwheel.services.crew import Crew, CrewProgress, read_totals
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside
from millwheel.services.ingesting import IngestOptions, ingesting
from millwheel.services.interruption import Interruption
from millwheel.services.run import Outcome, Run, Summary
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import time_text
from millwheel.store.console.migrate import require_version
from millwheel.store.console.presence import Presence, present


def run(
    pipeline: Pipeline,
    store: str | None,
    *,
    keep_open: bool,
    accept_late: bool,
    as_json: bool,
    inject_copies: int,
    http: Endpoint | None = None,
    ingest: IngestOptions | None = None,
) -> None:
    """Run the pipeline until its input has ended and is processed, and print a summary."""
    address = StoreAddress.parse(store)
    with present(address, create=True) as presence:
        require_version(presence.url, pipeline.name, address=address, migrate_now=address.embedded)
        log_boundedness(pipeline, keep_open=keep_open)
        work = _run(
            pipeline,
            presence,
            keep_open=keep_open,
            accept_late=accept_late,
            inject_copies=inject_copies,
            http=http,
            ingest=ingest,
        )
        summary, interruption = loop.run(work)
    _print_summary(summary, interruption, presence, keep_open=keep_open, as_json=as_json)


def _print_summary(
    summary: Summary,
    interruption: Interruption,
    presence: Presence,
    *,
    keep_open: bool,
    as_json: bool,
) -> None:
    """Print a run's summary; after a signal, exit with the exit code of that signal."""
    if as_json:
        print_json(_as_json(summary, interruption))
    else:
        for line in _as_text(summary, keep_open=keep_open):
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


def run_crew(
    pipeline: Pipeline,
    target: str,
    store: str | None,
    workers: int,
    *,
    accept_late: bool,
    as_json: bool,
) -> None:
    """Run the pipeline in several processes until its input has ended, and print a summary."""
    address = StoreAddress.parse(store)
    with present(address, create=True) as presence:
        require_version(presence.url, pipeline.name, address=address, migrate_now=address.embedded)
        log_boundedness(pipeline, keep_open=False)
        options = ["--accept-late"] if accept_late else []
        summary, interruption = loop.run(_run_crew(pipeline, target, workers, presence, options))
    _print_summary(summary, interruption, presence, keep_open=False, as_json=as_json)


async def _run_crew(
    pipeline: Pipeline, target: str, workers: int, presence: Presence, options: list[str]
) -> tuple[Summary, Interruption]:
    clock = SystemClock()
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
            crew = Crew(target, store, workers, _relay, clock, options=options)
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
    """Relay a log line of a worker. Its progress events are dropped: the crew's covers them."""
    if isinstance(line, str):
        typer.echo(line, err=True)
    elif (event := line.pop("event", "")) != "progress":
        level = logging.getLevelNamesMapping().get(str(line.pop("level", "info")).upper(), 20)
        line.pop("timestamp", None)
        structlog.get_logger().log(level, event, **{**line, "process": worker})


async def _run(
    pipeline: Pipeline,
    presence: Presence,
    *,
    keep_open: bool,
    accept_late: bool,
    inject_copies: int,
    http: Endpoint | None,
    ingest: IngestOptions | None,
) -> tuple[Summary, Interruption]:
    with (
        Interruption() as interruption,
        showing(pipeline.name, pipeline.settings.progress_seconds) as (show, show_seconds),
    ):
        run = Run(
            pipeline,
            presence.url,
            keep_open=keep_open,
            accept_late=accept_late,
            inject_copies=inject_copies,
            http=http,
            beside=Beside(show, show_seconds, presence.renew),
        )
        async with ingesting(pipeline, presence.url, ingest):
            return await run.run(interruption.asked), interruption


def _as_json(summary: Summary, interruption: Interruption) -> dict[str, object]:
    stopped = summary.outcome == "stopped" and interruption.signal is not None
    return {
        "pipeline": summary.pipeline,
        "outcome": summary.outcome,
        "signal": interruption.signal.name if stopped and interruption.signal else None,
        "processed": summary.processed,
        "read": summary.read,
        "seconds": round(summary.seconds, 3),
        "records_per_second": round(summary.per_second, 1),
        "low_watermark": time_text(summary.low_watermark),
        "duplicates_dropped": summary.counters.get("duplicates_dropped", 0),
        "dead_letters": _dead_letters(summary),
        "counters": summary.counters,
    }


def _as_text(summary: Summary, *, keep_open: bool) -> list[str]:
    if summary.outcome == "nothing to do":
        if keep_open:
            return [f"{summary.pipeline}: no new input, all input so far is processed"]
        return [f"{summary.pipeline}: complete, nothing to do"]
    outcome = "all input so far is processed" if keep_open else "complete"
    if summary.outcome == "stopped":
        outcome = "stopped; run again to resume"
    figures = {
        "records processed": f"{summary.processed:,} ({summary.per_second:,.0f}/s)",
        **({} if summary.read is None else {"rows read": f"{summary.read:,}"}),
        "duplicates dropped": f"{summary.counters.get('duplicates_dropped', 0):,}",
        "dead letters": f"{_dead_letters(summary):,}",
    }
    known = {
        "processed",
        "records_out",
        "duplicates_dropped",
        "bloom_maybes",
        "dead_letters",
        "bad_rows",
    }
    for counter, total in summary.counters.items():
        if counter not in known:
            figures[counter.replace("_", " ")] = f"{total:,}"
    figures["low watermark"] = moment(summary.low_watermark)
    width = max(map(len, figures))
    return [
        f"{summary.pipeline}: {outcome} (this run: {summary.seconds:.1f} s)",
        *(f"  {name:{width}}  {value}" for name, value in figures.items()),
    ]


def _dead_letters(summary: Summary) -> int:
    return summary.counters.get("dead_letters", 0) + summary.counters.get("bad_rows", 0)
