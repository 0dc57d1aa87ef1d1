from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Bucket:
    """A stretch of the append-only past, ``[low, high)``, which is dropped as a whole.

    Families: *time* (stamps; all six tables), *source* (offsets of one replayable log; seen ids
    only), *named* (arrival of user-supplied ids; seen ids only).
    """

    id: int
    family: str
    log: int
    low: int
    high: int


EARLY_CLOSE_MICROS = 5_000_000
"""A look at the buckets is final for stamps up to the time of the look plus this."""

CLOCK_STEP_MICROS = 5_000_000
"""Largest unnoticed step back of the database's clock between two heartbeats, if no lease is longer
than 15 s; otherwise a third of the longest lease."""

CLOSE_AHEAD_MICROS = EARLY_CLOSE_MICROS + CLOCK_STEP_MICROS
"""Least distance between the database's clock and the end of a bucket that is closed early, if no
lease is longer than 15 s."""


@dataclass(frozen=True, slots=True)
class BucketView:
    """The live buckets at one moment of the store's clock.

    Later changes do not affect the bucket of a stamp before `now` plus `EARLY_CLOSE_MICROS`.
    """

    now: int
    buckets: list[Bucket]


class StoreBuckets(Protocol):
    async def oldest_snapshot_seconds(self) -> float: ...

    async def live_buckets(self) -> list[Bucket]: ...

    async def view_buckets(self) -> BucketView:
        """All buckets, oldest first, with the time of the look."""
        ...

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        """The bucket that holds `low`: an existing one, or a new one that ends at `high`.

        Buckets of stamps and of arrivals are contiguous: a new one begins at the end of the newest,
        at or before `low`. Buckets of a source begin at `low` and end at `high`, or earlier where
        the next one begins.
        """
        ...

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        """End the newest bucket of its family early, at `high`; returns it with its current end,
        None: it was dropped.

        The end is at least `CLOSE_AHEAD_MICROS` after now by the store's clock, or after the end of
        the longest lease if that clock has gone back, and later with leases of more than 15 s
        (`CLOCK_STEP_MICROS`). A bucket does not change if it has a successor, or would end later
        than before.
        """
        ...

    async def advance_gc_watermark(self) -> int:
        """Store and return the GC watermark: the lowest stored floor."""
        ...

    async def drop_bucket(self, bucket: Bucket) -> bool:
        """Drop a bucket, unless stored data needs it; returns whether it was dropped."""
        ...
