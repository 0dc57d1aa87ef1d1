"""The heartbeat of a worker from a thread, while its event loop is blocked (decision 63).

Its session does not hold the worker's liveness lock, so that only the lease shows whether the
worker lives until the loop sends a heartbeat again.
"""

from __future__ import annotations

from typing import Any

import psycopg

from millwheel.errors import Fenced, StoreUnavailable
from millwheel.store.postgres import session
from millwheel.store.postgres.connections import Connections
from millwheel.store.postgres.translation import translate
from millwheel.store.postgres.workers import ENDED, heartbeat_of

SETTINGS = {"search_path": "", "statement_timeout": "5s", "timezone": "UTC"}


class ThreadHeartbeat:
    """Statements for one thread. Each method raises StoreUnavailable if the store does not
    answer."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._connection: psycopg.Connection[Any] | None = None

    def beat(self, lease_seconds: float, load: dict[str, Any], stamp: int) -> int:
        """See `Store.heartbeat`; returns the store's time, in microseconds."""
        connections = self._connections
        params = heartbeat_of(connections, connections.worker, lease_seconds, load, stamp)
        row = self._run("heartbeat", params)
        if row is None:
            raise Fenced(ENDED)
        return int(row[0])

    def note(self, computation: int, slot: int, key: bytes, item: str, error: str) -> None:
        """Note a record or timer that the next owner of its key must not run."""
        self._run(
            "note_blocking_item",
            {
                "computation": computation,
                "slot": slot,
                "key": key.decode(),
                "item": item,
                "worker": self._connections.worker,
                "error": error,
            },
        )

    def forget(self) -> None:
        """Forget the notes of this worker: its code has ended, and its intervals are still here."""
        self._run("forget_blocking_items", {"worker": self._connections.worker})

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _run(self, name: str, params: dict[str, Any]) -> Any:
        try:
            if self._connection is None:
                self._connection = session.connect(self._connections.url, SETTINGS)
            cursor = self._connection.execute(self._connections.statements.get(name), params)
            return cursor.fetchone() if cursor.description else None
        except psycopg.Error as error:
            self.close()
            found = translate(error)
            if isinstance(found, StoreUnavailable):
                raise found from error
            raise StoreUnavailable(str(error).strip()) from error
