"""Records that users send in their own transactions, and the numbers that make them rows of a log.

``send()`` (``sql/views/send.sql``) adds records. The injector's owner takes those that are
committed (``sql/inbox/take_sent.sql``) and numbers them as it finds them. From then on a record is
read again under the same number after a crash, and deleted once the stored position is past it
(decision 50).
"""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql

from millwheel.store.port.inbox import TAKEN_CHARACTERS, InboxOwner, SentRecord, TakenRecords
from millwheel.store.postgres.connections import Subject


class PostgresInbox(Subject):
    @property
    def _sequence(self) -> str:
        """Quoted."""
        return sql.Identifier(self.connections.schema, "sent_record_seq_seq").as_string(None)

    async def open_inbox(
        self, stream: str, interval_id: int, *, requires_id: bool, remember: timedelta
    ) -> int:
        rows = await self.connections.rows(
            "open_inbox",
            {
                "stream": stream,
                "interval_id": interval_id,
                "requires_id": requires_id,
                "remember": remember,
            },
        )
        return int(rows[0][0])

    async def take_sent(
        self,
        owner: InboxOwner,
        first: int,
        limit: int,
        *,
        after: int = 0,
        mark: bool = False,
    ) -> TakenRecords:
        rows = await self.connections.rows(
            "take_sent",
            {
                **owner._asdict(),
                "first": first,
                "limit": limit,
                "after": after,
                "mark": mark,
                "characters": TAKEN_CHARACTERS,
                "sequence": self._sequence,
            },
        )
        owned, now, oldest, newest, last_seq = rows[0][:5]
        records = [_record(*row[5:]) for row in rows if row[5] is not None]
        return TakenRecords(owned, now, oldest, newest, last_seq, records)

    async def read_sent(self, interval_id: int, first: int, limit: int) -> list[SentRecord]:
        rows = await self.connections.rows(
            "read_sent",
            {
                "interval_id": interval_id,
                "first": first,
                "limit": limit,
                "characters": TAKEN_CHARACTERS,
            },
        )
        return [_record(*row) for row in rows]

    async def count_sent(self, stream: int, limit: int) -> int:
        rows = await self.connections.rows("count_sent", {"stream": stream, "limit": limit})
        return int(rows[0][0])

    async def forget_sent(self, stream: int, interval_id: int, limit: int) -> int:
        forgotten = await self.connections.run(
            "forget_sent", {"interval_id": interval_id, "limit": limit}
        )
        ids = await self.connections.run("forget_sent_ids", {"stream": stream, "limit": limit})
        return max(forgotten, ids)


def _record(number: int, value: str, ts: int) -> SentRecord:
    return SentRecord(number, value.encode(), ts)
