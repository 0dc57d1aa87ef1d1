"""Looks at the store that viewers share: at most one a second of each kind."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from millwheel.errors import MillwheelError

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""A look serves further viewers for this time."""

MOST_LOOKS = 256
"""Most looks that are kept; those asked for longest ago go first."""


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
        self._looks: OrderedDict[Hashable, _Look] = OrderedDict()

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
            one = self._looks.get(kind)
            if one is None:
                one = self._looks[kind] = _Look()
                while len(self._looks) > MOST_LOOKS:
                    self._looks.popitem(last=False)
            self._looks.move_to_end(kind)
            return one
