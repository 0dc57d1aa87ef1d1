from __future__ import annotations

from dataclasses import replace

import msgspec

from millwheel.core.clock import Clock
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import Tables
from millwheel.store.port.buckets import CLOCK_STEP_MICROS, EARLY_CLOSE_MICROS, Bucket, BucketView


class BucketRows:
    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def live(self) -> list[Bucket]:
        rows = [found.row for found in self._tables.buckets.values()]
        return sorted(rows, key=lambda row: (row.family, row.log, row.low))

    def open(self, family: str, log: int, low: int, high: int) -> Bucket:
        found = [b for b in self.live() if (b.family, b.log) == (family, log)]
        for bucket in found:
            if bucket.high > low and (family != "source" or bucket.low <= low):
                return bucket
        begin = found[-1].high if found and family != "source" else low
        if family == "source":
            high = min((high, *(bucket.low for bucket in found if bucket.low > low)))
        return self._tables.create_bucket(family, log, begin, high)

    def view_time(self) -> int:
        """The clock's time, or that of the newest heartbeat if the clock has gone back."""
        beats = (worker.heartbeat_at for worker in self._tables.workers.values())
        return max(self._clock.now(), *beats, 0)

    def _latest_time_in_use(self) -> int:
        """The latest time that a worker uses before its next heartbeat or the end of its lease."""
        now = self._clock.now()
        ends = (
            worker.heartbeat_at + int(worker.lease_seconds * 1e6)
            for worker in self._tables.workers.values()
            if worker.heartbeat_at > now
        )
        return max(now, *ends, 0)

    def _unnoticed_step(self) -> int:
        """Largest step back of the clock since the oldest heartbeat of a live worker."""
        leases = [w.lease_seconds for w in self._tables.workers.values() if not w.stopped]
        return max(CLOCK_STEP_MICROS, int(max(leases, default=0.0) * 1e6 / 3))

    def close(self, bucket: int, high: int) -> Bucket | None:
        found = self._tables.buckets.get(bucket)
        if found is None:
            return None
        row = found.row
        ahead = EARLY_CLOSE_MICROS + self._unnoticed_step()
        high = max(high, self._latest_time_in_use() + ahead)
        newest = max(b.low for b in self.live() if (b.family, b.log) == (row.family, row.log))
        if row.low < high < row.high and row.low == newest:
            found.row = replace(row, high=high)
        return found.row

    def advance_gc_watermark(self) -> int:
        tables = self._tables
        if tables.intervals:
            floor = min(tables.last_commit(id_)[0].link.floor for id_ in tables.intervals)
            tables.gc_watermark = max(tables.gc_watermark, floor)
        return tables.gc_watermark

    def drop(self, bucket: Bucket) -> bool:
        if bucket.id not in self._tables.buckets:
            return True
        if not self.is_droppable(bucket):
            return False
        del self._tables.buckets[bucket.id]
        return True

    def is_droppable(self, bucket: Bucket) -> bool:
        tables = self._tables
        if bucket.family == "named":
            return all(self._sent_since(id_) >= bucket.high for id_ in self._read_by_id())
        if bucket.family == "source":
            if any(
                row.origin == bucket.log and row.place < bucket.high
                for found in tables.buckets.values()
                for rows in found.productions.values()
                for row in rows.values()
            ):
                return False  # a weak production that came of its rows may be sent again
            if bucket.log not in tables.logs:
                return True
            last, _ = tables.last_commit(tables.logs[bucket.log].interval_id)
            acked = msgspec.json.decode(last.link.acked).get(str(bucket.log))
            return acked is not None and acked[0] >= bucket.high
        if tables.gc_watermark < bucket.high:
            return False
        return all(
            commits[-1].link.n <= tables.intervals[id_].folded
            and tables.last_commit(id_)[0].link.n > commits[-1].link.n
            for id_, commits in tables.buckets[bucket.id].commits.items()
            if id_ in tables.intervals
        )

    def _read_by_id(self) -> list[int]:
        """Partitions of rows with user-supplied ids."""
        tables = self._tables
        nodes = tables.generations[-1].code.graph["nodes"] if tables.generations else {}
        named = [node for node in nodes.values() if node.get("named")]
        streams = {stream for node in named for stream, *_ in node["inputs"]}
        injectors = {
            tables.computations[name].id
            for name, node in nodes.items()
            if tables.computations[name].kind == "injector" and streams & set(node["writes"])
        }
        return [id_ for id_, row in tables.intervals.items() if row.computation in injectors]

    def _sent_since(self, interval_id: int) -> int:
        """The earliest time at which a row past the stored position can have been sent."""
        last, _ = self._tables.last_commit(interval_id)
        position = None if last.link.position is None else msgspec.json.decode(last.link.position)
        return int((position or {}).get("sent_since", last.stamp))


class MemoryBuckets(MemorySubject):
    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._buckets = BucketRows(self.tables, clock)

    async def live_buckets(self) -> list[Bucket]:
        await self._called("live_buckets")
        return self._buckets.live()

    async def view_buckets(self) -> BucketView:
        await self._called("view_buckets")
        return BucketView(self._buckets.view_time(), self._buckets.live())

    async def open_bucket(self, family: str, log: int, low: int, high: int) -> Bucket:
        await self._called("open_bucket")
        return self._buckets.open(family, log, low, high)

    async def close_bucket(self, bucket: int, high: int) -> Bucket | None:
        await self._called("close_bucket")
        return self._buckets.close(bucket, high)

    async def advance_gc_watermark(self) -> int:
        await self._called("advance_gc_watermark")
        return self._buckets.advance_gc_watermark()

    async def drop_bucket(self, bucket: Bucket) -> bool:
        await self._called("drop_bucket")
        return self._buckets.drop(bucket)
