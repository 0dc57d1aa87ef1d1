"""Requests of operators: to the owners of keys, and the log of all of them (decision 59).

A request is a row. The owner of its key carries it out in the key's turn and settles it in the
commit that has its effects, so it is done once, even if the operator's connection ends. Operations
on a whole pipeline (pause, drop a computation) are noted in the same table, in their own
transactions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from millwheel.core.codec import encode_key
from millwheel.core.model import Key
from millwheel.core.quantities import count_of
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError
from millwheel.store.console.request_log import RequestLog
from millwheel.store.console.step_names import name_of_step, refusing_steps, stored_nodes
from millwheel.store.postgres.statements import Statements


class Actor(NamedTuple):
    name: str
    reason: str


UNNAMED = Actor("", "")

ITEM = re.compile(r"record:[0-9a-f]{32}|timer:\[.*\]")
"""Names of records and timers, as errors of computations have them."""

SHOWN_PARTITIONS = 20

UNKNOWN_TO_JSONB = "\\u0000"
"""JSON may have it, and jsonb refuses it."""


class LetterFilter(NamedTuple):
    """Selects dead letters; a field that is None selects all."""

    ids: list[int] | None = None
    computation: str | None = None
    key: str | None = None
    """Key as JSON."""
    error: str | None = None
    """A part of the error's text, in any case."""
    waiting: bool = False
    """Includes records that only wait in parked keys."""
    after: int | None = None
    """Only letters with greater numbers."""
    up_to: int | None = None
    """No letters with greater numbers: those that came later."""

    @property
    def selects(self) -> bool:
        """Whether it leaves out any of the letters that have failed, however old they are."""
        return any(part is not None for part in (self.ids, self.computation, self.key, self.error))

    def missing(self, found: Sequence[int]) -> list[int]:
        """The numbers that it names and that are not among those found."""
        return sorted({*(self.ids or [])} - {*found})


EVERY_LETTER = LetterFilter()


class MatchedLetters(NamedTuple):
    ids: list[int]
    without_key: int
    """Rows of sources that could not be read have no key, so no owner."""
    removed: int
    """No code processes letters of removed computations."""
    retried: int
    behind: dict[str, int]
    """Letters with timestamps before the low watermark, by computation."""
    waiting: int
    askable: int
    """Letters that an owner can be asked to process again."""
    refused: int = 0
    """Letters whose owners refuse all requests (`refusing_steps`)."""

    def number(self) -> str:
        number = len(self.ids)
        return f"{count_of(number, 'dead letter')} match{'es' if number == 1 else ''}"

    def of_a_retry(self) -> Iterator[str]:
        """Which letters stay if these are retried, which records follow, and which are late."""
        if self.without_key:
            yield (
                f"rows of a source that could not be read: {self.without_key:,} of them; no key "
                "owns them. Mend the rows, and send them again"
            )
        if self.removed:
            yield (
                f"of computations that were removed: {self.removed:,} of them; no code processes "
                "them. Export them, or discard them"
            )
        if self.refused:
            yield (
                f"of computations with weak, tree or bundle productions: {self.refused:,} of them; "
                "their owners refuse to retry. Send these records again, and discard the letters"
            )
        if self.retried:
            yield f"being retried already: {self.retried:,} of them"
        if self.waiting:
            one = self.waiting == 1
            follow = "follows by itself" if one else "follow by themselves"
            yield (
                f"{count_of(self.waiting, 'record')} wait{'s' if one else ''} behind them in "
                f"parked keys, and {follow}"
            )
        for computation, count in sorted(self.behind.items()):
            yield (
                f"behind the low watermark of {computation}: {count:,} of them; the records that "
                "they produce are late, and a reader that drops late records will drop them"
            )


FURTHER = ("watermarks", "forget_requests")


def require_computation(pipeline: str, name: str, known: Sequence[str]) -> None:
    """`UsageError` if a name is not among those of the computations."""
    if name not in known:
        message = f"pipeline {pipeline!r} has no computation {name!r}"
        raise UsageError(with_suggestion(message, name, known))


def with_name(
    connection: psycopg.Connection[Any], pipeline: str, letters: LetterFilter
) -> LetterFilter:
    """The filter with the name of its computation, which may be removed; `UsageError` if there has
    never been one with this name."""
    if letters.computation is None:
        return letters
    statement = Statements(pipeline).get("known_computations")
    known = [name for (name,) in connection.execute(statement).fetchall()]
    name = name_of_step(connection, pipeline, letters.computation)
    require_computation(pipeline, name, known)
    return letters._replace(computation=name)


class Asking:
    """Requests to one pipeline, on a connection of the caller's.

    The methods return the number of the batch; an unknown computation, injector, partition or item
    is a `UsageError`.
    """

    def __init__(self, connection: psycopg.Connection[Any], pipeline: str) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._statements = Statements(pipeline)

    def ask(
        self, actor: Actor, verb: str, computation: str, key: Key, payload: dict[str, Any]
    ) -> int:
        return self._ask(actor, verb, computation, encode_key(key), payload)

    def _ask(
        self,
        actor: Actor,
        verb: str,
        computation: str,
        place: tuple[bytes, int],
        payload: dict[str, Any],
    ) -> int:
        computation = self._named(computation)
        batch = self._new_batch()
        asked = self._rows(
            "ask",
            batch=batch,
            actor=actor.name,
            reason=actor.reason,
            verb=verb,
            computation=computation,
            slot=place[1],
            key=place[0].decode(),
            payload=_json(payload),
        )
        if not asked:
            require_computation(self._pipeline, computation, self._deployed())
        return batch

    def set_aside(self, actor: Actor, injector: str, partition: str | None, row: int) -> int:
        """Ask an injector to make a dead letter of a row; without `partition` it must have only
        one."""
        injector = self._named(injector)
        slots = {name: slot for slot, name in self._rows("injector_partitions", injector=injector)}
        if not slots:
            message = f"pipeline {self._pipeline!r} has no injector {injector!r}"
            raise UsageError(with_suggestion(message, injector, self._deployed()))
        names = list(slots) if partition is None else [partition]
        if len(names) > 1 or names[0] not in slots:
            known = ", ".join(list(slots)[:SHOWN_PARTITIONS])
            raise UsageError(
                f"name a partition of {injector!r} with --partition. It has {len(slots)}: {known}"
            )
        (name,) = names
        return self._ask(
            actor, "set_aside", injector, (_json(name).encode(), slots[name]), {"row": row}
        )

    def set_aside_item(self, actor: Actor, computation: str, key: Key, item: str) -> int:
        """Ask the owner of a key for a dead letter of a record or timer; `item` is its name in the
        error of the computation."""
        if not ITEM.fullmatch(item):
            raise UsageError(f"{item!r} names no record or timer; take it from the error: record:…")
        return self._ask(actor, "set_aside", computation, encode_key(key), {"item": item})

    def retry(
        self,
        actor: Actor,
        ids: Sequence[int],
        *,
        rate: float | None = None,
    ) -> tuple[int, int]:
        """Ask the owners of dead letters to process them again; returns the number of the batch,
        and of requests.

        `rate` is in letters a second.
        """
        return self._ask_about("retry", actor, ids, rate, None)

    def edit(self, actor: Actor, letter: int, value: Any) -> tuple[int, int]:
        """Ask the owner of a dead letter to process it with another value; returns as `retry`. The
        log keeps the former value."""
        payload = {"value": value}
        for (text,) in self._rows("letter_value", id=letter):
            if UNKNOWN_TO_JSONB not in text:
                payload["was"] = msgspec.Raw(text.encode())
        return self._ask_about("retry", actor, [letter], None, payload)

    def discard(self, actor: Actor, ids: Sequence[int]) -> list[int]:
        """Delete letters that no owner is asked about, or must delete itself; returns their
        numbers.

        They are locked before a second statement looks at the requests about them: otherwise an
        owner could process a letter that a request of the same moment asks it to retry.
        """
        locked = [id_ for (id_,) in self._rows("lock_letters", ids=list(ids))]
        gone = sorted(id_ for (id_,) in self._rows("discard_dead_letters", ids=locked))
        if gone:
            self.note(actor, "discard", {"letters": gone})
        return gone

    def discard_by_owners(self, actor: Actor, ids: Sequence[int]) -> tuple[int, int]:
        """Ask owners of keys to delete those of some dead letters that only they may delete;
        returns the number of the batch, and of requests."""
        theirs = self.letters_of_owners(ids)
        return self._ask_about("discard", actor, theirs, None, None) if theirs else (0, 0)

    def letters_of_owners(self, ids: Sequence[int]) -> list[int]:
        """Those of some dead letters that only the owners of their keys may delete: letters of
        parked keys, and those with a withdrawn request that an owner may have begun."""
        return [id_ for (id_,) in self._rows("letters_of_owners", ids=list(ids))]

    def _ask_about(
        self,
        verb: str,
        actor: Actor,
        ids: Sequence[int],
        rate: float | None,
        payload: dict[str, Any] | None,
    ) -> tuple[int, int]:
        batch = self._new_batch()
        asked = self._rows(
            "ask_letters",
            verb=verb,
            batch=batch,
            ids=list(ids),
            actor=actor.name,
            reason=actor.reason,
            rate=rate,
            payload=None if payload is None else _json(payload),
        )
        return batch, len(asked)

    def note(self, actor: Actor, verb: str, payload: dict[str, Any]) -> None:
        """Note an operation on the pipeline, in the transaction that does it."""
        params = {
            "batch": self._new_batch(), "actor": actor.name, "reason": actor.reason, "verb": verb,
            "payload": _json(payload),
        }  # fmt: skip
        self._connection.execute(self._statements.get("note_request"), params)

    def withdraw(self, actor: Actor, batch: int) -> int:
        """Take back the open requests of a batch; returns their number."""
        count = len(self._rows("withdraw_requests", batch=batch))
        if count:
            self.note(actor, "withdraw", {"batch": batch, "requests": count})
        return count

    def match(self, letters: LetterFilter) -> MatchedLetters:
        """`UsageError` if the filter names an unknown computation."""
        letters = with_name(self._connection, self._pipeline, letters)
        found = self._rows(
            "match_dead_letters",
            **letters._asdict(),
            watermarks="watermarks",
        )
        ids, computations, without_key, removed, retried, behind, waiting = (
            zip(*found, strict=True) if found else [()] * 7
        )
        refusing = refusing_steps(stored_nodes(self._connection, self._pipeline))
        return MatchedLetters(
            list(ids),
            sum(without_key),
            sum(removed),
            sum(retried),
            dict(Counter(compress(computations, behind))),
            sum(waiting),
            sum(not any(reasons) for reasons in zip(without_key, removed, retried, strict=True)),
            sum(name in refusing for name in computations),
        )

    def log(self) -> RequestLog:
        """The log of all requests, in this transaction."""
        return RequestLog(self._connection, self._pipeline)

    def _new_batch(self) -> int:
        """Requests of long ago go, so the table does not grow with each one asked."""
        self._rows("forget_requests", forget_requests="forget_requests")
        table = sql.Identifier(self._pipeline, "request").as_string(None)
        ((batch,),) = self._rows("new_batch", table=table)
        return int(batch)

    def _named(self, step: str) -> str:
        return name_of_step(self._connection, self._pipeline, step)

    def _deployed(self) -> list[str]:
        return [name for _, name in self._rows("deployed_computations")]

    def _rows(self, name: str, **params: Any) -> list[tuple[Any, ...]]:
        further = {each: params.pop(each) for each in FURTHER if each in params}
        text = self._statements.get(name, **further)
        return self._connection.execute(text, params).fetchall()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
