"""Somebody who looks at the store from outside, again and again, whatever becomes of it
meanwhile."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

import psycopg

from tests.campaign.workload import NAME

LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)


def connect(url: str) -> psycopg.Connection[Any]:
    """A connection to look by."""
    return psycopg.connect(
        url, autocommit=True, connect_timeout=3, application_name="campaign reader",
        options=f"-c search_path={NAME} -c statement_timeout=60000",
    )  # fmt: skip


class Looker(ABC):
    """Looks in a thread of its own, until it is told to end."""

    pause_seconds: float
    """Between two looks."""

    def __init__(self, url: str) -> None:
        self.refused = 0
        """Times that the server did not answer."""
        self._url = url
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abstractmethod
    def look(self, connection: psycopg.Connection[Any]) -> None:
        """Look once; nothing is noted of a look that fails."""

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        while not self._ending.wait(self.pause_seconds):
            try:
                if connection is None or connection.closed:
                    connection = connect(self._url)
                self.look(connection)
            except LOST:
                self.refused += 1
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()
