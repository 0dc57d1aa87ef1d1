"""``millwheel reprocess``: new code over the input of a pipeline, beside it, to take its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from millwheel.core.model import MAX_TIME
from millwheel.inbox import Inbox
from millwheel.pipeline import Pipeline, copied
from millwheel.services.hosting import Beside
from millwheel.services.planning import plan
from millwheel.services.run import Run
from millwheel.sinks import Table
from millwheel.store.console.administration import transaction
from millwheel.store.console.live_workers import live_workers
from millwheel.store.copies.catching_up import CatchUp, CatchUpSpeed, catch_up
from millwheel.store.copies.successors import begins_that_are_gone, tables_of_readers
from millwheel.store.port.deploy import Plan
from millwheel.store.postgres.statements import Statements

LOOK_SECONDS = 0.5

Show = Callable[[CatchUp, CatchUpSpeed, int], None]
"""Shows how far a pipeline is, how fast, and the number of its workers."""


class ForeseenReprocessing(NamedTuple):
    plan: Plan | None
    """The changes between the code and the state that it would begin with; None: it begins with
    nothing."""
    unreadable: list[str]
    """Sources that cannot be read from their beginning, in words."""
    missing: list[str]
    """Names that readers use, for which the code has no table."""


def foresee_reprocessing(
    code: Pipeline, url: str, pipeline: str, savepoint: str | None
) -> ForeseenReprocessing:
    """Nothing is changed.

    Args:
        code: the new code.
        pipeline: the name of the former pipeline.
        savepoint: the schema with the state for its begin; None: it begins with nothing.
    """
    published = tables_of_readers(url, pipeline)
    missing = sorted(published[table] for table in {*published} - _tables(code))
    if savepoint is None:
        unreadable = [*_unreadable(code), *begins_that_are_gone(url, pipeline)]
        return ForeseenReprocessing(None, unreadable, missing)
    return ForeseenReprocessing(plan(copied(code, savepoint), url), [], missing)


def _tables(code: Pipeline) -> set[str]:
    return {
        use.sink.name
        for node in code.graph().nodes
        for uses in node.sinks.values()
        for use in uses
        if isinstance(use.sink, Table)
    }


def _unreadable(code: Pipeline) -> list[str]:
    found = []
    for node in code.graph().nodes:
        if node.injection is None:
            continue
        source = node.injection.source
        start = getattr(source, "start", "earliest")
        if isinstance(source, Inbox):
            found.append(f"{node.injected} (an Inbox: records that were read are deleted)")
        elif start != "earliest":
            found.append(f"{node.injected} ({source!r} begins at {start!r})")
    return found


def await_level(
    url: str, pipeline: str, name: str, show: Show, is_ended: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until a pipeline has caught up with another one, or it `is_ended`; returns whether it
    has."""
    speed = CatchUpSpeed()
    while True:
        with transaction(url) as connection:
            found = catch_up(connection, pipeline, name)
            workers = len(live_workers(connection, Statements(name)))
        speed.add(found)
        show(found, speed, workers)
        if found.is_complete or is_ended():
            return found.is_complete
        time.sleep(LOOK_SECONDS)


async def run_until_level(
    code: Pipeline, url: str, pipeline: str, stop: asyncio.Event, show: Show, beside: Beside
) -> bool:
    """Run code in this process until it has caught up with a pipeline, or `stop` is set; returns
    whether it has caught up."""
    with transaction(url) as connection:
        former = catch_up(connection, pipeline, code.name).former
    run = Run(code, url, keep_open=former != MAX_TIME, beside=beside)

    async def look() -> bool:
        is_level = await asyncio.to_thread(await_level, url, pipeline, code.name, show, stop.is_set)
        stop.set()
        return is_level

    looking = asyncio.create_task(look())
    try:
        await run.run(stop)
    finally:
        stop.set()
        is_level = await looking
    return is_level
