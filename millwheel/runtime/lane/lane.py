"""One lane: a set of intervals, one ordered chain of commits, and the loop between them.

Two tasks share it. The *runner* takes records and due timers from its intervals, drops
what was seen, and runs user code; what is decided goes into the open bundle. The
*committer* takes whatever the open bundle holds, commits it, and only then acknowledges
the senders and sends the productions. While a commit is on the wire the runner goes on,
so bundles are small when there is little to do and large under load.

When a commit fails, everything later in the lane is dropped with it (I12); there is one way
back (`millwheel.runtime.lane.recovery`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Coroutine, Sequence
from itertools import islice
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from millwheel.codec import shown
from millwheel.context import BAD_ROWS, Effects
from millwheel.errors import Fenced, StatementError
from millwheel.model import Delivery, Firing
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.key_state import KeyState
from millwheel.runtime.interval.map_entries import Change
from millwheel.runtime.lane.commit_builder import put_together
from millwheel.runtime.lane.execution import Execution, Group
from millwheel.runtime.lane.open_commit import Bundle, Item
from millwheel.runtime.lane.recovery import PASSING, Recovery
from millwheel.runtime.modes.batch_execution import run_bundle
from millwheel.runtime.modes.batches import Bundling
from millwheel.runtime.modes.stragglers import Stragglers
from millwheel.runtime.modes.tree_acks import may_pass_on
from millwheel.runtime.process.load import Measured
from millwheel.runtime.process.tasks import end, failure_of
from millwheel.store.port import (
    Commit,
    DeadLetter,
    StoreLane,
)

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine

JOINING_RECORDS = 1000
"""A commit of so many waits for no more: its own cost is a few per cent of theirs."""

LOADED_AHEAD = 1000
"""Records in the queue whose states are loaded with those that are missing now, at the most."""

AHEAD_SHARE = 16
"""And no more of them than fill such a part of the cache, by the size of those that came last."""

FAIR_TURN = 8
"""Every so many times the next interval in turn is asked for work first."""


class Lane:
    """Runs and commits the work of its intervals, in order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.settings
        self.intervals: list[Interval] = []
        self.downstream_first: list[Interval] = []
        """The same, those nearest to the end of the graph first."""
        self._numbered: list[Interval] = []
        """Those whose records come in numbered bundles."""
        self.wake = asyncio.Event()
        """There may be something to run: records, due timers, credits, room in the bundle."""
        self._commit_wanted = asyncio.Event()
        self._open = Bundle()
        self._decided_bytes = 0
        """Of effects that went into bundles or, of weak code, on their way, since the lane began."""
        self._alone: deque[Bundle] = deque()
        """What was refused in company: each in a commit of its own."""
        self._committing = False
        self._on_the_wire: Container[Interval] = ()
        """The intervals of the bundle that is being committed."""
        self._sorted: Interval | None = None
        """Whose records were taken from the queue and are looked up, before they run."""
        self.sorting: Sequence[Item] = ()
        """These records."""
        self._settled = asyncio.Event()
        """Set when something has come to its end that somebody may wait for; each time another."""
        self._quiet = asyncio.Event()
        """The committer has nothing left to do."""
        self._port: StoreLane | None = None
        self._runner: asyncio.Task[None] | None = None
        self._stopped: set[asyncio.Task[None]] = set()
        """Runners that are to end, and may not have."""
        self._hands: set[asyncio.Task[None]] = set()
        self._stragglers = Stragglers(self, engine)
        self._ran = asyncio.Event()
        self._looked = asyncio.Event()
        """The runner has taken some work and run it, has found none, or waits for the store."""
        self._turn = 0
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = 0
        self._recovery = Recovery(self, engine)
        self._told_changed: set[str] = set()
        """Computations of which it was logged that first values of weak productions were kept."""
        self._touch_timer: asyncio.Handle | None = None
        """On uvloop one that does not tell when, if that is less than half a millisecond away."""
        self._touch_due = 0.0
        """When it rings, by the event loop's clock."""

    # -- life ---------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the lane's connection."""
        self._port = await self._engine.store.open_lane()

    def add(self, interval: Interval) -> None:
        """One more interval to work on."""
        interval.lane = self
        self.intervals.append(interval)
        self.downstream_first = sorted(self.intervals, key=lambda i: -i.step.place)
        self._numbered = [i for i in self.intervals if i.bundling is not None]

    def remove(self, interval: Interval) -> None:
        """One less, of which nothing is left here; who waits for that need not wait any more."""
        interval.lane = None
        self.intervals.remove(interval)
        self.downstream_first = [i for i in self.downstream_first if i is not interval]
        self._numbered = [i for i in self._numbered if i is not interval]
        self.announce()

    async def drain(self, interval: Interval) -> None:
        """Wait until nothing of an interval that is leaving runs or is to be stored."""
        while interval in self.intervals and (
            interval is self._sorted
            or interval.backlog
            or interval.dirty
            or interval in self._open.works
            or interval in self._on_the_wire
            or (interval.bundling is not None and interval.bundling.is_under_way)
        ):
            settled = self._settled
            if self._has_something_to_store():
                self._commit_wanted.set()
            await settled.wait()

    def resume(self, interval: Interval) -> None:
        """One of its intervals was to leave, and is kept."""
        self.touch(interval, urgent=interval.has_news())
        self._stragglers.watch()
        self.wake.set()

    def start(self) -> None:
        """Begin to take work."""
        self._runner = self._engine.spawn(self._run(), "runner")
        self._engine.spawn(self._commit_for_ever(), "committer")

    async def stop_running(self) -> None:
        """Take no more work; what waits in user code is cancelled and will run again.

        Who asks while somebody else does waits too: a runner may take its time to end.
        """
        runner, self._runner = self._runner, None  # first: from here on no hand starts another
        if runner is not None:
            self._stopped.add(runner)
            runner.add_done_callback(self._stopped.discard)
        await end(self._stopped)
        await self._stragglers.stop()
        await end(self._hands)
        self._hands.clear()
        self._looked.set()

    def drop_open(self) -> None:
        """What is finished and not committed is not wanted any more."""
        self._open = Bundle()
        self._alone.clear()

    def run_on(self) -> None:
        """Take work again after `stop_running`. A lane that recovers does so by itself; one that
        has recovered while everything is let go of waits until that is done, as what it took
        would be pulled away under its hands."""
        if self._runner is None and not self._recovery.under_way and not self._engine.letting_go:
            self._runner = self._engine.spawn(self._run(), "runner")

    async def finish_commits(self) -> None:
        """Commit what is finished, and nothing more."""
        while self._committing or self._has_something_to_store():
            self._quiet.clear()
            self._commit_wanted.set()
            await self._quiet.wait()

    async def close(self) -> None:
        """Let the connection go."""
        if self._touch_timer is not None:
            self._touch_timer.cancel()
        await self.disconnect()

    async def disconnect(self) -> None:
        """End the lane's connection, so that nothing is on the wire."""
        if self._port is not None:
            await self._port.close()  # if this fails, the next one ends it
            self._port = None

    def touch(self, interval: Interval, *, urgent: bool) -> None:
        """Something of the interval is to be stored, with whatever comes next, or alone after a
        while: soon if others wait for it, as they do for a watermark.

        A watermark waits a little while its interval's records are on their way, as its commit would
        delay them, and if the interval's last one was stored alone just before: then all such
        intervals of the lane wait for the same instant, and share a commit. Otherwise it is stored
        at once.
        """
        if interval.drained:
            return
        interval.dirty = True
        loop = asyncio.get_running_loop()
        now = loop.time()
        if urgent:
            pause = self._settings.watermark_commit_seconds
            if interval.is_in_motion:
                due = now + pause
            else:
                if interval.alone_at <= now:
                    interval.alone_at = _next_turn(interval.alone_at + pause, now, pause)
                due = interval.alone_at
            if due <= now:
                self._commit_wanted.set()
                return
        else:
            due = now + self._settings.idle_commit_seconds
        timer = self._touch_timer
        if timer is not None:
            if self._touch_due <= due:
                return
            timer.cancel()
        self._touch_due = due
        self._touch_timer = loop.call_at(due, self._touched_long_enough)

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
        return self._committing or bool(self._open.works) or bool(self._alone) or bool(self._hands)

    def _touched_long_enough(self) -> None:
        self._touch_timer = None
        self._commit_wanted.set()

    # -- running ------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self.wake.clear()
            await self._page_in()
            now = self._engine.now()
            self._tend_bundles(now)
            taken = self._take(now)
            if taken is None:
                self._wake_for_wall_timers(now)
                self._looked.set()
                await self.wake.wait()
                continue
            interval, items = taken
            interval.workload.sample(items)
            self._sorted, self.sorting = interval, items
            try:
                groups = await self._sort(interval, items)
            finally:
                self._sorted, self.sorting = None, ()
            if groups:
                await self._run_chunk(interval, groups, len(items))
            elif interval.leaving:
                self.announce()
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

    def _wake_for_wall_timers(self, now: int) -> None:
        """Be awake when the clock reaches the next wall timer. What was due by `now` and could not
        be taken waits for something else, and that wakes."""
        alarms = [interval.next_alarm() for interval in self.intervals]
        due = [at for at in alarms if at is not None and at > now]
        if not due or (
            self._alarm is not None and not self._alarm.done() and self._alarm_at <= min(due)
        ):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = min(due)
        self._alarm = self._engine.spawn(self._wake_at(self._alarm_at), "alarm")

    async def _wake_at(self, due: int) -> None:
        engine = self._engine
        while (left := due - engine.now()) > 0:
            await engine.clock.sleep(left / 1e6)
        self.wake.set()

    def _take(self, now: int) -> tuple[Interval, list[Item]] | None:
        """Some work of an interval that has any; timers due at `now` come before records."""
        settings = self._settings
        if (
            self._open.count >= settings.bundle_records
            or self._open.size >= settings.bundle_bytes
            or len(self._hands) >= settings.waiting_keys
        ):
            return None
        for interval in self._in_turn():
            if interval.leaving:
                continue
            has_due = interval.has_due(now)
            if not (has_due or interval.intake):
                continue
            bundling = interval.bundling
            if bundling is not None and not bundling.wants_more:
                continue
            work = self._open.works.get(interval)
            decided = 0 if work is None else len(work.effects.productions)
            # Those that are stored with a bundle have taken credits themselves: it is not to wait for them.
            if not interval.may_send(decided) and not (bundling and bundling.lacks_members):
                continue
            chunk = settings.chunk_records
            if bundling is None:  # else nothing but gathering is done with them here
                chunk = interval.workload.chunk(chunk, settings.bundle_bytes)
            if has_due:
                firings = interval.due_timers(now, chunk)
                if firings:
                    return interval, list(firings)
                self.wake.set()  # far ones have come due since: they are read before records run
                continue
            intake = interval.intake
            queued = len(intake)
            count = min(queued, chunk)
            interval.looked_ahead = max(0, interval.looked_ahead - count)
            if queued - count < settings.max_unacked_records <= queued:
                self._engine.made_room(interval.step)
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
        if interval.bundling is not None:
            interval.bundling.offer(fresh, self._engine.now())  # type: ignore[arg-type]
            return deque()
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
            await self.load(interval, missing)
        return groups

    async def _deduplicate(self, interval: Interval, deliveries: list[Delivery[Any]]) -> list[Item]:
        dedup = interval.dedup
        if self._engine.courier is not None and dedup.exactly_once:
            try:
                await self._see_buckets(deliveries)
            except BaseException:
                interval.intake.extendleft(reversed(deliveries))  # they are nowhere else
                raise
        candidates, maybe, seen = dedup.sort(deliveries)
        if seen:
            self._drop(interval, seen)
        if maybe:
            self._looked.set()
            found = await self._engine.patiently(lambda: dedup.look_up(maybe))
            if found:
                self._drop(interval, dedup.landed(sorted(found)))
                candidates = [d for d in candidates if d.id not in found]
        if dedup.last_changed is not None:
            self._tell_changed(interval, dedup.last_changed)
            dedup.last_changed = None
        return candidates  # type: ignore[return-value]

    def _tell_changed(self, interval: Interval, delivery: Delivery[Any]) -> None:
        """Log, once for each computation, that the first values of weak productions were kept."""
        computation = interval.step.name
        if computation in self._told_changed:
            return
        self._told_changed.add(computation)
        self._engine.log.warning(
            "weak_changed",
            computation=computation,
            stream=delivery.stream,
            key=delivery.key,
            value=shown(delivery.value),
            what_it_means="a weak production that was durable here came again with another value from "
            "another worker process: the first one stays, this one was dropped; the counter "
            "weak_changed says how many were",
            what_to_do="nothing, if the code that writes the stream was changed by a deploy. Else it "
            "does not depend on its record alone: take out what differs from run to run",
        )

    async def _see_buckets(self, deliveries: list[Delivery[Any]]) -> None:
        """Know for certain to which buckets records of other workers belong (decision 24)."""
        engine = self._engine
        buckets = engine.buckets
        for delivery in deliveries:
            if delivery.origin:
                known = buckets.knows_offset(delivery.origin, delivery.stamp)
            else:
                known = buckets.covers(delivery.stamp)
            if not known:
                await engine.patiently(buckets.load)
                return

    def _drop(self, interval: Interval, seen: list[Delivery[Any]]) -> None:
        """Copies of what is durable are acknowledged, and that is all."""
        self._engine.acknowledge(seen)
        self.touch(interval, urgent=False)

    async def load(self, interval: Interval, states: list[KeyState]) -> None:
        """Have these states; and those of records behind, so that not every chunk waits for the store."""
        limit = self._settings.eager_entries
        ahead = self._ahead(interval, {state.key_text for state in states})
        wanted = [*states, *ahead]
        self._looked.set()
        rows = await self._engine.patiently(
            lambda: self._engine.store.load_keys(
                interval.step.id, [(s.slot, s.key_text) for s in wanted], limit
            )
        )
        for place, (state, entries) in enumerate(zip(wanted, rows, strict=True)):
            if place < len(states) or (not state.loaded and interval.states.has(state)):
                state.fill(entries, complete=len(entries) < limit)
        interval.states.loaded_bytes = sum(state.size for state in wanted) // len(wanted)

    def _ahead(self, interval: Interval, known: set[bytes]) -> list[KeyState]:
        """States that the next records in the queue will ask for, and nobody has asked for yet."""
        size = interval.states.loaded_bytes
        if not size:
            return []
        most = min(LOADED_AHEAD, self._settings.cache_bytes // AHEAD_SHARE // size)
        found: list[KeyState] = []
        for item in islice(interval.intake, interval.looked_ahead, most):
            if item.key_text not in known:
                known.add(item.key_text)
                state = interval.state_of(item.key, item.key_text, item.slot)
                if not state.loaded:
                    found.append(state)
        interval.looked_ahead = max(interval.looked_ahead, min(len(interval.intake), most))
        return found

    async def _run_chunk(self, interval: Interval, groups: deque[Group], records: int) -> None:
        """Run all groups, and note what a record takes."""
        workload = interval.workload
        seconds, bytes_ = workload.run_seconds, self._decided_bytes
        await self._run_groups(interval, groups)
        workload.chunk_ran(records, workload.run_seconds - seconds, self._decided_bytes - bytes_)

    async def _run_groups(self, interval: Interval, groups: deque[Group]) -> None:
        """Run all groups; one that waits for something goes on by itself, out of the way."""
        self._ran.clear()
        self._start_hand(interval, groups)
        await self._ran.wait()

    def _start_hand(self, interval: Interval, groups: deque[Group]) -> None:
        self._add_hand(self._measured_hand(interval, groups))

    def _add_hand(self, work: Coroutine[Any, Any, None]) -> None:
        """Run user code in a task of its own."""
        hand = asyncio.create_task(work)
        self._hands.add(hand)
        hand.add_done_callback(self._hand_ended)

    async def _measured_hand(
        self, interval: Interval, groups: deque[Group], *, apart: bool = False
    ) -> None:
        clock = self._engine.process.run_seconds
        await Measured(self._hand(interval, groups, apart=apart), interval.workload, clock)

    async def _hand(self, interval: Interval, groups: deque[Group], *, apart: bool = False) -> None:
        """Runs groups until there are none, or until one waits: then another hand takes over.

        User code runs inside this task as a plain await, which costs nothing when it does
        not suspend. If it does, the callback below finds groups left and starts a new hand.
        """
        asyncio.get_running_loop().call_soon(self._relieve, interval, groups)
        execution = self.execution(interval, apart=apart)
        try:
            await execution.run_all(groups, self.finish, self._engine.now)
        except asyncio.CancelledError:
            # Not by `stop_running`, nor with all tasks of the loop: by user code, which is an error.
            if self._runner is not None and not self._runner.cancelling():
                again = deque([execution.group])
                self._add_hand(self._measured_hand(interval, again, apart=True))
            raise

    def execution(self, interval: Interval, *, apart: bool) -> Execution:
        engine = self._engine
        return Execution(interval, engine.late_uses, apart=apart, run_twice=engine.run_weak_twice)

    def _relieve(self, interval: Interval, groups: deque[Group]) -> None:
        if groups and self._runner is not None:
            self._start_hand(interval, groups)
        else:
            self._ran.set()

    def _hand_ended(self, hand: asyncio.Task[None]) -> None:
        self._hands.discard(hand)
        self._engine.fail(failure_of(hand))
        self.announce()
        self.wake.set()

    def finish(
        self,
        interval: Interval,
        state: KeyState,
        items: list[Item],
        effects: Effects,
        changes: list[Change],
    ) -> None:
        """Put what a key's items decided into the open bundle; `effects` are empty again."""
        if interval.chain is not None and not self._send_weakly(interval, items, effects, changes):
            effects.let_up()
            return
        if effects.held:
            interval.release += effects.held
            effects.held.clear()
        work = self._open.works.get(interval)
        if work is None:
            work = self._open.work(interval)
            self._commit_wanted.set()
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
        self._decided_bytes += size
        effects.size = size
        work.effects.take(effects)

    # -- weak productions -------------------------------------------------------------

    def _send_weakly(
        self, interval: Interval, items: list[Item], effects: Effects, changes: list[Change]
    ) -> bool:
        """Send what weak code has produced; what else it decided is left in `effects`.

        Returns:
            Whether a commit has to note the items: they have effects of their own.
        """
        engine, chain = self._engine, interval.chain
        assert chain is not None
        caused, effects.caused = effects.caused, []
        self._decided_bytes += sum(output.size for _, output in caused)
        noted = bool(changes or interval.firings) or effects.are_stored()
        inputs = [item for item in items if type(item) is Delivery]
        if interval.entry is not None:
            if not noted and may_pass_on(caused):
                engine.stretches.pass_on(interval, inputs, caused)
                return False
            noted = True  # what came of them takes the way of the chain
            interval.entry.noted(item.id for item in inputs)
        done = chain.send(
            inputs,
            caused,
            promised=interval.promised,
            now=engine.clock.monotonic(),
            stamp=engine.stamps.last,
            noted=noted,
        )
        if caused:
            engine.send([output for _, output in caused])
            if not noted:
                self._stragglers.watch()
        if done:
            engine.land(interval, done)
        return noted

    def note(
        self, interval: Interval, causes: list[Delivery[Any]], counted: dict[str, int]
    ) -> None:
        """Put inputs that were sent on into the open bundle, to be stored as seen."""
        work = self._open.work(interval)
        work.items += causes
        for name, by in counted.items():
            work.effects.counters[name] = work.effects.counters.get(name, 0) + by
        self._commit_wanted.set()

    # -- numbered bundles -------------------------------------------------------------

    def _tend_bundles(self, now: int) -> None:
        """Close the bundles that are due at `now`, and give to user code those that are stored."""
        for interval, bundling in self._bundlings():
            if bundling.is_due(now) and not interval.leaving:
                bundling.close()
                interval.dirty = True
                self._commit_wanted.set()
            elif bundling.may_be_delivered:  # what was taken goes on: credits are asked for there
                bundling.deliver()
                self._add_hand(self._measured_delivery(interval, bundling))

    def _bundlings(self) -> list[tuple[Interval, Bundling]]:
        return [(i, i.bundling) for i in self._numbered if i.bundling is not None]

    async def _measured_delivery(self, interval: Interval, bundling: Bundling) -> None:
        clock = self._engine.process.run_seconds
        await Measured(self._deliver(interval, bundling), interval.workload, clock)

    async def _deliver(self, interval: Interval, bundling: Bundling) -> None:
        """Run user code over a bundle, and have what it decided committed with the members."""
        if bundling.is_replay:
            self._engine.log.info(
                "bundle_again",
                interval=interval.name,
                scope=interval.id,
                number=bundling.number,
                records=len(bundling.members),
            )
        effects = await run_bundle(interval, bundling, self._engine.now(), self._engine.late_uses)
        bundling.delivered()
        bundle = self._open
        if bundling.refusal is not None:
            bundle = Bundle()
            self._alone.append(bundle)
        work = bundle.work(interval)
        work.delivers = True
        work.items += bundling.members
        interval.release += effects.held
        effects.held.clear()
        work.effects.take(effects)
        self._commit_wanted.set()

    # -- committing -----------------------------------------------------------------

    async def _commit_for_ever(self) -> None:
        while True:
            await self._commit_wanted.wait()
            while self._commit_wanted.is_set() and self._has_something_to_store():
                self._commit_wanted.clear()
                await self._let_records_join()
                await self._have_bucket()
                bundle = self._close_bundle()
                if bundle is None:
                    break
                self._committing = True
                self._on_the_wire = bundle.works
                try:
                    await self._commit(bundle)
                except (*PASSING, StatementError, Fenced) as error:
                    await self._recovery.recover(bundle, error)
                self._committing = False
                self._on_the_wire = ()
                self.announce()
            self._commit_wanted.clear()
            self._quiet.set()
            self.announce()
            self._engine.check_finished()

    async def settled(self) -> None:
        """Wait until a commit, or anything else that somebody may wait for, has come to its end."""
        await self._settled.wait()

    def announce(self) -> None:
        """Something has come to its end that who lets go of an interval may wait for."""
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    def _has_something_to_store(self) -> bool:
        return (
            bool(self._open.works)
            or bool(self._alone)
            or any(interval.dirty for interval in self.intervals)
        )

    async def _let_records_join(self) -> None:
        """Before a commit: run what is queued here, so that it joins, unless that is much already.

        Otherwise each record waits at each stage for a commit of others, a record and the watermark
        that follows it take turns, and under load few records share the cost of a commit.
        """
        most = min(JOINING_RECORDS, self._settings.bundle_records)
        before = -1
        while before < self._open.count < most and self._runner is not None:
            if self._sorted is not None:
                return  # the runner waits for the store
            if not any(interval.intake and not interval.leaving for interval in self.intervals):
                return
            before = self._open.count
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
        if self._alone:
            self._commit_wanted.set()  # for what else there is
            return self._alone.popleft()
        bundle = self._open
        for interval in self.intervals:
            if interval.dirty:
                bundle.work(interval)
        if not bundle.works:
            return None
        self._open = Bundle()
        self.wake.set()
        return bundle

    async def commit_open(self) -> None:
        """Commit what is finished, if anything is, while nothing else of the lane runs."""
        await self._have_bucket()
        bundle = self._close_bundle()
        if bundle is not None:
            await self._commit(bundle)

    async def _commit(self, bundle: Bundle) -> None:
        self._recovery.commit_begins()
        commit = put_together(self._engine, bundle)
        for interval, work in bundle.works.items():
            if work.effects.lines and interval.part_file is not None:
                await interval.part_file.append(work.effects.lines)
        assert self._port is not None
        clock = self._engine.clock
        sent = clock.monotonic()
        await self._port.commit(commit)
        self._engine.observer.commit_durable(clock.monotonic() - sent)
        self._recovery.commit_durable(bundle)
        self._settle(bundle, commit)

    def _settle(self, bundle: Bundle, commit: Commit) -> None:
        """The commit is durable: acknowledge upstream, send downstream, tell the watermark."""
        engine = self._engine
        works, productions = bundle.works, commit.productions
        if bundle.fleeting:
            productions = sorted([*productions, *bundle.fleeting], key=attrgetter("log", "seq"))
        if any(interval.ownership is not Ownership.HELD for interval in works):
            # Let go of meanwhile: it is durable, and whoever has them by then tells it.
            works = {i: work for i, work in works.items() if i.ownership is Ownership.HELD}
            productions = [p for p in productions if p.log in engine.logs]
        acknowledged: list[Delivery[Any]] = []
        for interval, work in works.items():
            interval.settled(work)
            if work.given_up and interval.source_task is not None:
                interval.source_task.acknowledged()  # no reader does that for these rows
            if interval.bundling is not None:
                self.wake.set()  # what is stored may be delivered, or the next one closed
            interval.last_bucket = commit.bucket
            if work.items:
                if interval.chain is not None:
                    interval.chain.stored(work.items)
                interval.workload.records += len(work.items)
                acknowledged += interval.dedup.landed(
                    [item.id for item in work.items if type(item) is Delivery]
                )
        engine.processed += bundle.count
        engine.acknowledge(acknowledged)
        engine.send(productions)
        if commit.dead_letters:
            engine.letters.add(commit.dead_letters)
        for interval, work in works.items():
            engine.promises.stored(interval, work.low_watermark)
            for percentile, watermark in work.percentiles.items():
                engine.promises.percentile_stored(interval, percentile, watermark)
        engine.shrink(self.intervals)


def _next_turn(earliest: float, now: float, pause: float) -> float:
    """When a watermark may be stored alone: now if `earliest` is over, otherwise at a multiple of the
    pause, so that intervals that wait for their turn have it together."""
    return now if earliest <= now else ceil(earliest / pause) * pause
