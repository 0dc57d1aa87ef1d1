"""Show the progress of a run: a line that is drawn over on a terminal, otherwise log lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from millwheel.cli.drawn_lines import drawing
from millwheel.cli.printing import shortened
from millwheel.cli.progress_line import RecentSpeed, moment, progress_line
from millwheel.cli.terminal import USUAL, in_charset, in_foreground, moves_cursor, styled, width_of
from millwheel.pipeline import Pipeline
from millwheel.services.hosting import RunProgress

DRAW_SECONDS = 0.25


@contextmanager
def showing(
    name: str, line_seconds: float
) -> Iterator[tuple[Callable[[RunProgress], None], float]]:
    """Yield a function that shows a run's progress, and the seconds between two calls of it."""
    stream = sys.stderr
    if not (moves_cursor(stream) and in_foreground(stream)):
        yield _log, line_seconds
        return
    recent = RecentSpeed()

    def style(text: str, kind: str) -> str:
        return styled(text, kind, err=True)

    with drawing(stream) as drawn:

        def show(progress: RunProgress) -> None:
            if not in_foreground(stream):  # stopped by Ctrl-Z, and continued behind a shell
                return
            width = width_of(stream) or USUAL.columns
            line = progress_line(name, progress, recent.of(progress), width, style)
            drawn.draw([in_charset(line, stream)])

        drawn.draw([shortened(f"{name} starting", (width_of(stream) or USUAL.columns) - 1)])
        yield show, DRAW_SECONDS


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


def _log(progress: RunProgress) -> None:
    structlog.get_logger().info(
        "progress",
        processed=progress.processed,
        read=progress.read,
        records_per_second=round(progress.per_second),
        low_watermark=moment(progress.low_watermark),
        lag_seconds=None if progress.lag_seconds is None else round(progress.lag_seconds, 1),
        backlog=progress.backlog,
        workers=progress.workers,
        share=None if progress.share is None else round(progress.share, 4),
        seconds=round(progress.seconds, 1),
    )
