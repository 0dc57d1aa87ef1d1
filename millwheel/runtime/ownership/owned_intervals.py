"""The intervals this worker holds: taking them over, starting them anew, handing them over.

An interval in hand is a claim: everything of it in memory is read from the store after its
sequencer was raised (I4), and goes when it is given up or fenced. Taking over works one
interval at a time while the lanes run:

1. claim, and read what is stored (the store does both in that order);
2. attach state, timers and dedup; send again what its logs hold un-ACKed;
3. give it to a lane: from then on its records run.

Giving up goes the other way: take no more, let what is running finish and be committed (drain: user
code waits as long as it likes), fold, release. Until it is released an interval that drains may be
kept after all. Records that wait here are not lost: their senders have not been told. A split or a
merge is a giving up, the cut in the store, and a taking of what came of it (`runtime/ownership/claiming.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from millwheel.codec import Migration, apply_migrations, decode_key
from millwheel.errors import Fenced, StoreError
from millwheel.graph import Injection
from millwheel.model import Delivery, record_id
from millwheel.runtime.interval.broadcast_tables import SharedTables
from millwheel.runtime.interval.dedup import Dedup
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.key_state import KeyState, StateCache
from millwheel.runtime.interval.part_files import PartFile
from millwheel.runtime.interval.routing import Destination, Step
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.network.courier import Remote
from millwheel.runtime.source.injector import Injector
from millwheel.runtime.source.partition_discovery import FIRST_SLOT, PartitionDiscovery
from millwheel.runtime.source.source_task import SourceTask
from millwheel.sinks import JsonLinesFiles
from millwheel.state import StateLayout
from millwheel.store.port import Claim

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine


class Holdings:
    """What this worker owns, interval by interval."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.intervals: list[Interval] = []
        self._of: dict[int, list[Interval]] = {}
        """By computation."""
        self._by_id: dict[int, Interval] = {}
        self._drains: dict[Interval, asyncio.Task[None]] = {}
        """Of the intervals that are to leave, until they are released."""

    def of(self, computation: int) -> list[Interval]:
        """The intervals of a computation that are held here."""
        return self._of.get(computation, [])

    def knows(self, interval_id: int) -> bool:
        """Whether an interval is here, be it on its way out."""
        return interval_id in self._by_id

    def held(self, interval_id: int) -> Interval | None:
        """An interval that takes records here."""
        interval = self._by_id.get(interval_id)
        return None if interval is None or interval.leaving else interval

    def at_hand(self, interval_id: int) -> Interval | None:
        """An interval that takes records here, or drains."""
        interval = self._by_id.get(interval_id)
        if interval is None or (interval.leaving and interval not in self._drains):
            return None
        return interval

    async def take(
        self, interval_ids: list[int], sequencers: Mapping[int, int] | None = None
    ) -> list[Interval]:
        """Claim intervals and begin to work on them.

        Args:
            sequencers: as they were seen; an interval that moved on since is left alone. None:
                all are claimed, whoever holds them.
        """
        engine = self._engine
        claims = await engine.store.claim(
            engine.worker,
            interval_ids,
            timers=engine.settings.timers_in_memory,
            sequencers=sequencers,
        )
        if not claims:
            return []
        # After the claim: nobody writes ids of these slots to any bucket behind our back now.
        await engine.patiently(engine.buckets.load)
        engine.stamps.restore(max((claim.stamp for claim in claims), default=0))
        inherited = frozenset(bucket.id for bucket in engine.buckets.live())
        await engine.patiently(engine.buckets.ensure_current)
        if any(node.named for node in engine.graph.nodes):
            await engine.patiently(engine.buckets.ensure_named)
        taken = [self._install(claim, inherited) for claim in claims]
        try:
            for claim, interval in zip(claims, taken, strict=True):
                if self._is_in_hand(interval):
                    await self._restore(interval, claim)
        except BaseException:
            if engine.courier is not None:  # else nobody works on, and the error is told as it is
                for interval in taken:  # it is ours, and will be claimed again
                    if self._is_in_hand(interval):
                        await self.lose(interval)
            raise
        # Who stops meanwhile gives up what he has not begun to work on.
        taken = [i for i in taken if self._is_in_hand(i) and not i.leaving]
        engine.promises.restore()
        for interval in taken:
            if interval.dedup is not None:
                engine.spawn(engine.housekeeping.rebuild(interval), f"filters of {interval.name}")
            engine.lane.add(interval)
            interval.touch(urgent=interval.has_news())
            interval.wake()
        for interval in taken:
            if interval.source_task is not None:
                await interval.source_task.start()
            if engine.courier is not None:
                engine.courier.tell(interval)  # and so, who has it now
        return taken

    def _install(self, claim: Claim, inherited: frozenset[int]) -> Interval:
        """An interval in its place among the others; it takes no records yet."""
        engine = self._engine
        step = engine.steps[claim.interval.computation]
        interval = Interval(step, claim, engine.settings, engine.numbering)
        self.intervals.append(interval)
        self._of.setdefault(step.id, []).append(interval)
        self._by_id[interval.id] = interval
        engine.observer.interval_taken(interval)
        self._put(interval)
        if step.node.injection is not None:
            interval.source_task = self._source_task(interval, step.node.injection, claim)
        else:
            self._equip(interval, claim, inherited)
        return interval

    def _source_task(self, interval: Interval, injection: Injection, claim: Claim) -> SourceTask:
        """What works on an interval of an injector."""
        growing, slot = injection.growing, interval.slots[0]
        if growing is None:
            partition = injection.source.partitions()[slot]
        elif slot < FIRST_SLOT:
            return PartitionDiscovery(self._engine, interval, growing)
        else:
            (identity,) = [log.source for log in claim.logs if log.source is not None]
            partition = growing.partition(identity)
        return Injector(self._engine, interval, partition)

    def _put(self, interval: Interval) -> None:
        """From here on records for its keys go to its queue, after those that waited elsewhere."""
        before = interval.step.put(interval)
        if isinstance(before, Remote):
            interval.intake.extend(self._engine.neighbours.forget_stand_in(before))

    def _equip(self, interval: Interval, claim: Claim, inherited: frozenset[int]) -> None:
        """Give an interval its dedup and its part file."""
        engine = self._engine
        interval.dedup = Dedup(
            engine.store,
            engine.buckets,
            interval.step.id,
            interval.slots,
            capacity=engine.settings.filter_capacity,
            inherited=inherited,
            exactly_once=interval.step.node.exactly_once,
            rekeyed=interval.step.name in engine.rekeyed,
        )
        for uses in interval.step.node.sinks.values():
            for use in uses:
                if isinstance(use.sink, JsonLinesFiles):
                    path = use.sink.path / f"part-{interval.id:05d}.jsonl"
                    length = (claim.position or {}).get("length", 0)
                    interval.part_file = PartFile(path, length, engine.clock.monotonic)

    # -- handing over -----------------------------------------------------------------

    @property
    def draining(self) -> list[Interval]:
        """The intervals that are to leave, and may be kept."""
        return list(self._drains)

    def is_drained(self, interval: Interval) -> bool:
        """Whether nothing of an interval that is to leave is at work any more."""
        return interval.drained and interval in self._drains

    def drain(self, interval: Interval) -> asyncio.Task[None]:
        """Take no more for an interval, and let what it has begun be finished and stored; that goes on
        beside whatever else is done, as it may take for ever."""
        drain = self._drains.get(interval)
        if drain is None:
            interval.leaving = True
            self._leave(interval)
            drain = self._engine.spawn(self._drain(interval), f"drain of {interval.name}")
            self._drains[interval] = drain
        return drain

    async def _drain(self, interval: Interval) -> None:
        if interval.source_task is not None:
            await interval.source_task.stop()
        if interval.lane is not None:
            await interval.lane.drain(interval)
        interval.drained = True

    def keep(self, interval: Interval) -> None:
        """Go on with an interval that drains: nobody else is to have it any more.

        None of an injector: where it would have read on is known by its next owner alone.
        """
        assert interval.source_task is None
        self._drains.pop(interval).cancel()
        interval.leaving = interval.drained = False
        self._put(interval)
        if interval.lane is not None:
            interval.lane.resume(interval)

    async def give_up(self, interval: Interval) -> bool:
        """Finish what an interval has begun, and let another worker have it (no lease wait).

        Returns:
            Whether it is free now: False if somebody has claimed it meanwhile, or it is kept.

        Raises:
            StoreError: it could not be finished; it is as it is stored, and nobody works on it.
        """
        engine = self._engine
        if interval.leaving and interval not in self._drains:
            return False  # somebody is at it
        await asyncio.wait((self.drain(interval),))
        if self._drains.pop(interval, None) is None:
            return False  # lost or kept meanwhile, or somebody is at it
        try:
            while (
                interval.ownership is Ownership.HELD
                and interval.folded < interval.durable_n
                and await engine.patiently(lambda: engine.folding.fold(interval))
            ):
                pass
        except StoreError:
            if interval.ownership is Ownership.HELD:
                await self.lose(interval)  # it is ours, and will be claimed again
            raise
        if interval.ownership is not Ownership.HELD:
            return False
        self._send_on(interval)
        self._forget(interval)
        released = await engine.patiently(
            lambda: engine.store.release(engine.worker, {interval.id: interval.sequencer})
        )
        interval.transition("release")
        return bool(released)

    def _leave(self, interval: Interval) -> None:
        """From here on records for its keys go to whoever will have it."""
        interval.step.put(self._engine.neighbours.stand_in(interval))
        self._engine.lane.wake.set()  # who waited for room in its queue has it now

    def _send_on(self, interval: Interval) -> None:
        """Records of logs here, or of no log, that waited in it, before those that came since it
        leaves (I14); those of other workers they send again."""
        waiting = [] if interval.dedup is None else interval.dedup.start_over()
        for delivery in waiting:  # it may come back
            interval.step.renew(delivery)
        if interval.chain is not None:
            interval.chain.clear()
        self._engine.stretches.forget(interval)
        if interval.step.node.at_most_once:  # they may have had their effect, and shall not again
            self._engine.acknowledge(waiting)
            waiting = []
        self.send_on(interval.step, [*waiting, *interval.intake])
        interval.intake.clear()

    def send_on(self, step: Step, deliveries: Iterable[Delivery[Any]]) -> None:
        """Records of logs here, or of no log, whose interval is gone: to who has their slots by now,
        before those that are newer. Whoever has another log sends its records again."""
        logs = self._engine.logs
        of: dict[Destination, list[Delivery[Any]]] = {}
        for delivery in deliveries:
            if delivery.log < 0 or delivery.log in logs:
                of.setdefault(step.interval_of(delivery.slot), []).append(delivery)
        for destination, waiting in of.items():
            if isinstance(destination, Remote):
                destination.insert(waiting)
            else:
                self._engine.send(waiting)

    def _forget(self, interval: Interval) -> None:
        """Nothing of it is here any more."""
        engine = self._engine
        self._drains.pop(interval, None)
        for log in interval.logs:
            engine.logs.pop(log.id, None)
        engine.neighbours.forget_sent({log.id for log in interval.logs})
        if engine.courier is not None:
            engine.courier.forget(interval)
        if interval.source_task is not None:
            interval.source_task.close()
        if interval.part_file is not None:
            interval.part_file.close()
        if interval.lane is not None:
            interval.lane.remove(interval)
        self.intervals.remove(interval)
        self._of[interval.step.id].remove(interval)
        del self._by_id[interval.id]
        engine.observer.interval_gone(interval)

    async def lose(self, interval: Interval) -> None:
        """Stop to work on an interval, whoever has it: what it did here since its last durable
        commit never was."""
        interval.transition("fenced")
        interval.leaving = True
        if interval.source_task is not None:
            await interval.source_task.stop()
        self._leave(interval)
        self._send_on(interval)
        self._forget(interval)

    # -- starting over ----------------------------------------------------------------

    def _is_in_hand(self, interval: Interval) -> bool:
        """Whether it is ours; one that is just being released is so no more."""
        return interval.ownership is Ownership.HELD and self._by_id.get(interval.id) is interval

    async def _claim_again(self, intervals: list[Interval]) -> dict[int, Claim]:
        """Claim what is still ours of some intervals; what is not is let go of (I12).

        Raises:
            Fenced: somebody has claimed some, and nobody else should work on this pipeline.
        """
        engine = self._engine
        while True:
            ids = [i.id for i in intervals if self._is_in_hand(i)]
            if not ids:
                return {}
            try:
                claims = await engine.patiently(
                    lambda ids=ids: engine.store.claim(  # type: ignore[misc]
                        engine.worker, ids, again=True, timers=engine.settings.timers_in_memory
                    )
                )
            except Fenced:
                if engine.courier is None:
                    raise
                placement = await engine.patiently(engine.store.read_placement)
                ours = {row.id for row in placement.intervals if row.owner == engine.worker}
                for interval in intervals:
                    if self._is_in_hand(interval) and interval.id not in ours:
                        engine.log.warning(
                            "fenced", interval=interval.name, sequencer=interval.sequencer
                        )
                        engine.observer.interval_fenced(interval)
                        await self.lose(interval)
            else:
                return {claim.interval.id: claim for claim in claims}

    async def restore(self, intervals: list[Interval]) -> None:
        """Claim intervals again and start them over from what is durable.

        Those that somebody else has by now, or that are let go of meanwhile, are left out.
        """
        engine = self._engine
        for interval in intervals:
            if interval.source_task is not None:
                await interval.source_task.stop()
        claims = await self._claim_again(intervals)
        restored = [i for i in intervals if self._is_in_hand(i) and i.id in claims]
        sent_again = {log.id for interval in restored for log in interval.logs}
        for interval in self.intervals:
            interval.forget_queued(sent_again)
        engine.neighbours.forget_sent(sent_again)
        for interval in restored:
            if not self._is_in_hand(interval):
                continue
            claim = claims[interval.id]
            for log in interval.logs:
                engine.logs.pop(log.id, None)
            interval.restore(claim)
            await self._restore(interval, claim)
        engine.promises.restore()
        restored = [interval for interval in restored if self._is_in_hand(interval)]
        for interval in restored:
            if interval.source_task is not None:
                await interval.source_task.start(reading=not (engine.stopping or interval.leaving))
            elif interval.part_file is not None:
                interval.part_file.restore((interval.stored_position or {}).get("length", 0))
        for interval in self.intervals:  # what turned out to be stored may concern any lane
            if interval in restored or interval.has_news():
                interval.touch(urgent=interval.has_news())
        engine.lane.wake.set()

    async def _restore(self, interval: Interval, claim: Claim) -> None:
        """State, logs and what must be sent again, before anything new is sent."""
        for log in interval.logs:
            self._engine.logs[log.id] = (log, interval)
        if interval.source_task is not None:
            return
        interval.attach(
            self._state_cache(interval), self._shared_tables(interval), interval.dedup, claim
        )
        if interval.tables is not None:
            await self._load_tables(interval, interval.tables)
        inherited = interval.logs[:-1]
        for log in inherited:
            await self._engine.patiently(lambda log=log: self._send_again(interval, log))  # type: ignore[misc]
            log.complete = True

    def _state_cache(self, interval: Interval) -> StateCache:
        node = interval.step.node
        assert node.layout is not None
        assert node.computation is not None
        what = f"state of {node.name!r}"
        return self._cache(interval, node.layout, what, node.state_steps)

    def _shared_tables(self, interval: Interval) -> SharedTables | None:
        node = interval.step.node
        if node.shared is None:
            return None
        assert node.computation is not None
        what = f"shared table of {node.name!r}"
        cache = self._cache(interval, node.shared, what, node.shared_steps)
        return SharedTables(cache, interval.slots, node.grain, guarded=self._engine.guard_shared)

    async def _load_tables(self, interval: Interval, tables: SharedTables) -> None:
        """Read what is folded of them, all at once."""
        places = [(table.slot, table.key_text) for table in tables]
        rows = await self._engine.patiently(
            lambda: self._engine.store.load_keys(interval.step.id, places, 1)
        )
        for table, entries in zip(tables, rows, strict=True):
            table.fill(entries, complete=True)

    def _cache(
        self,
        interval: Interval,
        layout: StateLayout[Any],
        what: str,
        steps: Mapping[int, Migration],
    ) -> StateCache:
        step = interval.step

        async def fetch(state: KeyState, entry: str) -> tuple[bytes, int] | None:
            return await self._engine.patiently(
                lambda: self._engine.store.load_entry(step.id, state.slot, state.key_text, entry)
            )

        async def scan(
            state: KeyState, after: str, before: str, limit: int
        ) -> list[tuple[str, bytes, int]]:
            return await self._engine.patiently(
                lambda: self._engine.store.scan_entries(
                    step.id, state.slot, state.key_text, after, before, limit
                )
            )

        return StateCache(
            layout,
            what=what,
            version=step.version,
            migrations=steps,
            fetch_entry=fetch,
            scan_entries=scan,
        )

    async def _send_again(self, interval: Interval, log: SentLog) -> None:
        """Productions of an inherited log that nobody has acknowledged, in their order."""
        async for row in self._engine.store.read_productions(log.id, log.next_seq):
            if row.seq > log.next_seq:
                log.lack([(log.next_seq, row.seq)])
                log.skip(row.seq)
            if log.is_acknowledged(row.seq):
                log.skip(row.seq + 1)
                continue
            if row.receiver not in self._engine.steps:  # nobody, or who was removed since
                log.sent(row.seq + 1, row.hold, 0, row.stamp, [row.hold])
                log.acknowledge([row.seq])
                continue
            stream = self._engine.graph.streams[row.stream]
            value = row.value
            if row.version != stream.version:
                what = f"stream {row.stream!r}, key {row.key.decode()}"
                value = apply_migrations(
                    value, row.version, stream.version, stream.migrations, what, stream.codec.decode
                )
            log.sent(row.seq + 1, row.hold, len(value), row.stamp, [row.hold])
            delivery: Delivery[Any] = Delivery(
                decode_key(row.key), stream.codec.decode(value), row.ts, row.stream, row.key,
                row.slot, row.receiver, row.hold, len(value), value, log.id, row.seq, row.place,
                row.id or record_id(log.id, row.seq), 0, False, row.origin,
            )  # fmt: skip
            if row.id:
                log.stored([delivery])
            self._engine.send([delivery])
