from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from psycopg import AsyncConnection

from millwheel.errors import Fenced, StoreError
from millwheel.store.port.claims import Claim, LogRow
from millwheel.store.port.placement import IntervalRow
from millwheel.store.port.requests import BlockingItem, OpenRequest, ParkedRows
from millwheel.store.port.states import (
    TIMER_KINDS,
    TIMERS_A_PAGE,
    StateChange,
    TimerChange,
    TimerPlace,
)
from millwheel.store.postgres.buckets import bucket_of
from millwheel.store.postgres.placement import PostgresPlacement
from millwheel.store.postgres.requests import arguments

MOST_ASKED = 1_000


class PostgresClaims(PostgresPlacement):
    async def claim(
        self,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool = False,
        timers: int = TIMERS_A_PAGE,
        sequencers: Mapping[int, int] | None = None,
    ) -> list[Claim]:
        assert not (again and sequencers is not None), "a worker's own intervals need no comparison"
        if again:
            await self.connections.end_lost()
        if sequencers is None:
            raised, new_logs = await self.take_over(worker, interval_ids, again=again)
        else:
            raised, new_logs = await self.take_free(worker, interval_ids, sequencers)
            interval_ids = [id_ for id_ in interval_ids if id_ in raised]
            if not interval_ids:
                return []
        blocking: dict[int, list[BlockingItem]] = {}
        for id_, key, *what in await self.connections.rows(
            "take_blocking_items", {"interval_ids": interval_ids}
        ):
            blocking.setdefault(id_, []).append(BlockingItem(key.encode(), *what))
        statements = self.connections.statements
        async with self.connections.connection() as connection:
            await connection.execute(statements.get("begin_snapshot"))
            try:
                return await self._read_claims(
                    connection, interval_ids, raised, new_logs, timers, blocking
                )
            finally:
                await connection.execute("ROLLBACK")

    async def _read_claims(
        self,
        connection: AsyncConnection[Any],
        interval_ids: list[int],
        raised: dict[int, int],
        new_logs: dict[int, int],
        limit: int,
        blocking: dict[int, list[BlockingItem]],
    ) -> list[Claim]:
        async def rows(name: str, **params: Any) -> list[Any]:
            cursor = await connection.execute(self.connections.statements.get(name), params)
            return await cursor.fetchall()

        # The sequencer that this claim raised, not the stored one: another claim may have raised it
        # again, and that claim's fence would let this owner pass.
        intervals = {
            id_: IntervalRow(id_, computation, low, high, raised[id_])
            for id_, computation, low, high, *_ in await rows("list_intervals")
            if id_ in raised
        }
        live_logs: dict[int, list[LogRow]] = {}
        for id_, interval_id, source in await rows("read_logs", interval_ids=interval_ids):
            if id_ != new_logs.get(interval_id):
                live_logs.setdefault(interval_id, []).append(LogRow(id_, source))
        asked: dict[int, list[OpenRequest]] = {}
        for number, id_, verb, slot, key, payload in await rows(
            "requests_at_claim", interval_ids=interval_ids, limit=MOST_ASKED
        ):
            request = OpenRequest(
                number, id_, verb, slot, key.encode(), arguments(payload), None, None
            )
            asked.setdefault(id_, []).append(request)
        parked: dict[int, list[ParkedRows]] = {}
        for id_, computation, slot, key, *sizes in await rows(
            "read_parked_keys", interval_ids=interval_ids
        ):
            found = ParkedRows(computation, slot, key.encode(), *sizes)
            parked.setdefault(id_, []).append(found)
        claims = []
        for (
            id_, n, table, stamp, input_watermark, low_watermark, acked, position,
            counters, table_rows, folded,
        ) in await rows("read_last_commits", interval_ids=interval_ids):  # fmt: skip
            interval = intervals[id_]
            where = {"interval_id": id_, "after": folded}
            states = [
                StateChange(
                    id_, at, interval.computation, slot, key.encode(), entry,
                    None if value is None else value.encode(), version,
                )
                for key, slot, entry, value, version, at in await rows("read_state_tail", **where)
            ]  # fmt: skip
            pages = {
                kind: [
                    TimerChange(
                        id_, n, interval.computation, slot, key.encode(), kind, tag, due, hold
                    )
                    for key, slot, tag, due, hold in await rows(
                        "read_timers", **_page(id_, kind, None, limit)
                    )
                ]
                for kind in TIMER_KINDS
            }
            claims.append(
                Claim(
                    interval=interval,
                    n=n,
                    bucket=bucket_of(table),
                    stamp=stamp,
                    input_watermark=input_watermark,
                    low_watermark=low_watermark,
                    acked={
                        int(log): (first, [(a, b) for a, b in runs])
                        for log, (first, runs) in msgspec.json.decode(acked).items()
                    },
                    position=None if position is None else msgspec.json.decode(position),
                    counters=msgspec.json.decode(counters),
                    table_rows=table_rows or {},
                    folded=folded,
                    logs=live_logs.get(id_, []),
                    new_log=new_logs.get(id_, 0),
                    states=states,
                    timers=[timer for page in pages.values() for timer in page],
                    more_timers=frozenset(k for k, page in pages.items() if len(page) == limit),
                    parked=parked.get(id_, []),
                    blocking=blocking.get(id_, []),
                    asked=asked.get(id_, []),
                )
            )
        if intervals.keys() != raised.keys():
            raise Fenced("other workers claimed and merged the intervals right after this claim")
        if len(claims) != len(interval_ids):
            raise StoreError(
                f"intervals {interval_ids} were claimed, but only {len(claims)} have a commit "
                "record: the store was edited by hand or restored in part"
            )
        place = {id_: number for number, id_ in enumerate(interval_ids)}
        return sorted(claims, key=lambda claim: place[claim.interval.id])

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        rows = await self.connections.rows("read_timers", _page(interval_id, kind, after, limit))
        return [
            TimerChange(interval_id, 0, 0, slot, key.encode(), kind, tag, due, hold)
            for key, slot, tag, due, hold in rows
        ]

    async def is_owner(self, interval_id: int, sequencer: int) -> bool:
        params = {"interval_id": interval_id, "sequencer": sequencer}
        return bool((await self.connections.rows("is_owner", params))[0][0])


def _page(interval_id: int, kind: str, after: TimerPlace | None, limit: int) -> dict[str, Any]:
    """Parameters of ``read_timers.sql``."""
    due, slot, key, tag = after or (-(1 << 62), 0, b"", "")
    return {
        "interval_id": interval_id,
        "kind": kind,
        "due": due,
        "slot": slot,
        "key": key.decode(),
        "tag": tag,
        "limit": limit,
    }
