"""Finds the bucket of a record's id and of a commit; opens and drops buckets.

The bucket is a function of a value that every resend carries unchanged (I9): the stamp of a
production, or the offset of a source's row. User-supplied ids carry no such value: their bucket
depends on their time of arrival, and they are looked up in every live bucket. The buckets of a
family are contiguous: a missing bucket is an error, never "not seen".
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right

from millwheel.errors import InvariantBroken
from millwheel.runtime.process.stamps import Stamps
from millwheel.runtime.seen.source_buckets import SourceBuckets
from millwheel.settings import Settings
from millwheel.store.port import Store
from millwheel.store.port.buckets import EARLY_CLOSE_MICROS, Bucket


class Buckets:
    """The live buckets of one pipeline."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        stamps: Stamps,
        *,
        shared: bool = False,
    ) -> None:
        self._store = store
        self._shared = shared
        """Other workers open and close buckets as well: a view of the buckets is final for a while
        only."""
        self._final_until = 0
        self._settings = settings
        self._stamps = stamps
        self._opening = asyncio.Lock()
        self._time: list[Bucket] = []
        self._lows: list[int] = []
        self.sources = SourceBuckets()
        self._named: list[Bucket] = []
        self.gc_watermark = 0
        self.rows = 0
        """Records written since the newest time bucket was opened."""

    async def load(self) -> None:
        """Read the live buckets: other workers open, close and drop them as well."""
        async with self._opening:
            await self._look()

    async def _look(self) -> None:
        view = await self._store.view_buckets()
        self._final_until = view.now + EARLY_CLOSE_MICROS
        found = sorted(view.buckets, key=lambda bucket: bucket.low)
        self._time = [bucket for bucket in found if bucket.family == "time"]
        self._lows = [bucket.low for bucket in self._time]
        if self._lows:  # earlier buckets were dropped, so they lie below the stored watermark
            self._pass(self._lows[0])
        self._named = [bucket for bucket in found if bucket.family == "named"]
        self.sources.replace(bucket for bucket in found if bucket.family == "source")

    async def ensure_current(self) -> None:
        """Open a time bucket for future stamps, ahead of need.

        If opening takes so long that the bucket has ended, or soon will, open the next one as well.
        """
        async with self._opening:
            while not await self._is_open_ahead():
                now = self._newest_stamp()
                low = self._time[-1].high if self._time else 0
                high = max(low, now) + int(self._settings.bucket_seconds * 1e6)
                bucket = await self._store.open_bucket("time", 0, low, high)
                self._add_time(bucket)
                self.rows = 0

    async def _is_open_ahead(self) -> bool:
        """Whether the newest bucket stays open for a while; closes it early if it is large
        enough."""
        lead = int(self._settings.bucket_seconds * 500_000)
        if self._shared and self._newest_stamp() + EARLY_CLOSE_MICROS // 2 > self._final_until:
            await self._look()
        now = self._newest_stamp()
        if not self._time or self._time[-1].high <= now + lead:
            return False
        if self.rows < self._settings.bucket_rows or self._time[-1].low > now:
            return True
        await self._close_early(now)
        return False

    def _newest_stamp(self) -> int:
        """A lower bound of all future stamps."""
        return max(self._stamps.now(), self._stamps.last)

    async def _close_early(self, now: int) -> None:
        """End the current bucket, which is large enough, a little past every stamp given.

        The new end applies here before it is stored: however long storing takes, no stamp past the
        end goes to this bucket.
        """
        last = self._time[-1]
        high = min(last.high, now + EARLY_CLOSE_MICROS)
        self._time[-1] = Bucket(last.id, last.family, last.log, last.low, high)
        closed = await self._store.close_bucket(last.id, high)
        if closed is not None:  # the store's clock may have set a later end
            self._time[-1] = closed

    def _add_time(self, bucket: Bucket) -> None:
        self._time.append(bucket)
        self._lows.append(bucket.low)

    def covers(self, stamp: int) -> bool:
        """Whether the bucket of a stamp is known for certain."""
        return bool(self._time) and stamp < self._time[-1].high and self._is_final(stamp)

    def _is_final(self, stamp: int) -> bool:
        """Whether no other worker can have ended the stamp's bucket before the stamp."""
        return not self._shared or stamp < max(self._final_until, self._time[-1].low)

    def of_stamp(self, stamp: int) -> Bucket:
        """The bucket of a production's stamp, or of a commit's."""
        position = bisect_right(self._lows, stamp) - 1
        if position < 0 or stamp >= self._time[position].high:
            raise InvariantBroken(
                f"there is no bucket for stamp {stamp}, which is not below the GC watermark "
                f"{self.gc_watermark}: the ids seen then are unknown"
            )
        return self._time[position]

    async def ensure_source(self, log: int, first: int, last: int | None = None) -> None:
        """Open the missing buckets of the rows from `first` to `last`, before the rows are sent."""
        offset = max(first, self.sources.floor(log))
        while offset <= (first if last is None else last):
            known = self.sources.find(log, offset)
            if known is None:
                async with self._opening:
                    known = await self._open_source(log, offset)
            offset = max(offset, known.high)

    async def _open_source(self, log: int, offset: int) -> Bucket:
        before = self.sources.before(log, offset)
        if before is not None and offset < before.high:
            return before  # another task has added it
        rows = self._settings.source_bucket_rows
        begin = offset - offset % rows
        low = max(begin, self.sources.floor(log), 0 if before is None else before.high)
        made = await self._store.open_bucket("source", log, low, begin + rows)
        self.sources.add(made)
        return made

    async def ensure_named(self) -> None:
        """Open a bucket for future user-supplied ids, ahead of need.

        An id in a bucket that has ended would be forgotten too soon.
        """
        async with self._opening:
            now = self._stamps.now()
            lead = int(self._settings.id_bucket_seconds * 500_000)
            if self._named and self._named[-1].high > now + lead:
                return
            low = self._named[-1].high if self._named else 0
            high = max(now, low) + int(self._settings.id_bucket_seconds * 1e6)
            bucket = await self._store.open_bucket("named", 0, low, high)
            self._named.append(bucket)

    def named(self) -> list[int]:
        """Ids of all buckets of user-supplied ids, the current one last."""
        return [bucket.id for bucket in self._named]

    def named_span(self, bucket: int) -> int | None:
        """The number of the time span, as long as the retention of ids, in which a bucket of
        user-supplied ids begins; None: it is another bucket."""
        for named in self._named:
            if named.id == bucket:
                return self._span_of(named)
        return None

    def named_spans(self) -> list[int]:
        """The spans of all buckets of user-supplied ids, the current one last."""
        return sorted({self._span_of(bucket) for bucket in self._named})

    def _span_of(self, bucket: Bucket) -> int:
        return int(bucket.low / 1e6 // max(self._settings.id_retention_seconds, 1.0))

    async def is_gone(self, bucket: int) -> bool:
        return all(live.id != bucket for live in await self._store.live_buckets())

    def live(self) -> list[Bucket]:
        return [*self._time, *self.sources, *self._named]

    def _pass(self, gc_watermark: int) -> None:
        """Raise the GC watermark: time buckets below it may be gone, so no later stamp is below it.

        While this worker owns a log, the watermark is at most the stamps that it gives. Suppose
        that it was suspended until others had taken its intervals, and that its machine's clock was
        set back: without this call it would give stamps below the watermark. With it, its commit
        reaches the fence, which refuses it.
        """
        self.gc_watermark = max(self.gc_watermark, gc_watermark)
        self._stamps.restore(self.gc_watermark - 1)

    async def collect(self) -> list[int]:
        """Drop buckets that are no longer needed; gives their ids.

        During the store's answer, `load` may replace the lists of buckets: a dropped bucket is then
        already missing from them, or in them once more.
        """
        self._pass(await self._store.advance_gc_watermark())
        dropped = await self._collect_time()
        dropped += await self._collect_sources()
        forgotten = self._stamps.now() - int(self._settings.id_retention_seconds * 1e6)
        for bucket in [b for b in self._named[:-1] if b.high <= forgotten]:
            # Asked again at each call until it is gone: un-ACKed rows may keep the bucket.
            if not await self._store.drop_bucket(bucket):
                break
            self._named = _without(self._named, bucket)
            dropped.append(bucket.id)
        return dropped

    async def _collect_time(self) -> list[int]:
        """Drop time buckets, oldest first, so that the live ones stay contiguous."""
        dropped = []
        for bucket in [b for b in self._time[:-1] if b.high <= self.gc_watermark]:
            if not await self._store.drop_bucket(bucket):
                break
            self._time = _without(self._time, bucket)
            self._lows = [b.low for b in self._time]
            dropped.append(bucket.id)
        return dropped

    async def _collect_sources(self) -> list[int]:
        """Drop source buckets, oldest first per log, up to the first one that is still needed: all
        ids before a log's floor are forgotten."""
        dropped = []
        needed: set[int] = set()
        for bucket in self.sources.old():
            if bucket.log in needed:
                continue
            if not await self._store.drop_bucket(bucket):
                needed.add(bucket.log)
                continue
            self.sources.drop(bucket)
            dropped.append(bucket.id)
        return dropped

    def oldest_time_bucket(self) -> Bucket | None:
        """The time bucket that is dropped next; None if there is only one."""
        return self._time[0] if len(self._time) > 1 else None


def _without(buckets: list[Bucket], gone: Bucket) -> list[Bucket]:
    return [bucket for bucket in buckets if bucket.id != gone.id]
