"""Clusters whose intervals are split and merged only when a test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from millwheel.runtime.engine import Engine
from millwheel.runtime.network.remote import Remote
from millwheel.store.port.placement import MergeWish, PlacedInterval, SplitWish, Wish
from tests.support.clusters import Cluster
from tests.support.values import Item


class Lone(Cluster):
    """A cluster whose intervals are cut only when the test says so."""

    async def at_work(self, workers: int) -> list[Engine]:
        """Workers in the midst of their records."""
        engines = [await self.join() for _ in range(workers)]
        await self.go(lambda: all(engine.processed > 60 for engine in engines))
        return engines

    async def split(self, row: PlacedInterval, at: int | None = None) -> None:
        middle = (row.slot_from + row.slot_to) // 2
        wish = SplitWish(row.id, row.sequencer, at or middle, "a test wants it")
        assert await self.store.wish([wish]) == [row.id]

    async def merge(self, lower: PlacedInterval, upper: PlacedInterval) -> None:
        """At the owner of the lower one."""
        here = Wish(upper.id, upper.sequencer, lower.owner, "a test wants it")
        wish = MergeWish(lower.id, lower.sequencer, upper.id, "a test wants it")
        assert lower.id in await self.store.wish([here, wish])

    async def in_flight(
        self, sender: Engine, there: PlacedInterval, owner: Engine, here: PlacedInterval
    ) -> None:
        """Wait until `sender` has records on their way to one interval of another worker, and
        some wait in one of `owner`'s."""
        remote = self.remote(sender, there.id)
        interval = owner.exchange.held(here.id)
        assert interval is not None
        await self.go(lambda: interval.intake and any(s.unacked for s in remote.streams.values()))

    async def split_here(self, owner: Engine, row: PlacedInterval) -> int:
        """Wait until an interval was split and its owner has both parts; gives the new one."""
        why = f"cut off interval {row.id}"
        await self.go(lambda: why in [reason for _, reason in self.done("split")])
        (made,) = (id_ for id_, reason in self.done("split") if reason == why)
        await self.go(
            lambda: (
                owner.exchange.held(row.id) is not None and owner.exchange.held(made) is not None
            )
        )
        return made

    def part(self) -> None:
        """Two workers hear nothing of each other, and both of the store."""
        self.ether.part("w0", "w1")

    def join_again(self) -> None:
        self.ether.join("w0", "w1")

    def done(self, what: str) -> list[tuple[int, str]]:
        """Placement events of a kind: interval and reason."""
        return [(e.interval_id, e.reason) for e in self.store.placement_events() if e.what == what]

    def owner_of(self, row: PlacedInterval) -> Engine:
        (engine,) = (engine for engine in self.alive if engine.worker == row.owner)
        return engine

    def remote(self, engine: Engine, interval_id: int) -> Remote:
        (found,) = (remote for remote in engine.remotes.remotes() if remote.id == interval_id)
        return found

    async def end(self, values: list[Item]) -> None:
        """Everything is counted as if nothing had been cut."""
        await self.finish_soon(values)
        for engine in list(self.alive):
            await self.leave(engine)

    def block(self, call: str) -> asyncio.Event:
        """Let the next call of the store never come back; set when it is there."""
        reached = asyncio.Event()

        async def before(name: str) -> None:
            if name == call and not reached.is_set():
                reached.set()
                await asyncio.Event().wait()

        self.store.faults.before_call = before
        return reached


def report_load(cluster: Lone, loads: dict[int, float]) -> None:
    """Let every worker tell this load of the slots that it has of `tally`."""

    def told(engine: Engine) -> dict[str, Any]:
        found = {}
        for interval in engine.intervals:
            low, high = interval.slots
            mine = {slot: cpu for slot, cpu in loads.items() if low <= slot < high}
            if mine and interval.step.name == "tally":
                histogram = sorted(mine.items())
                found[str(interval.id)] = {"cpu": sum(mine.values()), "histogram": histogram}
        return {"cpu": sum(figures["cpu"] for figures in found.values()), "intervals": found}

    for engine in cluster.alive:
        engine.figures._meter.take = lambda _, engine=engine: told(engine)  # type: ignore[method-assign, misc]
