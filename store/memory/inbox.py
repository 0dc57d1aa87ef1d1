"""Records that users send (`millwheel.store.inbox`)."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from millwheel.errors import StoreError
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import InboxTables
from millwheel.store.port import SentRecord, TakenRecords


class MemoryInbox(MemorySubject):
    """The inboxes of streams. Each `send` is a transaction of its own."""

    def send(
        self, stream: str, value: bytes, *, id: str | None = None, at: int | None = None
    ) -> bool:
        """Send a record, as the function ``send`` of the schema does.

        Raises:
            StoreError: the stream takes none, or the id was sent with another value.
        """
        target = self.tables.inboxes.get(self.tables.streams.get(stream, 0))
        if target is None or target.interval_id not in self.tables.intervals:
            raise StoreError(f'stream "{stream}" takes no records')
        if id is None and target.requires_id:
            raise StoreError(f'stream "{stream}" takes no records without an id')
        now = self._clock.now()
        if id is not None:
            if id in target.ids:
                if target.ids[id][0] != value:
                    raise StoreError(f'id "{id}" was sent to stream "{stream}" with another value')
                return False
            target.ids[id] = value, now
        target.waiting.append((value, now if at is None else at))
        return True

    async def open_inbox(
        self, stream: str, interval_id: int, *, requires_id: bool, remember: timedelta
    ) -> int:
        await self._called("open_inbox")
        id_ = self.tables.streams[stream]
        kept = self.tables.inboxes.setdefault(id_, InboxTables(interval_id, requires_id, remember))
        kept.interval_id, kept.requires_id, kept.remember = interval_id, requires_id, remember
        return id_

    async def take_sent(
        self,
        stream: int,
        interval_id: int,
        sequencer: int,
        first: int,
        limit: int,
        *,
        after: int = 0,
        mark: bool = False,
    ) -> TakenRecords:
        await self._called("take_sent")
        now = self._clock.now()
        if not self.tables.is_current(interval_id, sequencer):
            return TakenRecords(False, now, now, now, 0, [])
        kept = self.tables.inboxes[stream]
        taken, kept.waiting = kept.waiting[:limit], kept.waiting[limit:]
        records = [SentRecord(number, *record) for number, record in enumerate(taken, start=first)]
        kept.taken.update(((interval_id, number), (value, ts)) for number, value, ts in records)
        return TakenRecords(True, now, now, now, 0, records)

    async def read_sent(self, interval_id: int, first: int, limit: int) -> list[SentRecord]:
        await self._called("read_sent")
        found = [
            SentRecord(number, *record)
            for kept in self.tables.inboxes.values()
            for (of, number), record in sorted(kept.taken.items())
            if of == interval_id and number >= first
        ]
        return found[:limit]

    async def count_sent(self, stream: int, limit: int) -> int:
        await self._called("count_sent")
        return min(limit, len(self.tables.inboxes[stream].waiting))

    async def forget_sent(self, stream: int, interval_id: int, limit: int) -> int:
        await self._called("forget_sent")
        kept, (last, _) = self.tables.inboxes[stream], self.tables.last_commit(interval_id)
        position = None if last.link.position is None else msgspec.json.decode(last.link.position)
        next_ = (position or {}).get("reader") or {"next": 0}
        old = [
            (of, number)
            for of, number in sorted(kept.taken)
            if of == interval_id and number < next_["next"]
        ][:limit]
        for place in old:
            del kept.taken[place]
        end = self._clock.now() - kept.remember.total_seconds() * 1e6
        forgotten = [id_ for id_, (_, sent_at) in kept.ids.items() if sent_at < end][:limit]
        for id_ in forgotten:
            del kept.ids[id_]
        return max(len(old), len(forgotten))
