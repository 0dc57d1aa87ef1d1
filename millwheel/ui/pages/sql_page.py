"""*Ask it.* One statement that reads, its answer as a table and a chart, or as a file of CSV.

The statement stands in the address, so it can be shared. A link of another site does not run it: it
shows the statement, and a button. Over plain HTTP, where browsers send the same for a typed
address, this holds for both.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import IO, Literal

import msgspec

from millwheel.core.csv_line import csv_line
from millwheel.errors import UsageError
from millwheel.store.console.asked_question import (
    AnsweredColumn,
    AnswerLimits,
    ReadableView,
    ask,
    examples,
)
from millwheel.store.console.inspection import Inspection
from millwheel.ui.page import Download, Page, Visit

SECONDS = 10.0
"""Longest run of a statement, with its plan."""

ROWS = 1_000
"""On a page."""

CHARACTERS = 4_000
"""Of a value on a page."""

PAGE_BYTES = 2 << 20
"""Of the values on a page."""

FILE_ROWS = 100_000
FILE_BYTES = 64 << 20
FILE_CHARACTERS = 1 << 20
"""Of a file, and of a value in it."""

CHUNK_ROWS = 1_000
CHUNK_BYTES = 1 << 20
"""Of rows that are read at a time for a file."""

AT_A_TIME = 4
"""Most statements that run at a time, so that the pages of others do not wait for them."""

WAIT_SECONDS = 2.0
"""Longest wait for another statement to end."""

READERS_LOGIN = (
    "Start the pages with a reader's login in --store (`millwheel migrate PIPELINE --roles` makes "
    "the role to grant it), or give this viewer the right to change things"
)

RUNNING = threading.BoundedSemaphore(AT_A_TIME)


class SqlFilters(msgspec.Struct, frozen=True):
    statement: str | None = None
    """One statement that gives rows."""


class Example(msgspec.Struct, frozen=True):
    question: str
    statement: str


class Readable(msgspec.Struct, frozen=True):
    """Names that a statement may use, and examples."""

    views: list[ReadableView]
    examples: list[Example]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    state: Literal["none", "off", "shown", "failed", "done"]
    """none: nothing was asked; off: this viewer may not ask; shown: not run, since another site may
    have led here."""
    words: str = ""
    """Why it is off, or has failed."""
    columns: list[AnsweredColumn] = []
    rows: list[list[str | None]] = []
    """Values as Postgres writes them, in UTC; longer ones are shortened."""
    is_cut: bool = False
    """There are more rows."""
    shortened: int = 0
    """Values that are longer than shown."""
    seconds: float = 0.0
    """Of the plan and the rows."""
    plan: str = ""


def look(inspection: Inspection, pipeline: str, filters: SqlFilters) -> Readable:
    inspection.require_current(pipeline)
    return Readable(
        inspection.readable_views(pipeline),
        [Example(question, statement) for question, statement in examples()],
    )


def answer(visit: Visit, filters: SqlFilters) -> Answer:
    if why := _why_off(visit):
        return Answer(state="off", words=why)
    if filters.statement is None:
        return Answer(state="none")
    if visit.may_be_led_here:
        return Answer(state="shown")
    try:
        return _answered(visit, filters.statement)
    except UsageError as error:
        return Answer(state="failed", words=str(error))


def _why_off(visit: Visit) -> str:
    """Why this viewer may not ask, in words; empty: he may."""
    if visit.redact:
        return "These pages hide keys and values (--redact), and a statement could show them."
    if visit.may_mend and visit.only_pipeline is None:
        return ""
    with visit.store.inspecting() as inspection:
        beyond = "" if visit.may_mend else inspection.rights_beyond_reading()
        reads_others = inspection.pipelines() != [visit.pipeline]
    if beyond:
        return (
            f"The login with which these pages look has more rights than a reader: {beyond}. "
            f"A statement would run with them. {READERS_LOGIN}."
        )
    if visit.only_pipeline is not None and reads_others:
        return (
            f"These pages show {visit.only_pipeline} only, and their login may also read other "
            "pipelines. Start them with a login that is a reader of this one only."
        )
    return ""


def _answered(visit: Visit, statement: str) -> Answer:
    url = visit.store.url()
    rows: list[list[str | None]] = []
    size, is_cut = 0, False
    with _turn(), ask(url, statement, visit.pipeline, AnswerLimits(SECONDS, CHARACTERS)) as asked:
        began = time.monotonic()
        plan = asked.plan()
        for row in chain.from_iterable(asked.rows(ROWS + 1, PAGE_BYTES)):
            if is_cut := len(rows) == ROWS or size >= PAGE_BYTES:
                break
            rows.append(row)
            size += sum(len(value or "") for value in row)
    return Answer(
        state="done",
        columns=asked.columns,
        rows=rows,
        is_cut=is_cut,
        shortened=sum(len(value or "") > CHARACTERS for row in rows for value in row),
        seconds=time.monotonic() - began,
        plan=plan,
    )


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    if not RUNNING.acquire(timeout=WAIT_SECONDS):
        raise UsageError(f"{AT_A_TIME} statements run already: try again in a few seconds")
    try:
        yield
    finally:
        RUNNING.release()


# -- a file ---------------------------------------------------------------------------------------


def download(visit: Visit, filters: SqlFilters) -> Iterator[bytes]:
    """The answer as CSV. It is read to its end first: a slow client would hold a
    snapshot, and locks of the store.

    `UsageError` if the viewer may not ask, the statement is refused, or its answer is too large.
    """
    if why := _why_off(visit):
        raise UsageError(why)
    if filters.statement is None:
        raise UsageError("give a statement: sql.csv?statement=SELECT...")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - `_parts` closes it
    try:
        _write(visit, filters.statement, file)
    except BaseException:
        file.close()
        raise
    return _parts(file)


def _write(visit: Visit, statement: str, file: IO[bytes]) -> None:
    url = visit.store.url()
    with (
        _turn(),
        ask(url, statement, visit.pipeline, AnswerLimits(SECONDS, FILE_CHARACTERS)) as asked,
    ):
        file.write(csv_line([column.name for column in asked.columns]).encode())
        count = 0
        for chunk in asked.rows(CHUNK_ROWS, CHUNK_BYTES):
            count += len(chunk)
            if any(len(value or "") > FILE_CHARACTERS for row in chunk for value in row):
                raise UsageError(_too_large(f"a value of more than {FILE_CHARACTERS:,} characters"))
            file.writelines(csv_line(row).encode() for row in chunk)
            if count > FILE_ROWS or file.tell() > FILE_BYTES:
                raise UsageError(
                    _too_large(f"more than {FILE_ROWS:,} rows, or {FILE_BYTES >> 20} MB")
                )


def _too_large(part: str) -> str:
    return (
        f"the answer has {part}, too much for a file from here: use the command "
        "`millwheel sql STATEMENT --format csv`"
    )


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while part := file.read(1 << 16):
            yield part


SQL: Page[SqlFilters] = Page(
    "sql",
    "SQL",
    "Ask it",
    "sql.html",
    look,
    SqlFilters,
    live=False,
    ask=answer,
    download=Download("csv", "text/csv", download),
)
