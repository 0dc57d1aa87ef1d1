"""The errors with which workers of a pipeline have ended or did not start."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from millwheel.core.quantities import duration
from millwheel.errors import DeployRefused
from millwheel.store.console.snapshot import iso_text
from millwheel.store.postgres.statements import Statements

LOOKED_AT = 200
"""Newest ends that are counted."""

RECENT_SECONDS = 600.0
"""An end matters for so long while other workers run."""

STANDS_SECONDS = 60.0
"""A worker that has started since and runs for so long shows that the cause is gone."""


class EndOfWorkers(msgspec.Struct, frozen=True):
    """An error that has ended workers, once or several times with the same words."""

    at: str
    """The last time."""
    first_at: str
    times: int
    """How often among the last 200 ends of workers."""
    age_seconds: float
    """Since the last time."""
    worker: str
    host: str
    pid: int
    kind: str
    """Class of the error."""
    error: str
    step: str | None
    """Of the record, timer or row at fault; None: no single one is."""
    item: str | None
    """Its name, or the number of the row."""
    key: str | None
    """Of a record or timer, as JSON."""
    partition: str | None
    """Of a row."""


def ends_of_workers(
    connection: psycopg.Connection[Any], pipeline: str, limit: int
) -> list[EndOfWorkers]:
    """The newest first."""
    text = Statements(pipeline).get("newest_worker_ends", worker_ends="worker_ends")
    rows = connection.execute(text, {"looked_at": LOOKED_AT, "limit": limit}).fetchall()
    return [
        EndOfWorkers(iso_text(at) or "", iso_text(first) or "", times, age, worker,
                     host.split(" ", 1)[0], *rest)
        for at, first, times, age, worker, host, *rest in rows
    ]  # fmt: skip


def in_words(end: EndOfWorkers) -> str:
    """The event and its time, without the error's text, which may quote keys and values."""
    ago, again = duration(end.age_seconds), f", {end.times:,} times so far" if end.times > 1 else ""
    if end.kind == DeployRefused.__name__:
        return f"the deploy of a worker on {end.host} was refused {ago} ago{again}"
    return f"a worker on {end.host} ended with {end.kind} {ago} ago{again}"


def lasting_ends(
    ends: list[EndOfWorkers], uptimes: list[float], *, is_complete: bool
) -> list[EndOfWorkers]:
    """Those that may still be a trouble, by the seconds for which workers have run."""
    if is_complete:
        ends = [one for one in ends if one.kind == DeployRefused.__name__]
    open_ends = [
        one
        for one in ends
        if not any(STANDS_SECONDS < uptime < one.age_seconds for uptime in uptimes)
    ]
    recent = [one for one in open_ends if one.age_seconds < RECENT_SECONDS]
    return recent if uptimes or is_complete else recent or open_ends[:1]
