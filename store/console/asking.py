"""Requests of operators: to the owners of keys, and the log of all of them (decision 59).

A request is a row. The owner of its key carries it out in the key's turn and settles it in the
commit that has its effects, so it is done once, even if the operator's connection ends. Operations
on a whole pipeline (pause, drop a computation) are noted in the same table, in their own
transactions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from millwheel.core.codec import encode_key
from millwheel.core.model import Key
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import UsageError
from millwheel.store.console.snapshot import iso_text
from millwheel.store.console.step_names import name_of_step
from millwheel.store.postgres.statements import Statements


class Actor(NamedTuple):
    name: str
    reason: str


UNNAMED = Actor("", "")

ITEM = re.compile(r"record:[0-9a-f]{32}|timer:\[.*\]")
"""Names of records and timers, as errors of computations have them."""

SHOWN_PARTITIONS = 20


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

    @property
    def selects(self) -> bool:
        """Whether it leaves out any of the letters that have failed."""
        return any(field is not None for field in self[:-1])


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


class Outcomes(NamedTuple):
    counts: dict[str, int]
    """Requests by outcome: open, done, refused, failed, withdrawn."""
    details: dict[str, str]
    """Words of the newest request by outcome."""

    @property
    def open(self) -> int:
        return self.counts.get("open", 0)


class LogEntry(msgspec.Struct, frozen=True):
    """Requests that were asked together, or one operation on a pipeline."""

    batch: int
    asked_at: str
    actor: str
    reason: str
    verb: str
    computation: str | None
    key: msgspec.Raw | None
    payload: msgspec.Raw | None
    requests: int
    open: int
    done: int
    not_done: int
    """Refused or failed."""
    settled_at: str | None
    detail: str | None


FURTHER = ("watermarks", "forget_requests")


def require_computation(pipeline: str, name: str, known: Sequence[str]) -> None:
    """`UsageError` if a name is not among those of the computations."""
    if name not in known:
        message = f"pipeline {pipeline!r} has no computation {name!r}"
        raise UsageError(with_suggestion(message, name, known))


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
        payload: dict[str, Any] | None = None,
    ) -> tuple[int, int]:
        """Ask the owners of dead letters to process them again; returns the number of the batch,
        and of requests.

        `rate` is in letters a second; `payload` may be ``{"value": ...}``, another value for the
        record.
        """
        return self._ask_about("retry", actor, ids, rate, payload)

    def discard(self, actor: Actor, ids: Sequence[int]) -> list[int]:
        """Delete letters that are not being retried, and not in parked keys; returns their
        numbers."""
        gone = sorted(id_ for (id_,) in self._rows("discard_dead_letters", ids=list(ids)))
        if gone:
            self.note(actor, "discard", {"letters": gone})
        return gone

    def discard_parked(self, actor: Actor, ids: Sequence[int]) -> tuple[int, int]:
        """Ask the owners of parked keys to delete those of some dead letters that are theirs;
        returns the number of the batch, and of requests."""
        parked = [id_ for (id_,) in self._rows("parked_letters", ids=list(ids))]
        return self._ask_about("discard", actor, parked, None, None) if parked else (0, 0)

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

    def withdraw(self, batch: int) -> int:
        """Returns the number of requests that were open."""
        return len(self._rows("withdraw_requests", batch=batch))

    def match(self, letters: LetterFilter) -> MatchedLetters:
        """`UsageError` if the filter names an unknown computation."""
        if letters.computation is not None:
            known = [name for (name,) in self._rows("known_computations")]
            letters = letters._replace(computation=self._named(letters.computation))
            require_computation(self._pipeline, str(letters.computation), known)
        found = self._rows(
            "match_dead_letters",
            **letters._asdict(),
            watermarks="watermarks",
        )
        ids, computations, without_key, removed, retried, behind, waiting = (
            zip(*found, strict=True) if found else [()] * 7
        )
        return MatchedLetters(
            list(ids),
            sum(without_key),
            sum(removed),
            sum(retried),
            dict(Counter(compress(computations, behind))),
            sum(waiting),
        )

    def outcomes(self, batch: int) -> Outcomes:
        found = self._rows("batch_outcomes", batch=batch)
        return Outcomes(
            {outcome: count for outcome, count, _ in found},
            {outcome: detail for outcome, _, detail in found if detail},
        )

    def log(
        self, limit: int, *, batch: int | None = None, before: int | None = None
    ) -> list[LogEntry]:
        """The newest requests and operations, newest first.

        Args:
            batch: only this one.
            before: only batches with smaller numbers.
        """
        rows = self._rows("request_log", limit=limit, batch=batch, before=before)
        return [_log_entry(row) for row in rows]

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


def _log_entry(row: tuple[Any, ...]) -> LogEntry:
    (
        batch,
        asked_at,
        *words,
        key,
        payload,
        requests,
        still_open,
        done,
        not_done,
        settled_at,
        detail,
    ) = row
    actor, reason, verb, computation = words
    return LogEntry(
        batch, iso_text(asked_at) or "", actor, reason, verb, computation, _raw(key), _raw(payload),
        requests, still_open, done, not_done, iso_text(settled_at), detail,
    )  # fmt: skip


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
