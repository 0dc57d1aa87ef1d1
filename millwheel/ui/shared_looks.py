"""Looks at the store that viewers share: at most one a second of each kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from millwheel.errors import MillwheelError

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""A look serves further viewers for this time."""


class _Look:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done_at = float("-inf")
        self.found: Any = None
        self.error: MillwheelError | None = None


class SharedLooks:
    """May be used by several threads. An error is shared as an answer is, so that a store that is
    away is not asked more often."""

    def __init__(self, seconds: float = LOOK_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._looks: dict[Hashable, _Look] = {}

    def get(self, kind: Hashable, look: Callable[[], T]) -> T:
        """The newest look of this kind; a new one if that is too old."""
        one = self._look(kind)
        with one.lock:
            if time.monotonic() - one.done_at > self._seconds:
                one.found = one.error = None
                try:
                    one.found = look()
                except MillwheelError as error:
                    one.error = error
                one.done_at = time.monotonic()
            if one.error is not None:
                raise one.error
            found: T = one.found
            return found

    def forget(self) -> None:
        """Look again at the next request: something was changed."""
        with self._lock:
            self._looks.clear()

    def _look(self, kind: Hashable) -> _Look:
        with self._lock:
            if kind not in self._looks:
                self._drop_old()
                self._looks[kind] = _Look()
            return self._looks[kind]

    def _drop_old(self) -> None:
        """A look at a large key may have megabytes."""
        oldest = time.monotonic() - self._seconds
        for kind, one in list(self._looks.items()):
            if one.done_at < oldest and not one.lock.locked():
                del self._looks[kind]
