"""Restores claimed intervals from the store: state, shared tables, logs and un-ACKed
productions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from millwheel.core.codec import Migration, apply_migrations, decode_key
from millwheel.core.model import Delivery, record_id
from millwheel.errors import Fenced
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.keys.broadcast_tables import BroadcastTables
from millwheel.runtime.keys.key_state import KeyState, StateCache
from millwheel.runtime.network.courier import Courier
from millwheel.state import StateLayout
from millwheel.store.port.claims import Claim
from millwheel.store.port.records import StoredProduction


class Restoring:
    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        publisher: WatermarkPublisher,
        courier: Courier | None,
        lose: Callable[[Interval], Awaitable[None]],
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._publisher = publisher
        self._courier = courier
        self._lose = lose

    async def restore(self, intervals: list[Interval]) -> None:
        """Claim intervals again, and start them over from their durable data.

        Skips intervals that another worker has claimed, or that are lost by then.
        """
        for interval in intervals:
            if interval.source_task is not None:
                await interval.source_task.stop()
        claims = await self._claim_again(intervals)
        restored = [i for i in intervals if self._exchange.owns(i) and i.id in claims]
        sent_again = {log.id for interval in restored for log in interval.logs}
        for interval in self._exchange.intervals:
            interval.forget_queued(sent_again)
        if self._courier is not None:
            self._courier.remotes.forget_sent(sent_again)
        for interval in restored:
            if not self._exchange.owns(interval):
                continue
            claim = claims[interval.id]
            for log in interval.logs:
                self._exchange.logs.pop(log.id, None)
            interval.restore(claim, self._env.settings)
            await self.attach(interval, claim)
        self._publisher.restore()
        restored = [interval for interval in restored if self._exchange.owns(interval)]
        for interval in restored:
            if interval.source_task is not None:
                await interval.source_task.start(
                    reading=not (self._env.stopping or interval.leaving)
                )
            elif interval.part_file is not None:
                interval.part_file.restore_to(interval.position.value)
        # The failed commit may turn out to be stored: that may concern every interval.
        for interval in self._exchange.intervals:
            if interval in restored or interval.watermarks.has_news():
                interval.touch(urgent=interval.watermarks.has_news())
        self._exchange.wake.set()

    async def _claim_again(self, intervals: list[Interval]) -> dict[int, Claim]:
        """Claim intervals again, and lose those that another worker owns (I12); `Fenced` if this
        one has the pipeline to itself."""
        while True:
            ids = [i.id for i in intervals if self._exchange.owns(i)]
            if not ids:
                return {}
            try:
                claims = await self._env.patiently(
                    lambda ids=ids: self._env.store.claim(  # type: ignore[misc]
                        self._env.worker,
                        ids,
                        again=True,
                        timers=self._env.settings.timers_in_memory,
                    )
                )
            except Fenced:
                if self._courier is None:
                    raise
                placement = await self._env.patiently(self._env.store.read_placement)
                ours = {row.id for row in placement.intervals if row.owner == self._env.worker}
                for interval in intervals:
                    if self._exchange.owns(interval) and interval.id not in ours:
                        self._env.log.warning(
                            "fenced", interval=interval.name, sequencer=interval.commits.sequencer
                        )
                        self._exchange.observer.interval_fenced(interval)
                        await self._lose(interval)
            else:
                return {claim.interval.id: claim for claim in claims}

    async def attach(self, interval: Interval, claim: Claim) -> None:
        """Un-ACKed productions are sent again before any new ones."""
        for log in interval.logs:
            self._exchange.logs[log.id] = (log, interval)
        if interval.source_task is not None:
            return
        interval.attach(
            self._state_cache(interval), self._shared_tables(interval), interval.dedup, claim
        )
        if interval.tables is not None:
            await self._load_tables(interval, interval.tables)
        inherited = interval.logs[:-1]
        for log in inherited:
            await self._env.patiently(lambda log=log: self._send_again(interval, log))  # type: ignore[misc]
            log.complete = True

    def _is_read(self, row: StoredProduction) -> bool:
        """False: it has no receiver, or one that was removed or no longer reads the stream."""
        step = self._exchange.steps.get(row.receiver)
        return step is not None and row.stream in step.codecs

    def _state_cache(self, interval: Interval) -> StateCache:
        node = interval.step.node
        assert node.layout is not None
        assert node.computation is not None
        subject = f"state of {node.label!r}"
        return self._cache(interval, node.layout, subject, node.state_steps, node.entry_steps)

    def _shared_tables(self, interval: Interval) -> BroadcastTables | None:
        node = interval.step.node
        if node.shared is None:
            return None
        assert node.computation is not None
        subject = f"shared table of {node.label!r}"
        cache = self._cache(interval, node.shared, subject, node.shared_steps)
        return BroadcastTables(
            cache, interval.slots, node.grain, guarded=self._env.options.guard_shared
        )

    async def _load_tables(self, interval: Interval, tables: BroadcastTables) -> None:
        places = [(table.slot, table.key_text) for table in tables]
        rows = await self._env.patiently(
            lambda: self._env.store.load_keys(interval.step.id, places, 1)
        )
        for table, entries in zip(tables, rows, strict=True):
            table.fill(entries, complete=True)

    def _cache(
        self,
        interval: Interval,
        layout: StateLayout[Any],
        what: str,
        steps: Mapping[int, Migration],
        entry_steps: Mapping[str, Mapping[int, Migration]] = MappingProxyType({}),
    ) -> StateCache:
        step = interval.step

        async def fetch(state: KeyState, entry: str) -> tuple[bytes, int] | None:
            return await self._env.patiently(
                lambda: self._env.store.load_entry(step.id, state.slot, state.key_text, entry)
            )

        async def scan(
            state: KeyState, after: str, before: str, limit: int
        ) -> list[tuple[str, bytes, int]]:
            return await self._env.patiently(
                lambda: self._env.store.scan_entries(
                    step.id, state.slot, state.key_text, after, before, limit
                )
            )

        return StateCache(
            layout,
            what=what,
            version=step.version,
            migrations=steps,
            entry_migrations=entry_steps,
            fetch_entry=fetch,
            scan_entries=scan,
            compares=self._env.options.compare_stored,
        )

    async def _send_again(self, interval: Interval, log: SentLog) -> None:
        async for row in self._env.store.read_productions(log.id, log.next_seq):
            if row.seq > log.next_seq:
                log.lack([(log.next_seq, row.seq)])
                log.skip(row.seq)
            if log.is_acknowledged(row.seq):
                log.skip(row.seq + 1)
                continue
            if not self._is_read(row):
                log.sent(row.seq + 1, row.hold, 0, row.stamp)
                log.acknowledge([row.seq])
                continue
            stream = self._env.graph.streams[row.stream]
            value = row.value
            if row.version != stream.version:
                subject = f"stream {row.stream!r}, key {row.key.decode()}"
                value = apply_migrations(
                    value,
                    row.version,
                    stream.version,
                    stream.migrations,
                    subject,
                    stream.codec.decode,
                )
            log.sent(row.seq + 1, row.hold, len(value), row.stamp)
            delivery: Delivery[Any] = Delivery(
                decode_key(row.key), stream.codec.decode(value), row.ts, row.stream, row.key,
                row.slot, row.receiver, row.hold, len(value), value, log.id, row.seq, row.place,
                row.id or record_id(log.id, row.seq), 0, False, row.origin,
            )  # fmt: skip
            if row.id:
                log.stored([delivery])
            self._exchange.send([delivery])
