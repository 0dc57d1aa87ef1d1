"""Builds a commit from an open commit: numbers, low watermarks, and the intervals' chain links.

Building awaits nothing: later decisions of user code belong to the next commit. Un-ACKed weak
productions that have a number already are stored as stragglers. Productions that are sent at most
once are numbered, and stored nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from millwheel.core.chunk import Chunk, Chunks, Columns, Outbox
from millwheel.core.codec import slot_of
from millwheel.core.counters import PROCESSED, RECORDS_OUT
from millwheel.core.model import MAX_TIME, Delivery, is_derived, log_and_number
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.work import IntervalWork
from millwheel.runtime.lane.open_commit import OpenCommit
from millwheel.runtime.routes.routes import NOBODY
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.store.port.commit import Commit, IntervalCommit
from millwheel.store.port.seen import SeenIds
from millwheel.store.port.states import StateRun, TimerChange


def build_commit(buckets: Buckets, open_commit: OpenCommit) -> Commit:
    """Number productions and commits; set the low watermarks that the commit promises."""
    stamp = open_commit.stamp
    commit = Commit(stamp, buckets.of_stamp(stamp).id)
    productions: list[Chunk] = []
    timers: list[Sequence[list[Any]]] = []
    seen: defaultdict[int, SeenIds] = defaultdict(SeenIds)
    for interval, work in open_commit.works.items():
        effects = work.effects
        numbered = number(interval, effects.productions, stamp)
        sent = sum(len(chunk) for chunk in numbered if chunk.receiver != NOBODY)
        work.records_out = sent + len(effects.rows) + len(effects.lines)
        stored, sent_once = interval.step.divided(numbered)
        productions += stored
        open_commit.sent_once += sent_once
        interval.mode.join(commit, work, stamp)
        if interval.step.node.exactly_once:
            _note_seen(seen, work)
        if work.states or work.entries:
            commit.states.append(_changed_states(interval, work))
        if effects.timers:
            timers.append(_timers(interval, work))
        for table, values in effects.rows:
            if table.numbered:
                values = (*values, interval.id, interval.commits.number_row(table.name))
            commit.rows.append((table, values))
        commit.statements += effects.statements
        commit.dead_letters += effects.dead_letters
        commit.settled += effects.settled
        commit.intervals.append(_link(interval, work, stamp, commit.bucket))
    commit.productions = Chunks(productions)
    if timers:
        commit.timers = Columns(*map(_joined, zip(*timers, strict=True)), row=TimerChange._make)
    commit.seen = dict(seen)
    buckets.rows += open_commit.count
    return commit


def number(interval: Interval, outbox: Outbox, stamp: int) -> list[Chunk]:
    """Number the productions of a commit in the interval's log, as one batch: one run of numbers
    for each receiver, in the order of production.

    Productions without a reader are acknowledged by the commit that stores them.
    """
    if not outbox:
        return []
    log, promised = interval.log, interval.watermarks.promised
    seq, least, size = log.next_seq, MAX_TIME, 0
    unread: list[range] = []
    numbered = [chunk for chunks in outbox.of.values() for chunk in chunks]
    for chunk in numbered:
        chunk.log, chunk.stamp = log.id, stamp
        chunk.numbers = range(seq, seq + len(chunk))
        seq += len(chunk)
        lowest = min(chunk.holds)
        if lowest < promised:
            lowest = promised
            chunk.holds = [max(hold, promised) for hold in chunk.holds]
        if chunk.receiver == NOBODY:
            unread.append(chunk.numbers)
            continue
        least = min(least, lowest)
        size += chunk.size
    log.sent(seq, least, size, stamp)
    for numbers in unread:
        log.acknowledge(numbers)
    return numbered


def _note_seen(seen: defaultdict[int, SeenIds], work: IntervalWork) -> None:
    for chunk in work.chunks:
        if chunk.names:
            seen[chunk.bucket].rows += zip(chunk.slots, repeat(chunk.receiver), chunk.names)
        else:
            seen[chunk.bucket].add_numbers(chunk.receiver, chunk.log, chunk.numbers)
    for item in work.items:
        if type(item) is not Delivery:
            continue
        if item.named or is_derived(item.id):
            seen[item.bucket].rows.append((item.slot, item.receiver, item.id))
        else:
            log, number = log_and_number(item.id)
            seen[item.bucket].add_numbers(item.receiver, log, (number,))


def _joined(columns: Sequence[list[Any]]) -> list[Any]:
    return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))


def _changed_states(interval: Interval, work: IntervalWork) -> StateRun:
    keys = [state.key_text for state in work.states]
    slots = [state.slot for state in work.states]
    values: list[bytes | None] = list(work.states.values())
    entries: list[str] | None = None
    if work.entries:
        entries = [""] * len(keys)
        for (key_text, entry), (slot, value) in work.entries.items():
            keys.append(key_text)
            slots.append(slot)
            entries.append(entry)
            values.append(value)
    interval.commits.changed_since_fold += len(keys)
    step = interval.step
    return StateRun(
        interval.id, interval.commits.n + 1, step.id, step.version, slots, keys, entries, values
    )


def _timers(interval: Interval, work: IntervalWork) -> Sequence[list[Any]]:
    names, timers = list(work.effects.timers), list(work.effects.timers.values())
    count = len(names)
    interval.commits.changed_since_fold += count
    same = (interval.id, interval.commits.n + 1, interval.step.id)
    return (
        *([each] * count for each in same),
        [
            slot_of(name[0]) if timer is None else timer[3]
            for name, timer in zip(names, timers, strict=True)
        ],
        *([name[place] for name in names] for place in range(3)),
        *([None if timer is None else timer[place] for timer in timers] for place in range(2)),
    )


def _link(interval: Interval, work: IntervalWork, stamp: int, bucket: int) -> IntervalCommit:
    for offset in work.given_up:
        interval.log.acknowledge([offset])  # its dead letter keeps the row
    commits, watermarks = interval.commits, interval.watermarks
    interval.dirty = False
    commits.n += 1
    work.n = commits.n
    watermarks.promise(work)
    counters = work.effects.counters
    processed = work.count - work.requests + interval.mode.take_passed()
    if processed:
        counters[PROCESSED] = processed
    work.records_out += interval.take_sent_before()
    if work.records_out:
        counters[RECORDS_OUT] = work.records_out
    interval.counters.count(commits.n, counters, interval.events())
    previous, commits.last_bucket = commits.last_bucket, bucket
    return IntervalCommit(
        interval_id=interval.id,
        sequencer=commits.sequencer,
        n=commits.n,
        previous_bucket=previous,
        input_watermark=watermarks.input,
        low_watermark=watermarks.promised,
        floor=interval.logs.floor(stamp),
        acked=interval.logs.acked(),
        position=interval.encoded_position(work),
        counters=interval.counters.encoded,
        table_rows=dict(commits.table_rows),
    )
