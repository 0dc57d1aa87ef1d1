"""Looks one after the other on the same connections.

A connection costs a look more than its statements: the server starts a process, which reads the
catalogue first. Between two looks a connection is in no transaction, so it holds no snapshot and no
lock, and after `IDLE_SECONDS` without a look it is closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg

from millwheel.errors import StoreError
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.snapshot import begin_snapshot, reading, translated

IDLE_SECONDS = 5.0

MOST_IDLE = 4


class _Kept(NamedTuple):
    connection: psycopg.Connection[Any]
    closing: contextlib.ExitStack
    url: str
    since: float
    """End of its last look."""


class KeptLooks:
    """May be used by several threads.

    Args:
        seconds: longest run of one statement.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[_Kept] = []
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def inspect(self, url: str) -> Iterator[Inspection]:
        """A look at one moment, as `inspection.inspect`."""
        kept = self._begun(url)
        with kept.closing as closing:
            with translated():
                yield Inspection(kept.connection)
                kept.connection.execute("ROLLBACK")
            self._keep(kept, closing.pop_all())

    def close(self) -> None:
        """Close the connections that no look uses."""
        with self._lock:
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for kept in idle:
            kept.closing.close()

    def _begun(self, url: str) -> _Kept:
        """A connection that has taken its snapshot."""
        while (kept := self._taken(url)) is not None:
            try:
                with kept.closing as closing, translated():
                    begin_snapshot(kept.connection)
                    return kept._replace(closing=closing.pop_all())
            except StoreError:
                if not kept.connection.broken:  # another connection would meet the same error
                    raise
        with contextlib.ExitStack() as opening:
            connection = opening.enter_context(reading(url, self._seconds))
            with translated():
                begin_snapshot(connection)
            return _Kept(connection, opening.pop_all(), url, time.monotonic())

    def _taken(self, url: str) -> _Kept | None:
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place].url == url:
                    return self._idle.pop(place)
            return None

    def _keep(self, kept: _Kept, closing: contextlib.ExitStack) -> None:
        with self._lock:
            if len(self._idle) < MOST_IDLE:
                self._idle.append(kept._replace(closing=closing, since=time.monotonic()))
                closing = contextlib.ExitStack()
            if self._timer is None:
                self._begin_timer()
        closing.close()

    def _begin_timer(self) -> None:
        ends = min(kept.since for kept in self._idle) + IDLE_SECONDS
        self._timer = threading.Timer(max(0.0, ends - time.monotonic()), self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        """Close connections without a look of late."""
        oldest = time.monotonic() - IDLE_SECONDS
        with self._lock:
            gone = [kept for kept in self._idle if kept.since <= oldest]
            self._idle = [kept for kept in self._idle if kept.since > oldest]
            self._timer = None
            if self._idle:
                self._begin_timer()
        for kept in gone:
            kept.closing.close()
