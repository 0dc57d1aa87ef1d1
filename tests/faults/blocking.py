"""Pipelines with code that blocks the event loop, or does very much for one record."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import (
    Computation,
    Context,
    JsonLines,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)

INPUT = Path(os.environ.get("BLOCKING_INPUT", "input"))
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
NAP_SECONDS = 4.5
TIMERS = 300_000
KEYS = 20


class Task(msgspec.Struct):
    name: str
    number: int
    what: str = ""


class Seen(msgspec.Struct):
    records: int = 0
    timers: int = 0


class Done(msgspec.Struct):
    name: str
    records: int
    timers: int


TASKS = Stream("tasks", Task)
DONE = Stream("done", Done)


class Work(Computation[Task, Seen]):
    """Naps in a call that blocks, sets very many timers, or blocks until there is a file
    `woken`."""

    writes = (DONE,)

    async def process_record(self, record: Record[Task], ctx: Context[Seen]) -> None:
        what = record.value.what
        if what == "nap":
            time.sleep(NAP_SECONDS)  # noqa: ASYNC251
        elif what == "crowd":
            for number in range(TIMERS):
                ctx.set_timer(BEGIN + timedelta(hours=1, seconds=number), tag=str(number))
        elif what == "stuck":
            while not (INPUT / "woken").exists():
                time.sleep(0.05)  # noqa: ASYNC251
        ctx.state.records += 1
        ctx.produce(DONE, Done(record.value.name, ctx.state.records, ctx.state.timers))

    async def process_timer(self, timer: Timer, ctx: Context[Seen]) -> None:
        ctx.state.timers += 1


def build(name: str, settings: Settings) -> Pipeline:
    made = Pipeline(name, settings=settings)
    made.inject(
        TASKS,
        JsonLines(INPUT / "tasks.jsonl", follow=True),
        timestamp=lambda task: BEGIN + timedelta(milliseconds=task.number),
    )
    made.add(Work(), TASKS.by(lambda task: task.name), on_error="dead_letter")
    made.sink(DONE, Table("results", Done, key=("name",)))
    return made


blocking = build("blocking", Settings(intervals=4, lease_seconds=3.0))
patient = build("patient", Settings(intervals=4))
limited = build("limited", Settings(intervals=4, lease_seconds=3.0, block_limit_seconds=4.0))


def append(directory: Path, tasks: list[Task]) -> None:
    with (directory / "tasks.jsonl").open("ab") as file:
        file.write(b"".join(msgspec.json.encode(task) + b"\n" for task in tasks))
