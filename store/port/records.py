from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class StoredProduction:
    seq: int
    stream: str
    receiver: int
    slot: int
    key: bytes
    value: bytes
    version: int
    ts: int
    hold: int
    stamp: int
    """Logical time of the commit that stored it."""
    place: int
    """Place in the buckets, the same in every resend: a stamp, or an offset of `origin`."""
    id: bytes = b""
    """Empty for a strong production, which has the id of its log and number."""
    origin: int = 0
    """Log of the source that `place` is an offset of; 0 if `place` is a stamp."""


class StoreRecords(Protocol):
    def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        """Strong productions and stragglers, in order."""
        ...

    async def retire_logs(self, logs: list[int]) -> None: ...

    async def look_up_seen(
        self, buckets: Sequence[int], computation: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        """The ids in no order that are in one of the buckets, in any slot: a record with another
        key is still the same.

        A weak production is found by the name in its id (`millwheel.core.model.name_of`); the
        stored id may have another digest.
        """
        ...

    async def look_up_numbers(
        self, bucket: int, computation: int, numbers: Mapping[int, Sequence[int]]
    ) -> dict[int, set[int]]:
        """Those of some numbers of logs that are in a bucket, by log."""
        ...

    async def newest_seen(self, bucket: int, computation: int) -> dict[int, int]:
        """The highest number of each log."""
        ...

    async def count_seen(self, bucket: int, computation: int, slots: tuple[int, int]) -> int:
        """The number of ids in no order within the slots."""
        ...

    async def scan_seen(
        self,
        bucket: int,
        computation: int,
        slots: tuple[int, int],
        after: tuple[bytes, int],
        limit: int,
    ) -> list[tuple[bytes, int]]:
        """Up to `limit` pairs (id, slot) of a bucket's ids in no order, within the slots,
        sorted."""
        ...
