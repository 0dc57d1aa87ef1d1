"""The base of readers whose rows come over a network: a task fetches ahead, the injector takes.

::

    fetch() ──▶ rows fetched ahead ──▶ read(limit)          wait() returns when there are some

A source of your own defines `fetch`, `position` and, if it knows them, `lag` and `progress`
(``docs/howto/connect/own-source.md``), without care for limits, wake-ups and cancellation.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from millwheel.sources import Lag, Row, Rows

__all__ = ["FetchingReader"]

AHEAD = 2
"""Results of `FetchingReader.fetch` that may wait to be read; `fetch` bounds the bytes of each."""

CURRENT_SECONDS = 3.0
"""An answer of the server that is older says nothing about the rows that it has now."""


class FetchingReader(ABC):
    """A `millwheel.sources.Reader` that fetches rows in a task of its own.

    ```python
    from millwheel.sources import Row

    class Numbers(FetchingReader):
        def __init__(self) -> None:
            super().__init__()
            self.pages = [[Row(0, 1, "tea"), Row(1, 2, "milk")], []]

        async def fetch(self) -> list[Row]:
            return self.pages.pop(0)  # an empty page is the end

        def position(self, acknowledged: int) -> dict[str, int]:
            return {"row": acknowledged}
    ```

    `fetch` calls `found_none` whenever the server has answered that there is no further row;
    otherwise its partitions are never idle. An error of `fetch` is raised once all rows before it
    are taken.
    """

    def __init__(self) -> None:
        self._fetched: deque[Sequence[Row]] = deque()
        self._count = 0
        self._news = asyncio.Event()
        """Set while there are rows, an error or the end, and once by `announce`."""
        self._room = asyncio.Event()
        self._error: BaseException | None = None
        self._has_ended = False
        self._none_at = float("-inf")
        """When the server last had no further row, by the loop's clock."""
        self._task: asyncio.Task[None] | None = None

    # -- what a source of your own has ---------------------------------------------------

    @abstractmethod
    async def fetch(self) -> Sequence[Row]:
        """Wait for the next rows. None at all mean the end of a bounded source.

        Keep a result within some megabytes: `AHEAD` of them are in memory. It may be cancelled
        while it waits; after that it is not called again.

        Raises:
            InputError: the partition cannot be read further; the message says how to continue.
        """

    @abstractmethod
    def position(self, acknowledged: int) -> dict[str, Any]:
        """The position to store; see `millwheel.sources.Reader.position`."""

    def progress(self) -> float | None:
        """The share of a bounded partition read so far, 0 to 1; None if it has no end."""
        return None

    def lag(self) -> Lag:
        """The rows and bytes of the partition that are not fetched yet."""
        return Lag()

    def found_none(self) -> None:
        """Note that the server has just answered: all its rows were fetched, and none is held
        up."""
        self._none_at = asyncio.get_running_loop().time()

    def announce(self) -> None:
        """Let `wait` return without a row: event time (`seen`) or the position has advanced."""
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Let the injector raise an error of another task, once all rows fetched are taken."""
        self._error = self._error or error
        self._news.set()

    # -- the reader ------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        return self._count

    @property
    def ended(self) -> bool:
        return self._has_ended and not self._fetched

    @property
    def caught_up(self) -> bool:
        """Whether all rows were read that the server had a moment ago."""
        age = asyncio.get_running_loop().time() - self._none_at
        return not self._fetched and self._error is None and age < CURRENT_SECONDS

    async def read(self, limit: int) -> Sequence[Row]:
        """Up to `limit` further rows that were fetched, or an empty sequence.

        Raises:
            InputError: `fetch` has raised it, and there are no rows before it.
        """
        self._begin()
        if not self._fetched:
            if self._error is not None:
                raise self._error
            if not self._has_ended:
                self._news.clear()
            return []
        rows = self._fetched.popleft()
        if len(rows) > limit:
            rows, rest = _cut(rows, limit)
            self._fetched.appendleft(rest)
        self._count -= len(rows)
        if len(self._fetched) < AHEAD:
            self._room.set()
        if not self._fetched and self._error is None and not self._has_ended:
            self._news.clear()
        return rows

    async def wait(self) -> None:
        """Return when `read` finds rows, an error or the end."""
        self._begin()
        await self._news.wait()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while rows := await self.fetch():
                self._fetched.append(rows)
                self._none_at = float("-inf")
                self._count += len(rows)
                self._news.set()
                while len(self._fetched) >= AHEAD:
                    self._room.clear()
                    await self._room.wait()
            self._has_ended = True
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error
        self._news.set()


def _cut(rows: Sequence[Row], place: int) -> tuple[Sequence[Row], Sequence[Row]]:
    if isinstance(rows, Rows) and rows.are_columns:
        return rows.cut(place)
    return rows[:place], rows[place:]
