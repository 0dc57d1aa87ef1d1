"""The store that the pages show: opened at the first look, and again when it comes back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from millwheel.errors import StoreError
from millwheel.store.address import StoreAddress
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Asking
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.kept_looks import KeptLooks
from millwheel.store.console.presence import Presence, present

STATEMENT_SECONDS = 15.0
"""Longest run of a statement of a look: viewers wait for it."""


class VisitedStore:
    """May be used by several threads.

    Args:
        address: the login that looks; of a reader is enough.
        operator: the login for changes; None: the same one.
    """

    def __init__(self, address: StoreAddress, operator: StoreAddress | None = None) -> None:
        self.address = address
        self._operator = operator
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()
        self._presence: Presence | None = None
        self._looks = KeptLooks(STATEMENT_SECONDS)

    @contextlib.contextmanager
    def inspecting(self) -> Iterator[Inspection]:
        """One look, at one moment. `StoreError` if the store cannot be reached or read."""
        with self._looks.inspect(self.url()) as inspection:
            yield inspection

    @contextlib.contextmanager
    def asking(self, pipeline: str) -> Iterator[Asking]:
        """A transaction for requests to the owners of keys."""
        with transaction(self.operator_url()) as connection:
            yield Asking(connection, pipeline)

    def url(self) -> str:
        """The address of the store, which answers, or did so a moment ago."""
        with self._lock:
            if self._presence is None:
                self._presence = self._open.enter_context(present(self.address))
            else:
                with contextlib.suppress(StoreError):  # the look that follows says it better
                    self._presence.renew()
            return self._presence.url

    def operator_url(self) -> str:
        return self.url() if self._operator is None else self._operator.open()

    def close(self) -> None:
        self._looks.close()
        with self._lock:
            self._presence = None
            self._open.close()

    def __enter__(self) -> VisitedStore:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
