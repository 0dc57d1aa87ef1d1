"""Inboxes in a running engine: numbers, event time, bad records, and checks of the graph."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from millwheel import Inbox, Pipeline, Stream, Table
from millwheel.computations import Windowed
from millwheel.computations.folds import count
from millwheel.core.json_rows import is_utf_8
from millwheel.errors import GraphError, InputError, StoreUnavailable, UsageError
from millwheel.store.memory import MemoryStore
from millwheel.windows import Pane, Tumbling
from tests.support.bad_rows import BAD_ROWS, Payment
from tests.support.pipelines import QUICK, Tally
from tests.support.values import ITEMS, TALLY, Counted, Item, key_of, time_of
from tests.support.worlds import World

PANES = Stream("panes", Pane[int])
PAYMENTS = Stream("payments", Payment)


def made(**options: Any) -> Pipeline:
    """Items from an inbox are counted per key, and per second of sending."""
    pipeline = Pipeline("inbox", settings=QUICK)
    pipeline.inject(ITEMS, Inbox(), **options)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted))
    pipeline.add(Windowed(Tumbling(seconds=1), count, to=PANES), ITEMS.by(lambda _: "all"))
    pipeline.sink(PANES, Table("panes", Pane[int]))
    return pipeline


def send(store: MemoryStore, *numbers: int, **options: Any) -> None:
    for number in numbers:
        store.send("items", msgspec.json.encode(Item("a", number)), **options)


def numbers_in(store: MemoryStore) -> list[int]:
    return [row[1] for row in store.rows("out")]


async def test_records_arrive_once_across_a_crash(tmp_path: Any) -> None:
    world = World(made())
    first = await world.start()
    send(world.store, 1, 2)
    await world.until(lambda: numbers_in(world.store) == [1, 2], tick=0.01)
    send(world.store, 3)
    world.store.faults.before_commit = _refuse(world)
    await world.turns(50, tick=0.05)  # number 3 is numbered, and no effect of it is stored
    assert not world.store.tables.inboxes[world.store.tables.streams["items"]].waiting
    await first.kill()
    world.store.faults.before_commit = world._before
    send(world.store, 4)
    await world.start()
    await world.until(lambda: numbers_in(world.store) == [1, 2, 3, 4], tick=0.01)
    await world.until(
        lambda: not world.store.tables.inboxes[world.store.tables.streams["items"]].taken, tick=0.1
    )


def _refuse(world: World) -> Any:
    async def refuse(commit: Any) -> None:
        if commit.rows:
            raise StoreUnavailable("not now")

    return refuse


async def test_a_lost_answer_of_the_store_loses_no_record() -> None:
    """The records have their numbers; they are read again under them."""
    world = World(made())
    await world.start()
    take = world.store.take_sent
    lost: list[Any] = []

    async def answer_lost(*args: Any, **options: Any) -> Any:
        taken = await take(*args, **options)
        if taken.records and len(lost) < 2:
            lost.append(taken)
            raise StoreUnavailable("the answer was lost")
        return taken

    world.store.take_sent = answer_lost  # type: ignore[method-assign]
    send(world.store, 1, 2)
    await world.until(lambda: lost, tick=0.01)
    send(world.store, 3)
    await world.until(lambda: numbers_in(world.store) == [1, 2, 3], tick=0.01)
    send(world.store, 4)
    await world.until(lambda: numbers_in(world.store) == [1, 2, 3, 4], tick=0.01)
    assert len(lost) == 2
    lost.pop()
    send(world.store, 5)  # lost again, after looks that were answered
    await world.until(lambda: len(lost) == 2, tick=0.01)
    send(world.store, 6)
    await world.until(lambda: numbers_in(world.store) == [1, 2, 3, 4, 5, 6], tick=0.01)


async def test_time_goes_on_without_records() -> None:
    """A window closes when its time is over, and a record that is sent with an old time is late."""
    world = World(made())
    await world.start()
    send(world.store, 1)
    began = world.clock.now()
    await world.until(lambda: world.store.rows("panes"), tick=0.05)
    assert world.clock.now() - began < 3_000_000
    send(world.store, 2, at=began - 5_000_000)
    await world.until(lambda: numbers_in(world.store) == [1, 2], tick=0.05)
    await world.turns(100, tick=0.1)
    assert len(world.store.rows("panes")) == 1


async def test_time_waits_for_open_transactions_and_records_do_not() -> None:
    """Their records have older times and places than those that are committed before them, and none
    is late or lost."""
    world = World(made())
    await world.start()
    commit = world.store.begin_to_send("items", msgspec.json.encode(Item("a", 1)))
    send(world.store, 2)
    await world.until(lambda: numbers_in(world.store) == [2], tick=0.05)
    await world.turns(100, tick=0.1)
    send(world.store, 3)
    await world.until(lambda: numbers_in(world.store) == [2, 3], tick=0.05)
    assert not world.store.rows("panes"), "the window is open as long as the transaction"
    commit()
    await world.until(lambda: numbers_in(world.store) == [2, 3, 1], tick=0.05)
    await world.until(lambda: world.store.rows("panes"), tick=0.05)
    await world.turns(50, tick=0.1)
    counts = [int(row[3]) for row in world.store.rows("panes")]
    assert sum(counts) == 3


async def test_a_time_from_the_value_counts_instead() -> None:
    """Then the times of sending say nothing about event time."""
    world = World(made(timestamp=time_of))
    await world.start()
    send(world.store, 1)
    await world.until(lambda: numbers_in(world.store) == [1], tick=0.05)
    await world.turns(100, tick=0.1)
    assert not world.store.rows("panes")


async def test_a_record_of_another_type_is_a_bad_row() -> None:
    world = World(made(on_error="dead_letter"))
    await world.start()
    world.store.send("items", b'{"key": 5}')
    send(world.store, 2)
    await world.until(lambda: numbers_in(world.store) == [2], tick=0.01)
    (letter,) = world.store.dead_letters
    assert letter.value == '{"key": 5}'
    assert letter.place == "inbox, record 0"
    failing = World(made())
    await failing.start()
    failing.store.send("items", b"{}")
    with pytest.raises(InputError, match=r"inbox, record 0: .*dead_letter"):
        await failing.until(lambda: False, tick=0.01)


@pytest.mark.parametrize("raw", [raw for raw in BAD_ROWS.values() if is_utf_8(raw)])
async def test_a_record_that_cannot_be_read_is_set_aside_alone(raw: bytes) -> None:
    pipeline = Pipeline("payments", settings=QUICK)
    pipeline.inject(PAYMENTS, Inbox(), on_error="dead_letter")
    pipeline.sink(PAYMENTS, Table("out", Payment))
    world = World(pipeline)
    await world.start()
    for record in (b'{"number":1}', raw, b'{"number":3}'):
        world.store.send("payments", record)
    await world.until(lambda: len(world.store.rows("out")) == 2, tick=0.01)
    (letter,) = world.store.dead_letters
    assert letter.value == raw.decode()
    assert sorted(row[0] for row in world.store.rows("out")) == [1, 3]


async def test_a_record_whose_key_is_too_long_is_set_aside_alone() -> None:
    """As every bad row, whichever step of the injector refuses it."""
    world = World(made(on_error="dead_letter"))
    await world.start()
    send(world.store, 1)
    world.store.send("items", msgspec.json.encode(Item("k" * 2_000, 2)))
    send(world.store, 3)
    await world.until(lambda: numbers_in(world.store) == [1, 3], tick=0.01)
    (letter,) = world.store.dead_letters
    assert "it takes 2,002 bytes" in letter.error


def test_mistakes() -> None:
    with pytest.raises(GraphError, match="give the id of a record"):
        made(id=key_of)
    pipeline = made()
    with pytest.raises(GraphError, match="has an Inbox already"):
        pipeline.inject(ITEMS, Inbox(), name="second")
    with pytest.raises(UsageError, match="remember must be"):
        Inbox(remember=timedelta(0))


async def test_an_inbox_needs_a_worker() -> None:
    (partition,) = Inbox().partitions()
    with pytest.raises(UsageError, match="by a worker"):
        await partition.open(Item, None)
