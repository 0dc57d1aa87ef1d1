"""The queue of an interval: chunks and single records, in the order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.model import Delivery, Key

Place = tuple[Key, bytes, int]
"""A record's key, the key's text, and its slot."""


class Intake:
    """A queue of records; its `len` is the number of records."""

    def __init__(self) -> None:
        self._queue: deque[Chunk | Delivery[Any]] = deque()
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def append(self, item: Chunk | Delivery[Any]) -> None:
        self._queue.append(item)
        self.length += len(item) if type(item) is Chunk else 1

    def extend(self, items: Iterable[Chunk | Delivery[Any]]) -> None:
        for item in items:
            self.append(item)

    def put_first(self, items: Sequence[Chunk | Delivery[Any]]) -> None:
        """Put items before all others, in their order."""
        self._queue.extendleft(reversed(items))
        self.length += sum(len(item) if type(item) is Chunk else 1 for item in items)

    def take(self, limit: int) -> Chunk | list[Delivery[Any]]:
        """Take at most this many records from the head: a chunk, or single records up to the next
        chunk."""
        queue = self._queue
        head = queue[0]
        if type(head) is Chunk:
            queue.popleft()
            if len(head) > limit:
                head, rest = head.split(limit)
                queue.appendleft(rest)
            self.length -= len(head)
            return head
        taken: list[Delivery[Any]] = []
        while queue and len(taken) < limit and type(queue[0]) is not Chunk:
            taken.append(queue.popleft())  # type: ignore[arg-type]
        self.length -= len(taken)
        return taken

    def places(self, start: int, stop: int) -> Iterator[Place]:
        return islice(self._places(), start, stop)

    def _places(self) -> Iterator[Place]:
        for item in self._queue:
            if type(item) is Chunk:
                yield from zip(item.keys, item.key_texts, item.slots, strict=True)
            else:
                yield item.key, item.key_text, item.slot  # type: ignore[union-attr]

    def drop_logs(self, logs: set[int]) -> None:
        kept = [item for item in self._queue if item.log not in logs]
        self.clear()
        self.extend(kept)

    def singles(self) -> Iterator[Delivery[Any]]:
        """The records that are in no chunk."""
        return (item for item in self._queue if type(item) is not Chunk)  # type: ignore[misc]

    def clear(self) -> None:
        self._queue.clear()
        self.length = 0

    def __iter__(self) -> Iterator[Delivery[Any]]:
        for item in self._queue:
            if type(item) is Chunk:
                yield from item.apart()
            else:
                yield item  # type: ignore[misc]
