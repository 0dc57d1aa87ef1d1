"""Keys are parked and mended while intervals move, workers crash, and commits are lost or refused:
each record once, in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import replace

import pytest

from millwheel import Context, Park, Pipeline, Record, Table
from millwheel.errors import CommitUnknown, StoreUnavailable
from millwheel.store.port.commit import Commit
from millwheel.store.port.placement import Wish
from tests.support.clusters import SHARED, Cluster
from tests.support.drawing import seeds
from tests.support.pipelines import Tally, script
from tests.support.store_sites import REFUSED
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of

BAD: set[int] = set()
REFUSES: set[int] = set()
RECORDS = 400
PARKS = (
    Park(),
    Park(most_records=2),
    Park(hold_watermark=True),
    Park(hold_watermark=True, most_records=3),
)


class Checking(Tally):
    """Fails on some numbers, has refused statements for others, and waits now and then."""

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        number = record.value.number
        if number in BAD:
            raise ValueError(f"{number} is bad")
        if number in REFUSES:
            ctx.execute(REFUSED)
        for _ in range(40 if number % 17 == 0 else 0):
            await asyncio.sleep(0)
        await super().process_record(record, ctx)


def retry(cluster: Cluster, chance: random.Random, share: float = 1.0) -> None:
    """Ask for a share of the failed records again."""
    for letter in cluster.store.dead_letters:
        is_asked = cluster.store.asked_about(letter) or letter.key is None
        if letter.parked == "failed" and not is_asked and chance.random() < share:
            cluster.store.ask("retry", "do", (letter.key or b"").decode().strip('"'), letter=letter)


async def disturb(cluster: Cluster, chance: random.Random) -> None:
    """Do one thing of many."""
    what = chance.choice(
        ["mend", "retry", "move", "move", "split", "merge", "crash", "join", "none"]
    )
    if what == "mend":
        for numbers in (BAD, REFUSES):
            numbers.difference_update(chance.sample(sorted(numbers), len(numbers) // 3))
        retry(cluster, chance, 0.7)
    elif what == "retry":
        retry(cluster, chance, 0.5)
    elif what == "move":
        row = chance.choice((await cluster.store.read_placement()).intervals)
        worker = chance.choice(cluster.alive).worker
        await cluster.store.wish([Wish(row.id, row.sequencer, worker, "chaos")])
    elif what in ("split", "merge"):
        await cluster.cut(chance.randrange(20), 0.5 if what == "split" else None)
    elif what == "crash" and len(cluster.alive) > 1:
        await cluster.crash(chance.choice(cluster.alive))
    elif what == "join" and len(cluster.alive) < 3:
        await cluster.join()


@pytest.mark.parametrize("seed", seeds(3, 100))
async def test_each_record_of_a_parked_key_counts_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    values = [Item(f"key {chance.randrange(12)}", n, n // 10) for n in range(RECORDS)]
    for numbers in (BAD, REFUSES):
        numbers.clear()
    BAD.update(chance.sample(range(RECORDS), 12))
    REFUSES.update(set(chance.sample(range(RECORDS), 4)) - BAD)
    pipeline = Pipeline("counting", settings=replace(SHARED, timers_in_memory=1))
    pipeline.inject(ITEMS, script(ITEMS, values, "part 0"), timestamp=time_of, name="source_0")
    pipeline.add(
        Checking(),
        ITEMS.by(key_of),
        name="do",
        on_error=chance.choice(PARKS),
        retries=chance.choice([0, 1]),
    )
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    cluster = Cluster(pipeline)
    cluster.store.faults.refuse = lambda what, _: "no such table" if what == REFUSED else None

    def lose(commit: Commit) -> None:
        if chance.random() < 0.01:
            raise CommitUnknown("lost")

    def fail(commit: Commit) -> None:
        if chance.random() < 0.01:
            raise chance.choice([StoreUnavailable, CommitUnknown])("away")

    async def live(seconds: float) -> None:
        until = cluster.clock.monotonic() + seconds
        await cluster.go(lambda: cluster.clock.monotonic() > until)

    cluster.on_durable, cluster.on_try = lose, fail
    for _ in range(2):
        await cluster.join()
    for _ in range(60):
        await live(chance.choice([0.1, 0.3, 1.0]))
        await disturb(cluster, chance)
    BAD.clear()
    REFUSES.clear()
    cluster.on_durable = cluster.on_try = None
    for _ in range(200):
        await live(0.5)
        if not cluster.store.dead_letters and all(e.done.is_set() for e in cluster.alive):
            break
        retry(cluster, chance)
    assert cluster.store.dead_letters == []
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, number, count, *_ in cluster.rows():
        found[key].append((count, number))
    wanted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for value in values:
        wanted[value.key].append((len(wanted[value.key]) + 1, value.number))
    assert {key: sorted(rows) for key, rows in found.items()} == wanted
    assert [timer for timer in cluster.store.timers() if "parked" in timer.tag] == []
    for engine in list(cluster.alive):
        await cluster.leave(engine)
