from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec

from millwheel.errors import StoreError
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import InboxTables
from millwheel.store.port.inbox import InboxOwner, SentRecord, TakenRecords


class MemoryInbox(MemorySubject):
    def send(
        self, stream: str, value: bytes, *, id: str | None = None, at: int | None = None
    ) -> bool:
        """`StoreError` if the stream takes no records, or the id was sent with another value."""
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
        target.transactions += 1
        target.sent += 1
        target.waiting[target.sent] = value, now if at is None else at
        return True

    def begin_to_send(self, stream: str, value: bytes) -> Callable[[], None]:
        """Send a record in a transaction that stays open; the result commits it."""
        target = self.tables.inboxes[self.tables.streams[stream]]
        target.transactions += 1
        target.sent += 1
        transaction, place, record = target.transactions, target.sent, (value, self._clock.now())
        target.open.add(transaction)

        def commit() -> None:
            target.open.discard(transaction)
            target.waiting[place] = record

        return commit

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
        owner: InboxOwner,
        first: int,
        limit: int,
        *,
        after: int = 0,
        mark: bool = False,
    ) -> TakenRecords:
        await self._called("take_sent")
        stream, interval_id, sequencer = owner
        now = self._clock.now()
        kept = self.tables.inboxes[stream]
        oldest = min(kept.open, default=kept.transactions + 1)
        if not self.tables.is_current(interval_id, sequencer):
            return TakenRecords(False, now, oldest, None, kept.sent, [])
        places = sorted(place for place in kept.waiting if place > after)[:limit]
        newest = None
        if mark or places:
            kept.transactions += 1
            newest = kept.transactions
        for number, place in enumerate(places, start=first):
            if (interval_id, number) in kept.taken:
                raise StoreError(f"interval {interval_id} has a record with the number {number}")
            kept.taken[interval_id, number] = kept.waiting.pop(place)
        records = [
            SentRecord(number, *kept.taken[interval_id, number])
            for number in range(first, first + len(places))
        ]
        return TakenRecords(True, now, oldest, newest, kept.sent, records)

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
