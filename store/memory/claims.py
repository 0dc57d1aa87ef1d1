from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from millwheel.errors import Fenced
from millwheel.store.memory.jsonb import jsonb_text
from millwheel.store.memory.placement import MemoryPlacement
from millwheel.store.memory.tables import Tables
from millwheel.store.port.claims import Claim, LogRow
from millwheel.store.port.placement import IntervalRow
from millwheel.store.port.requests import DeadLetter, OpenRequest, ParkedRows
from millwheel.store.port.states import TIMER_KINDS, TIMERS_A_PAGE, TimerChange, TimerPlace

Taken = tuple[dict[int, int], dict[int, int]]
"""Raised sequencer and new log by interval."""


class MemoryClaims(MemoryPlacement):
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
        await self._called("claim")
        taken = self.raise_sequencers(worker, interval_ids, again=again, sequencers=sequencers)
        await asyncio.sleep(0)  # the sequencers are raised; only now is anything read (I4)
        return self.read_claims(taken, timers)

    def raise_sequencers(
        self,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool,
        sequencers: Mapping[int, int] | None,
    ) -> Taken:
        """The first transaction of a claim, which fences the former owners."""
        if sequencers is None:
            return self.take_over(worker, interval_ids, again=again)
        return self.take_free(worker, interval_ids, sequencers)

    def read_claims(self, taken: Taken, timers: int) -> list[Claim]:
        raised, new_logs = taken
        return [
            read_claim(self.tables, id_, sequencer, new_logs.get(id_, 0), timers)
            for id_, sequencer in raised.items()
        ]

    async def read_timers(
        self, interval_id: int, kind: str, after: TimerPlace | None, limit: int
    ) -> list[TimerChange]:
        await self._called("read_timers")
        return read_timers(self.tables, interval_id, kind, after, limit)

    async def is_owner(self, interval_id: int, sequencer: int) -> bool:
        await self._called("is_owner")
        return self.tables.is_current(interval_id, sequencer)


def read_claim(tables: Tables, interval_id: int, sequencer: int, new_log: int, limit: int) -> Claim:
    """`limit` is for timers of each kind."""
    # Another claim may have raised the sequencer again: with the stored one, this owner would
    # pass that claim's fence.
    if interval_id not in tables.intervals:
        raise Fenced("other workers claimed and merged the intervals right after this claim")
    interval = tables.intervals[interval_id]
    last, bucket = tables.last_commit(interval_id)
    states, _ = tables.tail(interval_id, interval.folded)
    pages = {kind: read_timers(tables, interval_id, kind, None, limit) for kind in TIMER_KINDS}
    link = last.link
    return Claim(
        interval=replace(interval.row(), sequencer=sequencer),
        n=link.n,
        bucket=bucket,
        stamp=last.stamp,
        input_watermark=link.input_watermark,
        low_watermark=link.low_watermark,
        acked={
            int(log): (first, [(a, b) for a, b in runs])
            for log, (first, runs) in msgspec.json.decode(link.acked).items()
        },
        position=None if link.position is None else msgspec.json.decode(link.position),
        counters=msgspec.json.decode(link.counters),
        table_rows=dict(link.table_rows),
        folded=interval.folded,
        logs=[
            LogRow(id_, log.source)
            for id_, log in sorted(tables.logs.items())
            if log.interval_id == interval_id and not log.retired and id_ != new_log
        ],
        new_log=new_log,
        states=[
            change._replace(value=None if change.value is None else jsonb_text(change.value))
            for change in states.values()
        ],
        timers=[timer for page in pages.values() for timer in page],
        more_timers=frozenset(kind for kind, page in pages.items() if len(page) == limit),
        parked=_parked_keys(tables, interval.row()),
        blocking=tables.take_blocking(interval.row()),
        asked=_asked(tables, interval.row()),
    )


def _asked(tables: Tables, interval: IntervalRow) -> list[OpenRequest]:
    is_injector = interval.id in tables.sourced()
    return [
        OpenRequest(row.id, interval.id, row.verb, row.slot, row.key, row.payload, None, None)
        for row in tables.requests.values()
        if row.settled is None
        and not row.withdrawn
        and (is_injector or row.verb == "set_aside")
        and row.computation == interval.computation
        and interval.slot_from <= row.slot < interval.slot_to
    ]


def _parked_keys(tables: Tables, interval: IntervalRow) -> list[ParkedRows]:
    found: dict[bytes, list[DeadLetter]] = {}
    for letter in tables.dead_letters:
        if (
            letter.parked is not None
            and letter.key is not None
            and letter.computation == interval.computation
            and interval.slot_from <= letter.slot < interval.slot_to
        ):
            found.setdefault(letter.key, []).append(letter)
    return [
        ParkedRows(
            interval.computation, letters[0].slot, key, len(letters),
            sum(len(one.value) for one in letters),
            any(one.parked == "failed" for one in letters), [one.ts or 0 for one in letters],
        )
        for key, letters in found.items()
    ]  # fmt: skip


def read_timers(
    tables: Tables, interval_id: int, kind: str, after: TimerPlace | None, limit: int
) -> list[TimerChange]:
    """Folded or not; empty if the interval is gone."""
    interval = tables.intervals.get(interval_id)
    if interval is None:
        return []
    last, _ = tables.last_commit(interval_id)
    _, changes = tables.tail(interval_id, interval.folded)
    pending = {
        key: TimerChange(interval_id, last.link.n, key[1], key[0], *key[2:], *timer)
        for key, timer in tables.timers.items()
        if key[1] == interval.computation and interval.slot_from <= key[0] < interval.slot_to
    }
    for name, change in changes.items():
        pending.pop(name, None)
        if change.due is not None:
            pending[name] = change._replace(n=last.link.n)
    placed = sorted(
        ((t.due or 0, t.slot, t.key, t.tag), t) for t in pending.values() if t.kind == kind
    )
    return [t for place, t in placed if after is None or place > after][:limit]
