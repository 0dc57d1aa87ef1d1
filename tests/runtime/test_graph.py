"""Mistakes in a pipeline are told before anything runs, by name and with what to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import (
    Bundles,
    Computation,
    Console,
    Context,
    JsonLinesFiles,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
)
from millwheel.computations import FlatMap, Windowed, count
from millwheel.errors import DeployRefused, GraphError, UsageError, UserCodeError
from millwheel.graph import drawing
from millwheel.graph.labels import label_of
from millwheel.runtime.engine import Engine
from millwheel.store.console.views import VIEWS
from millwheel.store.postgres.buckets import bucket_table
from millwheel.store.postgres.schema import metadata
from millwheel.store.postgres.statements import BUCKETED
from millwheel.testing import Harness, advance, inject
from millwheel.windows import Pane, Tumbling
from tests.support.part_files import written_numbers
from tests.support.pipelines import QUICK, Do, Kept, Tally, doing, produce, script, tally_pipeline
from tests.support.values import (
    ITEMS,
    TALLY,
    Count,
    Counted,
    Item,
    at,
    items,
    key_of,
    tally_of,
    time_of,
)
from tests.support.worlds import World

WORDS = Stream("words", str)
MORE = Stream("more", str)
SECOND = Stream("second", Counted)


def injected(stream: Stream[Any] = ITEMS) -> Pipeline:
    pipeline = Pipeline("wrong", settings=QUICK)
    pipeline.inject(stream, script(stream, []), timestamp=lambda value: at(0))
    return pipeline


def no_injector() -> None:
    pipeline = Pipeline("wrong")
    pipeline.graph()


def nothing_writes() -> None:
    pipeline = injected()
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.add(FlatMap(str.split, to=MORE), WORDS.by(str))
    pipeline.graph()


def nothing_reads() -> None:
    injected().graph()


def cycle() -> None:
    pipeline = injected(WORDS)
    pipeline.add(FlatMap(str.split, to=MORE), WORDS.by(str))
    pipeline.add(FlatMap(str.split, to=WORDS), MORE.by(str), name="back")
    pipeline.graph()


def own_output() -> None:
    pipeline = injected(WORDS)
    pipeline.add(FlatMap(str.split, to=WORDS), WORDS.by(str))
    pipeline.graph()


def same_name() -> None:
    pipeline = injected()
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.add(Tally(), ITEMS.by(key_of))


def two_streams_of_a_name() -> None:
    pipeline = injected()
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.add(FlatMap(str.split, to=MORE), Stream("items", str).by(str))
    pipeline.graph()


def no_inputs() -> None:
    injected().add(Tally())


def one_stream_twice() -> None:
    injected().add(Tally(), ITEMS.by(key_of), ITEMS.by(lambda item: item.number))


def weak() -> None:
    injected().add(Tally(), ITEMS.by(key_of), productions="weak")


def bad_on_error() -> None:
    injected().add(Tally(), ITEMS.by(key_of), on_error="ignore")  # type: ignore[arg-type]


def bad_retries() -> None:
    injected().add(Tally(), ITEMS.by(key_of), retries=-1)


def bad_lateness() -> None:
    Pipeline("wrong").inject(
        ITEMS, script(ITEMS, []), timestamp=time_of, lateness=timedelta(seconds=-1)
    )


def two_ids() -> None:
    pipeline = Pipeline("wrong")
    pipeline.inject(ITEMS, script(ITEMS, [], "a"), timestamp=time_of, id=lambda item: item.number)
    pipeline.inject(ITEMS, script(ITEMS, [], "b"), timestamp=time_of, id=lambda item: item.key)


def unstorable() -> None:
    Stream("things", object)  # a value nobody can decode
    Stream("callables", Callable)  # type: ignore[arg-type]


def bad_table_name() -> None:
    Table("State", Counted)


def engines_table() -> None:
    Table("state", Counted)


def no_such_column() -> None:
    Table("counts", Counted, key=("word",))


def key_as_text() -> None:
    Table("counts", Counted, key="key")  # type: ignore[arg-type]


def numbered_upsert() -> None:
    Table("counts", Counted, key=("key",), numbered=True)


def producer_key_outside() -> None:
    Table("counts", Counted, key=("key",), producer_key=("number",))


def not_a_row() -> None:
    Table("counts", str)


def one_table_two_types() -> None:
    pipeline = injected()
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, Table("out", Counted))
    pipeline.sink(TALLY, Table("out", Item), row=lambda counted: Item("a", 1))
    pipeline.graph()


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (no_injector, "no injector"),
        (nothing_writes, "reads stream 'words', but nothing writes it"),
        (nothing_reads, "nothing reads it"),
        (cycle, "cycle: .* → .* → "),
        (own_output, "cycle: 'flat_map → words' → 'flat_map → words';"),
        (same_name, "two nodes are called 'tally'"),
        (two_streams_of_a_name, "two different streams are called 'items'"),
        (no_inputs, "no inputs"),
        (one_stream_twice, "reads one stream twice"),
        (weak, "'tally' keeps state"),
        (bad_on_error, "on_error must be 'fail', 'dead_letter', 'park' or Park"),
        (bad_retries, "retries must be a whole number, 0 or more, not -1"),
        (bad_lateness, "lateness may not be negative"),
        (two_ids, "different functions"),
        (unstorable, "cannot be stored as JSON"),
        (bad_table_name, "cannot name a table"),
        (engines_table, "one of the engine's own"),
        (no_such_column, "no column 'word'"),
        (key_as_text, "as tuples"),
        (numbered_upsert, "only an append-only table"),
        (producer_key_outside, "must name columns of key"),
        (not_a_row, "must be a msgspec.Struct or a dataclass"),
        (one_table_two_types, "out"),
    ],
)
def test_mistakes_in_a_graph(mistake: Callable[[], None], told: str) -> None:
    with pytest.raises(GraphError, match=told) as caught:
        mistake()
    assert caught.value.exit_code == 2


OWN_NAMES = [
    *metadata.tables,
    *VIEWS,
    *(bucket_table(parent, number) for parent in BUCKETED for number in (1, 17)),
    "alembic_version",
    "sequence_number",
]


@pytest.mark.parametrize("name", sorted({*OWN_NAMES}))
def test_no_sink_is_called_like_a_relation_of_the_stores_own(name: str) -> None:
    with pytest.raises(GraphError, match="one of the engine's own"):
        Table(name, Counted)


@pytest.mark.parametrize(
    "name", ["", "Upper", "1st", "a-b", "a b", "ä", "x" * 49, "pg_x", "public"]
)
def test_bad_names_of_pipelines(name: str) -> None:
    with pytest.raises(GraphError, match="cannot name a pipeline"):
        Pipeline(name)


@pytest.mark.parametrize("name", ["", "Upper", "a__b\n", "select;", "x" * 49])
def test_bad_names_of_streams(name: str) -> None:
    with pytest.raises(GraphError, match="cannot name a stream"):
        Stream(name, str)


def test_a_graph_is_printable() -> None:
    pipeline = tally_pipeline(script(ITEMS, []))
    text = drawing.text(pipeline.graph())
    assert "computation tally" in text
    assert "reads items by key_of" in text
    assert "table out gets tally, in the same commit" in text
    assert drawing.mermaid(pipeline.graph()).startswith("flowchart LR")


def test_generated_names_have_a_label_for_display() -> None:
    """The names themselves are stored, and in the names of views: they stay."""
    pipeline = injected()
    pipeline.add(FlatMap(lambda item: [item.key], WORDS), ITEMS.by(key_of))
    pipeline.add(FlatMap(lambda word: [word], MORE), WORDS.by(str), name="make_it_big")
    pipeline.sink(ITEMS, Table("items", Item, key=("key",)))
    pipeline.sink(WORDS, Console())
    pipeline.sink(WORDS, Console("again"))
    pipeline.sink(MORE, JsonLinesFiles("/nowhere", by=str))
    graph = pipeline.graph()
    assert {node.name: node.label for node in graph.nodes} == {
        "items_injector": "items_injector",
        "make_words": "flat_map → words",
        "make_it_big": "make_it_big",
        "items_to_items": "sink: items",
        "words_to_console": "sink: words → console",
        "words_to_console_2": "sink: words → console (2)",
        "more_to_files": "sink: more → files",
    }
    assert "computation make_words (flat_map → words)" in drawing.text(graph)
    assert 'make_words["flat_map → words"]' in drawing.mermaid(graph)
    described = graph.describe()["nodes"]
    assert all(node.label == label_of(node.name, described[node.name]) for node in graph.nodes)


def test_relays_have_a_label_for_display() -> None:
    pipeline = Pipeline("relays")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, id=key_of)
    pipeline.add(Tally(), ITEMS.by(key_of), delivery="at_most_once")
    labels = [node.label for node in pipeline.graph().nodes if node.kind == "relay"]
    assert labels == ["ids: items"]
    plain = injected()
    plain.add(Tally(), ITEMS.by(key_of), delivery="at_most_once")
    labels = [node.label for node in plain.graph().nodes if node.kind == "relay"]
    assert labels == ["relay: items"]


def test_reserved_letters_do_not_let_two_nodes_clash() -> None:
    """Two relays for one table sink of one stream; a computation called like a relay."""
    pipeline = injected()
    pipeline.add(Tally(), ITEMS.by(key_of), name="tally_to_files")
    pipeline.sink(TALLY, JsonLinesFiles("/nowhere", by=lambda counted: counted.key))
    pipeline.sink(TALLY, JsonLinesFiles("/elsewhere", by=lambda counted: counted.key))
    pipeline.sink(TALLY, Console())
    names = [node.name for node in pipeline.graph().nodes]
    assert len(names) == len(set(names)) == 5


class Numbered(Computation[Item, None]):
    """Reads in numbered bundles."""

    writes = (TALLY,)
    bundles = Bundles(records=10)

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None: ...


def steps_of(pipeline: Pipeline) -> list[str]:
    return [node.name for node in pipeline.graph().nodes if node.kind != "injector"]


def test_files_are_written_in_the_producers_commit_where_that_can_be() -> None:
    """Elsewhere a step of their own writes them: what it reads is stored, and comes once."""
    own = injected()
    own.add(Tally(), ITEMS.by(key_of))
    own.sink(TALLY, JsonLinesFiles("/here"))
    assert steps_of(own) == ["tally"]
    assert "a part file in /here gets tally, in the same commit" in drawing.text(own.graph())
    own.sink(TALLY, JsonLinesFiles("/there"))
    assert steps_of(own) == ["tally", "tally_to_files"]
    rows = injected()
    rows.sink(ITEMS, JsonLinesFiles("/here"))
    assert steps_of(rows) == ["items_to_files"]
    weak = injected(WORDS)
    weak.add(FlatMap(str.split, to=MORE), WORDS.by(str), productions="weak")
    weak.sink(MORE, JsonLinesFiles("/here"))
    assert steps_of(weak) == ["make_more", "more_to_files"]
    careless = injected()
    careless.add(Tally(), ITEMS.by(key_of), exactly_once=False)
    careless.sink(TALLY, JsonLinesFiles("/here"))
    assert steps_of(careless) == ["tally", "tally_to_files"]
    numbered = injected()
    numbered.add(Numbered(), ITEMS.by(key_of))
    numbered.sink(TALLY, JsonLinesFiles("/here"))
    assert steps_of(numbered) == ["numbered", "tally_to_files"]


async def test_a_value_of_another_type_gets_into_no_file(tmp_path: Path) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.produce(TALLY, Counted("a", "seven", 1))  # type: ignore[arg-type]

    pipeline = doing([Item("a", 1)], do, settings=QUICK, on_error="dead_letter")
    pipeline.sink(TALLY, JsonLinesFiles(tmp_path))
    world = World(pipeline)
    await world.run()
    ((_, error),) = world.letters()
    assert "is not a value of type Counted" in error
    assert written_numbers(tmp_path) == []


# -- deploys -------------------------------------------------------------------------------------


async def test_another_graph_under_the_same_name_is_refused() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    await world.run()
    other = Pipeline("tally", settings=QUICK)
    other.inject(ITEMS, script(ITEMS, items(1)), timestamp=time_of)
    other.add(Tally(), ITEMS.by(lambda item: str(item.number)))
    world.pipeline = other
    with pytest.raises(DeployRefused, match=r"the key extractor of 'tally' for stream 'items'"):
        await world.start()


async def test_a_stream_that_changed_without_a_migration_is_refused() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    await world.run()
    changed: Stream[Any] = Stream(
        "tally", msgspec.defstruct("Counted", [("key", str), ("nummer", int), ("count", int)])
    )

    class Other(Tally):
        pass

    Other.__name__ = "Tally"
    other = Other()
    other.writes = (changed,)
    pipeline = Pipeline("tally", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(1)), timestamp=time_of)
    pipeline.add(other, ITEMS.by(key_of), name="tally")
    pipeline.sink(changed, Table("out", Counted, numbered=True))
    world.pipeline = pipeline
    with pytest.raises(DeployRefused, match=r"(?s)tally.*nummer"):
        await world.start()


async def test_a_live_worker_is_not_pushed_aside() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    await world.start()
    second = Engine(world.pipeline, world.store, clock=world.clock)
    with pytest.raises(UsageError, match="is being run by process"):
        await second.start()
    await world.close()
    world.clock.advance(QUICK.lease_seconds + 1)
    third = Engine(world.pipeline, world.store, clock=world.clock)
    await third.start()
    await third.stop()


async def test_a_worker_known_to_be_dead_is_not_waited_for() -> None:
    world = World(tally_pipeline(script(ITEMS, items(1))))
    first = await world.start()
    await first.kill()
    world.store.dead_workers.add(first.worker)
    second = Engine(world.pipeline, world.store, clock=world.clock)
    await second.start()
    await second.stop()


# -- what user code may not do ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", "  rollback", "BEGIN", "SET x = 1", "LOCK TABLE a", "-- c\nCOMMIT", "/* a */ commit",
     "DO $$ $$", "TRUNCATE a", "", "(SELECT 1)", "SAVEPOINT a", "CREATE TABLE a ()", "CALL p()",
     "PREPARE TRANSACTION 'x'"],
)  # fmt: skip
async def test_statements_that_would_break_the_commit_apart_are_refused(statement: str) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.execute(statement)

    world = World(doing(items(1), do, on_error="dead_letter"))
    await world.run()
    ((_, error),) = world.letters()
    assert "ctx.execute takes" in error
    assert world.store.statements == []


async def test_producing_to_an_undeclared_stream_is_an_error() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.produce(WORDS, "a")

    world = World(doing(items(1), do, on_error="dead_letter"))
    await world.run()
    assert "not among its `writes` (tally)" in world.letters()[0][1]


async def test_an_extractor_that_fails_is_told_with_the_value() -> None:
    pipeline = injected()
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.add(FlatMap(lambda counted: [], to=WORDS), TALLY.by(lambda counted: counted.nothing))  # type: ignore[attr-defined]
    async with Harness(pipeline) as harness:
        with pytest.raises(UserCodeError, match="key extractor of 'flat_map → words' failed"):
            await harness.inject(ITEMS, Item("a", 1))


async def test_readers_get_objects_of_their_own() -> None:
    """What one consumer does to a value reaches no other."""

    class Box(msgspec.Struct):
        key: str
        numbers: list[int]

    boxes = Stream("boxes", Box)
    seen: dict[str, list[int]] = {}

    class Spoil(Computation[Box, None]):
        def __init__(self, name: str) -> None:
            self._label = name

        @property
        def name(self) -> str:
            return self._label

        async def process_record(self, record: Record[Box], ctx: Context[None]) -> None:
            record.value.numbers.append(9)
            seen[self._label] = record.value.numbers

    pipeline = Pipeline("boxes", settings=QUICK)
    pipeline.inject(boxes, script(boxes, []), timestamp=lambda box: at(0))
    pipeline.add(Spoil("one"), boxes.by(lambda box: box.key))
    pipeline.add(Spoil("two"), boxes.by(lambda box: box.key))
    async with Harness(pipeline) as harness:
        await harness.inject(boxes, Box("a", [1]))
    assert seen == {"one": [1, 9], "two": [1, 9]}


async def test_two_readers_of_a_source_both_get_everything_once() -> None:
    """A row is done when both have it; through crashes as well."""
    for point in range(1, 12):
        pipeline = Pipeline("both", settings=replace(QUICK, chunk_records=2, bundle_records=3))
        values = [Item("ab"[n % 2], n) for n in range(10)]
        pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
        pipeline.add(Tally(), ITEMS.by(key_of), name="one")
        pipeline.add(Do(_pass), ITEMS.by(lambda item: item.number % 3), name="two")
        pipeline.sink(TALLY, Table("out", Counted))
        world = World(pipeline)
        engine = await world.start()
        while world.tried < point and not engine.done.is_set():
            await world.turns(1)
        await engine.kill()
        await world.run(inject_copies=2)
        numbers = sorted(row[1] for row in world.rows())
        assert numbers == sorted([*range(10), *range(100, 110)])


async def _pass(record: Record[Item], ctx: Context[Kept]) -> None:
    produce(ctx, 100 + record.value.number)


# -- sinks -----------------------------------------------------------------------------------------


class Total(msgspec.Struct):
    """An upserted row."""

    key: str
    minute: int
    value: int


PANES = Stream("panes", Pane[int])


@pytest.mark.parametrize("intervals", [1, 3])
async def test_a_pane_with_a_lower_number_never_overwrites_a_higher_one(intervals: int) -> None:
    limits = Settings(
        intervals=intervals,
        idle_commit_seconds=0.0,
        watermark_commit_seconds=0.0,
        chunk_records=2,
        bundle_records=3,
    )
    pipeline = Pipeline("panes", settings=limits)
    values = [Item("abc"[n % 3], n, (n * 37) % 120) for n in range(90)]
    steps: list[Any] = []
    for number, value in enumerate(values):
        steps += [value, advance(ITEMS, at(number))]
    pipeline.inject(ITEMS, script(ITEMS, [*steps, advance(ITEMS, at(500))]), timestamp=time_of)
    pipeline.add(Windowed(Tumbling(minutes=1), count, to=PANES, late="amend"), ITEMS.by(key_of))
    table = Table("totals", Total, key=("key", "minute"))
    pipeline.sink(PANES, table, row=_total)
    world = World(pipeline)
    await world.run()
    expected = Counter((v.key, int(v.second) // 60) for v in values)
    assert {row[:2]: row[2] for row in world.rows("totals")} == expected


def _total(pane: Pane[int]) -> Total:
    return Total(str(pane.key), int((pane.start - at(0)).total_seconds()) // 60, pane.value)


async def test_a_producers_key_must_be_in_the_row() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.produce(TALLY, Counted("another key", 1, 1))

    pipeline = injected()
    pipeline.add(Do(do), ITEMS.by(key_of), on_error="dead_letter")
    pipeline.sink(TALLY, Table("out", Counted, key=("key",), producer_key=("key",)))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1))
        assert "another key could write the same row" in harness.dead_letters[0].error


async def test_lines_of_files_are_there_once_through_crashes(tmp_path: Path) -> None:
    values = [Item("ab"[n % 2], n) for n in range(20)]
    limits = replace(QUICK, chunk_records=2, bundle_records=3)
    pipeline = Pipeline("files", settings=limits)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.sink(TALLY, JsonLinesFiles(tmp_path))
    world = World(pipeline)
    for point in range(4, 40, 5):
        engine = await world.start()
        stop = asyncio.Event()

        def reached(commit: Any, point: int = point, stop: asyncio.Event = stop) -> None:
            if world.tried >= point:
                stop.set()

        world.on_try = reached
        async with asyncio.timeout(60):
            await engine.run(stop)
        await engine.kill()
    world.on_try = None
    engine = await world.start()
    async with asyncio.timeout(60):
        await engine.run()
    await engine.stop()
    assert written_numbers(tmp_path) == list(range(20))


# -- a graph that grows ------------------------------------------------------------------------


class Second(Computation[Item | Counted, Count]):
    """Reads what was there before it."""

    writes = (SECOND,)

    async def process_record(self, record: Record[Item | Counted], ctx: Context[Count]) -> None:
        ctx.state.count += 1
        ctx.produce(SECOND, Counted(str(ctx.key), record.value.number, ctx.state.count))


@pytest.mark.parametrize("intervals", [1, 2])
async def test_a_computation_may_be_added_and_nobodys_watermark_jumps(intervals: int) -> None:
    """It starts with what comes from then on; what was there goes on as if nothing were."""
    limits = replace(QUICK, intervals=intervals)
    source = script(ITEMS, [*(Item("ab"[n % 2], n, n) for n in range(10)), advance(ITEMS, at(50))])
    world = World(tally_pipeline(source, limits))
    await world.run()
    before = {i.name: i.watermarks.durable for i in world.engines[-1].intervals}
    for n in range(10, 20):
        source.append(inject(ITEMS, Item("ab"[n % 2], n, n + 50)))
    grown = tally_pipeline(source, limits)
    grown.add(Second(), ITEMS.by(key_of), TALLY.by(lambda counted: counted.key))
    grown.sink(SECOND, Table("second", Counted, numbered=True))
    engine = await world.start(grown)
    seen = {i.name: i.watermarks.durable for i in engine.intervals}
    assert all(seen[name] >= low for name, low in before.items())
    await world.finish(engine)
    assert all(i.watermarks.durable >= seen[i.name] for i in engine.intervals)
    assert world.tallied() == tally_of([Item("ab"[n % 2], n) for n in range(20)])
    assert Counter(row[1] for row in world.rows("second")) == dict.fromkeys(range(10, 20), 2)
    low = {i.step.name: i.watermarks.durable for i in engine.intervals}
    assert low["second"] == low["tally"] == int(at(69).timestamp() * 1e6)
    with pytest.raises(DeployRefused, match="millwheel remove tally second"):
        await world.start()
