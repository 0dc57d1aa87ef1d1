"""Show Spark's progress: a bar per running stage on a terminal, otherwise log lines.

A separate thread polls Spark's status tracker, because the main thread is inside the job's
function.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2
LINE_SECONDS = 10.0

log = structlog.get_logger("millwheel.spark")


@dataclass(frozen=True)
class StageProgress:
    id: int
    name: str
    tasks: int
    done: int


class _Display(Protocol):
    def show(self, stages: list[StageProgress]) -> None: ...


@contextmanager
def watching(spark: SparkSession, console: Console | None = None) -> Iterator[None]:
    console = console or Console(stderr=True)
    over = threading.Event()
    with _display(console) as display:
        thread = threading.Thread(
            target=_poll, args=(spark, display, over), name="spark-progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextmanager
def _display(console: Console) -> Iterator[_Display]:
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("spark {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        Elapsed(),
    )
    # The job's output appears above the bar, unless it goes to a file or a pipe.
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        yield _Bars(progress)


def _poll(spark: SparkSession, display: _Display, over: threading.Event) -> None:
    from py4j.protocol import Py4JError

    tracker = spark.sparkContext.statusTracker()
    try:
        while not over.wait(POLL_SECONDS):
            infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            display.show(
                [
                    StageProgress(info.stageId, info.name, info.numTasks, info.numCompletedTasks)
                    for info in infos
                    if info is not None
                ]
            )
        display.show([])
    except (Py4JError, OSError) as error:
        # The JVM is gone; the caller that waits for its answer gets an error.
        log.debug("no more progress from spark", error=type(error).__name__)


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[int, TaskID] = {}

    def show(self, stages: list[StageProgress]) -> None:
        for stage in stages:
            if stage.id not in self._bars:
                bar = self._progress.add_task(f"stage {stage.id}", total=stage.tasks)
                self._bars[stage.id] = bar
            self._progress.update(self._bars[stage.id], completed=stage.done)
        for gone in self._bars.keys() - {stage.id for stage in stages}:
            self._progress.remove_task(self._bars.pop(gone))


class _Lines:
    """Every `LINE_SECONDS`, and at the stage's end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}
        self._logged: dict[int, float] = {}

    def show(self, stages: list[StageProgress]) -> None:
        now = self._clock()
        for stage in stages:
            since = self._since.setdefault(stage.id, now)
            if now - self._logged.get(stage.id, since) >= LINE_SECONDS:
                self._logged[stage.id] = now
                log.info(
                    "spark stage runs",
                    stage=stage.id,
                    of=stage.name,
                    tasks=stage.tasks,
                    done=stage.done,
                    seconds=round(now - since, 1),
                )
        for gone in self._since.keys() - {stage.id for stage in stages}:
            seconds = round(now - self._since.pop(gone), 1)
            if self._logged.pop(gone, None) is not None:
                log.info("spark stage done", stage=gone, seconds=seconds)
