"""``millwheel run``: a pipeline in this process, on a store that is there or made for it."""

from __future__ import annotations

import sys

import structlog
import typer

from millwheel.cli.display import moment, showing
from millwheel.cli.output import print_json
from millwheel.pipeline import Pipeline
from millwheel.services import loop
from millwheel.services.interruption import Interruption
from millwheel.services.run import Run, Summary
from millwheel.store.address import StoreAddress
from millwheel.store.inspection import time_text
from millwheel.store.migrate import require_version
from millwheel.store.presence import Presence, present


def run(
    pipeline: Pipeline, store: str | None, *, keep_open: bool, as_json: bool, inject_copies: int
) -> None:
    """Run the pipeline until its input is processed; tell how it went."""
    address = StoreAddress.parse(store)
    with present(address, create=True) as presence:
        require_version(presence.url, pipeline.name, migrate_now=address.embedded)
        summary, interruption = loop.run(
            _run(pipeline, presence, close_at_end=not keep_open, inject_copies=inject_copies)
        )
    if as_json:
        print_json(_as_json(summary, interruption))
    else:
        for line in _as_text(summary, keep_open=keep_open):
            typer.echo(line)
    if presence.left_running:
        structlog.get_logger().info(
            "server_left_running",
            store=str(address),
            to_stop_it=f"millwheel stop {address.directory}",
        )
    if summary.outcome == "stopped":
        sys.stdout.flush()
        raise typer.Exit(interruption.exit_code)


async def _run(
    pipeline: Pipeline, presence: Presence, *, close_at_end: bool, inject_copies: int
) -> tuple[Summary, Interruption]:
    with (
        Interruption() as interruption,
        showing(pipeline.name, pipeline.settings.progress_seconds) as (show, show_seconds),
    ):
        run = Run(
            pipeline,
            presence.url,
            close_at_end=close_at_end,
            inject_copies=inject_copies,
            show=show,
            show_seconds=show_seconds,
            tend=presence.renew,
        )
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
            return [f"{summary.pipeline}: nothing new, all input so far is processed"]
        return [f"{summary.pipeline}: complete, nothing to do"]
    outcome = "all input so far is processed" if keep_open else "complete"
    if summary.outcome == "stopped":
        outcome = "stopped; run again to go on"
    figures = {
        "records processed": f"{summary.processed:,} ({summary.per_second:,.0f}/s)",
        "rows read": f"{summary.read:,}",
        "duplicates dropped": f"{summary.counters.get('duplicates_dropped', 0):,}",
        "dead letters": f"{_dead_letters(summary):,}",
    }
    known = {"processed", "duplicates_dropped", "bloom_maybes", "dead_letters", "bad_rows"}
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
