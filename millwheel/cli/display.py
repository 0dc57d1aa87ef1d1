"""Show the progress of a run: a bar on a terminal, otherwise log lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog
from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from millwheel.core.model import MAX_TIME, MIN_TIME, from_micros
from millwheel.pipeline import Pipeline
from millwheel.services.hosting import RunProgress

BAR_SECONDS = 0.25


class _Bar(Bar):
    figures = "starting"

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(f"  {self.figures}", no_wrap=True, overflow="ellipsis")


@contextmanager
def showing(
    name: str, line_seconds: float, console: Console | None = None
) -> Iterator[tuple[Callable[[RunProgress], None], float]]:
    """Yield a function that shows a run's progress, and the seconds between two calls of it."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _log, line_seconds
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[share]}"),
        TimeElapsedColumn(),
    )
    # The output of a console sink appears above the bar, unless it goes to a file or a pipe.
    with _Bar(
        *columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        task = bar.add_task(name, total=1.0, share=_share(0.0))

        def show(progress: RunProgress) -> None:
            bar.figures = _figures(progress)
            if progress.share is None:
                bar.update(task, total=None, share="")
            else:
                bar.update(task, completed=progress.share, share=_share(progress.share))

        yield show, BAR_SECONDS


def log_boundedness(pipeline: Pipeline, *, keep_open: bool) -> None:
    """Log which inputs end, and the meaning for event time."""
    injections = [node for node in pipeline.graph().nodes if node.injection is not None]
    ends = [node.name for node in injections if node.injection and node.injection.source.bounded]
    log = structlog.get_logger()
    if len(ends) < len(injections):
        means = "the pipeline runs until it is stopped (Ctrl-C or SIGTERM)"
        if ends and not keep_open:
            means += (
                "; after a bounded input has been read, event time no longer waits for it, and "
                "rows appended to it later are refused"
            )
        log.info(
            "input_unbounded",
            without_end=[node.name for node in injections if node.name not in ends],
            with_end=ends,
            what_it_means=means,
        )
    elif not keep_open:
        log.info(
            "event_time_will_end",
            with_end=ends,
            what_it_means="after the last row all windows close; rows appended later are refused",
            what_to_do="if the input continues: follow=True on the source, or --keep-open",
        )


def _share(share: float) -> str:
    return f"{share:4.0%} of the input"


def _figures(progress: RunProgress) -> str:
    backlog = "" if progress.backlog is None else f" · backlog {progress.backlog:,}"
    return (
        f"{progress.processed:,} records · {progress.per_second:,.0f}/s · "
        f"watermark {moment(progress.low_watermark)}{backlog}"
    )


def _log(progress: RunProgress) -> None:
    structlog.get_logger().info(
        "progress",
        processed=progress.processed,
        read=progress.read,
        records_per_second=round(progress.per_second),
        low_watermark=moment(progress.low_watermark),
        backlog=progress.backlog,
        share=None if progress.share is None else round(progress.share, 4),
        seconds=round(progress.seconds, 1),
    )


def moment(micros: int) -> str:
    if micros >= MAX_TIME:
        return "end of time"
    if micros <= MIN_TIME:
        return "not known yet"
    return from_micros(micros).strftime("%Y-%m-%d %H:%M:%S")
