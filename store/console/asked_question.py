"""A statement of a browser's user: `select` with limits on the size of everything.

The server shortens values, rows, plans and errors before it sends them: a single value, and even an
error that quotes one, may have a gigabyte, and libpq keeps each message in memory. So the statement
runs inside blocks of PL/pgSQL (``store/sql/questions``), which open it as a cursor, and give
its rows as JSON in a setting.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import errors

from millwheel.errors import UsageError
from millwheel.store.console.selection import (
    refusal,
    refuse_to_run_as_superuser,
    typed_columns_of,
)
from millwheel.store.console.snapshot import choose, list_pipelines, reading, translated
from millwheel.store.console.views import VIEWS
from millwheel.store.postgres.statements import TABLES, text_of

NUMBERS = frozenset({20, 21, 23, 700, 701, 1700})
"""Types of Postgres: integers, floats, numeric."""

TIMES = frozenset({1082, 1114, 1184})
"""Types of Postgres: date, and timestamp with and without a zone."""

OF_THE_MACHINE = re.compile(
    r"\b(pg_read_\w*file|pg_ls_\w+|pg_stat_file|pg_current_logfile|pg_hba_file_rules|pg_file_\w+"
    r"|pg_ident_file_mappings|pg_show_all_file_settings)\b",
    re.IGNORECASE,
)
"""Functions that read files of the server, as far as the login may call them."""

EXAMPLES = (
    ("How far is each step?", "example_watermarks"),
    ("What holds the low watermarks?", "example_holders"),
    ("Where do sent records wait?", "example_waiting"),
    ("When did intervals change their owners? (with a chart)", "example_placement"),
    ("When did records fail? (with a chart)", "example_failures"),
)
"""Statements to begin with, and their files."""


class AnswerLimits(NamedTuple):
    seconds: float
    """Of all steps together."""
    characters: int
    """Of a value; a longer one has one more, so that the caller sees it."""


class AnsweredColumn(msgspec.Struct, frozen=True):
    name: str
    is_number: bool
    is_time: bool


class DescribedColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    comment: str


class ReadableView(msgspec.Struct, frozen=True):
    """A view or a table of a pipeline, for its readers."""

    name: str
    comment: str
    columns: list[DescribedColumn]


class Question:
    """A statement that Postgres has understood. Made by `ask`."""

    def __init__(
        self, connection: psycopg.Connection[Any], text: str, limits: AnswerLimits
    ) -> None:
        self._connection = connection
        self._text = text.strip().rstrip(";")
        self._characters = limits.characters
        self._end = time.monotonic() + limits.seconds
        self.columns = [
            AnsweredColumn(name, oid in NUMBERS, oid in TIMES)
            for name, oid in typed_columns_of(connection, self._text)
        ]

    def plan(self) -> str:
        """As EXPLAIN shows it; the statement does not run."""
        return self._begin("plan_question")

    def rows(self, most: int, most_bytes: int) -> Iterator[list[list[str | None]]]:
        """The rows in chunks of at most `most`, or fewer if they are long, to the end."""
        self._begin("open_question")
        while True:
            text = self._step("read_question", rows=most, bytes_=most_bytes)
            chunk = msgspec.json.decode(text, type=list[list[str | None]])
            if not chunk:
                return
            yield chunk

    def _begin(self, name: str) -> str:
        """A step that parses the statement again, as a part of another one."""
        try:
            return self._step(name)
        except errors.SyntaxError as error:  # by itself it was right
            raise UsageError(
                "this cannot be read as a table: give one SELECT, WITH, VALUES or TABLE without a "
                "semicolon in it. The page shows the plan by itself; SHOW and EXPLAIN are for "
                "`millwheel sql`"
            ) from error

    def _step(self, name: str, rows: int = 0, bytes_: int = 0) -> str:
        """Run a block, and return its result."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise errors.QueryCanceled
        asked = {
            "statement": self._text,
            "columns": len(self.columns),
            "characters": self._characters + 1,
            "rows": rows,
            "bytes": bytes_,
            "milliseconds": max(1, int(left * 1000)),
        }
        self._connection.execute(text_of("set_question"), asked)
        self._connection.execute(text_of(name))
        row = self._connection.execute(text_of("question_answer")).fetchone()
        assert row is not None
        return str(row[0] or "")


@contextlib.contextmanager
def ask(url: str, text: str, pipeline: str, limits: AnswerLimits) -> Iterator[Question]:
    """Run one statement of a user; it can change nothing. Nothing is read after the block.

    Raises:
        UsageError: Postgres refuses the statement, or it took too long.
    """
    if (found := OF_THE_MACHINE.search(text)) is not None:
        raise UsageError(f"{found[1]} reads files of the server: use psql, as a role that may")
    with reading(url, limits.seconds, (pipeline, "public")) as connection:
        with translated():
            choose(list_pipelines(connection), pipeline)
        refuse_to_run_as_superuser(connection)
        try:
            connection.execute(text_of("begin_select"))
            yield Question(connection, text, limits)
        except errors.QueryCanceled as error:
            raise UsageError(
                f"the statement was stopped after {limits.seconds:g} s: ask for less, or run it "
                "with `millwheel sql`, which may take longer"
            ) from error
        except psycopg.Error as error:
            raise refusal(connection, error, []) from error


def rights_beyond_reading(connection: psycopg.Connection[Any], pipelines: list[str]) -> str:
    """A right of this login that a reader of the pipelines does not have, in words; empty:
    none."""
    statement = text_of("rights_beyond_reading")
    row = connection.execute(statement, {"pipelines": pipelines}).fetchone()
    return "" if row is None else str(row[0])


def readable_views(connection: psycopg.Connection[Any], pipeline: str) -> list[ReadableView]:
    asked = {"schema": pipeline, "tables": [*TABLES, "alembic_version"]}
    rows = connection.execute(text_of("described_views"), asked).fetchall()
    return [
        ReadableView(name, comment, msgspec.json.decode(columns, type=list[DescribedColumn]))
        for name, comment, columns in rows
    ]


def examples() -> list[tuple[str, str]]:
    """Questions, and the statements that answer them."""
    names = {view: view for view in VIEWS}
    return [(question, text_of(file).strip().format(**names)) for question, file in EXAMPLES]
