"""An interval with few states has all of them in memory soon, and then no record waits for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.runtime.interval import all_states
from millwheel.runtime.interval.interval import Interval
from millwheel.settings import Settings
from millwheel.testing import inject
from tests.support.pipelines import QUICK, script, tally_pipeline
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, tally_of, time_of
from tests.support.worlds import Gate, World, read_on

OLD = [Item(f"key {n % 30}", n) for n in range(60)]
NEW = [Item(f"new {n}", 60 + n) for n in range(5)]
FOLDED = replace(QUICK, fold_seconds=0.05, housekeeping_seconds=0.05)


class Restarted(World):
    """A world whose states are folded and in no memory, and which counts the look-ups."""

    def __init__(self, settings: Settings = FOLDED) -> None:
        self.source = script(ITEMS, OLD)
        super().__init__(tally_pipeline(self.source, settings))
        self.asked: list[str] = []
        self.sent = list(OLD)

    def tallies(self) -> list[Interval]:
        return [i for i in self.engines[-1].intervals if i.step.name == "tally"]

    async def begin(self, *items: Item) -> None:
        engine = await self.start()
        await self.until(engine.done.is_set, tick=0.05)
        await self.until(self.is_folded, tick=0.05)
        await engine.kill()

        async def note(name: str) -> None:
            self.asked.append(name)

        self.store.faults.before_call = note
        await self.start()
        if items:
            await self.more(*items)

    def is_folded(self) -> bool:
        return all(not i.commits.changed_since_fold for i in self.tallies())

    async def more(self, *items: Item) -> int:
        """Process more items; gives the number of look-ups."""
        self.asked.clear()
        self.sent += items
        for item in items:
            self.source.append(inject(ITEMS, item))
        read_on(self.engines[-1])
        await self.until(lambda: len(self.rows()) == len(self.sent), tick=0.001)
        assert self.tallied() == tally_of(self.sent)
        return self.asked.count("load_keys")

    def have_all(self) -> bool:
        return any(i.states.has_all for i in self.tallies())


async def test_after_the_first_look_up_none_is_needed() -> None:
    world = Restarted()
    await world.begin()
    assert await world.more(Item("key 3", 100)) == 1
    await world.until(world.have_all)
    assert await world.more(*NEW) == 0
    assert await world.more(*[replace_number(item, 200) for item in OLD[:30]]) == 0
    await world.close()


def replace_number(item: Item, by: int) -> Item:
    return Item(item.key, item.number + by)


async def test_a_key_that_was_evicted_is_looked_up() -> None:
    world = Restarted()
    await world.begin(Item("key 3", 100))
    await world.until(world.have_all)
    await world.until(world.is_folded, tick=0.05)
    (interval,) = world.tallies()
    while len(interval.states):
        interval.states.evict(0, lambda key: False)
    assert not interval.states.has_all
    assert await world.more(*[replace_number(item, 200) for item in OLD[:30]]) > 0
    await world.close()


async def test_what_was_evicted_while_it_was_read_is_not_taken_from_what_was_read() -> None:
    """A page may be older than what was in memory, was folded and forgotten."""
    world, gate = Restarted(), Gate()
    await world.begin()
    scan = world.store.scan_states

    async def late(*args: Any) -> Any:
        found = await scan(*args)
        await gate.wait()
        return found

    world.store.scan_states = late  # type: ignore[assignment,method-assign]
    assert await world.more(Item("key 3", 100)) == 1
    await world.until(lambda: gate.reached)
    await world.until(world.is_folded, tick=0.05)
    (interval,) = world.tallies()
    while len(interval.states):
        interval.states.evict(0, lambda key: False)
    gate.open()
    await world.turns(500)
    assert not len(interval.states)
    assert not interval.states.has_all
    assert await world.more(Item("key 3", 101)) == 1
    await world.close()


@pytest.mark.parametrize("limit", ["rows", "bytes"])
async def test_an_interval_with_many_states_is_read_no_further(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "rows":
        monkeypatch.setattr(all_states, "ROWS_A_PAGE", 2)
    else:
        monkeypatch.setattr(all_states, "CACHE_SHARE", 1_000_000)
    world = Restarted()
    await world.begin(Item("key 3", 100))
    await world.turns(500)
    assert 1 <= world.asked.count("scan_states") < 32
    assert not world.have_all()
    assert await world.more(*NEW) >= 1
    await world.close()


async def test_states_of_another_version_wait_for_their_records() -> None:
    """One that cannot be migrated ends the worker only when a record needs it."""
    world = Restarted()
    await world.begin()
    entries = next(iter(world.store.tables.state.values()))
    entries[""] = (entries[""][0], 7)
    assert await world.more(Item("new", 100)) == 1
    await world.turns(500)
    assert world.engines[-1].failure is None
    assert not world.have_all()
    await world.close()


async def test_a_broadcast_table_is_no_state_of_a_key() -> None:
    """It is stored under a key that no record has."""
    rules = Stream("rules", Item)

    class Rules(msgspec.Struct):
        numbers: list[int] = []

    class Check(Computation[Item, Count, Item, Rules]):
        writes = (TALLY,)

        async def process_broadcast(self, record: Record[Item], shared: Rules) -> None:
            shared.numbers.append(record.value.number)

        async def process_record(self, record: Record[Item], ctx: Context[Count, Rules]) -> None:
            ctx.state.count += 1
            item = record.value
            ctx.produce(TALLY, Counted(item.key, item.number, ctx.state.count))

    items_, rules_ = script(ITEMS, OLD), script(rules, OLD[:5])
    pipeline = Pipeline("tally", settings=FOLDED)
    pipeline.inject(ITEMS, items_, timestamp=time_of)
    pipeline.inject(rules, rules_, timestamp=time_of)
    pipeline.add(Check(), ITEMS.by(key_of), rules.broadcast(), name="tally")
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))

    class WithRules(Restarted):
        def is_folded(self) -> bool:
            return super().is_folded() and any(
                k.startswith(b"{") for *_, k in self.store.tables.state
            )

    world = WithRules()
    world.source, world.pipeline = items_, pipeline
    await world.begin(Item("key 3", 100))
    await world.until(world.have_all)
    for interval in world.tallies():
        assert all(isinstance(state.key, str) for state in interval.states._keys.values())
    await world.close()
