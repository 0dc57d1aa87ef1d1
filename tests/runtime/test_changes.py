"""Each row of the page "Changing a pipeline": what is taken loses and doubles nothing, and what is
refused is said, and disturbs nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from millwheel import Computation, Context, JsonLinesFiles, Pipeline, Record, Stream, Table
from millwheel.computations import Fold, Windowed, count, total
from millwheel.errors import DeployRefused, GraphError
from millwheel.graph.order import Graph
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.ownership.deploying import described
from millwheel.store.port.change import Kind
from millwheel.store.rules.changes import kinds
from millwheel.windows import Pane, Tumbling
from tests.support.clusters import AGAIN, SHARED, Recount, check, many, number_of
from tests.support.drawing import examples, seeds
from tests.support.pipelines import Tally, script
from tests.support.rolling_clusters import Rolling
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, key_of, time_of

MORE = Stream("more", Item)


class Extra(Counted):
    """As `Counted`, of another stream."""


EXTRA = Stream("extra", Extra)

Row = Callable[[Counted], Any]


@dataclass
class Parts:
    """`tests.support.clusters.counting`, of parts that a case replaces."""

    source: str = "part"
    lateness: timedelta = timedelta(0)
    tally: Callable[[], Computation[Any, Any]] = Tally
    tally_name: str | None = None
    inputs: Callable[[], list[Any]] = lambda: [ITEMS.by(key_of)]
    tally_options: dict[str, Any] = field(default_factory=dict)
    source_options: dict[str, Any] = field(default_factory=dict)
    tallied: Stream[Any] = TALLY
    recount: Callable[[], Computation[Any, Any]] = Recount
    recount_name: str | None = None
    table: Callable[[], Table[Any]] = lambda: Table("out", Counted, numbered=True)
    row: Row | None = None
    further: Callable[[Pipeline], object] = lambda _: None

    def made(self, values: list[Item]) -> Pipeline:
        pipeline = Pipeline("counting", settings=SHARED)
        for number in range(2):
            pipeline.inject(
                ITEMS,
                script(ITEMS, values[number::2], f"{self.source} {number}"),
                timestamp=time_of,
                lateness=self.lateness,
                **{"name": f"source_{number}"} | (self.source_options if number else {}),
            )
        pipeline.add(self.tally(), *self.inputs(), name=self.tally_name, **self.tally_options)
        pipeline.add(self.recount(), self.tallied.by(number_of), name=self.recount_name)
        pipeline.sink(AGAIN, self.table(), row=self.row)
        self.further(pipeline)
        return pipeline


# -- what a case replaces ------------------------------------------------------------------------


class TallyAnew(Tally):
    """The same by another name."""


class TallyTwice(Tally):
    """Tells what it counts by a second stream too."""

    writes = (TALLY, EXTRA)  # type: ignore[assignment]

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        await super().process_record(record, ctx)
        ctx.produce(EXTRA, Extra(record.value.key, record.value.number, ctx.state.count))


class Told(Computation[Counted, None]):
    async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
        ctx.count("told")


class ToldTallies(Told):
    async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
        assert type(record.value) is Counted, "it no longer reads the other stream"
        await super().process_record(record, ctx)


class ToldAgain(Told):
    writes = (EXTRA,)


class Take(Computation[Item, None]):
    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.count("taken")


class Ruled(Tally):
    rules = MappingProxyType({"keeps": "1 day"})


class RuledByState(Tally):
    state_rules = MappingProxyType({"windows": "Tumbling(0:00:10)"})


def state_named(*fields: tuple[str, Any, Any], **attributes: Any) -> Callable[[], Tally]:
    """`Tally` with a state of these fields."""

    class Made(Tally):
        @property
        def state_type(self) -> Any:
            return msgspec.defstruct("Count", list(fields))

    Made.__name__ = "Tally"
    for name, value in attributes.items():
        setattr(Made, name, value)
    return Made


class Wider(msgspec.Struct):
    """`Counted` with an optional field."""

    key: str
    number: int
    count: int
    note: str | None = None


WIDE = Stream("tally", Wider)


class TallyWider(Computation[Item, Count]):
    writes = (WIDE,)

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        item = record.value
        ctx.produce(WIDE, Wider(item.key, item.number, ctx.state.count, "note"))


class RecountWider(Computation[Wider, Count]):
    writes = (AGAIN,)

    async def process_record(self, record: Record[Wider], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        value = record.value
        ctx.produce(AGAIN, Counted(value.key, value.number, value.count * 100 + ctx.state.count))


class Noted(msgspec.Struct):
    key: str
    number: int
    count: int
    note: str | None = None
    weight: float = 1.5


class Optional(msgspec.Struct):
    key: str
    number: int
    count: int | None


class Shorter(msgspec.Struct):
    key: str
    number: int
    count: int


class Needed(msgspec.Struct):
    key: str
    number: int
    count: int
    note: str


class Exact(msgspec.Struct):
    key: str
    number: int
    count: Decimal


class Total(msgspec.Struct):
    key: str
    number: int
    total: int


class Worded(msgspec.Struct):
    key: str
    number: str
    count: int


def as_row(kind: type, **more: Any) -> Row:
    return lambda counted: kind(counted.key, counted.number, counted.count, **more)


def out(kind: type, **options: Any) -> Callable[[], Table[Any]]:
    return lambda: Table("out", kind, **(options or {"numbered": True}))


def read_more(pipeline: Pipeline) -> None:
    pipeline.inject(MORE, script(MORE, [], "more"), timestamp=time_of, name="more")


def tell_extra(pipeline: Pipeline) -> None:
    pipeline.add(Told(), EXTRA.by(number_of))


def read_more_apart(pipeline: Pipeline) -> None:
    read_more(pipeline)
    pipeline.add(Take(), MORE.by(key_of))


def tell_tally(pipeline: Pipeline) -> None:
    pipeline.add(Told(), TALLY.by(number_of))


def tell_both(pipeline: Pipeline) -> None:
    pipeline.add(Told(), TALLY.by(number_of), EXTRA.by(number_of))


def tell_tallies(pipeline: Pipeline) -> None:
    pipeline.add(ToldTallies(), TALLY.by(number_of), name="told")


def windows_of(fold: Fold[Item, Any, Any]) -> Callable[[Pipeline], object]:
    def add(pipeline: Pipeline) -> None:
        panes = Stream("panes", Pane[int])
        pipeline.add(Windowed(Tumbling(seconds=10), fold, to=panes), ITEMS.by(key_of))

    return add


def item_number(item: Item) -> int:
    return item.number


def into(table: str) -> Callable[[Pipeline], object]:
    return lambda pipeline: pipeline.sink(AGAIN, Table(table, Counted, numbered=True))


def by(column: str) -> Callable[[Pipeline], object]:
    return lambda pipeline: pipeline.sink(AGAIN, Table("latest", Counted, key=(column,)))


def unchanged(value: Any) -> Any:
    return value


FIRST = Parts()
VERSION_2 = {"version": 2, "migrations": {1: unchanged}}
SECOND_VERSION = replace(FIRST, tally=state_named(("count", int, 0), ("x", int, 0), **VERSION_2))

TAKEN: dict[str, tuple[Kind, Parts, Parts]] = {
    "lateness": (kinds.LATENESS, FIRST, Parts(lateness=timedelta(seconds=7))),
    "less lateness": (kinds.LATENESS, Parts(lateness=timedelta(seconds=7)), FIRST),
    "name of a computation": (
        kinds.NODE_RENAMED,
        FIRST,
        Parts(tally=TallyAnew, tally_options={"renamed_from": "tally"}),
    ),
    "name of an injector": (
        kinds.NODE_RENAMED,
        FIRST,
        Parts(source_options={"name": "odd", "renamed_from": "source_1"}),
    ),
    "class": (kinds.CLASS, FIRST, Parts(tally=TallyAnew, tally_name="tally")),
    "name of an extractor": (
        kinds.EXTRACTOR, FIRST, Parts(inputs=lambda: [ITEMS.by(lambda item: item.key)])
    ),
    "computation": (kinds.NODE_ADDED, FIRST, Parts(further=tell_tally)),
    "input": (
        kinds.INPUT_ADDED,
        FIRST,
        Parts(further=read_more, inputs=lambda: [ITEMS.by(key_of), MORE.by(key_of)]),
    ),
    "output": (kinds.WRITES_ADDED, FIRST, Parts(tally=TallyTwice, tally_name="tally",
                                                further=tell_extra)),
    "input less": (
        kinds.INPUT_MISSING,
        Parts(tally=TallyTwice, tally_name="tally", further=tell_both),
        Parts(tally=TallyTwice, tally_name="tally", further=tell_tallies),
    ),
    "output less": (
        kinds.WRITES_MISSING,
        Parts(tally=TallyTwice, tally_name="tally"),
        FIRST,
    ),
    "sink": (kinds.SINK_ADDED, FIRST, Parts(further=into("further"))),
    "sink less": (kinds.SINK_MISSING, Parts(further=into("further")), FIRST),
    "rule": (kinds.RULE, FIRST, Parts(tally=Ruled, tally_name="tally")),
    "field of a state": (
        kinds.TYPE_GROWN, FIRST, Parts(tally=state_named(("count", int, 0), ("x", int, 0)))
    ),
    "field of a stream": (
        kinds.TYPE_GROWN, FIRST,
        Parts(tally=TallyWider, tally_name="tally", tallied=WIDE,
              recount=RecountWider, recount_name="recount"),
    ),
    "fold with a version": (
        kinds.FOLD, Parts(further=windows_of(total(item_number))),
        Parts(further=windows_of(replace(total(lambda item: -item.number), version=2))),
    ),
    "version of a state": (kinds.TYPE_MIGRATED, FIRST, SECOND_VERSION),
    "column": (kinds.COLUMN_ADDED, FIRST, Parts(table=out(Noted), row=as_row(Noted, note="new"))),
    "column may be NULL": (
        kinds.COLUMN_NULLABLE, FIRST, Parts(table=out(Optional), row=as_row(Optional))
    ),
    "wider type of a column": (
        kinds.COLUMN_WIDER, FIRST,
        Parts(table=out(Exact), row=lambda c: Exact(c.key, c.number, Decimal(c.count))),
    ),
    "column less": (
        kinds.COLUMN_MISSING, Parts(table=out(Noted), row=as_row(Noted)),
        Parts(table=out(Shorter), row=as_row(Shorter)),
    ),
}  # fmt: skip
"""Changes that are taken: the kind, the former parts and the new ones."""

REFUSED: dict[str, tuple[Kind, Parts, Parts]] = {
    "computation less": (kinds.NODE_MISSING, Parts(further=tell_tally), FIRST),
    "class without its name": (kinds.NODE_MISSING, FIRST, Parts(tally=TallyAnew)),
    "spread": (kinds.INPUT_MANNER, Parts(further=lambda p: p.add(Told(), TALLY.by(number_of))),
               Parts(further=lambda p: p.add(Told(), TALLY.spread()))),
    "output less of a weak computation": (
        kinds.WRITES_MISSING_WEAK,
        Parts(further=lambda p: p.add(ToldAgain(), TALLY.by(number_of), productions="weak")),
        Parts(further=lambda p: p.add(Told(), TALLY.by(number_of), name="told_again",
                                      productions="weak")),
    ),
    "weak": (kinds.GUARANTEE, Parts(further=lambda p: p.add(Told(), TALLY.by(number_of))),
             Parts(further=lambda p: p.add(Told(), TALLY.by(number_of), productions="weak"))),
    "source": (kinds.SOURCE, FIRST, Parts(source="another")),
    "window": (kinds.STATE_RULE, FIRST, Parts(tally=RuledByState, tally_name="tally")),
    "fold": (
        kinds.FOLD_UNCONFIRMED, Parts(further=windows_of(total(item_number))),
        Parts(further=windows_of(count)),
    ),
    "field by another name": (
        kinds.TYPE_VERSION, FIRST, Parts(tally=state_named(("total", int, 0)))
    ),
    "version without a migration": (
        kinds.TYPE_STEPS, FIRST, Parts(tally=state_named(("total", int, 0), version=2))
    ),
    "key with state": (
        kinds.KEYS_UNCONFIRMED, FIRST,
        Parts(inputs=lambda: [ITEMS.by(lambda item: str(item.number))]),
    ),
    "key while workers run": (
        kinds.KEYS_RUNNING, FIRST,
        Parts(inputs=lambda: [ITEMS.by(lambda item: str(item.number), version=2)]),
    ),
    "column that each row needs": (
        kinds.COLUMN_REQUIRED, FIRST, Parts(table=out(Needed), row=as_row(Needed, note="x"))
    ),
    "type of a column": (
        kinds.COLUMN_TYPE, FIRST,
        Parts(table=out(Worded), row=lambda c: Worded(c.key, str(c.number), c.count)),
    ),
    "name of a column": (
        kinds.COLUMN_RENAMED_RUNNING, FIRST,
        Parts(table=out(Total, numbered=True, renamed_from={"total": "count"}),
              row=lambda c: Total(c.key, c.number, c.count)),
    ),
    "key of a table": (
        kinds.TABLE_KEY, Parts(further=by("key")),
        Parts(further=by("number")),
    ),
}  # fmt: skip
"""Changes that are refused while former code runs."""

ELSEWHERE: dict[Kind, str] = {
    kinds.PATHS: "cli/test_plan.py::"
    "test_a_file_at_another_path_continues_and_another_file_is_refused",
    kinds.STEP_MISSING: "cli/test_plan.py::"
    "test_the_step_of_a_sink_has_its_label_and_what_can_be_done",
    kinds.STEP_BACK: "cli/test_plan.py::test_the_step_of_a_sink_has_its_label_and_what_can_be_done",
    kinds.STREAM_MIGRATED: "cli/test_plan.py::"
    "test_a_new_version_of_a_stream_is_one_change_and_has_no_views",
    kinds.NODE_BACK: "runtime/test_upgrade.py::test_a_computation_is_removed_while_its_workers_run",
    kinds.NODE_KIND: "runtime/test_changes.py::test_a_step_of_another_kind_is_refused",
    kinds.FILES_AGAIN: "runtime/test_changes.py::test_other_files_in_their_place_are_refused",
    kinds.ENTRIES_LEFT: "runtime/test_state.py::test_entries_that_no_code_reads_any_more_are_said",
    kinds.TYPE_BACK: "runtime/test_changes.py::test_the_way_back_is_taken_by_command_only",
    kinds.TYPE_DOWN: "runtime/test_upgrade.py::test_going_back_takes_a_way_down",
    kinds.KEYS: "runtime/test_rekeying.py::"
    "test_what_was_not_acknowledged_counts_once_under_other_keys",
    kinds.KEYS_BEFORE: "runtime/test_rekeying.py::test_who_says_a_version_goes_on_from_there",
    kinds.KEYS_BUNDLED: "runtime/test_rekeying.py::test_keys_stay_while_a_numbered_bundle_is_begun",
    kinds.KEYS_PARKED: "runtime/test_rekeying.py::test_keys_stay_while_records_wait_in_parked_keys",
    kinds.INPUT_MISSING_HELD: "store/test_streams_less.py::"
    "test_an_input_stays_while_keys_are_parked",
    kinds.WRITES_MISSING_SENT: "store/test_streams_less.py::"
    "test_an_output_stays_while_its_records_are_on_their_way",
    kinds.COLUMN_RENAMED: "store/test_changed_tables.py::test_a_column_is_renamed_with_its_values",
    kinds.COLUMN_WIDER_LARGE: "store/test_changed_tables.py::test_a_large_table_is_not_rewritten",
    kinds.COLUMN_FOREIGN: "store/test_changed_tables.py::"
    "test_a_column_of_a_table_made_by_hand_that_rows_have_no_value_for_is_said",
    kinds.TABLE_INDEX: "store/test_contract.py::"
    "test_a_table_without_the_key_of_its_rows_is_refused",
}


def test_each_row_of_the_page_has_a_test() -> None:
    tried = {kind for kind, *_ in (*TAKEN.values(), *REFUSED.values())}
    every = {kind for part in kinds.KINDS.values() for kind in part}
    assert every == tried | ELSEWHERE.keys()
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        text = (Path(__file__).parents[1] / file).read_text("utf-8")
        assert f"def {name}(" in text, place


async def planned(cluster: Rolling, pipeline: Pipeline) -> list[Kind]:
    graph: Graph = pipeline.graph()
    plan = await cluster.store.plan(described(graph, SHARED.intervals))
    return [change.kind for change in plan.changes]


async def roll_back(cluster: Rolling, pipeline: Pipeline) -> int:
    """As `millwheel rollback`; returns the generation."""
    deployment = await cluster.store.deploy(
        described(pipeline.graph(), SHARED.intervals),
        stamp=cluster.clock.now(),
        bucket_high=0,
        shared=True,
        back=True,
    )
    return deployment.generation


async def running(parts: Parts, values: list[Item], processed: int) -> Rolling:
    """Two workers of this code, once they have processed so many records."""
    cluster = Rolling(parts.made(values))
    for _ in range(2):
        await cluster.start_worker(parts.made(values))
    await cluster.go(lambda: sum(engine.processed for engine in cluster.alive) > processed)
    return cluster


@pytest.mark.parametrize("change", TAKEN)
async def test_what_is_taken_loses_and_doubles_nothing(change: str) -> None:
    """Old workers are killed and replaced one by one, while records flow."""
    kind, before, after = TAKEN[change]
    values = many(350)
    cluster = await running(before, values, Random(change).randrange(20, 200))
    assert kind in await planned(cluster, after.made(values))
    for old in list(cluster.alive):
        await cluster.start_worker(after.made(values))
        await cluster.wait(0.3)
        await cluster.crash(old)
    assert await planned(cluster, after.made(values)) == []
    await cluster.end()
    check(cluster, values)


async def test_an_input_less_does_not_wait_for_workers_of_former_code() -> None:
    """They keep running: their records of the stream are acknowledged, and hold no watermark."""
    _, before, after = TAKEN["input less"]
    values = many(600)
    cluster = await running(before, values, 100)
    await cluster.start_worker(after.made(values))
    await cluster.end()
    check(cluster, values)


async def test_the_order_of_everything_means_nothing() -> None:
    """Of steps, inputs, streams, sinks, and the fields of states, streams and rows."""

    class Backwards(TallyTwice):
        writes = (EXTRA, TALLY)  # type: ignore[assignment]

        @property
        def state_type(self) -> Any:
            return msgspec.defstruct("Count", [("x", int, 0), ("count", int, 0)])

    def forwards(pipeline: Pipeline) -> None:
        read_more(pipeline)
        pipeline.add(Told(), TALLY.by(number_of), EXTRA.by(number_of))
        pipeline.add(Take(), MORE.by(key_of))
        into("one")(pipeline)
        into("two")(pipeline)

    def backwards(pipeline: Pipeline) -> None:
        into("two")(pipeline)
        into("one")(pipeline)
        pipeline.add(Take(), MORE.by(key_of))
        pipeline.add(Told(), EXTRA.by(number_of), TALLY.by(number_of))
        read_more(pipeline)

    class Forwards(TallyTwice):
        @property
        def state_type(self) -> Any:
            return msgspec.defstruct("Count", [("count", int, 0), ("x", int, 0)])

    Forwards.__name__ = Backwards.__name__ = "TallyTwice"
    before = Parts(tally=Forwards, tally_name="tally", further=forwards, table=out(Noted),
                   row=as_row(Noted))  # fmt: skip
    turned = msgspec.defstruct(
        "Noted",
        [("note", str | None, None), ("weight", float, 1.5), ("count", int, 0),
         ("number", int, 0), ("key", str, "")],
    )  # fmt: skip
    after = Parts(
        tally=Backwards,
        tally_name="tally",
        further=backwards,
        table=out(turned),
        row=lambda c: turned(key=c.key, number=c.number, count=c.count),
    )
    values = many(300)
    cluster = await running(before, values, 50)
    graph: Graph = after.made(values).graph()
    plan = await cluster.store.plan(described(graph, SHARED.intervals))
    assert [change.title for change in plan.changes] == []
    await cluster.end()


async def test_the_name_of_a_folds_function_means_nothing() -> None:
    def number_of_item(thing: Item) -> int:
        return thing.number

    values = many(200)
    cluster = await running(Parts(further=windows_of(total(item_number))), values, 50)
    same = Parts(further=windows_of(total(number_of_item)))
    assert await planned(cluster, same.made(values)) == []
    await cluster.end()


@pytest.mark.parametrize("stored", [None, [1, None], [1, "compiled:0"]])
async def test_a_fold_that_cannot_be_compared_is_no_other_one(stored: Any) -> None:
    """The store is from before folds were compared, or their code could not be read."""
    parts = Parts(further=windows_of(total(item_number)))
    values = many(200)
    cluster = await running(parts, values, 50)
    node = cluster.store.tables.generations[0].code.nodes["make_panes"]
    if stored is None:
        del node["state_functions"]
    else:
        node["state_functions"] = {"fold": stored}
    assert await planned(cluster, parts.made(values)) == []
    await cluster.start_worker(parts.made(values))
    assert len(cluster.store.tables.generations) == 1
    await cluster.end()
    check(cluster, values)


class TellExtra(Computation[Item, None]):
    """The other half of `TallyTwice`."""

    writes = (EXTRA,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(EXTRA, Extra(record.value.key, record.value.number, 0))


def keep_extra(pipeline: Pipeline) -> None:
    pipeline.sink(EXTRA, Table("extra", Extra, numbered=True))


def tell_and_keep_extra(pipeline: Pipeline) -> None:
    pipeline.add(TellExtra(), ITEMS.by(item_number))
    keep_extra(pipeline)


@pytest.mark.parametrize("change", ["split", "merge"])
async def test_a_class_becomes_two_and_two_become_one_while_nothing_is_on_its_way(
    change: str,
) -> None:
    """As the page says: pause, deploy when all is acknowledged, resume."""
    one = Parts(tally=TallyTwice, tally_name="tally", further=keep_extra)
    two = Parts(tally=Tally, tally_name="tally", further=tell_and_keep_extra)
    before, after = (one, two) if change == "split" else (two, one)
    values = many(450)
    cluster = await running(before, values, 100)
    cluster.store.pause("source_0", "source_1")
    await cluster.wait(5)
    assert cluster.store.pending_productions() == []
    assert 0 < len(cluster.store.rows("extra")) < len(values)
    if change == "merge":
        cluster.store.remove(["tell_extra"])
    for old in list(cluster.alive):
        await cluster.start_worker(after.made(values))
        await cluster.wait(0.3)
        await cluster.crash(old)
    cluster.store.pause()
    await cluster.end()
    check(cluster, values)
    kept = sorted(number for _, number, *_ in cluster.store.rows("extra"))
    assert kept == sorted(item.number for item in values)


FIELDS = [each.name for each in fields(Parts)]


def difference(after: Parts) -> dict[str, Any]:
    """The parts that a change replaces."""
    return {
        name: getattr(after, name)
        for name in FIELDS
        if getattr(after, name) != getattr(FIRST, name)
    }


DIFFERENCES = {
    name: (kind, difference(after))
    for name, (kind, before, after) in (TAKEN | REFUSED).items()
    if before is FIRST and name != "class without its name"
}
"""The changes that can be made together. One more would hide the others: another name without a
word is another computation."""


DRAWN = {
    "chosen": st.lists(st.sampled_from(sorted(DIFFERENCES)), min_size=1, max_size=4, unique=True),
    "processed": st.integers(0, 300),
    "kill": st.booleans(),
}


@given(**DRAWN)
@examples(12, 4)
def test_changes_drawn_at_random_are_refused_in_full_or_taken_as_planned(
    chosen: list[str], processed: int, kill: bool
) -> None:
    """Several changes at once, at any moment: nothing is lost without a word."""
    change_together(chosen, processed, kill)


@pytest.mark.soak
@given(**DRAWN)
@examples(1_000)
def test_very_many_changes_drawn_at_random(chosen: list[str], processed: int, kill: bool) -> None:
    change_together(chosen, processed, kill)


def change_together(chosen: list[str], processed: int, kill: bool) -> None:
    """Those of the chosen changes that replace different parts."""
    parts, made = FIRST, list[tuple[str, Kind]]()
    for name in chosen:
        kind, of = DIFFERENCES[name]
        if difference(parts).keys().isdisjoint(of):
            parts = replace(parts, **of)
            made.append((name, kind))
    try:
        parts.made([]).graph()
    except GraphError:  # one reads the stream that another one has replaced
        reject()
    asyncio.run(change_at(processed, parts, made, kill=kill))


async def change_at(
    processed: int, parts: Parts, made: list[tuple[str, Kind]], *, kill: bool
) -> None:
    values = many(300)
    cluster = await running(FIRST, values, processed)
    plan = await planned(cluster, parts.made(values))
    for name, kind in made:
        assert kind in plan, name
    if any(name in REFUSED for name, _ in made):
        with pytest.raises(DeployRefused):
            await cluster.start_worker(parts.made(values))
        assert len(cluster.store.tables.generations) == 1
    else:
        for old in list(cluster.alive):
            await cluster.start_worker(parts.made(values))
            await (cluster.crash(old) if kill else cluster.leave(old))
        assert await planned(cluster, parts.made(values)) == []
    await cluster.end()
    check(cluster, values)


@pytest.mark.parametrize("ends", ["rolled out", "rolled back"])
async def test_a_canary_runs_its_part_of_the_keys_until_the_rest_follows(ends: str) -> None:
    """New code on 5 % of the keys, while its worker, and those of former code, are killed."""
    after = TAKEN["field of a state"][2]
    values = many(900)
    part = Options(only_keys=0.05)
    cluster = await running(FIRST, values, 50)
    canary = await cluster.start_worker(after.made(values), options=part)
    await cluster.go(lambda: slots_of(canary) == {"tally": 3_277, "recount": 3_277})
    await cluster.wait(2)
    await cluster.crash(canary)
    canary = await cluster.start_worker(after.made(values), options=part)
    for old in list(cluster.alive[:-1]):
        await cluster.start_worker(FIRST.made(values))
        await cluster.crash(old)
    await cluster.go(lambda: slots_of(canary) == {"tally": 3_277, "recount": 3_277})
    placement = await cluster.store.read_placement()
    assert {row.generation for row in placement.intervals} == {1, 2}
    if ends == "rolled back":
        await cluster.crash(canary)
        await roll_back(cluster, FIRST.made(values))
    code = after if ends == "rolled out" else FIRST
    for old in list(cluster.alive):
        await cluster.start_worker(code.made(values))
        await cluster.crash(old)
    await cluster.end()
    check(cluster, values)


def slots_of(engine: Engine) -> dict[str, int]:
    found: dict[str, int] = {}
    for interval in engine.intervals:
        low, high = interval.slots
        found[interval.name.partition("[")[0]] = found.get(interval.name, 0) + high - low
    return found


async def test_names_change_again_and_again_while_old_workers_start_again() -> None:
    """A worker of former code finds its computation by the name that it has for it."""
    values = many(900)
    names = ["tally", "count", "tally_again", "tally"]
    codes = [
        Parts(tally_name=name, tally_options={"renamed_from": former})
        for name, former in zip(names, [None, *names], strict=False)
    ]
    cluster = await running(codes[0], values, 50)
    for before, after in pairwise(codes):
        old = cluster.alive[0]
        await cluster.start_worker(after.made(values))
        await cluster.crash(old)
        again = await cluster.start_worker(before.made(values))
        await cluster.wait(0.2)
        assert again.processed or not again.intervals
        for engine in list(cluster.alive[:-2]):
            await cluster.leave(engine)
        await cluster.crash(again)
        await cluster.wait(0.2)
    assert len(cluster.store.tables.generations) == len(codes)
    plain = Parts().made(values)
    assert await planned(cluster, plain) == [], "renamed_from may stay in the code, or go"
    await cluster.end()
    check(cluster, values)
    assert {row.computation for row in cluster.store.states()} == {"tally", "recount"}


@pytest.mark.parametrize("change", REFUSED)
async def test_what_is_refused_disturbs_nobody(change: str) -> None:
    kind, before, after = REFUSED[change]
    values = many(220)
    cluster = await running(before, values, Random(change).randrange(20, 200))
    assert kind in await planned(cluster, after.made(values))
    with pytest.raises(DeployRefused, match="cannot continue from the stored state") as caught:
        await cluster.start_worker(after.made(values))
    assert kind.change in str(caught.value)
    assert len(cluster.store.tables.generations) == 1
    await cluster.end()
    check(cluster, values)


async def test_the_way_back_is_taken_by_command_only() -> None:
    """A worker of former code that starts again joins its own generation: it does not undo the
    deploy."""
    values = many(600)
    after = TAKEN["field of a state"][2]
    cluster = await running(FIRST, values, 30)
    old, other = cluster.alive
    new = await cluster.start_worker(after.made(values))
    await cluster.crash(old)
    again = await cluster.start_worker(FIRST.made(values))
    assert await cluster.generation_of(again) == 1
    assert await cluster.generation_of(new) == 2
    for engine in (other, again):
        await cluster.leave(engine)
    await cluster.wait(5.0)
    with pytest.raises(DeployRefused, match=r"millwheel rollback MODULE:PIPELINE"):
        await cluster.start_worker(FIRST.made(values))
    assert kinds.TYPE_BACK in await planned(cluster, FIRST.made(values))
    assert await roll_back(cluster, FIRST.made(values)) == 3
    await cluster.start_worker(FIRST.made(values))
    await cluster.crash(new)
    await cluster.end()
    check(cluster, values)


@pytest.mark.parametrize("seed", seeds(2, 20))
async def test_forth_and_back_under_load_with_kills(seed: int) -> None:
    """New code writes states in a new form; the former, with a way down, takes over again."""
    draw, values = Random(seed), many(800)
    after = SECOND_VERSION
    before = replace(
        FIRST, tally=state_named(("count", int, 0), migrations=MappingProxyType({2: without_x}))
    )
    cluster = await running(before, values, draw.randrange(20, 200))
    for back in (False, True):
        code = before if back else after
        if back:
            await roll_back(cluster, code.made(values))
        old = list(cluster.alive)
        while old:
            victim = draw.choice(old)
            await cluster.wait(draw.uniform(0, 0.5))
            if draw.random() < 0.3:  # a worker of the code that is replaced starts once more
                again = await cluster.start_worker((after if back else before).made(values))
                await cluster.wait(draw.uniform(0, 0.2))
                await cluster.crash(again)
            await cluster.start_worker(code.made(values))
            await cluster.crash(victim)
            old.remove(victim)
            if draw.random() < 0.3:
                fresh = draw.choice([one for one in cluster.alive if one not in old])
                await cluster.start_worker(code.made(values))
                await cluster.crash(fresh)
    assert len(cluster.store.tables.generations) == 3
    assert await planned(cluster, before.made(values)) == []
    await cluster.end()
    check(cluster, values)


def without_x(new: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in new.items() if name != "x"}


async def test_a_higher_version_of_the_same_type_is_no_way_back_either() -> None:
    """Former code could read all of it, but not know whether it means the same."""
    values = many(600)
    after = Parts(tally=state_named(("count", int, 0), **VERSION_2))
    before = Parts(tally=state_named(("count", int, 0)))
    cluster = await running(before, values, 30)
    await cluster.start_worker(after.made(values))
    await cluster.crash(cluster.alive[0])
    again = await cluster.start_worker(before.made(values))
    assert await cluster.generation_of(again) == 1
    assert len(cluster.store.tables.generations) == 2
    await cluster.end()
    check(cluster, values)


async def test_a_step_of_another_kind_is_refused() -> None:
    values = many(60)
    cluster = await running(FIRST, values, 10)
    other = Pipeline("counting", settings=SHARED)
    other.inject(MORE, script(MORE, [], "part 0"), timestamp=time_of, name="tally")
    other.add(Take(), MORE.by(key_of))
    assert kinds.NODE_KIND in await planned(cluster, other)
    await cluster.end()


async def test_other_files_in_their_place_are_refused(tmp_path: Path) -> None:
    """The length of a part file is stored by its interval: another file is not as long."""

    def to_files(name: str) -> Parts:
        return Parts(further=lambda p: p.sink(AGAIN, JsonLinesFiles(tmp_path / name)))

    values = many(60)
    cluster = await running(to_files("one"), values, 10)
    assert kinds.FILES_AGAIN in await planned(cluster, to_files("two").made(values))
    await cluster.end()
