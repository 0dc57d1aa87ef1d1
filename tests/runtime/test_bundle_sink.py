"""Sinks outside the store: what the engine gives them, and what it does with records that they
refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millwheel import Bundles, Pipeline, Table
from millwheel.bundles import BundleId, RecordsRefused
from millwheel.context import BundleContext
from millwheel.core.model import Record
from millwheel.errors import GraphError, OutputError, UserCodeError
from millwheel.services.observed import EngineObserved
from millwheel.testing import Harness
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, Counted, Item, items, key_of, time_of
from tests.support.worlds import Gate, World


class Ledger:
    """A sink in memory that remembers the last number of each scope."""

    def __init__(
        self, refuses: Callable[[Counted], bool] = lambda _: False, records: int = 3
    ) -> None:
        self.bundles = Bundles(records=records, seconds=0.0)
        self._refuses = refuses
        self.written: list[int] = []
        self.calls: list[BundleId] = []
        self.owners: list[bool] = []
        self.names: list[str] = []
        self.closed = 0
        self.fails: BaseException | None = None

    @property
    def key(self) -> Callable[[Any], str] | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"ledger": True}

    async def deliver(
        self, records: Sequence[Record[Counted]], ctx: BundleContext[Any, Any]
    ) -> None:
        bundle = ctx.bundle_id
        self.calls.append(bundle)
        self.owners.append(await ctx.is_owner())
        self.names.append(await ctx.store_id())
        if self.fails is not None:
            raise self.fails
        places = [n for n in range(len(records) + len(bundle.refused)) if n not in bundle.refused]
        bad = {
            place: f"no number {record.value.number}"
            for place, record in zip(places, records, strict=True)
            if self._refuses(record.value)
        }
        if bad:
            raise RecordsRefused(bad)
        self.written += [record.value.number for record in records]

    async def close(self) -> None:
        self.closed += 1


def made(sink: Ledger, numbers: Sequence[int], **options: Any) -> Pipeline:
    pipeline = Pipeline("books", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(*numbers)), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, sink, **options)
    return pipeline


async def test_bundles_have_numbers_and_the_one_before() -> None:
    sink = Ledger()
    world = World(made(sink, range(7)))
    await world.run()
    assert sink.written == list(range(7))
    ids = [(bundle.number, bundle.previous, bundle.is_repeat) for bundle in sink.calls]
    assert ids == [(n + 1, n, False) for n in range(len(ids))]
    assert all(sink.owners)
    assert len(set(sink.names)) == 1
    assert sink.names[0].startswith("books.")
    assert sink.closed == 1


async def test_refused_records_become_dead_letters_and_the_others_are_written() -> None:
    sink = Ledger(lambda value: value.number in (1, 3, 4, 5))
    world = World(made(sink, range(7), on_error="dead_letter"))
    await world.run()
    assert sink.written == [0, 2, 6]
    assert [letter.error for letter in world.store.dead_letters] == [
        f"UserCodeError: no number {number}" for number in (1, 3, 4, 5)
    ]
    assert [bundle.number for bundle in sink.calls if bundle.refused] == [1, 2]


async def test_a_refused_record_stops_the_worker_by_default() -> None:
    sink = Ledger(lambda value: value.number == 1)
    world = World(made(sink, range(3)))
    with pytest.raises(UserCodeError, match="no number 1"):
        await world.run()
    assert sink.written == []


async def test_a_system_that_is_away_is_no_records_fault() -> None:
    """Its bundle comes again; nothing is set aside."""
    sink = Ledger()
    sink.fails = OutputError("the ledger is closed")
    pipeline = made(sink, range(3), on_error="dead_letter")
    world = World(pipeline)
    with pytest.raises(OutputError, match="the ledger is closed"):
        await world.run()
    assert not world.store.dead_letters
    sink.fails = None
    await world.run()
    assert sink.written == [0, 1, 2]
    last = sink.calls[-1]
    assert (last.number, last.previous, last.is_repeat) == (1, 0, True)
    assert last.closed_at > 0


async def test_the_figures_tell_how_long_a_bundle_is_being_delivered() -> None:
    sink, gate = Ledger(), Gate()
    deliver = sink.deliver

    async def slow(records: Sequence[Record[Counted]], ctx: BundleContext[Any, Any]) -> None:
        await gate.wait()
        await deliver(records, ctx)

    sink.deliver = slow  # type: ignore[method-assign]
    world = World(made(sink, range(3)))
    engine = await world.start()
    observed = EngineObserved(engine)

    def told() -> dict[str, float | None]:
        return {one.name: one.bundle_open_seconds for one in observed.figures().computations}

    await world.until(lambda: any(told().values()), tick=0.1)
    assert [name for name, seconds in told().items() if seconds is not None] == ["tally_to_ledger"]
    gate.open()
    await world.until(lambda: sink.written == [0, 1, 2], tick=0.1)
    await world.until(lambda: told()["tally_to_ledger"] == 0.0, tick=0.1)


async def test_the_harness_leaves_such_sinks_out() -> None:
    sink = Ledger()
    async with Harness(made(sink, [])) as harness:
        await harness.inject(ITEMS, Item("a", 1))
        assert [value.number for value in harness.produced(TALLY)] == [1]
    assert not sink.calls


def test_mistakes() -> None:
    pipeline = Pipeline("books")
    with pytest.raises(GraphError, match="is a class, not a sink"):
        pipeline.sink(TALLY, Ledger)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="or a BundleSink, which has bundles, key"):
        pipeline.sink(TALLY, object())  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="row= is for tables"):
        pipeline.sink(TALLY, Ledger(), row=lambda value: value)
    wrong = Ledger()
    wrong.bundles = 5  # type: ignore[assignment]
    with pytest.raises(GraphError, match="must be a Bundles"):
        pipeline.sink(TALLY, wrong)
    with pytest.raises(GraphError, match="on_error= is for sinks outside"):
        pipeline.sink(TALLY, Table("out", Counted), on_error="dead_letter")
