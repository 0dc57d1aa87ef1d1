"""Rows of numbered tables: those of each sender are numbered without gaps, whatever becomes of its
workers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from millwheel import Context, Pipeline, Record, Stream, Table
from millwheel.store.port.placement import Wish
from tests.support.clusters import SHARED, many
from tests.support.lone_clusters import Lone
from tests.support.pipelines import Tally, script
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of

EVEN = Stream("even", Counted)


class TallyTwice(Tally):
    """Counts, and logs even counts as well."""

    writes = (TALLY, EVEN)  # type: ignore[assignment]

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        await super().process_record(record, ctx)
        if ctx.state.count % 2 == 0:
            ctx.produce(EVEN, Counted(record.value.key, record.value.number, ctx.state.count))


def numbers(cluster: Lone, table: str) -> dict[int, list[int]]:
    """By sender, the numbers of a table's rows, in the order in which they were committed."""
    found = defaultdict(list)
    for *_, sender, sequence in cluster.rows(table):
        found[sender].append(sequence)
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_numbers_have_no_gaps(seed: int) -> None:
    values = many(2000, keys=40)
    made = Pipeline("counting", settings=replace(SHARED, max_unacked_records=100))
    made.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    made.add(TallyTwice(), ITEMS.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    made.sink(EVEN, Table("even", Counted, numbered=True))
    cluster = Lone(made)
    await cluster.at_work(2)
    lower, upper = await cluster.parts("tally_twice")
    for row in (lower, upper):
        await cluster.store.wish([Wish(row.id, row.sequencer, None, "wherever it is")])
    cut, moved = (lower, upper) if seed % 2 else (upper, lower)
    await cluster.split(cut)
    await cluster.split_here(cluster.owner_of(cut), cut)
    await cluster.crash(cluster.owner_of(moved))
    await cluster.join()
    await cluster.go(cluster.finished)
    assert len(cluster.rows("out")) == len(values)
    for table in ("out", "even"):
        found = numbers(cluster, table)
        assert len(found) == 3
        for sequence in found.values():
            assert sequence == list(range(len(sequence)))
