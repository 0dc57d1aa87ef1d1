"""Requests of operators: to the owners of keys, and the log of all of them (decision 59).

A request is a row. The owner of its key carries it out in the key's turn and settles it in the
commit that has its effects, so it goes on if the operator's connection ends, and is done once.
Operations on a whole pipeline (pause, drop a computation) are noted in the same table, in their own
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
from millwheel.errors import UsageError
from millwheel.store.postgres.statements import Statements


class Actor(NamedTuple):
    """Who asks, and why."""

    name: str
    reason: str


UNNAMED = Actor("", "")

ITEM = re.compile(r"record:[0-9a-f]{32}|timer:\[.*\]")
"""Names of records and timers, as errors of computations have them."""

SHOWN_PARTITIONS = 20
"""Most names of partitions in a message."""


class LetterFilter(NamedTuple):
    """Selects dead letters; a field that is None selects all."""

    ids: list[int] | None = None
    computation: str | None = None
    key: str | None = None
    """The key as JSON."""
    error: str | None = None
    """A part of the error's text, in any case."""
    waiting: bool = False
    """Also the records that only wait in parked keys."""

    @property
    def selects(self) -> bool:
        """Whether it leaves out any of the letters that have failed."""
        return any(field is not None for field in self[:-1])


EVERY_LETTER = LetterFilter()


class MatchedLetters(NamedTuple):
    """Dead letters that match a filter."""

    ids: list[int]
    without_key: int
    """Rows of sources that could not be read: they have no key, so no owner."""
    removed: int
    """Letters of computations that were removed: no code processes them."""
    retried: int
    """Letters that are being retried."""
    behind: dict[str, int]
    """By computation, letters with timestamps before its low watermark."""
    waiting: int
    """Records that wait behind them in parked keys."""


class Outcomes(NamedTuple):
    """The outcomes of requests that were asked together."""

    counts: dict[str, int]
    """Number of requests by outcome: open, done, refused, failed, withdrawn."""
    details: dict[str, str]
    """By outcome, the words of the newest request."""

    @property
    def open(self) -> int:
        """Number of requests that are not carried out yet."""
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
"""A view and a function that statements name."""


class Asking:
    """Requests to one pipeline, on a connection of the caller's."""

    def __init__(self, connection: psycopg.Connection[Any], pipeline: str) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._statements = Statements(pipeline)

    def ask(
        self, actor: Actor, verb: str, computation: str, key: Key, payload: dict[str, Any]
    ) -> int:
        """Ask the owner of a key; gives the number of the batch.

        Raises:
            UsageError: there is no such computation.
        """
        return self._ask(actor, verb, computation, encode_key(key), payload)

    def _ask(
        self,
        actor: Actor,
        verb: str,
        computation: str,
        place: tuple[bytes, int],
        payload: dict[str, Any],
    ) -> int:
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
            raise UsageError(f"pipeline {self._pipeline!r} has no computation {computation!r}")
        return batch

    def set_aside(self, actor: Actor, injector: str, partition: str | None, row: int) -> int:
        """Ask an injector to make a dead letter of a row; gives the number of the batch.

        Args:
            partition: the name of the row's partition; None: the injector has only one.

        Raises:
            UsageError: there is no such injector or partition.
        """
        slots = {name: slot for slot, name in self._rows("injector_partitions", injector=injector)}
        if not slots:
            raise UsageError(f"pipeline {self._pipeline!r} has no injector {injector!r}")
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
        """Ask the owner of a key for a dead letter of a record or timer; gives the number of the
        batch.

        Args:
            item: its name, as the error of the computation has it.

        Raises:
            UsageError: there is no such computation, or the name is none.
        """
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
        """Ask the owners of dead letters to process them again.

        Args:
            rate: most letters a second.
            payload: ``{"value": ...}``: another value for the record.

        Returns:
            The number of the batch, and of requests.
        """
        return self._ask_about("retry", actor, ids, rate, payload)

    def discard(self, actor: Actor, ids: Sequence[int]) -> list[int]:
        """Delete dead letters that are not being retried, and not of parked keys; gives their
        numbers."""
        gone = sorted(id_ for (id_,) in self._rows("discard_dead_letters", ids=list(ids)))
        if gone:
            self.note(actor, "discard", {"letters": gone})
        return gone

    def discard_parked(self, actor: Actor, ids: Sequence[int]) -> tuple[int, int]:
        """Ask the owners of parked keys to delete those of some dead letters that are theirs.

        Returns:
            The number of the batch, and of requests.
        """
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
        """Take back the requests of a batch that are open; gives their number."""
        return len(self._rows("withdraw_requests", batch=batch))

    def match(self, letters: LetterFilter) -> MatchedLetters:
        """The dead letters that match a filter."""
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
        """The outcomes of the requests of a batch, so far."""
        found = self._rows("batch_outcomes", batch=batch)
        return Outcomes(
            {outcome: count for outcome, count, _ in found},
            {outcome: detail for outcome, _, detail in found if detail},
        )

    def log(self, limit: int) -> list[LogEntry]:
        """The newest requests and operations, newest first."""
        return [
            LogEntry(batch, asked, actor, reason, verb, computation, _raw(key), _raw(payload),
                     *rest)
            for batch, asked, actor, reason, verb, computation, key, payload, *rest
            in self._rows("request_log", limit=limit)
        ]  # fmt: skip

    def _new_batch(self) -> int:
        """A number for a batch. Requests of long ago go, so the table does not grow with each one
        asked."""
        self._rows("forget_requests", forget_requests="forget_requests")
        table = sql.Identifier(self._pipeline, "request").as_string(None)
        ((batch,),) = self._rows("new_batch", table=table)
        return int(batch)

    def _rows(self, name: str, **params: Any) -> list[tuple[Any, ...]]:
        further = {each: params.pop(each) for each in FURTHER if each in params}
        text = self._statements.get(name, **further)
        return self._connection.execute(text, params).fetchall()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
