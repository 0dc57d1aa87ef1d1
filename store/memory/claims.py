"""What the new owner of an interval starts from."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from millwheel.errors import Fenced
from millwheel.store.memory.jsonb import jsonb_text
from millwheel.store.memory.tables import Tables
from millwheel.store.port import TIMER_KINDS, Claim, LogRow, TimerChange, TimerPlace


def read_claim(tables: Tables, interval_id: int, sequencer: int, new_log: int, limit: int) -> Claim:
    """An interval as it is after it was taken.

    Args:
        sequencer: what this claim raised it to.
        new_log: the log that this claim opened; 0: none.
        limit: how many timers of each kind to read at the most.
    """
    # By now another claim may have raised the sequencer again, and whoever reported that
    # one's sequencer as his own would pass its fence.
    if interval_id not in tables.intervals:
        raise Fenced("intervals were claimed and merged by others as soon as they were claimed")
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
        percentiles=dict(link.percentiles),
        acked={
            int(log): (first, [(a, b) for a, b in runs])
            for log, (first, runs) in msgspec.json.decode(link.acked).items()
        },
        position=None if link.position is None else msgspec.json.decode(link.position),
        counters=msgspec.json.decode(link.counters),
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
    )


def read_timers(
    tables: Tables, interval_id: int, kind: str, after: TimerPlace | None, limit: int
) -> list[TimerChange]:
    """The next pending timers of an interval, folded or not; none if it is gone."""
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
