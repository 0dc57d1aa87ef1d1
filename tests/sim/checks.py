"""What must hold at every step, each under one name: docs/invariants.md, by the ledger.

A check is asked before its event is written into the ledger, with the event, or after it
(`STANDING`). It returns nothing, and says ``must(...)`` of what has to be so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millwheel.core.model import MAX_TIME, MIN_TIME, name_of, to_micros
from millwheel.store.memory.tables import Tables
from millwheel.store.port.buckets import Bucket
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit
from tests.sim.ledger import Ledger, acked_of, is_in
from tests.support.random_graphs import Dot
from tests.support.values import at


class Broken(Exception):
    """A check found that something does not hold."""


def must(holds: object, what: str, *about: Any) -> None:
    """Say that something has to be so."""
    if not holds:
        raise Broken(f"{what}: {', '.join(map(str, about))}" if about else what)


# -- I1 -----------------------------------------------------------------------------------


def acknowledged_is_durable(ledger: Ledger, commit: Commit) -> None:
    """I1: what a sender stores as acknowledged has its effects in the store, or what stands for
    it."""
    for link in commit.intervals:
        for log, (first, runs) in acked_of(link).items():
            before = ledger.acked.get(log, (0, []))
            numbers = [*range(before[0], first), *(s for a, b in runs for s in range(a, b + 1))]
            for seq in numbers:
                if not is_in(before, seq):
                    _is_durable(ledger, log, seq, None)


def told_is_durable(ledger: Ledger, log: int, receiver: int, seqs: Sequence[int]) -> None:
    """I1: an acknowledgement is sent only for what is durable."""
    for seq in seqs:
        _is_durable(ledger, log, seq, receiver)


def _is_durable(ledger: Ledger, log: int, seq: int, receiver: int | None) -> None:
    if log in ledger.sources:
        steps = ledger.tapes[ledger.sources[log]].steps
        must(seq < len(steps), "acknowledged what was never there", log, seq)
        dot = steps[seq].value
        readers = ledger.readers[ledger.stream_of(log)] if receiver is None else [receiver]
    else:
        sent = ledger.sent[log].get(seq)
        if sent is None or (log, seq) in ledger.weak or not sent.receiver:
            return
        dot, readers = sent.value, [sent.receiver]
    if not isinstance(dot, Dot):
        return  # a word, or a pane
    for reader in readers:
        done = ledger.is_done(reader, log, seq, dot)
        must(done, "acknowledged, and not durable", ledger.names[reader], log, seq, dot.name)


# -- I2 -----------------------------------------------------------------------------------


def one_effect_per_record(ledger: Ledger, commit: Commit) -> None:
    """I2: a record id is noted once per computation, for ever."""
    now: set[tuple[int, bytes]] = set()
    for rows in commit.seen.values():
        for receiver, id_ in rows:
            name = receiver, name_of(id_)
            must(name not in ledger.seen and name not in now, "processed twice", name)
            now.add(name)


def one_effect_per_value(ledger: Ledger, commit: Commit) -> None:
    """I2: code meets each value once in what takes effect, where all before it is exactly once."""
    for number, event in ledger.journal(commit):
        if event.what == "got" and not ledger.scenario.doubles(number):
            must(not ledger.met[number, event.name], "met twice", number, event.name)


# -- I3, I4, I12 ---------------------------------------------------------------------------


def only_the_last_owner_writes(ledger: Ledger, commit: Commit) -> None:
    """I3: a commit has the sequencer that was given last for all of its slots."""
    for link in commit.intervals:
        part = ledger.parts.get(link.interval_id)
        must(part is not None, "an interval that was cut away is written to", link.interval_id)
        assert part is not None
        told = part.sequencer, link.sequencer
        must(part.sequencer == link.sequencer, "a commit of who was fenced", part.id, *told)


def sequencers_rise(ledger: Ledger, raised: Mapping[int, int]) -> None:
    """I3: whoever is given slots has a higher sequencer than all before him."""
    for id_, sequencer in raised.items():
        part = ledger.parts[id_]
        must(sequencer > part.sequencer, "a sequencer did not rise", id_, sequencer)


def a_cut_fences(ledger: Ledger, parents: Sequence[int], sequencers: Sequence[int]) -> None:
    """I3: what came of a cut has higher sequencers than what was cut."""
    for id_ in parents:
        for sequencer in sequencers:
            must(sequencer > ledger.parts[id_].sequencer, "cut without a new sequencer", id_)


def a_successor_knows_all(ledger: Ledger, claims: Sequence[Claim]) -> None:
    """I4: a claim reads all that its predecessor wrote, since nobody writes any more."""
    for claim in claims:
        part = ledger.parts.get(claim.interval.id)
        if part is None or part.sequencer != claim.interval.sequencer:
            continue  # somebody else has claimed it since: this one will be fenced
        what = f"a claim of interval {part.id} missed"
        must(claim.n == part.n, f"{what} a commit", claim.n, part.n)
        must(claim.low_watermark == part.low, f"{what} a low watermark")
        logs = {row.id for row in claim.logs} | {claim.new_log}
        mine = {log for log, _ in ledger.undone if ledger.logs[log] == part.id}
        must(mine <= logs, f"{what} a log", mine - logs)
        low, high = part.slots
        pending = {
            (name[1], name[2], name[3])
            for name, timer in ledger.timers.items()
            if name[0] == part.computation and low <= timer.slot < high
        }
        found = {(t.key, t.kind, t.tag) for t in claim.timers}
        must(found <= pending, f"{what} that a timer is gone", found - pending)
        lacking = {name for name in pending - found if name[1] not in claim.more_timers}
        must(not lacking, f"{what} a timer", lacking)


def nothing_comes_after_a_claim(ledger: Ledger, commit: Commit, sent_at: float) -> None:
    """I4, I12: once a claim has read an interval, no commit takes effect that was sent before."""
    for link in commit.intervals:
        read_at = ledger.read_at.get(link.interval_id, 0.0)
        must(sent_at >= read_at, "a claim was read while it was on the wire", link.interval_id)


def commits_follow_each_other(ledger: Ledger, commit: Commit) -> None:
    """I12: n follows n - 1, and none is left out."""
    for link in commit.intervals:
        part = ledger.parts[link.interval_id]
        must(link.n == part.n + 1, "a link of the chain is missing or doubled", part.id, link.n)


def code_runs_on_what_was_left(ledger: Ledger, commit: Commit) -> None:
    """I12: the state that code sees is the one that its key's last commit left: it counts on."""
    counts: Counter[tuple[int, str]] = Counter()
    for number, event in ledger.journal(commit):
        counts[number, event.key] += 1
        if event.count and ledger.scenario.modes[number].exactly_once:
            expected = ledger.events[number, event.key] + counts[number, event.key]
            must(event.count == expected, "an event twice, or one is missing", event, expected)


# -- I5, I7 ---------------------------------------------------------------------------------


def watermarks_never_go_back(ledger: Ledger, commit: Commit) -> None:
    """I5: neither those of an interval, nor the least of a computation."""
    for link in commit.intervals:
        part = ledger.parts[link.interval_id]
        must(link.low_watermark >= part.low, "a low watermark went back", part.id)
        must(link.low_watermark <= link.input_watermark, "output ahead of input", part.id)
        if part.computation in ledger.senders:
            must(link.input_watermark >= part.input, "an input watermark went back", part.id)
            told = input_of(ledger, part.computation)
            must(link.input_watermark <= told, "ahead of what its senders have stored", part.id)


def input_of(ledger: Ledger, computation: int) -> int:
    """The input watermark of a computation, by what its senders have stored."""
    least = ledger.least or ledger.least_now()
    return min(least[sender] for sender in ledger.senders[computation])


def holds_are_what_was_promised(ledger: Ledger, commit: Commit) -> None:
    """I5: a record or timer holds its timestamp, or what was promised when it was sent or set: a
    late one does not hold the watermark back."""
    for production in commit.productions:
        part = ledger.parts[ledger.logs[production.log]]
        hold = max(production.micros, part.low)
        must(production.hold == hold, "a hold is not what was promised", production.hold - hold)
    for change in commit.timers:
        if change.due is not None:
            hold = max(change.due, ledger.parts[change.interval_id].low)
            must(change.hold == hold, "a timer's hold is not what was promised", change.tag)


def user_code_is_told_what_is_stored(ledger: Ledger, commit: Commit) -> None:
    """I5, I7: no input watermark that is not stored, and nothing late without cause. What is sent
    at most once is not waited for, so that it may be late, as may a copy of what came in time."""
    for number, event in ledger.journal(commit):
        told = input_of(ledger, ledger.ids[f"n{number}"])
        must(event.watermark <= told, "user code was told what was not stored", event)
        if event.what == "rang":
            must(event.moment < event.watermark, "a timer rang before its time", event)
        elif (
            event.on_time
            and not ledger.scenario.loses(number)
            and not ledger.met[number, event.name]
        ):
            must(event.moment >= event.watermark, "late without cause", event)


def no_output_is_late_without_cause(ledger: Ledger, commit: Commit) -> None:
    """I7: an output that is older than what its sender has promised comes of a late record, or of a
    copy of what came in time, where copies are run."""
    copies = [(of, f"{e.name}.") for of, e in ledger.journal(commit) if ledger.met[of, e.name]]
    for production in commit.productions:
        part = ledger.parts[ledger.logs[production.log]]
        low, number = part.low, ledger.number_of(part.computation)
        if number is not None and ledger.scenario.loses(number):
            continue
        if production.micros < low and isinstance(production.value, Dot):
            name = production.value.name
            if any(of == number and name.startswith(copied) for of, copied in copies):
                continue
            must(not production.value.on_time, "an output is late", production.value, low)


def time_waits_for_productions(ledger: Ledger) -> None:
    """I5: no low watermark is ahead of a production that nobody has processed."""
    parts, logs = ledger.parts, ledger.logs
    for (log, seq), sent in ledger.undone.items():
        low = parts[logs[log]].low
        if low > sent.hold:
            must(False, "ahead of a production nobody has processed", log, seq, low - sent.hold)


def time_waits_for_timers(ledger: Ledger) -> None:
    """I5: no low watermark is ahead of a timer, or of a hold of user code."""
    busy = {name[:2] for name in ledger.timers if name[2] == "watermark"}
    for name, timer in ledger.timers.items():
        if name[2] == "wall":
            continue
        part = ledger.part_of(name[0], timer.slot)
        if name[2] == "hold" and part.input == MAX_TIME and not busy:
            continue  # at the end of time, when nothing is left to release them
        must(part.low <= timer.hold, f"ahead of a pending {name[2]}", name)


def time_waits_for_rows(ledger: Ledger) -> None:
    """I5: no source is ahead of its own word, or of a row that is not processed by all readers."""
    for log, partition in ledger.sources.items():
        source = ledger.plan.sources[ledger.plan.partitions()[partition]]
        low = ledger.parts[ledger.logs[log]].low
        if source.idle or low == MIN_TIME:
            continue
        promised = MIN_TIME
        readers = ledger.readers[ledger.stream_of(log)]
        for offset, step in enumerate(ledger.tapes[partition].steps):
            if step.watermark is not None:
                promised = max(promised, step.watermark)
                continue
            dot = step.value
            assert isinstance(dot, Dot)
            micros = to_micros(at(dot.second))
            if low > max(micros, promised) and not ledger.is_acknowledged(log, offset):
                done = all(ledger.is_done(reader, log, offset, dot) for reader in readers)
                must(done, "ahead of a row nobody has processed", dot.name)
            promised = max(promised, micros - source.lateness * 1_000_000)
        if not ledger.closing:
            must(low <= promised, "a source is ahead of its own word", log)


# -- I6 -----------------------------------------------------------------------------------


def timers_fire_in_order_and_once(ledger: Ledger, commit: Commit) -> None:
    """I6: per key in the order of time, across tags; each once, if it was not taken back."""
    rings: dict[tuple[int, str], dict[str, int]] = {}
    for number, event in ledger.journal(commit):
        where = number, event.key
        due = rings.setdefault(where, dict(ledger.rings[where]))
        if event.what == "set":
            due[event.name] = event.moment
        elif event.what == "cancel":
            due.pop(event.name, None)
        elif event.what == "rang":
            must(due.pop(event.name, None) == event.moment, "rang, and was not set", event)
            must(min(due.values(), default=MAX_TIME) >= event.moment, "rang out of order", event)


# -- I8 -----------------------------------------------------------------------------------


def what_is_read_is_bounded(ledger: Ledger) -> None:
    """I8: a source has no more rows on their way than its credits allow."""
    most = ledger.plan.limits.unacked
    if ledger.losses:
        return  # what was acknowledged and is lost was read within credits
    for log, partition in ledger.sources.items():
        tape = ledger.tapes[partition]
        read = len(tape.read_once)
        if read <= most:
            continue
        readers = ledger.readers[ledger.stream_of(log)]
        open_ = sum(
            not all(ledger.is_done(reader, log, offset, dot) for reader in readers)
            for offset, dot in ledger.rows(log)
            if offset < read and not ledger.is_acknowledged(log, offset)
        )
        must(open_ <= most, "more rows on their way than there are credits", log, open_)


def what_is_sent_is_bounded(ledger: Ledger) -> None:
    """I8: a log has no more on its way than its credits, and what two bundles made of their
    last."""
    limits = ledger.plan.limits
    most = limits.unacked + 2 * (limits.bundle + limits.chunk) * MOST_OUTPUTS
    on_their_way = Counter(log for log, _ in ledger.undone)
    for log, number in on_their_way.items():
        must(number <= most, "more on its way than there are credits", log, number)


MOST_OUTPUTS = 30
"""Of one record or timer, for all readers together."""


# -- I9 -----------------------------------------------------------------------------------


def a_retired_log_is_done(ledger: Ledger, logs: Sequence[int]) -> None:
    """I1, I9: of a log that is retired nothing is sent again, so that its readers must have it."""
    for (log, seq), sent in ledger.undone.items():
        if log in logs and isinstance(sent.value, Dot):
            done = ledger.is_done(sent.receiver, log, seq, sent.value)
            must(done, "a log is retired, and nobody has processed", log, seq)


def no_bucket_goes_too_early(ledger: Ledger, bucket: Bucket) -> None:
    """I9: what may be sent again finds the bucket of its id; what was written last finds its
    own."""
    if bucket.family == "source":
        for offset, dot in ledger.rows(bucket.log):
            if bucket.low <= offset < bucket.high:
                known = ledger.is_acknowledged(bucket.log, offset)
                must(known, "rows may come again, and their bucket is gone", dot.name)
        return
    if bucket.family != "time":
        return
    for (log, seq), sent in ledger.undone.items():
        if bucket.low <= sent.stamp < bucket.high:
            must(False, "a production may come again, and its bucket is gone", log, seq)
    for part in ledger.parts.values():
        must(part.bucket != bucket.id, "a bucket is gone, and a last commit with it", part.id)
        held = [n for n, where in part.changed if where == bucket.id]
        must(not held, "a bucket is gone, and changes that are not folded", part.id, held)


# -- I14, I15 -------------------------------------------------------------------------------


def keys_keep_their_order(ledger: Ledger, commit: Commit) -> None:
    """I14: of one log, stream and key code meets the records in the sender's order."""
    last: dict[tuple[int, str, str, int], int] = {}
    for number, event in ledger.journal(commit):
        if event.what != "got" or not ledger.scenario.modes[number].exactly_once:
            continue
        if ledger.scenario.doubles(number) or ledger.scenario.modes[number].at_most_once:
            continue
        place = ledger.place_of(number, event)
        if place is None:
            continue
        where = number, event.key, event.stream, place[0]
        before = last.get(where, ledger.last_met.get(where, -1))
        must(before < place[1], "out of order", event, place)
        last[where] = place[1]


def readers_see_what_was_committed(ledger: Ledger, tables: Tables, interval: int) -> None:
    """I15: what is folded and what is not, together, is what commits have left: no less, no
    more."""
    part = ledger.parts[interval]
    low, high = part.slots
    states, timers = tables.tail(interval, tables.intervals[interval].folded)
    seen: dict[Any, Any] = {
        (*key, entry): value
        for key, entries in tables.state.items()
        if key[1] == part.computation and low <= key[0] < high
        for entry, value in entries.items()
    }
    for (key, entry), change in states.items():
        seen.pop((*key, entry), None)
        if change.value is not None:
            seen[(*key, entry)] = change.value, change.version
    left = {
        name: value
        for name, value in ledger.state.items()
        if name[1] == part.computation and low <= name[0] < high
    }
    must(seen == left, "readers see other state than was committed", _difference(seen, left))
    rung = {
        name: due
        for name, due in tables.timers.items()
        if name[1] == part.computation and low <= name[0] < high
    }
    for timer, moved in timers.items():
        rung.pop(timer, None)
        if moved.due is not None and moved.hold is not None:
            rung[timer] = moved.due, moved.hold
    pending = {
        (timer.slot, *name): (timer.due, timer.hold)
        for name, timer in ledger.timers.items()
        if name[0] == part.computation and low <= timer.slot < high
    }
    must(rung == pending, "readers see other timers than are set", _difference(rung, pending))


def _difference(one: dict[Any, Any], other: dict[Any, Any]) -> list[Any]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)][:3]


ON_COMMIT: tuple[Callable[[Ledger, Commit], None], ...] = (
    only_the_last_owner_writes,
    commits_follow_each_other,
    one_effect_per_record,
    one_effect_per_value,
    acknowledged_is_durable,
    watermarks_never_go_back,
    holds_are_what_was_promised,
    user_code_is_told_what_is_stored,
    no_output_is_late_without_cause,
    timers_fire_in_order_and_once,
    code_runs_on_what_was_left,
    keys_keep_their_order,
)

STANDING: tuple[Callable[[Ledger], None], ...] = (
    time_waits_for_productions,
    time_waits_for_timers,
    time_waits_for_rows,
    what_is_read_is_bounded,
    what_is_sent_is_bounded,
)
