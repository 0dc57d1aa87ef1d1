"""Which bucket a record's id, and a commit, belong to; opening and dropping them.

The bucket is a function of what every resend carries unchanged (I9): the stamp of a
production, the offset of a source's row. User-supplied ids carry nothing of the kind, so
they go by arrival and are looked up in every live bucket. Buckets of a family stand edge
to edge: a stretch without its bucket is an error, never "not seen".
"""

from __future__ import annotations

from bisect import bisect_right

from millwheel.clock import Clock
from millwheel.errors import InvariantBroken
from millwheel.settings import Settings
from millwheel.store.port import Bucket, Store


class Stamps:
    """The worker's logical clock: each stamp is greater than every one before it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def restore(self, last: int) -> None:
        """Start after `last`, the newest stamp found in the store."""
        self._last = max(self._last, last)

    def next(self) -> int:
        """A new stamp: the clock's microseconds, or one more than the last."""
        self._last = max(self._clock.now(), self._last + 1)
        return self._last

    @property
    def last(self) -> int:
        """The newest stamp given."""
        return self._last


class Buckets:
    """The live buckets of one pipeline."""

    def __init__(self, store: Store, settings: Settings, stamps: Stamps, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._stamps = stamps
        self._clock = clock
        self._time: list[Bucket] = []
        self._lows: list[int] = []
        self._sources: dict[tuple[int, int], Bucket] = {}
        self._named: list[Bucket] = []
        self.fresh: set[int] = set()
        """Buckets opened by this worker: empty when they were opened."""
        self.gc_watermark = 0
        self.rows = 0
        """Rows written to the current time bucket."""

    async def load(self) -> None:
        """Read the live buckets."""
        self._time, self._named, self._sources = [], [], {}
        for bucket in await self._store.live_buckets():
            if bucket.family == "time":
                self._time.append(bucket)
            elif bucket.family == "named":
                self._named.append(bucket)
            else:
                self._sources[(bucket.log, bucket.low)] = bucket
        self._lows = [bucket.low for bucket in self._time]

    async def ensure_current(self) -> None:
        """Have a time bucket for stamps given from now on, opened ahead of need."""
        lead = int(self._settings.bucket_seconds * 500_000)
        now = max(self._clock.now(), self._stamps.last)
        if self._time and self._time[-1].high > now + lead:
            if self.rows < self._settings.bucket_rows or self._time[-1].low > now:
                return
            await self._close_early()
        low = self._time[-1].high if self._time else 0
        high = max(low, now) + int(self._settings.bucket_seconds * 1e6)
        self._add_time(await self._store.open_bucket("time", 0, low, high))

    async def _close_early(self) -> None:
        """End the current bucket here: it is large enough."""
        last = self._time[-1]
        high = self._stamps.next() + 1
        await self._store.close_bucket(last.id, high)
        self._time[-1] = Bucket(last.id, last.family, last.log, last.low, high)
        self.rows = 0

    def _add_time(self, bucket: Bucket) -> None:
        self._time.append(bucket)
        self._lows.append(bucket.low)
        self.fresh.add(bucket.id)

    def covers(self, stamp: int) -> bool:
        """Whether a commit stamped now has its bucket already."""
        return bool(self._time) and stamp < self._time[-1].high

    def of_stamp(self, stamp: int) -> int:
        """The bucket of a production's stamp, or of a commit's."""
        position = bisect_right(self._lows, stamp) - 1
        if position < 0 or stamp >= self._time[position].high:
            raise InvariantBroken(
                f"there is no bucket for stamp {stamp}, which is not below the GC watermark "
                f"{self.gc_watermark}: what was seen then is unknown"
            )
        return self._time[position].id

    def of_offset(self, log: int, offset: int) -> int:
        """The bucket of a row of a replayable source."""
        rows = self._settings.source_bucket_rows
        bucket = self._sources.get((log, offset - offset % rows))
        if bucket is None:
            raise InvariantBroken(f"there is no bucket for offset {offset} of source log {log}")
        return bucket.id

    async def ensure_source(self, log: int, offset: int) -> None:
        """Have the bucket for a row before it is sent."""
        rows = self._settings.source_bucket_rows
        low = offset - offset % rows
        if (log, low) not in self._sources:
            bucket = await self._store.open_bucket("source", log, low, low + rows)
            self._sources[(log, low)] = bucket
            self.fresh.add(bucket.id)

    async def ensure_named(self) -> None:
        """Have a bucket for user-supplied ids that arrive from now on."""
        now = self._clock.now()
        span = int(self._settings.id_bucket_seconds * 1e6)
        if not self._named or self._named[-1].high <= now:
            low = self._named[-1].high if self._named else 0
            bucket = await self._store.open_bucket("named", 0, low, max(now, low) + span)
            self._named.append(bucket)
            self.fresh.add(bucket.id)

    def named(self) -> list[int]:
        """All buckets of user-supplied ids, the current one last."""
        return [bucket.id for bucket in self._named]

    def live(self) -> list[Bucket]:
        """All live buckets."""
        return [*self._time, *self._sources.values(), *self._named]

    async def collect(self) -> list[int]:
        """Drop what nothing needs any more; gives the ids of the dropped buckets."""
        self.gc_watermark = max(self.gc_watermark, await self._store.advance_gc_watermark())
        dropped = []
        for bucket in [b for b in self._time[:-1] if b.high <= self.gc_watermark]:
            if not await self._store.drop_bucket(bucket):
                break  # oldest first, so that the live ones stay edge to edge
            self._time.remove(bucket)
            self._lows = [b.low for b in self._time]
            dropped.append(bucket.id)
        newest = {
            log: max(low for at, low in self._sources if at == log) for log, _ in self._sources
        }
        for place, bucket in list(self._sources.items()):
            if place[1] < newest[place[0]] and await self._store.drop_bucket(bucket):
                del self._sources[place]
                dropped.append(bucket.id)
        forgotten = self._clock.now() - int(self._settings.id_retention_seconds * 1e6)
        for bucket in [b for b in self._named[:-1] if b.high <= forgotten]:
            if await self._store.drop_bucket(bucket):
                self._named.remove(bucket)
                dropped.append(bucket.id)
        self.fresh.difference_update(dropped)
        return dropped

    def oldest_time_bucket(self) -> Bucket | None:
        """The time bucket that would be dropped next, if it is not the only one."""
        return self._time[0] if len(self._time) > 1 else None
