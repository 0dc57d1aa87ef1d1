"""Code of the engine's own steps that takes a chunk as it is, whatever the keys of its records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from millwheel.core.chunk import Chunk
from millwheel.core.model import Key


class SendAll(Protocol):
    def __call__(
        self,
        stream: str,
        values: Sequence[Any],
        micros: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        """Produce values, in order.

        Args:
            micros: their timestamps, none of which is before that of the oldest record they come
                from; None: each value comes from the record in its place, and has its timestamp.
            places: for each value, the place of a record that it comes from.
        """
        ...


class ChunkCode(ABC):
    """The part of a computation that has neither state nor timers, and does not wait."""

    @abstractmethod
    def process_chunk(self, chunk: Chunk, send: SendAll) -> None:
        """Have the effects of `process_record` for each record, in their order.

        If it raises, none of them counts, and the records are processed one by one.
        """


class RecordPlace(NamedTuple):
    """The producing key of a value, without a state (`StateCell`)."""

    key: Key
    key_text: bytes
    slot: int
