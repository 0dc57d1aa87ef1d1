"""One lane: a set of intervals, one ordered chain of commits, and the loop between them.

Two tasks share it. The *runner* takes records and due timers from its intervals, drops
what was seen, and runs user code; what is decided goes into the open bundle. The
*committer* takes whatever the open bundle holds, commits it, and only then acknowledges
the senders and sends the productions. While a commit is on the wire the runner goes on,
so bundles are small when there is little to do and large under load.

When a commit fails, everything later in the lane is dropped with it (I12): the intervals
are claimed again, which settles what became of the commit, state and timers are read
back, and the records that were on their way here run again. There is no second way back.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from millwheel.codec import slot_of
from millwheel.context import BAD_ROWS, PROCESSED, Effects
from millwheel.errors import CommitUnknown, Fenced, StatementError, StoreUnavailable
from millwheel.model import MAX_TIME, Delivery, Firing, record_id
from millwheel.runtime.bundle import Bundle, IntervalWork, Item
from millwheel.runtime.execution import Execution, give_up
from millwheel.runtime.interval import Interval, Ownership
from millwheel.runtime.load import Measured
from millwheel.runtime.states import Change, KeyState
from millwheel.runtime.step import NOBODY
from millwheel.runtime.tasks import end
from millwheel.store.port import (
    Commit,
    DeadLetter,
    IntervalCommit,
    StoreLane,
    TimerChange,
)

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

Group = tuple[KeyState, list[Item]]
"""One key's items, to be run in order."""

Suspect = tuple[Interval, Item]
"""One of the items of a commit that was refused for what user code wrote."""

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

FAIR_TURN = 8
"""Every so many times the next interval in turn is asked for work first."""

OUTAGE_GAP_SECONDS = 10.0
"""A lane that had nothing to commit for so long since it recovered meets a new outage."""


class Lane:
    """Runs and commits the work of its intervals, in order."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine = engine
        self._settings = engine.settings
        self.number = number
        self.intervals: list[Interval] = []
        self.downstream_first: list[Interval] = []
        """The same, those nearest to the end of the graph first."""
        self.wake = asyncio.Event()
        """There may be something to run: records, due timers, credits, room in the bundle."""
        self._commit_wanted = asyncio.Event()
        self._open = Bundle()
        self._committing = False
        self._on_the_wire: Container[Interval] = ()
        """The intervals of the bundle that is being committed."""
        self._sorted: Interval | None = None
        """Whose records were taken from the queue and are looked up, before they run."""
        self._settled = asyncio.Event()
        """Set when something has come to its end that somebody may wait for; each time another."""
        self._quiet = asyncio.Event()
        """The committer has nothing left to do."""
        self._port: StoreLane | None = None
        self._runner: asyncio.Task[None] | None = None
        self._hands: set[asyncio.Task[None]] = set()
        self._ran = asyncio.Event()
        self._looked = asyncio.Event()
        """The runner has taken some work and run it, has found none, or waits for the store."""
        self._turn = 0
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = 0
        self._failing_since: float | None = None
        self._recovering = False
        self._recovered_at = 0.0
        self._commit_began = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._touch_timer: asyncio.TimerHandle | None = None

    # -- life ---------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the lane's connection."""
        self._port = await self._engine.store.open_lane()

    def add(self, interval: Interval) -> None:
        """One more interval to work on."""
        self.intervals.append(interval)
        self.downstream_first = sorted(self.intervals, key=lambda i: -i.step.place)

    def remove(self, interval: Interval) -> None:
        """One less, of which nothing is left here."""
        self.intervals.remove(interval)
        self.downstream_first = [i for i in self.downstream_first if i is not interval]

    async def let_go(self, interval: Interval) -> None:
        """Wait until nothing of an interval that is leaving runs or is to be stored."""
        while interval in self.intervals and (
            interval is self._sorted
            or interval.backlog
            or interval.dirty
            or interval in self._open.works
            or interval in self._on_the_wire
        ):
            settled = self._settled
            if self._has_something_to_store():
                self._commit_wanted.set()
            await settled.wait()

    def start(self) -> None:
        """Begin to take work."""
        self._runner = self._engine.spawn(self._run(), f"lane {self.number} runner")
        self._engine.spawn(self._commit_for_ever(), f"lane {self.number} committer")

    async def stop_running(self) -> None:
        """Take no more work; what waits in user code is cancelled and will run again."""
        runner, self._runner = self._runner, None  # first: from here on no hand starts another
        if runner is not None:
            await end([runner])
        await end(self._hands)
        self._hands.clear()
        self._looked.set()

    def drop_open(self) -> None:
        """What is finished and not committed is not wanted any more."""
        self._open = Bundle()

    def run_on(self) -> None:
        """Take work again after `stop_running`; a lane that recovers does so by itself."""
        if self._runner is None and not self._recovering:
            self._runner = self._engine.spawn(self._run(), f"lane {self.number} runner")

    async def drain(self) -> None:
        """Commit what is finished, and nothing more."""
        while self._committing or self._has_something_to_store():
            self._quiet.clear()
            self._commit_wanted.set()
            await self._quiet.wait()

    async def close(self) -> None:
        """Let the connection go."""
        if self._touch_timer is not None:
            self._touch_timer.cancel()
        if self._port is not None:
            await self._port.close()
            self._port = None

    def touch(self, interval: Interval, *, urgent: bool) -> None:
        """Something of the interval is to be stored: at once, or with whatever comes next."""
        interval.dirty = True
        if urgent:
            self._commit_wanted.set()
        elif self._touch_timer is None:
            self._touch_timer = asyncio.get_running_loop().call_later(
                self._settings.idle_commit_seconds, self._touched_long_enough
            )

    def give_up_row(self, interval: Interval, offset: int, letter: DeadLetter) -> None:
        """Keep a bad row of a source; it is acknowledged when the letter is durable."""
        work = self._open.work(interval)
        work.given_up.append(offset)
        work.effects.dead_letters.append(letter)
        work.effects.counters[BAD_ROWS] = work.effects.counters.get(BAD_ROWS, 0) + 1
        self._commit_wanted.set()

    @property
    def busy(self) -> bool:
        """Whether anything is running, finished and uncommitted, or on the wire."""
        return self._committing or bool(self._open.works) or bool(self._hands)

    def _touched_long_enough(self) -> None:
        self._touch_timer = None
        self._commit_wanted.set()

    # -- running ------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self.wake.clear()
            await self._page_in()
            taken = self._take()
            if taken is None:
                self._wake_for_wall_timers()
                self._looked.set()
                await self.wake.wait()
                continue
            interval, items = taken
            interval.workload.sample(items)
            self._sorted = interval
            try:
                groups = await self._sort(interval, items)
            finally:
                self._sorted = None
            if groups:
                await self._run_groups(interval, groups)
            elif interval.leaving:
                self._announce()
            self._looked.set()

    async def _page_in(self) -> None:
        """Read on in the stored timers where those in memory have run out."""
        now = self._engine.now()
        for interval in list(self.intervals):
            while kinds := interval.lacking_timers(
                now
            ):  # a page may hold nothing but cancelled ones
                self._looked.set()
                for kind in kinds:
                    await self._engine.load_timers(interval, kind)

    def _wake_for_wall_timers(self) -> None:
        """Be awake when the clock reaches the next wall timer."""
        due = [at for interval in self.intervals if (at := interval.next_wall_timer()) is not None]
        if not due or (
            self._alarm is not None and not self._alarm.done() and self._alarm_at <= min(due)
        ):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = min(due)
        self._alarm = self._engine.spawn(self._wake_at(self._alarm_at), f"lane {self.number} alarm")

    async def _wake_at(self, due: int) -> None:
        engine = self._engine
        while (left := due - engine.now()) > 0:
            await engine.clock.sleep(left / 1e6)
        self.wake.set()

    def _take(self) -> tuple[Interval, list[Item]] | None:
        """Some work of an interval that has any; due timers come before records."""
        settings = self._settings
        if (
            self._open.count >= settings.bundle_records
            or self._open.size >= settings.bundle_bytes
            or len(self._hands) >= settings.waiting_keys
        ):
            return None
        now = self._engine.now()
        for interval in self._in_turn():
            if interval.leaving:
                continue
            has_due = interval.has_due(now)
            if not (has_due or interval.intake) or not interval.may_send():
                continue
            if has_due:
                firings = interval.due_timers(now, settings.chunk_records)
                if firings:
                    return interval, list(firings)
                self.wake.set()  # far ones have come due since: they are read before records run
                continue
            intake = interval.intake
            count = min(len(intake), settings.chunk_records)
            return interval, [intake.popleft() for _ in range(count)]
        return None

    def _in_turn(self) -> list[Interval]:
        """The intervals in the order in which they are asked for work.

        Who is nearest to the end of the graph comes first: records leave before others come
        in, so that they wait at the source and not between the stages. Now and then everybody
        gets a turn, so that no branch waits for another's source to run dry.
        """
        self._turn += 1
        if self._turn % FAIR_TURN or not self.intervals:
            return self.downstream_first
        first = self._turn // FAIR_TURN % len(self.intervals)
        return self.intervals[first:] + self.intervals[:first]

    async def _sort(self, interval: Interval, items: list[Item]) -> deque[Group]:
        """Drop what was seen, and put the rest in groups of one key, their state loaded."""
        if isinstance(items[0], Firing):
            fresh = items
        else:
            fresh = await self._deduplicate(interval, items)  # type: ignore[arg-type]
        by_key: dict[bytes, list[Item]] = {}
        groups: deque[Group] = deque()
        missing: list[KeyState] = []
        backlog, get = interval.backlog, interval.state_of
        for item in fresh:
            key_text = item.key_text
            same = by_key.get(key_text)
            if same is not None:
                same.append(item)
            elif key_text in backlog:
                interval.put_back(item)
            else:
                backlog[key_text] = None
                by_key[key_text] = same = [item]
                state = get(item.key, key_text, item.slot)
                if not state.loaded:
                    missing.append(state)
                groups.append((state, same))
        if missing:
            await self._load(interval, missing)
        return groups

    async def _deduplicate(self, interval: Interval, deliveries: list[Delivery[Any]]) -> list[Item]:
        dedup = interval.dedup
        if self._engine.courier is not None:
            try:
                await self._see_buckets(deliveries)
            except BaseException:
                interval.intake.extendleft(reversed(deliveries))  # they are nowhere else
                raise
        candidates, maybe, seen = dedup.sort(deliveries, self._engine.source_logs)
        if seen:
            self._drop(interval, seen)
        if maybe:
            self._looked.set()
            found = await self._engine.patiently(lambda: dedup.look_up(maybe))
            if found:
                self._drop(interval, dedup.landed(found))
                candidates = [d for d in candidates if d.id not in found]
        return candidates  # type: ignore[return-value]

    async def _see_buckets(self, deliveries: list[Delivery[Any]]) -> None:
        """Know for certain to which buckets records of other workers belong (decision 24)."""
        engine = self._engine
        buckets, sources = engine.buckets, engine.source_logs
        for delivery in deliveries:
            if delivery.log in sources:
                known = buckets.knows_offset(delivery.log, delivery.seq)
            else:
                known = buckets.covers(delivery.stamp)
            if not known:
                await engine.patiently(buckets.load)
                return

    def _drop(self, interval: Interval, seen: list[Delivery[Any]]) -> None:
        """Copies of what is durable are acknowledged, and that is all."""
        self._engine.acknowledge(seen)
        self.touch(interval, urgent=False)

    async def _load(self, interval: Interval, states: list[KeyState]) -> None:
        limit = self._settings.eager_entries
        self._looked.set()
        rows = await self._engine.patiently(
            lambda: self._engine.store.load_keys(
                interval.step.id, [(s.slot, s.key_text) for s in states], limit
            )
        )
        for state, entries in zip(states, rows, strict=True):
            state.fill(entries, complete=len(entries) < limit)

    async def _run_groups(self, interval: Interval, groups: deque[Group]) -> None:
        """Run all groups; one that waits for something goes on by itself, out of the way."""
        self._ran.clear()
        self._start_hand(interval, groups)
        await self._ran.wait()

    def _start_hand(self, interval: Interval, groups: deque[Group]) -> None:
        hand = asyncio.create_task(self._measured_hand(interval, groups))
        self._hands.add(hand)
        hand.add_done_callback(self._hand_ended)

    async def _measured_hand(self, interval: Interval, groups: deque[Group]) -> None:
        clock = self._engine.process.run_seconds
        await Measured(self._hand(interval, groups), interval.workload, clock)

    async def _hand(self, interval: Interval, groups: deque[Group]) -> None:
        """Runs groups until there are none, or until one waits: then another hand takes over.

        User code runs inside this task as a plain await, which costs nothing when it does
        not suspend. If it does, the callback below finds groups left and starts a new hand.

        Each key sees the input watermark as it is when the key's turn comes: what is promised
        may have moved since its records were taken, and what user code takes for open must
        not be closed downstream already.
        """
        asyncio.get_running_loop().call_soon(self._relieve, interval, groups)
        execution = Execution(interval)
        now = self._engine.now()
        backlog = interval.backlog
        while groups:
            state, items = groups.popleft()
            changes = await execution.run(state, items, interval.input_watermark, now)
            self._finish(interval, state, items, execution.effects, changes)
            while (waiting := backlog.pop(state.key_text)) is not None:
                backlog[state.key_text] = None
                now = self._engine.now()
                changes = await execution.run(state, waiting, interval.input_watermark, now)
                self._finish(interval, state, waiting, execution.effects, changes)

    def _relieve(self, interval: Interval, groups: deque[Group]) -> None:
        if groups and self._runner is not None:
            self._start_hand(interval, groups)
        else:
            self._ran.set()

    def _hand_ended(self, hand: asyncio.Task[None]) -> None:
        self._hands.discard(hand)
        if not hand.cancelled() and hand.exception() is not None:
            self._engine.fail(hand.exception())
        self._announce()
        self.wake.set()

    def _finish(
        self,
        interval: Interval,
        state: KeyState,
        items: list[Item],
        effects: Effects,
        changes: list[Change],
    ) -> None:
        """Put what a key's items decided into the open bundle; `effects` are empty again."""
        bundle = self._open
        work = bundle.works.get(interval)
        if work is None:
            work = bundle.work(interval)
        work.items += items
        if interval.firings:
            for item in items:
                if type(item) is Firing:
                    interval.fired(item)
        if effects.timers:
            promised = interval.promised
            for name, timer in effects.timers.items():
                if timer is not None and timer[1] < promised:
                    timer = effects.timers[name] = (timer[0], promised, timer[2], timer[3])
                interval.set_timer(name, timer)
        size = effects.size
        if changes:
            n = interval.n + 1
            if state.n != n:
                state.carry(changes, n)
            key_text, slot, states = state.key_text, state.slot, work.states
            for entry, encoded in changes:
                states[(key_text, entry)] = (slot, encoded)
                size += 64 if encoded is None else 64 + len(encoded)
        work.effects.take(effects)
        bundle.count += len(items)
        bundle.size += size
        self._commit_wanted.set()

    # -- committing -----------------------------------------------------------------

    async def _commit_for_ever(self) -> None:
        while True:
            await self._commit_wanted.wait()
            self._commit_wanted.clear()
            while self._has_something_to_store():
                await self._let_records_join()
                await self._have_bucket()
                bundle = self._close_bundle()
                if bundle is None:
                    break
                self._committing = True
                self._on_the_wire = bundle.works
                try:
                    await self._commit(bundle)
                except (StatementError, StoreUnavailable, CommitUnknown, Fenced) as error:
                    await self._recover(bundle, error)
                self._committing = False
                self._on_the_wire = ()
                self._announce()
            self._quiet.set()
            self._announce()
            self._engine.check_finished()

    def _announce(self) -> None:
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    def _has_something_to_store(self) -> bool:
        return bool(self._open.works) or any(interval.dirty for interval in self.intervals)

    async def _let_records_join(self) -> None:
        """Before ACKs and watermarks are committed alone: run what the last commit has sent here.

        Otherwise a record and the watermark that follows it take turns on the way through the
        stages, and each waits for the other's commits.
        """
        if self._open.works or self._runner is None:
            return
        if any(interval.intake and not interval.leaving for interval in self.intervals):
            self._looked.clear()
            self.wake.set()
            await self._looked.wait()

    async def _have_bucket(self) -> None:
        """Have the bucket of the next commit's stamp."""
        engine = self._engine
        if not engine.buckets.covers(max(engine.stamps.now(), engine.stamps.last + 1)):
            await engine.patiently(engine.buckets.ensure_current)

    def _close_bundle(self) -> Bundle | None:
        """The open bundle with everything else that is to be stored; None: nothing is."""
        bundle = self._open
        for interval in self.intervals:
            if interval.dirty:
                bundle.work(interval)
        if not bundle.works:
            return None
        self._open = Bundle()
        self.wake.set()
        return bundle

    async def _commit(self, bundle: Bundle) -> None:
        self._commit_began = self._engine.clock.monotonic()
        commit = self._build(bundle)  # before anything is awaited: no later work gets into it
        for interval, work in bundle.works.items():
            if work.effects.lines and interval.part_file is not None:
                await interval.part_file.append(work.effects.lines)
        assert self._port is not None
        clock = self._engine.clock
        sent = clock.monotonic()
        await self._port.commit(commit)
        self._engine.observer.commit_durable(clock.monotonic() - sent)
        self._failing_since = None
        self._settle(bundle, commit)

    def _build(self, bundle: Bundle) -> Commit:
        """Number everything, and promise what may be promised with it."""
        engine = self._engine
        stamp = engine.stamps.next()
        commit = Commit(stamp, engine.buckets.of_stamp(stamp).id)
        for interval, work in bundle.works.items():
            effects = work.effects
            self._number(interval, effects.productions, stamp)
            commit.productions += effects.productions
            bucket = 0
            for item in work.items:
                if type(item) is Delivery:
                    if item.bucket != bucket:
                        bucket = item.bucket
                        seen = commit.seen.setdefault(bucket, [])
                    seen.append((item.slot, item.receiver, item.id))
            self._add_changes(commit, interval, work)
            for table, values in effects.rows:
                if table.numbered:
                    values = (*values, interval.log.id, interval.rows_written)
                    interval.rows_written += 1
                commit.rows.append((table, values))
            commit.statements += effects.statements
            commit.dead_letters += effects.dead_letters
            commit.intervals.append(self._link(interval, work, stamp))
        engine.buckets.rows += bundle.count
        return commit

    def _number(self, interval: Interval, productions: list[Delivery[Any]], stamp: int) -> None:
        """Give the productions of a commit their place in the interval's log, as one batch.

        Those that nobody reads are acknowledged by the commit that writes them.
        """
        if not productions:
            return
        log, promised = interval.log, interval.promised
        number, seq = log.id, log.next_seq
        least, size = MAX_TIME, 0
        unread: list[int] = []
        for production in productions:
            hold = production.hold
            if hold < promised:
                hold = production.hold = promised
            production.log = number
            production.seq = seq
            production.stamp = stamp
            if production.receiver == NOBODY:
                unread.append(seq)
            else:
                production.id = record_id(number, seq)
                size += production.size
                if hold < least:
                    least = hold
            seq += 1
        holds = (
            [p.hold for p in productions if p.receiver != NOBODY] if interval.percentiles else ()
        )
        log.sent(seq, least, size, stamp, holds)
        if unread:
            log.acknowledge(unread)

    def _add_changes(self, commit: Commit, interval: Interval, work: IntervalWork) -> None:
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

    def _link(self, interval: Interval, work: IntervalWork, stamp: int) -> IntervalCommit:
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
        if work.items:
            counters[PROCESSED] = len(work.items)
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
            position=interval.encoded_position(work.effects.lines),
            counters=interval.encoded_counters,
            percentiles=work.percentiles,
        )

    def _settle(self, bundle: Bundle, commit: Commit) -> None:
        """The commit is durable: acknowledge upstream, send downstream, tell the watermark."""
        engine = self._engine
        works, productions = bundle.works, commit.productions
        if any(interval.ownership is not Ownership.HELD for interval in works):
            # Let go of meanwhile: it is durable, and whoever has them by then tells it.
            works = {i: work for i, work in works.items() if i.ownership is Ownership.HELD}
            productions = [p for p in productions if p.log in engine.logs]
        acknowledged: list[Delivery[Any]] = []
        for interval, work in works.items():
            interval.settled(work)
            interval.last_bucket = commit.bucket
            if work.items:
                interval.workload.records += len(work.items)
                acknowledged += interval.dedup.landed(
                    [item.id for item in work.items if type(item) is Delivery]
                )
        engine.processed += bundle.count
        engine.acknowledge(acknowledged)
        engine.send(productions)
        for interval, work in works.items():
            engine.promises.stored(interval, work.low_watermark)
            for percentile, watermark in work.percentiles.items():
                engine.promises.percentile_stored(interval, percentile, watermark)
        engine.shrink(self.intervals)

    # -- recovery ---------------------------------------------------------------------

    async def _recover(self, failed: Bundle, error: Exception) -> None:
        """Drop the failed bundle and everything after it, and start from what is durable."""
        engine = self._engine
        engine.log.warning("commit_failed", lane=self.number, error=str(error))
        self._recovering = True
        if not isinstance(error, (StatementError, Fenced)):
            await self._wait_after(error)
        suspects = failed.items() if isinstance(error, StatementError) else []
        watermarks = {interval: interval.input_watermark for interval in failed.works}
        await self._start_over(suspects)
        suspects = self._still_here(suspects)
        if suspects:
            await self._bisect(suspects, watermarks, error)
        self._recovering = False
        if not engine.stopping:
            self.run_on()

    async def _wait_after(self, error: Exception) -> None:
        """Back off, longer each time, until patience with the store is at an end.

        Raises:
            StoreUnavailable: commits have failed for longer than that.
        """
        clock = self._engine.clock
        if (
            self._failing_since is None
            or self._commit_began - self._recovered_at > OUTAGE_GAP_SECONDS
        ):
            self._failing_since = clock.monotonic()
            self._pause = FIRST_PAUSE_SECONDS
        patience = self._settings.store_patience_seconds
        if clock.monotonic() - self._failing_since > patience:
            raise StoreUnavailable(
                f"commits have failed for {patience:.0f} s: {error}. Nothing is lost: start again "
                "when the store is well"
            ) from error
        await clock.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    async def _start_over(self, suspects: list[Suspect]) -> None:
        """Claim the lane's intervals again, and queue what was on its way here once more.

        `suspects` are kept out of the queues: the caller runs them by itself.
        """
        await self.stop_running()
        self._open = Bundle()
        apart = {id(item) for _, item in suspects}
        intervals = list(self.intervals)  # who comes later has nothing to start over from
        for interval in intervals:
            interval.requeue(apart)
        await self._reconnect()
        await self._engine.holdings.restore(intervals)
        for interval, item in suspects:
            if interval not in self.intervals and isinstance(item, Delivery):
                self._engine.holdings.send_on(interval.step, [item])
        self._recovered_at = self._engine.clock.monotonic()

    def _still_here(self, suspects: list[Suspect]) -> list[Suspect]:
        """Those whose intervals have not turned out to be somebody else's."""
        return [(interval, item) for interval, item in suspects if interval in self.intervals]

    async def _reconnect(self) -> None:
        """A connection whose predecessor is surely at an end."""
        pause = FIRST_PAUSE_SECONDS
        engine = self._engine
        deadline = engine.clock.monotonic() + self._settings.store_patience_seconds
        while True:
            try:
                if self._port is not None:
                    port, self._port = self._port, None
                    await port.close()
                await self.connect()
            except StoreUnavailable as error:
                if engine.clock.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"{error} (tried for {self._settings.store_patience_seconds:.0f} s). Nothing "
                        "is lost: start again when the store is back"
                    ) from error
                await engine.clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                return

    async def _bisect(
        self,
        suspects: list[Suspect],
        watermarks: dict[Interval, int],
        error: Exception,
    ) -> None:
        """Find the items whose own statements or rows are refused, and give up on them alone.

        The suspects were refused as a whole; halves are run and committed apart, under the
        input watermark of the first time, until each culprit stands alone. That one is tried
        as often as its computation allows.
        """
        todo: deque[tuple[list[Suspect], Exception | None]] = deque()
        tries: Counter[int] = Counter()

        def split(segment: list[Suspect], refused: Exception) -> None:
            middle = len(segment) // 2
            if middle:
                todo.extendleft([(segment[middle:], None), (segment[:middle], None)])
                return
            interval, item = segment[0]
            tries[id(item)] += 1
            given_up = tries[id(item)] > interval.step.node.retries
            todo.appendleft((segment, refused if given_up else None))

        split(suspects, error)
        while todo:
            segment, refused = todo.popleft()
            segment = self._still_here(segment)
            if not segment:
                continue
            try:
                if refused is not None:
                    await self._commit_given_up(segment[0], refused)
                else:
                    await self._run_apart(segment, watermarks)
            except StatementError as once_more:
                await self._start_over([*segment, *(pair for part, _ in todo for pair in part)])
                segment = self._still_here(segment)
                if segment:
                    split(segment, once_more)
            except (StoreUnavailable, CommitUnknown, Fenced) as delay:
                # What became of it is for dedup to find out: all go back to the queues.
                rest = [*segment, *(pair for part, _ in todo for pair in part)]
                if not isinstance(delay, Fenced):
                    await self._wait_after(delay)
                await self._start_over(rest)
                rest = self._still_here(rest)
                for interval in {interval for interval, _ in rest}:
                    again = [i for of, i in rest if of is interval and isinstance(i, Delivery)]
                    interval.intake.extendleft(reversed(again))
                return

    async def _run_apart(self, segment: list[Suspect], watermarks: dict[Interval, int]) -> None:
        """Run some items and commit them, with nothing else of the lane in between."""
        by_key: dict[tuple[Interval, bytes], list[Item]] = {}
        for interval, item in segment:
            by_key.setdefault((interval, item.key_text), []).append(item)
        for (interval, key_text), items in by_key.items():
            items = interval.retake(items)
            if not items:
                continue
            state = interval.state_of(items[0].key, key_text, items[0].slot)
            if not state.loaded:
                await self._load(interval, [state])
            execution = Execution(interval)
            now = self._engine.now()
            changes = await execution.run(state, items, watermarks[interval], now)
            self._finish(interval, state, items, execution.effects, changes)
        await self._have_bucket()
        bundle = self._close_bundle()
        if bundle is not None:
            await self._commit(bundle)

    async def _commit_given_up(self, suspect: tuple[Interval, Item], error: Exception) -> None:
        interval, item = suspect
        taken = interval.retake([item])
        if not taken:
            return  # a timer that was cancelled or replaced meanwhile
        (item,) = taken
        state = interval.state_of(item.key, item.key_text, item.slot)
        attempts = interval.step.node.retries + 1
        effects = give_up(interval, item, error, attempts, self._engine.now())
        self._finish(interval, state, [item], effects, [])
        await self._have_bucket()
        bundle = self._close_bundle()
        assert bundle is not None
        await self._commit(bundle)
