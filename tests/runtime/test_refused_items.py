"""A record or timer that has blocked a former owner, or that an operator sets aside, is given up
on, and no other one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from millwheel import Bundles, Computation, Context, Pipeline, Record, Timer
from millwheel.core.codec import encode_key
from millwheel.core.model import Firing, record_id
from millwheel.core.model import Timer as SetTimer
from millwheel.errors import StoreUnavailable, UserCodeError
from millwheel.runtime.interval.giving_up import name_in_store
from millwheel.store.port.commit import Commit
from millwheel.store.port.requests import BlockingItem
from tests.support.pipelines import QUICK, Kept, doing, produce, script
from tests.support.values import ITEMS, Item, at, items, key_of, time_of
from tests.support.worlds import World

ERROR = "it blocked the event loop"


async def count(record: Record[Item], ctx: Context[Kept]) -> None:
    ctx.state.count += 1
    produce(ctx, record.value.number, ctx.state.count)


async def owned_before(world: World) -> int:
    """Let a first owner claim all intervals, and end before a row is durable; gives the log of the
    source."""
    engine = await world.start()
    (injector,) = engine.injectors
    await engine.kill()
    assert not any(commit.seen for commit in world.commits)
    return injector._interval.log.id


def note(world: World, key: str, item: str) -> None:
    """The note of a worker that was blocked."""
    encoded, slot = encode_key(key)
    (computation,) = [
        row.id for name, row in world.store.tables.computations.items() if name == "do"
    ]
    found = BlockingItem(encoded, item, ERROR)
    world.store.tables.blocking.append((computation, slot, found))


def made(world: World) -> list[tuple[int, int]]:
    return [(number, count) for _, number, count, *_ in world.store.rows("out")]


@pytest.mark.parametrize("retries", [0, 3])
async def test_the_record_becomes_a_letter_and_its_key_goes_on_in_order(retries: int) -> None:
    values = [*items(0, 1, 2, 3), *items(4, key="b")]
    world = World(doing(values, count, on_error="dead_letter", retries=retries))
    log = await owned_before(world)
    note(world, "a", f"record:{record_id(log, 1).hex()}")
    note(world, "b", f"record:{record_id(log, 1).hex()}")  # of another key, where it is not met
    await world.finish(await world.start())
    assert sorted(made(world)) == [(0, 1), (2, 2), (3, 3), (4, 1)]
    (letter,) = world.store.tables.dead_letters
    assert letter.record_id == record_id(log, 1)
    assert (letter.error, letter.attempts) == (f"CodeBlocked: {ERROR}", 1)
    assert world.store.tables.blocking == []
    await world.close()


async def test_with_on_error_fail_the_worker_ends_and_the_record_may_run_again() -> None:
    world = World(doing(items(0, 1), count))
    log = await owned_before(world)
    note(world, "a", f"record:{record_id(log, 1).hex()}")
    engine = await world.start()
    with pytest.raises(UserCodeError, match=rf"(?s)record of stream 'items', key 'a'.*{ERROR}"):
        await world.until(engine.done.is_set)
    await engine.kill()
    await world.finish(await world.start())
    assert made(world) == [(0, 1), (1, 2)]
    await world.close()


async def test_a_timer_is_given_up_on() -> None:
    rang: list[str] = []

    async def set_two(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.set_timer(at(1), tag="bad")
        ctx.set_timer(at(2), tag="good")

    async def ring(timer: Timer, ctx: Context[Kept]) -> None:
        rang.append(timer.tag)

    world = World(doing(items(0), set_two, ring, on_error="dead_letter"))
    await owned_before(world)
    due = int(at(1).timestamp() * 1e6)
    firing: Any = Firing("a", b'"a"', 0, SetTimer("bad", "watermark", due), due)
    note(world, "a", name_in_store(firing))
    await world.finish(await world.start(close_at_end=True))
    assert rang == ["good"]
    (letter,) = world.store.tables.dead_letters
    assert letter.stream == "timer"
    await world.close()


async def test_one_that_blocks_again_and_again_is_refused_until_its_letter_is_durable() -> None:
    """The note stays while the commit of the letter fails."""
    ran: list[int] = []

    async def see(record: Record[Item], ctx: Context[Kept]) -> None:
        ran.append(record.value.number)

    world = World(doing(items(0, 1), see, on_error="dead_letter"))
    log = await owned_before(world)
    note(world, "a", f"record:{record_id(log, 1).hex()}")
    failed = 0

    def fail_once(commit: Commit) -> None:
        nonlocal failed
        if commit.dead_letters and not failed:
            failed += 1
            raise StoreUnavailable("on purpose")

    world.on_try = fail_once
    await world.finish(await world.start())
    assert failed == 1
    assert 1 not in ran
    assert len(world.store.tables.dead_letters) == 1
    await world.close()


async def test_a_note_of_a_record_that_is_durable_after_all_is_forgotten() -> None:
    """Its commit was on the wire when the limit was reached; dedup drops it when it is read
    again."""
    world = World(doing(items(0, 1), count, on_error="dead_letter"))
    first = await world.start()
    (injector,) = first.injectors
    log = injector._interval.log.id
    await world.until(lambda: any(commit.seen for commit in world.commits))
    await first.kill()
    note(world, "a", f"record:{record_id(log, 1).hex()}")
    engine = await world.start()
    assert [len(i.turns.careful) for i in engine.intervals if i.turns.careful] == [1]
    await world.until(engine.done.is_set, tick=0.05)
    assert not any(interval.turns.careful for interval in engine.intervals)
    await engine.stop()
    assert made(world) == [(0, 1), (1, 2)]
    assert world.store.tables.dead_letters == []
    await world.close()


@pytest.mark.parametrize("on_error", ["fail", "dead_letter", "park"])
async def test_an_operator_sets_a_record_aside_whatever_on_error_says(on_error: Any) -> None:
    async def fail(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1 and not world.store.tables.requests:
            raise ValueError("it does not fit")
        await count(record, ctx)

    values = items(0, 1, 2)
    world = World(doing(values, fail, on_error=on_error))
    if on_error == "fail":
        with pytest.raises(
            UserCodeError, match=r"set-aside do record:[0-9a-f]{32} --key '\"a\"'"
        ) as told:
            await world.run()
        (item,) = re.findall("record:[0-9a-f]{32}", str(told.value))
    else:
        item = f"record:{record_id(await owned_before(world), 1).hex()}"
    await world.engines[-1].kill()
    asked = world.store.ask("set_aside", "do", "a", {"item": item})
    other = world.store.ask("set_aside", "do", "b", {"item": item})
    await world.finish(await world.start())
    assert made(world) == [(0, 1), (2, 2)]
    (letter,) = world.store.tables.dead_letters
    assert letter.error == "SetAside: an operator has set this record aside"
    assert letter.parked is None
    outcome = world.store.outcome(asked)
    assert outcome is not None
    assert outcome.outcome == "done"
    assert world.store.outcome(other) is None, "it is of another key"
    await world.close()


class Collect(Computation[Item, None]):
    """Keeps the numbers of each bundle."""

    bundles = Bundles(records=10)

    def __init__(self) -> None:
        self.delivered: list[list[int]] = []

    async def process_bundle(self, records: Sequence[Record[Item]], ctx: Context[None]) -> None:
        self.delivered.append([record.value.number for record in records])


@pytest.mark.parametrize("blocked", [False, True])
async def test_a_member_of_a_bundle_is_set_aside_alone_and_one_that_blocks_with_all(
    blocked: bool,
) -> None:
    collect = Collect()
    pipeline = Pipeline("doing", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(0, 1, 2)), timestamp=time_of)
    pipeline.add(collect, ITEMS.by(key_of), name="do", on_error="dead_letter")
    world = World(pipeline)
    log = await owned_before(world)
    item = f"record:{record_id(log, 1).hex()}"
    if blocked:
        note(world, "a", item)
    else:
        asked = world.store.ask("set_aside", "do", "a", {"item": item})
    await world.finish(await world.start())
    delivered = [number for bundle in collect.delivered for number in bundle]
    letters = [letter.record_id for letter in world.store.tables.dead_letters]
    if blocked:
        assert record_id(log, 1) in letters
        assert 1 not in delivered
    else:
        assert (delivered, letters) == ([0, 2], [record_id(log, 1)])
        assert world.store.outcome(asked) is not None
    await world.close()
