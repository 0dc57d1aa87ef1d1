"""Builds a commit from an open commit: numbers, low watermarks, and the intervals' chain links.

Building awaits nothing: later decisions of user code belong to the next commit. Productions get their
numbers in their interval's log. Weak productions that have a number already and are un-ACKed are stored
as stragglers. Productions that are sent at most once are numbered, and stored nowhere.
"""

from __future__ import annotations

from typing import Any

from millwheel.codec import slot_of
from millwheel.context import PROCESSED
from millwheel.model import MAX_TIME, Delivery, record_id
from millwheel.runtime.interval.buckets import Buckets
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.routing import NOBODY
from millwheel.runtime.interval.work import IntervalWork
from millwheel.runtime.lane.open_commit import OpenCommit
from millwheel.runtime.process.stamps import Stamps
from millwheel.store.port import Commit, IntervalCommit, TimerChange


def build_commit(stamps: Stamps, buckets: Buckets, open_commit: OpenCommit) -> Commit:
    """Number the productions and commits, and set the low watermarks that the commit promises."""
    stamp = stamps.next()
    commit = Commit(stamp, buckets.of_stamp(stamp).id)
    for interval, work in open_commit.works.items():
        effects = work.effects
        number(interval, effects.productions, stamp)
        stored, sent_once = interval.step.divided(effects.productions)
        commit.productions += stored
        open_commit.sent_once += sent_once
        interval.mode.join(commit, work, stamp)
        bucket = 0
        for item in work.items if interval.step.node.exactly_once else ():
            if type(item) is Delivery:
                if item.bucket != bucket:
                    bucket = item.bucket
                    seen = commit.seen.setdefault(bucket, [])
                seen.append((item.slot, item.receiver, item.id))
        _add_changes(commit, interval, work)
        for table, values in effects.rows:
            if table.numbered:
                values = (*values, interval.log.id, interval.logs.rows_written)
                interval.logs.rows_written += 1
            commit.rows.append((table, values))
        commit.statements += effects.statements
        commit.dead_letters += effects.dead_letters
        commit.intervals.append(_link(interval, work, stamp))
    buckets.rows += open_commit.count
    return commit


def number(interval: Interval, productions: list[Delivery[Any]], stamp: int) -> None:
    """Give the productions of a commit their numbers in the interval's log, as one batch.

    Productions without a reader are acknowledged by the commit that stores them.
    """
    if not productions:
        return
    log, promised = interval.log, interval.watermarks.promised
    id_, seq = log.id, log.next_seq
    least, size = MAX_TIME, 0
    unread: list[int] = []
    for production in productions:
        hold = production.hold
        if hold < promised:
            hold = production.hold = promised
        production.log = id_
        production.seq = seq
        production.stamp = stamp
        if production.receiver == NOBODY:
            unread.append(seq)
        else:
            production.id = record_id(id_, seq)
            size += production.size
            if hold < least:
                least = hold
        seq += 1
    holds = (
        [p.hold for p in productions if p.receiver != NOBODY]
        if interval.watermarks.percentiles
        else ()
    )
    log.sent(seq, least, size, stamp, holds)
    if unread:
        log.acknowledge(unread)


def _add_changes(commit: Commit, interval: Interval, work: IntervalWork) -> None:
    n = interval.commits.n + 1
    computation = interval.step.id
    version = interval.step.version
    commit.states += [
        (interval.id, n, computation, slot, key, entry, value, version)
        for (key, entry), (slot, value) in work.states.items()
    ]
    for (key, kind, tag), timer in work.effects.timers.items():
        due, hold = (None, None) if timer is None else timer[:2]
        commit.timers.append(
            TimerChange(interval.id, n, computation, slot_of(key), key, kind, tag, due, hold)
        )
    interval.commits.changed_since_fold += len(work.states) + len(work.effects.timers)


def _link(interval: Interval, work: IntervalWork, stamp: int) -> IntervalCommit:
    """The interval's next link in its chain of commits, with its low watermarks, ACKs and position."""
    for offset in work.given_up:
        interval.log.acknowledge([offset])  # its dead letter keeps the row
    commits, watermarks = interval.commits, interval.watermarks
    interval.dirty = False
    commits.n += 1
    work.n = commits.n
    watermarks.promise(work)
    counters = work.effects.counters
    processed = len(work.items) + interval.mode.take_passed()
    if processed:
        counters[PROCESSED] = processed
    interval.counters.count(commits.n, counters, interval.events())
    return IntervalCommit(
        interval_id=interval.id,
        sequencer=commits.sequencer,
        n=commits.n,
        previous_bucket=commits.last_bucket,
        input_watermark=watermarks.input,
        low_watermark=watermarks.promised,
        floor=interval.logs.floor(stamp),
        acked=interval.logs.acked(),
        position=interval.encoded_position(work),
        counters=interval.counters.encoded,
        percentiles=work.percentiles,
    )
