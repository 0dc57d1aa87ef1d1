"""Dead letters that a store keeps: grouped, listed, shown, and read portion by portion.

The methods read on a connection of the caller's, in its snapshot.
"""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
from psycopg.rows import namedtuple_row

from millwheel.errors import UsageError
from millwheel.store.console.asking import EVERY_LETTER, LetterFilter, with_name
from millwheel.store.console.snapshot import iso_text
from millwheel.store.postgres.statements import Statements

FIRST_RECORDS = 3
"""Records that are read of those that wait in a parked key."""

SHOWN_CHARACTERS = 500
"""Characters that are read of the value of a record that waits."""


class DeadLetterEntry(msgspec.Struct, frozen=True):
    """A record, row or timer that the engine gave up on."""

    id: int
    computation: str
    stream: str
    key: Any
    value: str
    timestamp: str | None
    place: str
    error: str
    attempts: int
    given_up_at: str
    record_id: str | None
    parked: str | None = None
    """``failed`` (it stops the key), or ``waiting``."""
    traceback: str = ""

    def listed(self) -> dict[str, Any]:
        """All fields but the traceback, which lists leave out."""
        names = [name for name in self.__struct_fields__ if name != "traceback"]
        return {name: getattr(self, name) for name in names}


class DeadLetterKind(msgspec.Struct, frozen=True):
    """Dead letters of one computation with the same error, but for the numbers in it."""

    computation: str
    error: str
    letters: int
    keys: int
    oldest: int
    """Number of the oldest letter."""
    newest_at: str


class LettersOfKey(msgspec.Struct, frozen=True):
    """Dead letters of one key of a computation."""

    computation: str
    key: Any
    """None: rows of sources that could not be read."""
    letters: int
    waiting: int
    """Number of those that only wait in the parked key."""
    oldest: int
    """Number of the oldest letter."""
    newest: int
    """Number of the newest letter."""
    error: str
    """Error of the newest letter."""
    newest_at: str


class LetterGroups(msgspec.Struct, frozen=True):
    """The largest groups of dead letters."""

    kinds: list[DeadLetterKind]
    """Groups by error; empty if they were grouped by key."""
    keys: list[LettersOfKey]
    """Groups by key; empty if they were grouped by error."""
    groups: int
    """Number of all groups, also of those that are left out."""
    letters: int
    """Number of letters in all groups."""


class WaitingRecord(msgspec.Struct, frozen=True):
    """A record or timer that waits in a parked key."""

    id: int
    """Number of its dead letter."""
    stream: str
    value: str


class ParkedKeyEntry(msgspec.Struct, frozen=True):
    """A key that stands still since a record failed."""

    computation: str
    key: Any
    since: str
    """Time at which the first of its records was stored."""
    waiting: int
    """Number of records and timers that wait behind the one that failed."""
    oldest: str | None
    """Least event time of its records and timers."""
    failed: int | None
    """Number of the dead letter that stops it; None: the waiting records are being processed."""
    error: str | None
    """Error of the dead letter that stops it."""
    attempts: int | None
    first_records: list[WaitingRecord]
    """At most `FIRST_RECORDS` of the records that wait, in their order."""


class ParkedKeyList(msgspec.Struct, frozen=True):
    keys: list[ParkedKeyEntry]
    """Those with the most waiting records first."""
    total: int
    """Number of all parked keys that match, also of those that are left out."""
    waiting: int
    """Number of records and timers that wait in all of them."""


class KeptLetters:
    """The dead letters of one pipeline; made by `Inspection.letters`.

    A filter that names an unknown computation is a `UsageError`.
    """

    def __init__(self, connection: psycopg.Connection[Any], pipeline: str) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._statements = Statements(pipeline)

    def newest(
        self,
        limit: int | None,
        letters: LetterFilter = EVERY_LETTER,
        *,
        characters: int | None = None,
    ) -> list[DeadLetterEntry]:
        """The newest letters, newest first, without their tracebacks.

        Args:
            characters: most characters of each value and error; None: all.
        """
        found = self._filtered("list_dead_letters", letters, limit=limit, characters=characters)
        return [_dead_letter(row) for row in found]

    def portion(
        self, limit: int, letters: LetterFilter, *, most_bytes: int
    ) -> list[DeadLetterEntry]:
        """The oldest letters after `letters.after`, oldest first, without their tracebacks.

        Args:
            most_bytes: no further letter follows once the values have so many.
        """
        found = self._filtered(
            "portion_of_dead_letters", letters, limit=limit, most_bytes=most_bytes
        )
        return [_dead_letter(row) for row in found]

    def newest_number(self) -> int:
        """The number of the newest letter; 0: there is none."""
        ((number,),) = self._rows("newest_dead_letter")
        return number or 0

    def one(self, number: int) -> DeadLetterEntry:
        """A letter with its traceback; `UsageError` if there is none with this number."""
        rows = self._rows("show_dead_letter", id=number)
        if not rows:
            raise UsageError(f"pipeline {self._pipeline!r} has no dead letter {number}")
        return _dead_letter(rows[0])

    def by_error(
        self, letters: LetterFilter = EVERY_LETTER, limit: int | None = None
    ) -> LetterGroups:
        """The most frequent errors first."""
        rows = self._filtered("group_dead_letters", letters, limit=limit)
        kinds = [DeadLetterKind(*row[:-2]) for row in rows]
        return LetterGroups(kinds, [], *_totals(rows))

    def by_key(self, letters: LetterFilter, limit: int | None = None) -> LetterGroups:
        """The keys with the most letters first."""
        rows = self._filtered("group_letters_by_key", letters, limit=limit)
        keys = [
            LettersOfKey(name, _decoded(key), *rest) for name, key, *rest in (r[:-2] for r in rows)
        ]
        return LetterGroups([], keys, *_totals(rows))

    def parked(self, letters: LetterFilter, limit: int) -> ParkedKeyList:
        """Parked keys of a computation, of a key, or with a part of the error that stops them."""
        rows = self._filtered(
            "list_parked_keys",
            letters,
            limit=limit,
            records=FIRST_RECORDS,
            characters=SHOWN_CHARACTERS,
        )
        keys = [
            ParkedKeyEntry(
                row.name,
                _decoded(row.key),
                iso_text(row.since) or "",
                row.waiting,
                iso_text(row.oldest),
                row.failed,
                row.error,
                row.attempts,
                msgspec.json.decode(row.first_records or "[]", type=list[WaitingRecord]),
            )
            for row in rows
        ]
        return ParkedKeyList(keys, *_totals(rows))

    def _filtered(self, statement: str, letters: LetterFilter, **params: Any) -> list[Any]:
        letters = with_name(self._connection, self._pipeline, letters)
        return self._rows(statement, **letters._asdict(), **params)

    def _rows(self, statement: str, **params: Any) -> list[Any]:
        views = {"dead_letters": "dead_letters", "micros_to_time": "micros_to_time"}
        text = self._statements.get(statement, **views)
        with self._connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(text, params or None).fetchall()


def _totals(rows: list[Any]) -> tuple[int, int]:
    """The two numbers that stand in each row."""
    return (rows[0][-2], rows[0][-1]) if rows else (0, 0)


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _dead_letter(row: Any) -> DeadLetterEntry:
    (
        id_,
        computation,
        stream,
        key,
        value,
        timestamp,
        place,
        error,
        attempts,
        at,
        record_id,
        *rest,
    ) = row
    return DeadLetterEntry(
        id_, computation, stream, _decoded(key), value, iso_text(timestamp), place, error, attempts,
        iso_text(at) or "", record_id, *rest,
    )  # fmt: skip
