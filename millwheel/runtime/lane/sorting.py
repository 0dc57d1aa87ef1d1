"""Sorts a chunk: drops seen records, groups the others by key, and loads the keys' states."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.all_states import read_all_states
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.work import Item
from millwheel.runtime.keys.key_state import KeyState
from millwheel.runtime.running.chunk_stop import ChunkGroup
from millwheel.runtime.running.execution import Group
from millwheel.runtime.seen.change_log import ChangeLog
from millwheel.runtime.seen.seen_buckets import Buckets

LOADED_AHEAD = 1000
"""Most queued records for which states are prefetched when missing states are loaded."""

AHEAD_SHARE = 16
"""Prefetched states fill at most 1/AHEAD_SHARE of the cache, estimated from those loaded last."""


class Sorter:
    def __init__(self, env: Environment, exchange: Exchange, buckets: Buckets) -> None:
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._changes = ChangeLog(env.log)

    async def sort_chunk(
        self, interval: Interval, chunk: Chunk, on_wait: Callable[[], None]
    ) -> list[ChunkGroup] | None:
        """Group the records of a chunk by key, if all are new and each key is free, and needs no
        care.

        Args:
            on_wait: called before the store is asked.

        Returns:
            None: the chunk is not in flight, and its records must be sorted one by one. No groups:
            the step's code takes the chunk as it is.
        """
        if self._env.is_shared and not self._knows_bucket(chunk):
            try:
                await self._env.patiently(self._buckets.load)
            except BaseException:
                interval.intake.put_first([chunk])  # it is in no other place
                raise
        if chunk.names and not await self._are_new(interval, chunk, on_wait):
            return None
        if interval.backlog and not interval.backlog.keys().isdisjoint(chunk.key_texts):
            return None
        if interval.turns.careful and not interval.turns.careful.isdisjoint(chunk.key_texts):
            return None
        if not interval.dedup.admit(chunk):
            return None
        if interval.step.chunk_code is not None:
            return []
        groups = interval.begin_keys(chunk)
        missing = [state for state, _ in groups if not state.loaded]
        if missing:
            on_wait()
            await self.load(interval, missing)
        return groups

    async def _are_new(self, interval: Interval, chunk: Chunk, on_wait: Callable[[], None]) -> bool:
        """Whether a chunk's user-supplied ids have never been seen, asking the store if need be."""
        doubtful = interval.dedup.doubtful_names(chunk)
        if not doubtful:
            return doubtful is not None
        on_wait()
        try:
            return not await self._env.patiently(lambda: interval.dedup.known_names(doubtful))
        except BaseException:
            interval.intake.put_first([chunk])  # it is in no other place
            raise

    async def sort(
        self, interval: Interval, items: list[Item], on_wait: Callable[[], None]
    ) -> deque[Group]:
        """Drop seen records, and group the others by key.

        Args:
            on_wait: called before the store is asked.

        Returns:
            The groups; none if the interval's mode gathers its records.
        """
        if not isinstance(items[0], Delivery):
            fresh = items
        else:
            fresh = await self._deduplicate(interval, items, on_wait)  # type: ignore[arg-type]
        if interval.mode.gathers:
            interval.mode.gather(fresh, self._env.now())
            return deque()
        admitted = interval.turns.admitted(fresh, interval.backlog)
        if len(admitted) < len(fresh) and interval.watermarks.has_news():
            interval.touch(urgent=True)  # no commit of due timers stores the low watermark
        groups, missing = _group(interval, admitted)
        if missing:
            on_wait()
            await self.load(interval, missing)
        return groups

    # -- dedup ------------------------------------------------------------------------

    async def _deduplicate(
        self, interval: Interval, deliveries: list[Delivery[Any]], on_wait: Callable[[], None]
    ) -> list[Item]:
        dedup = interval.dedup
        if self._env.is_shared and dedup.exactly_once:
            try:
                await self._see_buckets(deliveries)
            except BaseException:
                interval.intake.put_first(deliveries)  # they are in no other place
                raise
        candidates, maybe, seen = dedup.sort(deliveries)
        if seen:
            self._drop(interval, seen)
        if maybe:
            on_wait()
            found = await self._env.patiently(lambda: dedup.look_up(maybe))
            if found:
                self._drop(interval, dedup.landed(sorted(found)))
                candidates = [d for d in candidates if d.id not in found]
        if dedup.last_changed is not None:
            self._changes.add(interval.step.name, dedup.last_changed)
            dedup.last_changed = None
        return candidates  # type: ignore[return-value]

    async def _see_buckets(self, deliveries: list[Delivery[Any]]) -> None:
        """Load the buckets if that of another worker's record is not known for certain (decision
        24)."""
        if not all(map(self._knows_bucket, deliveries)):
            await self._env.patiently(self._buckets.load)

    def _knows_bucket(self, item: Chunk | Delivery[Any]) -> bool:
        if not item.origin:
            return self._buckets.covers(item.stamp)
        first, last = (
            (item.numbers[0], item.numbers[-1])
            if isinstance(item, Chunk)
            else (item.stamp, item.stamp)
        )
        knows = self._buckets.sources.knows
        return knows(item.origin, first) and knows(item.origin, last)

    def _drop(self, interval: Interval, seen: list[Delivery[Any]]) -> None:
        self._exchange.acknowledge(seen)
        interval.turns.forget(seen)
        interval.touch(urgent=False)

    # -- state --------------------------------------------------------------------------

    async def load(self, interval: Interval, states: list[KeyState]) -> None:
        """Load these states, and prefetch those of queued records."""
        env = self._env
        limit = env.settings.eager_entries
        ahead = self._ahead(interval, {state.key_text for state in states})
        wanted = [*states, *ahead]
        rows = await env.patiently(
            lambda: env.store.load_keys(
                interval.step.id, [(s.slot, s.key_text) for s in wanted], limit
            )
        )
        for place, (state, entries) in enumerate(zip(wanted, rows, strict=True)):
            if place < len(states) or (not state.loaded and interval.states.has(state)):
                state.fill(entries, complete=len(entries) < limit)
        interval.states.loaded_bytes = sum(state.size for state in wanted) // len(wanted)
        if not interval.states.are_read:
            interval.states.are_read = True
            env.spawn(read_all_states(env, interval), "states")

    def _ahead(self, interval: Interval, known: set[bytes]) -> list[KeyState]:
        """States of the next queued records that are neither loaded nor being loaded."""
        size = interval.states.loaded_bytes
        if not size:
            return []
        limit = min(LOADED_AHEAD, self._env.settings.cache_bytes // AHEAD_SHARE // size)
        found: list[KeyState] = []
        for key, key_text, slot in interval.intake.places(interval.states.looked_ahead, limit):
            if key_text not in known:
                known.add(key_text)
                state = interval.state_of(key, key_text, slot)
                if not state.loaded:
                    found.append(state)
        interval.states.looked_ahead = max(
            interval.states.looked_ahead, min(interval.intake.length, limit)
        )
        return found


def _group(interval: Interval, items: list[Item]) -> tuple[deque[Group], list[KeyState]]:
    """Group items by key, and mark the keys as running; items of running keys wait in the backlog.

    Returns:
        The groups, and their states that are not loaded.
    """
    by_key: dict[bytes, list[Item]] = {}
    groups: deque[Group] = deque()
    missing: list[KeyState] = []
    backlog, get = interval.backlog, interval.state_of
    for item in items:
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
    return groups, missing
