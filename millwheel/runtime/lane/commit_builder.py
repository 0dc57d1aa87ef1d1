"""Putting a commit together: everything in a bundle gets its number, its promise and its link.

Before anything is awaited: what is decided later belongs to the next bundle. Productions get their
place in their interval's log; weak ones that have it already, and have not arrived, are stored as
stragglers; what is sent at most once is numbered and stored nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from millwheel.codec import slot_of
from millwheel.context import PROCESSED
from millwheel.model import MAX_TIME, Delivery, record_id
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.routing import NOBODY
from millwheel.runtime.lane.open_commit import Bundle, IntervalWork
from millwheel.runtime.modes.batches import Bundling
from millwheel.store.port import Commit, IntervalCommit, TimerChange

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine


def put_together(engine: Engine, bundle: Bundle) -> Commit:
    """Number everything, and promise what may be promised with it."""
    stamp = engine.stamps.next()
    commit = Commit(stamp, engine.buckets.of_stamp(stamp).id)
    for interval, work in bundle.works.items():
        effects = work.effects
        number(interval, effects.productions, stamp)
        fleeting = interval.step.fleeting
        if fleeting:
            bundle.fleeting += [p for p in effects.productions if p.receiver in fleeting]
            commit.productions += [p for p in effects.productions if p.receiver not in fleeting]
        else:
            commit.productions += effects.productions
        if interval.chain is not None:
            stragglers = interval.chain.stragglers(work.items)
            interval.log.stored(stragglers)
            commit.stragglers += stragglers
        if interval.bundling is not None:
            commit.stragglers += _keep_members(interval, interval.bundling, stamp)
            if work.delivers:
                interval.log.acknowledge(interval.bundling.kept)
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
                values = (*values, interval.log.id, interval.rows_written)
                interval.rows_written += 1
            commit.rows.append((table, values))
        commit.statements += effects.statements
        commit.dead_letters += effects.dead_letters
        commit.intervals.append(_link(interval, work, stamp))
    engine.buckets.rows += bundle.count
    return commit


def number(interval: Interval, productions: list[Delivery[Any]], stamp: int) -> None:
    """Give the productions of a commit their place in the interval's log, as one batch.

    Those that nobody reads are acknowledged by the commit that writes them.
    """
    if not productions:
        return
    log, promised = interval.log, interval.promised
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
    holds = [p.hold for p in productions if p.receiver != NOBODY] if interval.percentiles else ()
    log.sent(seq, least, size, stamp, holds)
    if unread:
        log.acknowledge(unread)


def _keep_members(interval: Interval, bundling: Bundling, stamp: int) -> list[Delivery[Any]]:
    """Copies, for the interval's own log, of the members that are to be stored with their bundle:
    weak productions on their way from the interval to itself."""
    members = bundling.to_keep()
    if not members:
        return []
    log, promised = interval.log, interval.promised
    first = log.next_seq
    copies = [
        structs.replace(member, log=log.id, seq=seq, hold=max(member.hold, promised))
        for seq, member in enumerate(members, first)
    ]
    holds = [copy.hold for copy in copies]
    size = sum(copy.size for copy in copies)
    end = first + len(copies)
    log.sent(end, min(holds), size, stamp, holds if interval.percentiles else ())
    log.stored(copies)
    bundling.kept = range(first, end)
    return copies


def _add_changes(commit: Commit, interval: Interval, work: IntervalWork) -> None:
    n = interval.n + 1
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
    interval.changed_since_fold += len(work.states) + len(work.effects.timers)


def _link(interval: Interval, work: IntervalWork, stamp: int) -> IntervalCommit:
    """The interval's next link in its chain, with everything that rides on it."""
    for offset in work.given_up:
        interval.log.acknowledge([offset])  # stored with the letter that keeps the row
    interval.let_go()
    interval.dirty = False
    interval.n += 1
    work.n = interval.n
    interval.promised = work.low_watermark = interval.output_watermark()
    work.percentiles = interval.promise_percentiles()
    counters = work.effects.counters
    processed = len(work.items)
    if interval.chain is not None:
        processed += interval.chain.take_passed()
    if processed:
        counters[PROCESSED] = processed
    interval.count(counters)
    return IntervalCommit(
        interval_id=interval.id,
        sequencer=interval.sequencer,
        n=interval.n,
        previous_bucket=interval.last_bucket,
        input_watermark=interval.input_watermark,
        low_watermark=interval.promised,
        floor=interval.floor(stamp),
        acked=interval.acked_state(),
        position=interval.encoded_position(work),
        counters=interval.encoded_counters,
        percentiles=work.percentiles,
    )
