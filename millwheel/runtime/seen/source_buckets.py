"""The live buckets of replayable sources: a row's bucket depends on its number in the source's
log."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

from millwheel.errors import InvariantBroken
from millwheel.store.port.buckets import Bucket


class SourceBuckets:
    """Plain data: the caller opens and drops the buckets in the store."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self._lows: dict[int, list[int]] = {}
        """First rows of each log's buckets, sorted: an earlier run may have used another bucket
        size."""
        self._floors: dict[int, int] = {}
        """Per log, the row before which all rows are acknowledged for good."""

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets.values())

    def __contains__(self, place: tuple[int, int]) -> bool:
        return place in self._buckets

    def replace(self, found: Iterable[Bucket]) -> None:
        """Replace all known buckets by others, in the order of their first rows."""
        self._buckets = {(bucket.log, bucket.low): bucket for bucket in found}
        self._lows = {}
        for log, low in self._buckets:
            self._lows.setdefault(log, []).append(low)
        for log, lows in self._lows.items():
            self._floors[log] = max(lows[0], self.floor(log))

    def add(self, bucket: Bucket) -> None:
        if (bucket.log, bucket.low) not in self._buckets:
            insort(self._lows.setdefault(bucket.log, []), bucket.low)
        self._buckets[bucket.log, bucket.low] = bucket

    def drop(self, bucket: Bucket) -> None:
        """Remove a dropped bucket: its rows are acknowledged for good."""
        if self._buckets.pop((bucket.log, bucket.low), None) is not None:
            self._lows[bucket.log].remove(bucket.low)
        self._floors[bucket.log] = max(self.floor(bucket.log), bucket.high)

    def knows(self, log: int, offset: int) -> bool:
        """Whether the bucket of a row is known, or known to be gone."""
        return self.find(log, offset) is not None or offset < self.floor(log)

    def of(self, log: int, offset: int) -> Bucket:
        bucket = self.find(log, offset)
        if bucket is None:
            raise InvariantBroken(f"there is no bucket for offset {offset} of source log {log}")
        return bucket

    def find(self, log: int, offset: int) -> Bucket | None:
        bucket = self.before(log, offset)
        return None if bucket is None or offset >= bucket.high else bucket

    def before(self, log: int, offset: int) -> Bucket | None:
        """The last bucket that begins at the row or before."""
        lows = self._lows.get(log, [])
        position = bisect_right(lows, offset) - 1
        return None if position < 0 else self._buckets[log, lows[position]]

    def floor(self, log: int) -> int:
        """The row before which all rows are acknowledged for good and their ids forgotten: only
        late copies of them can arrive."""
        return self._floors.get(log, 0)

    def end(self, log: int) -> int:
        """The end of the log's last bucket: a later row that was ever sent would have a bucket."""
        return max((b.high for (of, _), b in self._buckets.items() if of == log), default=0)

    def old(self) -> list[Bucket]:
        """All buckets but the newest of each log, in the order of logs and rows."""
        newest = {log: lows[-1] for log, lows in self._lows.items() if lows}
        return [b for (log, low), b in sorted(self._buckets.items()) if low < newest[log]]
