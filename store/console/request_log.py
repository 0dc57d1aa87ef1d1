"""The log of operators: batches of requests, and the outcome of each request."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import psycopg

from millwheel.store.console.snapshot import iso_text
from millwheel.store.postgres.statements import Statements


class LogFilter(NamedTuple):
    """Selects batches; a field that is None selects all."""

    batch: int | None = None
    before: int | None = None
    """Only batches with smaller numbers."""
    verb: str | None = None
    actor: str | None = None


WHOLE_LOG = LogFilter()


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
    payload_left_out: bool = False
    """Whether the payload is larger than the limit of the caller."""

    @property
    def withdrawn(self) -> int:
        return self.requests - self.open - self.done - self.not_done


class OneRequest(msgspec.Struct, frozen=True):
    """A request of a batch."""

    id: int
    computation: str | None
    key: msgspec.Raw | None
    letter: int | None
    """Number of the dead letter that it is about."""
    due_at: str
    """Time before which it is not carried out."""
    outcome: str
    """open, done, refused, failed or withdrawn."""
    detail: str | None
    settled_at: str | None


class Outcomes(NamedTuple):
    counts: dict[str, int]
    """Requests by outcome: open, done, refused, failed, withdrawn."""
    details: dict[str, str]
    """Words of the newest request by outcome."""

    @property
    def open(self) -> int:
        return self.counts.get("open", 0)


class RequestLog:
    """The log of one pipeline, on a connection of the caller's."""

    def __init__(self, connection: psycopg.Connection[Any], pipeline: str) -> None:
        self._connection = connection
        self._statements = Statements(pipeline)

    def entries(
        self, limit: int, wanted: LogFilter = WHOLE_LOG, *, most_bytes: int | None = None
    ) -> list[LogEntry]:
        """The newest requests and operations, newest first.

        Args:
            most_bytes: of a payload, as the store keeps it; a larger one is left out. None: none is
                left out.
        """
        rows = self._rows("request_log", limit=limit, most_bytes=most_bytes, **wanted._asdict())
        return [_log_entry(row) for row in rows]

    def outcomes(self, batch: int) -> Outcomes:
        found = self._rows("batch_outcomes", batch=batch)
        return Outcomes(
            {outcome: count for outcome, count, _ in found},
            {outcome: detail for outcome, _, detail in found if detail},
        )

    def requests(
        self, batch: int, limit: int, *, outcome: str | None = None, below: int | None = None
    ) -> list[OneRequest]:
        """The requests of a batch, the last asked first.

        Args:
            below: only requests with smaller numbers.
        """
        rows = self._rows("batch_requests", batch=batch, limit=limit, outcome=outcome, below=below)
        return [
            OneRequest(
                id_, name, _raw(key), letter, iso_text(due_at) or "", result, detail, iso_text(at)
            )
            for id_, name, key, letter, due_at, result, detail, at in rows
        ]

    def _rows(self, name: str, **params: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._statements.get(name), params).fetchall()


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
        left_out,
    ) = row
    actor, reason, verb, computation = words
    return LogEntry(
        batch, iso_text(asked_at) or "", actor, reason, verb, computation, _raw(key), _raw(payload),
        requests, still_open, done, not_done, iso_text(settled_at), detail, left_out,
    )  # fmt: skip


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
