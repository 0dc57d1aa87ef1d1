"""State: every kind of it, over restarts, folds and versions; keys and JSON at their edges."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millwheel import (
    Computation,
    Context,
    ListState,
    MapState,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
)
from millwheel.core.codec import Codec, decode_key, encode_key, slot_of
from millwheel.core.counters import ENGINE_COUNTERS
from millwheel.core.model import Key
from millwheel.errors import DeployRefused, GraphError, MigrationFailed, UserCodeError
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.ownership import trial
from millwheel.sources import Row
from millwheel.state import StateLayout
from millwheel.testing import Harness, inject
from millwheel.testing.script import Script, ScriptReader
from tests.support.pipelines import QUICK, Kept, doing, produce, script
from tests.support.values import ITEMS, TALLY, Counted, Item, at, key_of, time_of
from tests.support.worlds import World, read_on, run_and_fold

# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["", "a", "1", 1, 0, -1, 2**40, -(2**62), ("a", 1), ("1",), (1,), (1, "1"), "é", "😀"]
)
def test_keys_come_back_as_they_were(key: Key) -> None:
    text, slot = encode_key(key)
    assert decode_key(text) == key
    assert type(decode_key(text)) is type(key)
    assert slot == slot_of(text)
    assert 0 <= slot < 65536


@pytest.mark.parametrize("key", [2**63, 2**64, -(2**63) - 1, 10**30])
def test_whole_numbers_of_any_size_are_keys_or_refused(key: int) -> None:
    """Never another number."""
    try:
        text, _ = encode_key(key)
    except UserCodeError:
        return
    assert decode_key(text) == key
    assert type(decode_key(text)) is int


def test_a_text_and_a_number_and_a_tuple_are_different_keys() -> None:
    keys: list[Key] = [1, "1", (1,), ("1",), (1, "1"), "(1,)", "[1]"]
    assert len({encode_key(key)[0] for key in keys}) == len(keys)


class Name(str):
    """A str that is not only a str."""


@pytest.mark.parametrize(
    "key",
    [
        True,
        False,
        1.0,
        float("nan"),
        None,
        b"a",
        ["a"],
        (),
        ("a", 1.0),
        (True,),
        ((1,),),
        at(0),
        Name("a"),
        "a\0b",
        ("a", "\0"),
        "\ud800",
        ("\udfff",),
    ],
)
def test_what_cannot_be_a_key_is_refused(key: Any) -> None:
    with pytest.raises(UserCodeError, match="cannot be a key"):
        encode_key(key)


def test_the_text_of_a_nul_is_no_nul() -> None:
    text, _ = encode_key("\\u0000")
    assert decode_key(text) == "\\u0000"


@pytest.mark.parametrize("key", ["x" * 100_000, ("a" * 5_000, 1), tuple("b" * 4_000)])
def test_keys_have_a_limit(key: Key) -> None:
    """They stand in B-tree indexes, which Postgres refuses above some 2,700 bytes: an error at
    commit that is nobody's fault, again and again."""
    with pytest.raises(UserCodeError, match="key"):
        encode_key(key)


async def test_keys_that_look_alike_have_states_of_their_own() -> None:
    class Count(Computation[Item, Kept]):
        async def process_record(self, record: Record[Item], ctx: Context[Kept]) -> None:
            ctx.state.count += record.value.number

    keys: list[Key] = [1, "1", (1,), ("1",)]
    pipeline = Pipeline("keys", settings=QUICK)
    values = [Item(str(n), n + 1) for n in range(4)]
    pipeline.inject(ITEMS, script(ITEMS, values * 2), timestamp=time_of)
    pipeline.add(Count(), ITEMS.by(lambda item: keys[int(item.key)]))
    world = World(pipeline)
    await world.run()
    await world.run()
    for number, key in enumerate(keys):
        assert world.state("count", key) == {"": {"count": 2 * (number + 1), "numbers": []}}


@pytest.mark.parametrize("bad", [True, 1.5, None, "\ud800", "a\0"])
async def test_a_bad_key_is_told_with_the_row_that_made_it(bad: Any) -> None:
    pipeline = Pipeline("keys", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, [Item("a", 1)]), timestamp=time_of, on_error="dead_letter")
    pipeline.add(Kept_(), ITEMS.by(lambda item: bad))
    world = World(pipeline)
    await world.run()
    ((_, error),) = world.letters()
    assert "cannot be a key" in error
    assert "line 1" in error


class Kept_(Computation[Item, Kept]):
    async def process_record(self, record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += 1


# -- values -----------------------------------------------------------------------------------


class Wild(msgspec.Struct):
    """A value that may hold much."""

    number: float = 0.0
    maybe: float | None = None
    text: str = ""
    whole: int = 0
    anything: Any = None
    several: list[float] = msgspec.field(default_factory=list)


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "value",
    [
        Wild(number=NAN),
        Wild(number=INFINITY),
        Wild(maybe=NAN),
        Wild(maybe=-INFINITY),
        Wild(anything=NAN),
        Wild(anything=[1, {"a": NAN}]),
        Wild(several=[1.0, NAN]),
        Wild(text="\0"),
        Wild(anything={"\0": 1}),
        Wild(text="\ud800"),
        Wild(anything={"\udc00": 1}),
        Wild(anything=object()),
        Wild(anything={1: object()}),
    ],
)
def test_what_json_or_postgres_cannot_hold_is_refused_and_never_changed(value: Wild) -> None:
    codec: Codec[Wild] = Codec(Wild, what="stream 'wild'")
    with pytest.raises(UserCodeError, match="wild"):
        codec.encode(value)


class Reading(msgspec.Struct):
    """So few numbers that the codec looks at each of them."""

    amount: float = 0.0
    maybe: float | None = None
    text: str | None = None


class Readings(msgspec.Struct):
    """So many that it looks for null in the text."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    maybe: float | None = None


class Chain(msgspec.Struct):
    """A type that holds itself."""

    amount: float = 0.0
    next: Chain | None = None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Reading(amount=-INFINITY), "-inf (at .amount)"),
        (Reading(amount="x"), "$.amount"),  # type: ignore[arg-type]
        (Reading(amount=None), "$.amount"),  # type: ignore[arg-type]
        (Reading(amount=10**400), "amount"),
        (Reading(maybe=NAN), "nan (at .maybe)"),
        (Reading(text="\0"), "NUL"),
        (Readings(maybe=NAN), "nan (at .maybe)"),
        (Readings(a=None), "$.a"),  # type: ignore[arg-type]
        (Chain(NAN), "nan (at .amount)"),
        (Chain(1.0, Chain(NAN)), "nan (at .next.amount)"),
    ],
)
def test_the_error_says_where_a_bad_number_is(value: Any, told: str) -> None:
    codec: Codec[Any] = Codec(type(value), what="stream 'numbers'")
    with pytest.raises(UserCodeError) as caught:
        codec.encode(value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        Reading(),
        Reading(1, 2, "null"),
        Readings(),
        Readings(maybe=2.0),
        Chain(1.0, Chain(2.0)),
    ],
)
def test_numbers_of_every_kind_of_type_come_back(value: Any) -> None:
    codec: Codec[Any] = Codec(type(value), what="stream 'numbers'")
    assert codec.decode(codec.encode(value)) == value


def test_types_that_are_equal_and_written_otherwise_are_kept_apart() -> None:
    """What is stored of a type is compared by its text when the pipeline is started again."""
    one, other = int | str, str | int
    assert one == other
    assert Codec(one, what="one").fingerprint != Codec(other, what="other").fingerprint


def test_classes_of_one_name_are_kept_apart() -> None:
    def made(kind: Any) -> Any:
        return msgspec.defstruct("Made", [("value", kind)])

    numbers, texts = made(int), made(str)
    assert Codec(numbers, what="numbers").decode(b'{"value": 1}') == numbers(1)
    assert Codec(texts, what="texts").decode(b'{"value": "a"}') == texts("a")


def test_an_annotation_may_hold_anything() -> None:
    codec: Codec[int] = Codec(Annotated[int, ["a remark"]], what="numbers")
    assert codec.decode(codec.encode(5)) == 5


class Silent:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise ValueError


def itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("value", [10**5000, itself(), Silent()], ids=["long", "endless", "silent"])
def test_what_has_no_text_is_refused_all_the_same(value: Any) -> None:
    with pytest.raises(UserCodeError, match="anything"):
        Codec(Any, what="anything").encode(value)


def test_a_key_without_a_text_is_refused_all_the_same() -> None:
    with pytest.raises(UserCodeError, match="cannot be a key"):
        encode_key(10**5000)


def test_a_nan_beside_a_whole_number_beyond_64_bits_is_found() -> None:
    codec: Codec[Any] = Codec(Any, what="anything")
    assert codec.decode(codec.encode([None, 10**30, 1.5])) == [None, 10**30, 1.5]
    with pytest.raises(UserCodeError, match=r"nan \(at \[1\]\)"):
        codec.encode([None, NAN, 10**30])


@pytest.mark.parametrize(
    "value",
    [
        Wild(),
        Wild(number=1e308, maybe=None),
        Wild(number=-0.0),
        Wild(text="null"),
        Wild(text="\\u0000"),
        Wild(text="é😀\u2028"),
        Wild(anything=None),
        Wild(anything=[None, {"a": None}]),
        Wild(whole=2**53 + 1),
    ],
)
def test_what_json_can_hold_comes_back(value: Wild) -> None:
    codec: Codec[Wild] = Codec(Wild, what="stream 'wild'")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("whole", [2**64, -(2**63) - 1, 10**25, -(10**25)])
def test_huge_whole_numbers_come_back_or_are_refused(whole: int) -> None:
    codec: Codec[Wild] = Codec(Wild, what="stream 'wild'")
    try:
        encoded = codec.encode(Wild(whole=whole))
    except UserCodeError:
        return
    assert codec.decode(encoded).whole == whole


def test_values_have_a_limit() -> None:
    codec: Codec[str] = Codec(str, what="stream 's'", limit=100)
    codec.encode("x" * 90)
    with pytest.raises(UserCodeError, match=r"more than the limit of 100"):
        codec.encode("x" * 100)


async def test_wrong_values_are_the_records_fault_and_leave_no_trace() -> None:
    """Of the wrong type, too large, not JSON: each is a dead letter, the rest goes on."""
    wrong: list[Any] = [Counted("a", "text", 0), Counted("a", None, 0), 5, None]  # type: ignore[arg-type]
    end = Stream("end_of_it", Counted)

    class Wrong(Computation[Item, Kept]):
        writes = (TALLY,)

        async def process_record(self, record: Record[Item], ctx: Context[Kept]) -> None:
            ctx.state.count += 1
            number = record.value.number
            value = wrong[number] if number < len(wrong) else Counted("a", number, ctx.state.count)
            ctx.produce(TALLY, value)

    class Pass(Computation[Counted, None]):
        writes = (end,)

        async def process_record(self, record: Record[Counted], ctx: Context[None]) -> None:
            ctx.produce(end, record.value)

    pipeline = Pipeline("wrong", settings=QUICK)
    values = [Item("a", n) for n in range(len(wrong) + 2)]
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    pipeline.add(Wrong(), ITEMS.by(key_of), on_error="dead_letter")
    pipeline.add(Pass(), TALLY.by(lambda counted: "k"))
    pipeline.sink(end, Table("out", Counted))
    world = World(pipeline)
    await world.run()
    assert [row[1:] for row in world.rows()] == [(4, 1), (5, 2)]
    assert len(world.letters()) == len(wrong)


async def test_the_texts_of_a_dead_letter_can_be_stored() -> None:
    """Whatever user code puts into its exception: no NUL, no lone surrogate."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        raise ValueError("bad \0 and \ud800")

    world = World(doing([Item("a", 1)], do, on_error="dead_letter"))
    await world.run()
    (letter,) = world.store.dead_letters
    for text in (letter.value, letter.error, letter.traceback, letter.place):
        text.encode()
        assert "\0" not in text


async def test_a_value_that_user_code_spoilt_makes_a_letter_as_it_came() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        msgspec.structs.force_setattr(record.value, "key", object())
        raise ValueError

    world = World(doing([Item("a", 1)], do, on_error="dead_letter"))
    await world.run()
    ((value, _),) = world.letters()
    assert value.startswith('{"key":"a","number":1')


async def test_a_spoilt_value_whose_source_gave_no_json_still_makes_a_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = ScriptReader.read

    async def read_one_by_one(self: ScriptReader, limit: int) -> list[Row]:
        return list(await read(self, limit))

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        msgspec.structs.force_setattr(record.value, "key", object())
        raise ValueError

    monkeypatch.setattr(ScriptReader, "read", read_one_by_one)
    world = World(doing([Item("a", 1)], do, on_error="dead_letter"))
    await world.run()
    ((value, _),) = world.letters()
    assert value.startswith("Item(key=<object object at")


class Mute(Exception):
    """An exception that cannot even be told."""

    def __str__(self) -> str:
        raise RuntimeError


async def test_an_exception_without_a_text_costs_its_own_record_alone() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            raise Mute
        produce(ctx, record.value.number)

    world = World(doing([Item("a", n) for n in range(3)], do, on_error="dead_letter"))
    await world.run()
    assert world.numbers() == [0, 2]
    ((_, error),) = world.letters()
    assert error.startswith("Mute: ")


async def test_an_exception_without_a_text_stops_the_engine_with_a_clear_error() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        raise Mute

    world = World(doing([Item("a", 1)], do))
    with pytest.raises(UserCodeError, match=r"'do' failed on a record .* key 'a', .* Mute: "):
        await world.run()
    await world.close()


class Hidden(msgspec.Struct, frozen=True):
    """An item whose text is not fit for Postgres."""

    key: str
    fails: bool = False

    def __repr__(self) -> str:
        if self.fails:
            raise ValueError
        return "hidden \0 and \ud800"


@pytest.mark.parametrize("fails", [False, True])
async def test_the_texts_of_a_bad_rows_letter_can_be_stored(fails: bool) -> None:
    hidden = Stream("hidden", Hidden)

    def when(value: Hidden) -> Any:
        raise UserCodeError("no time for \0 and \ud800")

    class Pass(Computation[Hidden, None]):
        async def process_record(self, record: Record[Hidden], ctx: Context[None]) -> None:
            pass

    pipeline = Pipeline("rows", settings=QUICK)
    source = script(hidden, [Hidden("a", fails)])
    pipeline.inject(hidden, source, timestamp=when, on_error="dead_letter")
    pipeline.add(Pass(), hidden.by(lambda value: value.key))
    world = World(pipeline)
    await world.run()
    (letter,) = world.store.dead_letters
    for text in (letter.value, letter.error, letter.place):
        text.encode()
        assert "\0" not in text
    assert "no time for" in letter.error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("bad \ud800",), "surrogates"),
        (("a\0",), "NUL"),
        (("a" * 201,), "at most 200 bytes"),
        (("a", 10**400), "whole number"),
        (("a", NAN), "whole number"),
        *(((name,), "engine's own") for name in sorted(ENGINE_COUNTERS)),
    ],
)
async def test_a_bad_counter_is_the_records_fault(arguments: Any, told: str) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            ctx.count(*arguments)

    world = World(doing([Item("a", 0), Item("a", 1)], do, on_error="dead_letter"))
    await world.run()
    assert [told in error for _, error in world.letters()] == [True], world.letters()
    assert world.counter("do", "processed") == 2
    assert world.counter("do", "dead_letters") == 1


def test_every_counter_of_the_engine_is_known() -> None:
    """The runtime counts ``counters["name"]``; users may not, or the figures would lie."""
    folder = Path(__file__).parents[2] / "millwheel" / "runtime"
    found = {
        node.slice.value
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value).endswith("counters")
        and isinstance(node.slice, ast.Constant)
    }
    assert found <= ENGINE_COUNTERS


# -- state of every kind --------------------------------------------------------------------------


async def test_the_empty_state_takes_no_row() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        ctx.state.count += record.value.number

    source = script(ITEMS, [Item("a", 0), Item("b", 5)])
    world = World(doing(source, do))
    await world.run()
    assert world.state("do", "a") == {}
    assert world.state("do", "b") != {}
    source.append(inject(ITEMS, Item("b", -5)))
    engine = await world.start()
    await world.until(engine.done.is_set)
    assert world.state("do", "b") == {}
    for interval in engine.intervals:
        await fold(engine.store, interval)
    assert world.store.states() == []
    source.append(inject(ITEMS, Item("b", 7)))
    read_on(engine)
    await world.finish(engine)
    assert world.state("do", "b")[""]["count"] == 7


async def test_collections_that_become_empty_take_no_rows() -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number:
            ctx.state.marks.put("x", 1)
            await ctx.state.queue.append(5)
        else:
            ctx.state.marks.remove("x")
            ctx.state.marks.remove("never")
            assert await ctx.state.queue.pop_first() == 5
            assert await ctx.state.queue.pop_first() is None

    world = World(doing([Item("a", 1), Item("a", 0)], do))
    await world.run()
    assert world.store.states() == []


async def test_a_new_state_object_replaces_all_of_the_state() -> None:
    """`ctx.state = Model()` is how one starts over; its collections start over with it."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 1:
            ctx.state.count = 3
            ctx.state.marks.put("old", 1)
        elif record.value.number == 2:
            state = Kept(count=9)
            state.marks.put("new", 2)
            ctx.state = state
        else:
            produce(ctx, ctx.state.count, await ctx.state.marks.get("new") or 0)
            produce(ctx, ctx.state.count, await ctx.state.marks.get("old") or 0)

    world = World(doing([Item("a", n) for n in (1, 2, 3)], do))
    await world.run()
    assert [row[1:3] for row in world.rows()] == [(9, 2), (9, 0)]


@pytest.mark.parametrize("chunk", [1, 100])
async def test_clearing_a_collection_forgets_all_of_it(chunk: int) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        state = ctx.state
        if record.value.number == 0:
            for n in range(20):
                state.marks.put(f"k{n}", n)
                await state.queue.append(n)
        elif record.value.number == 1:
            await state.marks.clear()
            await state.queue.clear()
            state.marks.put("new", 1)
            await state.queue.append(7)
            assert {k: v async for k, v in state.marks.items()} == {"new": 1}
            assert [v async for v in state.queue.values()] == [7]
        else:
            await state.marks.clear()
            await state.queue.clear()
            assert await state.queue.length() == 0

    source = script(ITEMS, [Item("a", 0)])
    limits = replace(QUICK, chunk_records=chunk, eager_entries=3)
    world = World(doing(source, do, settings=limits))
    await run_and_fold(world)
    source.append(inject(ITEMS, Item("a", 1)))
    await run_and_fold(world)
    assert world.state("do", "a") == {
        'marks/"new"': 1,
        "queue/#": [0, 1],
        "queue/000000000000000": 7,
    }
    source.append(inject(ITEMS, Item("a", 2)))
    await run_and_fold(world)
    assert world.store.states() == []


@pytest.mark.parametrize("chunk", [1, 100])
@pytest.mark.parametrize("folded", [False, True])
async def test_a_state_that_is_not_all_in_memory_is_replaced_once_it_is_cleared(
    chunk: int, folded: bool
) -> None:
    """What is not folded is all in memory: that can be replaced at once."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        state, number = ctx.state, record.value.number
        if number == 0:
            state.count = 1
            for n in range(50):
                state.marks.put(f"k{n}", n)
                await state.queue.append(n)
        elif number == 1:
            ctx.state = Kept(count=5)
        elif number == 2:
            await state.marks.clear()
            await state.queue.clear()
            new = Kept(count=7)
            new.marks.put("new", 1)
            new.marks.put("k3", 33)
            await new.queue.append(99)
            ctx.state = new
            assert await ctx.state.marks.get("k1") is None
            assert await ctx.state.marks.get("k3") == 33
            assert [v async for v in ctx.state.queue.values()] == [99]
        elif number == 3:
            assert {k: v async for k, v in state.marks.items()} == {"new": 1, "k3": 33}
            assert [v async for v in state.queue.values()] == [99]
            ctx.state = ctx.state
            ctx.state = Kept(count=8, marks=state.marks, queue=state.queue)
            ctx.state.marks.put("more", 2)
        elif number == 4:
            ctx.state = Kept(count=100)
            ctx.state.marks.put("zzz", 1)
            raise ValueError("on purpose")
        else:
            await state.marks.clear()
            await state.queue.clear()

    limits = replace(QUICK, eager_entries=3, chunk_records=chunk, cache_bytes=0)
    source = script(ITEMS, [Item("a", 0)])
    world = World(doing(source, do, settings=limits, on_error="dead_letter"))
    run = (lambda: run_and_fold(world)) if folded else world.run
    await run()
    source.append(inject(ITEMS, Item("a", 1)))
    await run()
    if folded:
        ((_, error),) = world.letters()
        assert "await ctx.state.marks.clear() first" in error
        assert len(world.state("do", "a")) == 102
    else:
        assert world.state("do", "a") == {"": {"count": 5, "numbers": []}}
    source.append(inject(ITEMS, Item("a", 2)))
    await run()
    kept = {'marks/"k3"': 33, 'marks/"new"': 1, "queue/#": [0, 1], "queue/000000000000000": 99}
    assert world.state("do", "a") == {"": {"count": 7, "numbers": []}, **kept}
    source.append(inject(ITEMS, Item("a", 3)))
    source.append(inject(ITEMS, Item("a", 4)))
    await run()
    assert [error for _, error in world.letters()[folded:]] == ["ValueError: on purpose"]
    kept |= {'marks/"more"': 2}
    assert world.state("do", "a") == {"": {"count": 8, "numbers": []}, **kept}
    source.append(inject(ITEMS, Item("a", 5)))
    await run()
    assert world.state("do", "a") == {"": {"count": 8, "numbers": []}}
    cache = world.interval("do").states
    assert cache.size == sum(state.size for state in cache._keys.values())


@pytest.mark.parametrize("chunk", [1, 100])
async def test_a_collection_that_is_assigned_takes_the_place_of_the_stored_one(chunk: int) -> None:
    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        state = ctx.state
        if record.value.number == 0:
            state.marks.put("old", 1)
            state.marks.put("both", 1)
            await state.queue.append(1)
            await state.queue.append(2)
        elif record.value.number == 1:
            state.marks = MapState()
            state.queue = ListState()
            state.marks.put("both", 2)
            await state.queue.append(9)
        elif record.value.number == 2:
            assert await state.marks.get("old") is None
            assert {k: v async for k, v in state.marks.items()} == {"both": 2}
            assert [v async for v in state.queue.values()] == [9]
            state.marks.put("more", 3)
        elif record.value.number == 3:
            state.marks = MapState()
            raise ValueError("on purpose")
        else:
            state.marks = MapState()
            state.queue = ListState()

    source = script(ITEMS, [Item("a", n) for n in range(4)])
    limits = replace(QUICK, chunk_records=chunk)
    world = World(doing(source, do, settings=limits, on_error="dead_letter"))
    await world.run()
    assert [error for _, error in world.letters()] == ["ValueError: on purpose"]
    assert world.state("do", "a") == {
        'marks/"both"': 2,
        'marks/"more"': 3,
        "queue/#": [0, 1],
        "queue/000000000000000": 9,
    }
    source.append(inject(ITEMS, Item("a", 4)))
    await world.run()
    assert world.store.states() == []


@pytest.mark.parametrize("chunk", [1, 100])
@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("unknown", "await ctx.state.marks.clear() first"),
        ("none", "not a MapState"),
        ("dict", "not a MapState"),
        ("taken", "belongs to another state already"),
        ("deleted", "marks"),
    ],
)
async def test_what_cannot_be_assigned_to_a_collection_is_the_records_fault(
    chunk: int, way: str, told: str
) -> None:
    others: list[MapState[str, int]] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        state: Any = ctx.state
        if record.value.number == 0:
            for n in range(10):
                state.marks.put(f"k{n}", n)
            others.append(state.marks)
        elif record.value.number == 2:
            state.count = 1
        elif way == "deleted":
            del state.marks
        else:
            state.marks = {"none": None, "dict": {}, "taken": others[0]}.get(way, MapState())

    limits = replace(QUICK, chunk_records=chunk, eager_entries=3)
    source = script(ITEMS, [Item("b", 0), Item("a", 0)])
    world = World(doing(source, do, settings=limits, on_error="dead_letter"))
    await run_and_fold(world)
    source.append(inject(ITEMS, Item("a", 1)))
    source.append(inject(ITEMS, Item("a", 2)))
    await world.run()
    assert [told in error for _, error in world.letters()] == [True], world.letters()
    kept = {f'marks/"k{n}"': n for n in range(10)}
    assert world.state("do", "a") == {"": {"count": 1, "numbers": []}, **kept}
    assert world.state("do", "b") == kept


@pytest.mark.parametrize("chunk", [1, 100])
@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("field", "$.count"),
        ("inside", "$.numbers[1]"),
        ("map", "marks"),
        ("list", "queue"),
        ("new state", "$.count"),
        ("new map", "marks"),
        ("key", "marks"),
        ("new map's key", "marks"),
    ],
)
async def test_state_of_the_wrong_type_is_the_records_fault(
    chunk: int, way: str, told: str
) -> None:
    """Stored, it would fail each time its key is loaded."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        wrong: Any = "x"
        number: Any = 5
        state = ctx.state
        if record.value.number != 1:
            state.count += 1
            state.numbers.append(record.value.number)
            state.marks.put("m", record.value.number)
            await state.queue.append(record.value.number)
        elif way == "field":
            state.count = wrong
        elif way == "inside":
            state.numbers.append(wrong)
        elif way == "map":
            state.marks.put("w", wrong)
        elif way == "list":
            await state.queue.append(wrong)
        elif way == "new state":
            ctx.state = Kept(count=wrong)
        elif way == "key":
            state.marks.put(number, 1)
        else:
            new = Kept()
            new.marks.put(*(("w", wrong) if way == "new map" else (number, 1)))
            ctx.state = new

    values = [Item("a", n) for n in (0, 1, 2)]
    limits = replace(QUICK, chunk_records=chunk)
    world = World(doing(values, do, settings=limits, on_error="dead_letter"))
    await world.run()
    kind = "`int`" if "key" in way else "`str`"
    assert [told in error and kind in error for _, error in world.letters()] == [True]
    assert world.state("do", "a") == {
        "": {"count": 2, "numbers": [0, 2]},
        'marks/"m"': 2,
        "queue/#": [0, 2],
        "queue/000000000000000": 0,
        "queue/000000000000001": 2,
    }


async def test_reads_and_writes_at_once_lose_nothing() -> None:
    """User code waits for an entry that it sets meanwhile."""

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        marks = ctx.state.marks

        async def put() -> None:
            marks.put("k5", -1)

        if record.value.number == 0:
            for n in range(50):
                marks.put(f"k{n}", n)
        else:
            await asyncio.gather(marks.get("k5"), put())

    source = script(ITEMS, [Item("a", 0)])
    world = World(doing(source, do, settings=replace(QUICK, eager_entries=3)))
    await run_and_fold(world)
    source.append(inject(ITEMS, Item("a", 1)))
    await world.run()
    assert world.state("do", "a")['marks/"k5"'] == -1


async def test_an_entry_that_is_changed_in_place_is_stored() -> None:
    class Lists(msgspec.Struct):
        entries: MapState[str, list[int]] = msgspec.field(default_factory=MapState)

    class Grow(Computation[Item, Lists]):
        async def process_record(self, record: Record[Item], ctx: Context[Lists]) -> None:
            found = await ctx.state.entries.get("x")
            if found is None:
                ctx.state.entries.put("x", [record.value.number])
            else:
                found.append(record.value.number)

    source = script(ITEMS, [Item("a", 1), Item("a", 2)])
    pipeline = Pipeline("grow", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Grow(), ITEMS.by(key_of))
    world = World(pipeline)
    await world.run()
    source.append(inject(ITEMS, Item("a", 3)))
    await world.run()
    assert world.state("grow", "a") == {'entries/"x"': [1, 2, 3]}


MAP_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "get", "items", "append", "pop", "fail", "restart"]),
        st.integers(0, 6),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(MAP_ACTS, st.integers(1, 8), st.sampled_from([0, 1 << 20]), st.sampled_from([1, 4, 100]))
def test_collections_are_a_dictionary_and_a_list(
    acts: list[tuple[str, int]], eager: int, cache: int, chunk: int
) -> None:
    """Against plain Python, over failures, folds, evictions and restarts."""
    wrong: list[str] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        act, number = acts[record.value.number]
        state, name = ctx.state, f"k{number}"
        if act == "fail":
            state.marks.put(name, -1)
            state.marks.remove("k1")
            await state.queue.append(-1)
            await state.queue.pop_first()
            raise ValueError(act)
        if act == "put":
            state.marks.put(name, record.value.number)
        elif act == "remove":
            state.marks.remove(name)
        elif act == "append":
            await state.queue.append(record.value.number)
        elif act == "pop":
            await state.queue.pop_first()

    async def ask(record: Record[Item], ctx: Context[Kept]) -> None:
        """Looks at everything, and compares with what the model says at this record."""
        await do(record, ctx)
        act, _ = acts[record.value.number]
        expected, expected_queue = after(acts, record.value.number)
        state = ctx.state
        found = {key: value async for key, value in state.marks.items()} if act == "items" else None
        if found is not None and found != expected:
            wrong.append(f"{record.value.number}: {found} != {expected}")
        for n in range(7):
            value = await state.marks.get(f"k{n}")
            if value != expected.get(f"k{n}"):
                wrong.append(f"{record.value.number}: k{n} is {value}")
            assert await state.marks.contains(f"k{n}") == (f"k{n}" in expected)
        values = [v async for v in state.queue.values()]
        if values != expected_queue or await state.queue.length() != len(expected_queue):
            wrong.append(f"{record.value.number}: {values} != {expected_queue}")

    async def go() -> None:
        limits = replace(
            QUICK, eager_entries=eager, cache_bytes=cache, chunk_records=chunk,
            bundle_records=chunk,
            fold_seconds=0.05, housekeeping_seconds=0.05,
        )  # fmt: skip
        source = script(ITEMS, [])
        world = World(doing(source, ask, settings=limits, on_error="dead_letter"))
        for number, (act, _) in enumerate(acts):
            source.append(inject(ITEMS, Item("a", number)))
            if act == "restart":
                await world.run()
        await world.run()
        assert wrong == []
        marks, order = after(acts, len(acts) - 1)
        found = world.state("do", "a")
        assert {e: v for e, v in found.items() if e.startswith("marks/")} == {
            f'marks/"{name}"': value for name, value in marks.items()
        }
        assert [v for e, v in sorted(found.items()) if e.startswith("queue/0")] == order

    asyncio.run(go())


def after(acts: Sequence[tuple[str, int]], last: int) -> tuple[dict[str, int], list[int]]:
    """Map and queue after the acts up to `last`."""
    marks: dict[str, int] = {}
    queue: list[int] = []
    for number, (act, name) in enumerate(acts[: last + 1]):
        if act == "put":
            marks[f"k{name}"] = number
        elif act == "remove":
            marks.pop(f"k{name}", None)
        elif act == "append":
            queue.append(number)
        elif act == "pop" and queue:
            queue.pop(0)
    return marks, queue


@dataclasses.dataclass
class Data:
    """A dataclass as state."""

    count: int = 0
    words: dict[str, int] = dataclasses.field(default_factory=dict)
    seen: MapState[int, str] = dataclasses.field(default_factory=MapState)


async def test_a_dataclass_may_be_state() -> None:
    class Use(Computation[Item, Data]):
        async def process_record(self, record: Record[Item], ctx: Context[Data]) -> None:
            ctx.state.count += 1
            ctx.state.words[record.value.key] = record.value.number
            ctx.state.seen.put(record.value.number, "yes")

    source = script(ITEMS, [Item("a", 1)])
    pipeline = Pipeline("data", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Use(), ITEMS.by(key_of))
    world = World(pipeline)
    await world.run()
    source.append(inject(ITEMS, Item("a", 2)))
    await world.run()
    assert world.state("use", "a") == {
        "": {"count": 2, "words": {"a": 2}},
        "seen/1": "yes",
        "seen/2": "yes",
    }


async def test_state_that_cannot_be_stored_is_the_records_fault() -> None:
    class Odd(msgspec.Struct):
        value: Any = 0

    class Spoil(Computation[Item, Odd]):
        async def process_record(self, record: Record[Item], ctx: Context[Odd]) -> None:
            number = record.value.number
            ctx.state.value = {1: object(), 2: float("nan"), 3: "\0"}.get(number, number)

    # One by one: of several records in a chunk only the last one's state is looked at.
    pipeline = Pipeline("spoil", settings=replace(QUICK, chunk_records=1))
    values = [Item("a", n) for n in (0, 1, 2, 3, 4)]
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    pipeline.add(Spoil(), ITEMS.by(key_of), on_error="dead_letter")
    world = World(pipeline)
    await world.run()
    assert len(world.letters()) == 3
    assert world.state("spoil", "a") == {"": {"value": 4}}


def test_a_state_without_an_empty_value_is_refused() -> None:
    class Needy(msgspec.Struct):
        count: int

    with pytest.raises(GraphError, match="Give each field a default"):
        StateLayout(Needy, owner="x", limit=100)


def test_a_collection_with_too_long_a_name_is_refused() -> None:
    """It begins the names of its entries, which stand in an index beside their key."""
    field: Any = ("x" * 64, MapState[str, int], msgspec.field(default_factory=MapState))
    with pytest.raises(GraphError, match="too long a name"):
        StateLayout(msgspec.defstruct("Long", [field]), owner="x", limit=100)


@pytest.mark.parametrize(
    ("state_type", "state"), [(Data, None), (Data, 5), (Data, {}), (Data, Kept()), (None, 5)]
)
def test_an_object_of_another_type_cannot_be_the_state(state_type: Any, state: Any) -> None:
    with pytest.raises(UserCodeError, match="cannot be the state of x"):
        StateLayout(state_type, owner="x", limit=100).check(state)


def test_a_plain_value_may_be_state() -> None:
    layout: StateLayout[Any] = StateLayout(float, owner="x", limit=100)
    layout.check(5)
    assert layout.encode(layout.new()) == layout.empty


# -- versions --------------------------------------------------------------------------------------


def old_pipeline(source: Any, state: type, name: str = "versions") -> Pipeline:
    class Versioned(Computation[Item, Any]):
        writes = (TALLY,)

        @property
        def state_type(self) -> Any:
            return state

        async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
            ctx.state.count += record.value.number
            if hasattr(ctx.state, "marks"):
                ctx.state.marks.put("m", (await ctx.state.marks.get("m") or 0) + 1)
                await ctx.state.queue.append(record.value.number)
            ctx.produce(TALLY, Counted(str(ctx.key), ctx.state.count, 0))

    return versioned(source, Versioned(), name)


def versioned(
    source: Any,
    computation: Computation[Item, Any],
    name: str,
    *,
    settings: Settings = QUICK,
    **options: Any,
) -> Pipeline:
    pipeline = Pipeline(name, settings=settings)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(computation, ITEMS.by(key_of), name="versioned", **options)
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


class One(msgspec.Struct):
    count: int = 0


class Two(msgspec.Struct):
    total: int = 0
    label: str = "new"


class Versioned(Computation[Item, Two]):
    """The second version: a field renamed, one more."""

    writes = (TALLY,)
    version = 2
    migrations: ClassVar[Mapping[int, Any]] = {
        1: lambda old: {"total": old["count"], "label": "old"}
    }

    async def process_record(self, record: Record[Item], ctx: Context[Two]) -> None:
        ctx.state.total += record.value.number
        ctx.produce(TALLY, Counted(ctx.state.label, ctx.state.total, 0))


class Picky(Versioned):
    """Its migration knows only counts below ten."""

    migrations: ClassVar[Mapping[int, Any]] = {1: lambda old: {"total": range(10)[old["count"]]}}


class Careless(Versioned):
    """Its migration gives what is no `Two`."""

    migrations: ClassVar[Mapping[int, Any]] = {1: lambda old: {"total": str(old["count"])}}


class Catching(Picky):
    """Goes on whatever happens."""

    async def process_record(self, record: Record[Item], ctx: Context[Two]) -> None:
        with suppress(Exception):
            await super().process_record(record, ctx)


def leave(old: Any) -> Any:
    sys.exit(3)


class Leaving(Versioned):
    """Its migration exits."""

    migrations: ClassVar[Mapping[int, Any]] = {1: leave}


for _code in (Picky, Careless, Catching, Leaving):
    _code.__name__ = "Versioned"  # the stored graph knows the class by its name


async def with_states_of_version_one(*, folded: bool = False) -> tuple[World, Script]:
    """Keys a to d with 1, 2, 30 and 4, as the first version has left them."""
    source = script(ITEMS, [Item("a", 1), Item("b", 2), Item("c", 30), Item("d", 4)])
    world = World(old_pipeline(source, One))
    engine = await world.start()
    await world.until(engine.done.is_set)
    if folded:
        for interval in engine.intervals:
            await fold(engine.store, interval)
    await engine.stop()
    return world, source


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(
    ("code", "says"),
    [(Picky, r"range\(10\)\[old\[\"count\"\]\]"), (Careless, r"Expected `int`, got `str`")],
)
async def test_a_migration_that_fails_on_what_is_stored_refuses_the_deploy(
    folded: bool, code: type[Versioned], says: str
) -> None:
    """Before anything is changed: the old code goes on as if nothing had been tried."""
    world, source = await with_states_of_version_one(folded=folded)
    old = world.pipeline
    world.pipeline = versioned(source, code(), "versions", on_error="dead_letter")
    with pytest.raises(DeployRefused, match=says) as told:
        await world.start()
    key = "c" if code is Picky else "a"
    assert f"state of 'versioned', key \"{key}\"" in str(told.value)
    assert ("IndexError" in str(told.value)) == (code is Picky)
    assert world.letters() == []
    source.append(inject(ITEMS, Item("c", 1)))
    world.pipeline = old
    await world.run()
    assert world.state("versioned", "c") == {"": {"count": 31}}
    assert len(world.store.tables.generations) == 1


async def test_migrations_that_were_tried_are_told() -> None:
    world, source = await with_states_of_version_one()
    world.pipeline = versioned(source, Versioned(), "versions")
    with capture_logs() as logs:
        await world.run()
    (said,) = (line for line in logs if line["event"] == "migration_tried")
    assert (said["computation"], said["states"]) == ("versioned", 4)
    assert (said["from_version"], said["to_version"]) == (1, 2)


@pytest.mark.parametrize("code", [Picky, Careless, Catching, Leaving])
@pytest.mark.parametrize("retries", [0, 2])
async def test_a_migration_that_fails_when_its_key_is_read_is_no_fault_of_the_record(
    monkeypatch: pytest.MonkeyPatch, code: type[Versioned], retries: int
) -> None:
    """No dead letter, whatever `on_error` says: the worker stops, and the corrected code goes on
    with all that has come for the key."""
    monkeypatch.setattr(trial, "TRIED_STATES", 0)
    world, source = await with_states_of_version_one()
    options: dict[str, Any] = {"on_error": "dead_letter", "retries": retries}
    source.append(inject(ITEMS, Item("c", 7)))
    world.pipeline = versioned(source, code(), "versions", **options)
    with pytest.raises(MigrationFailed, match="state of 'versioned', key 'c'") as told:
        await world.run()
    assert told.value.exit_code == UserCodeError.exit_code
    await world.engines[-1].kill()
    assert world.letters() == []
    assert world.state("versioned", "c") == {"": {"count": 30}}
    world.pipeline = versioned(source, Versioned(), "versions", **options)
    await world.run()
    assert world.letters() == []
    assert world.state("versioned", "c") == {"": {"total": 37, "label": "old"}}


@pytest.mark.parametrize("folded", [False, True])
async def test_state_is_migrated_when_its_key_comes_up(folded: bool) -> None:
    source = script(ITEMS, [Item("a", 1), Item("b", 2)])
    world = World(old_pipeline(source, One))
    engine = await world.start()
    await world.until(engine.done.is_set)
    if folded:
        for interval in engine.intervals:
            await fold(engine.store, interval)
    await engine.stop()
    source.append(inject(ITEMS, Item("a", 10)))
    source.append(inject(ITEMS, Item("c", 10)))
    world.pipeline = versioned(source, Versioned(), "versions")
    await world.run()
    assert [row[:2] for row in world.rows()][2:] == [("old", 11), ("new", 10)]
    assert world.state("versioned", "a") == {"": {"total": 11, "label": "old"}}
    assert world.state("versioned", "b") == {"": {"count": 2}}, "b was not touched"
    versions = {row.key: row.version for row in world.store.states()}
    assert versions == {"a": 2, "b": 1, "c": 2}


async def test_a_changed_state_without_a_migration_is_refused() -> None:
    source = script(ITEMS, [Item("a", 1)])
    world = World(old_pipeline(source, One))
    await world.run()
    world.pipeline = old_pipeline(source, msgspec.defstruct("One", [("number", int, 0)]))
    with pytest.raises(DeployRefused, match="versioned"):
        await world.start()


class OneBig(msgspec.Struct):
    count: int = 0
    marks: MapState[str, int] = msgspec.field(default_factory=MapState)
    queue: ListState[int] = msgspec.field(default_factory=ListState)


class TwoBig(msgspec.Struct):
    total: int = 0
    marks: MapState[str, int] = msgspec.field(default_factory=MapState)
    queue: ListState[int] = msgspec.field(default_factory=ListState)


class VersionedBig(Computation[Item, TwoBig]):
    """The plain part changes; the collections stay what they were."""

    writes = (TALLY,)
    version = 2
    migrations: ClassVar[Mapping[int, Any]] = {1: lambda old: {"total": old["count"]}}

    async def process_record(self, record: Record[Item], ctx: Context[TwoBig]) -> None:
        marks = await ctx.state.marks.get("m") or 0
        length = await ctx.state.queue.length()
        ctx.produce(TALLY, Counted(str(ctx.key), ctx.state.total, marks * 10 + length))


VersionedBig.__name__ = "Versioned"  # the stored graph knows the class by its name


@pytest.mark.parametrize("folded", [False, True])
async def test_a_migration_of_the_plain_part_leaves_collections_alone(folded: bool) -> None:
    """Entries, and a list's own bounds, are not what the migration was written for."""
    source = script(ITEMS, [Item("a", 1), Item("a", 2)])
    world = World(old_pipeline(source, OneBig))
    engine = await world.start()
    await world.until(engine.done.is_set)
    if folded:
        for interval in engine.intervals:
            await fold(engine.store, interval)
    await engine.stop()
    source.append(inject(ITEMS, Item("a", 10)))
    world.pipeline = versioned(source, VersionedBig(), "versions")
    await world.run()
    assert [row[:3] for row in world.rows()][2:] == [("a", 3, 22)]


class Marked(msgspec.Struct):
    total: int = 0


class ThreeBig(msgspec.Struct):
    """`OneBig` with entries of other types."""

    count: int = 0
    marks: MapState[str, Marked] = msgspec.field(default_factory=MapState)
    queue: ListState[str] = msgspec.field(default_factory=ListState)


class Relabelled(Computation[Item, ThreeBig]):
    """Entries change, and the plain part stays."""

    writes = (TALLY,)
    version = 2
    entry_migrations: ClassVar[Mapping[str, Mapping[int, Any]]] = {
        "marks": {1: lambda old: {"total": old}},
        "queue": {1: str},
    }

    async def process_record(self, record: Record[Item], ctx: Context[ThreeBig]) -> None:
        mark = await ctx.state.marks.get("m")
        assert mark is not None
        mark.total += record.value.number
        await ctx.state.queue.append("new")
        found = [value async for value in ctx.state.queue.values()]
        ctx.produce(TALLY, Counted(",".join(found), mark.total, ctx.state.count))


Relabelled.__name__ = "Versioned"


@pytest.mark.parametrize("eager", [1, 100], ids=["entry by entry", "all at once"])
@pytest.mark.parametrize("folded", [False, True])
async def test_entries_of_collections_are_migrated_when_they_are_read(
    folded: bool, eager: int
) -> None:
    settings = replace(QUICK, eager_entries=eager)
    source = script(ITEMS, [Item("a", 1), Item("a", 2)])
    world = World(old_pipeline(source, OneBig))
    engine = await world.start()
    await world.until(engine.done.is_set)
    if folded:
        for interval in engine.intervals:
            await fold(engine.store, interval)
    await engine.stop()
    before = world.state("versioned", "a")
    source.append(inject(ITEMS, Item("a", 10)))
    source.append(inject(ITEMS, Item("a", 20)))
    world.pipeline = versioned(source, Relabelled(), "versions", settings=settings)
    await world.run()
    after = world.state("versioned", "a")
    mark, count = before['marks/"m"'], before[""]["count"]
    queue = [str(value) for entry, value in before.items() if entry.startswith("queue/0")]
    assert [row[:3] for row in world.rows()][2:] == [
        (",".join([*queue, *["new"] * times]), mark + total, count)
        for times, total in ((1, 10), (2, 30))
    ]
    assert after['marks/"m"'] == {"total": mark + 30}


@pytest.mark.parametrize("field", ["marks", "queue"])
async def test_entries_of_another_type_need_a_migration(field: str) -> None:
    """With a default they would be read as empty, and be lost."""
    world = World(old_pipeline(script(ITEMS, [Item("a", 1)]), OneBig))
    await world.run()

    class Lacking(Relabelled):
        entry_migrations: ClassVar = {
            name: steps for name, steps in Relabelled.entry_migrations.items() if name != field
        }

    class Failing(Relabelled):
        entry_migrations: ClassVar = {
            **Relabelled.entry_migrations, field: {1: lambda old: old["no number"]}
        }  # fmt: skip

    Lacking.__name__ = Failing.__name__ = "Versioned"
    for code, says in (
        (Lacking, rf"entries of {field}(.|\n)*entry_migrations\['{field}'\] has no entry"),
        (Failing, rf"a migration failed in a trial(.|\n)*key \"a\", {field}/"),
    ):
        world.pipeline = versioned(script(ITEMS, []), code(), "versions")
        with pytest.raises(DeployRefused, match=says):
            await world.start()


async def test_entries_that_no_code_reads_any_more_are_said() -> None:
    world = World(old_pipeline(script(ITEMS, [Item("a", 1)]), OneBig))
    await world.run()

    class Less(Computation[Item, One]):
        version = 2
        migrations: ClassVar = {1: lambda old: old}
        writes = (TALLY,)

        async def process_record(self, record: Record[Item], ctx: Context[One]) -> None:
            ctx.state.count += 1

    Less.__name__ = "Versioned"
    world.pipeline = versioned(script(ITEMS, []), Less(), "versions")
    with capture_logs() as logs:
        await world.start()
    said = [line["change"] for line in logs if line["event"] == "deployed_change"]
    assert "state of 'versioned', entries of marks: a collection of a state less" in said


class Wide(msgspec.Struct):
    """Items as a later version has them."""

    key: str
    amount: int


async def test_records_in_flight_are_migrated() -> None:
    """Produced by the old code, processed by the new."""
    middle = Stream("middle", Counted)
    later: Stream[Wide] = Stream(
        "middle",
        Wide,
        version=2,
        migrations={1: lambda old: {"key": "old", "amount": old["number"]}},
    )
    end = Stream("the_end", Wide)

    class Make(Computation[Item, None]):
        def __init__(self, to: Stream[Any], make: Any) -> None:
            self.writes = (to,)
            self._to, self._make = to, make

        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.produce(self._to, self._make(record.value))

    class Take(Computation[Any, None]):
        writes = (end,)

        async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
            await asyncio.Event().wait()

    class TakeWide(Computation[Wide, None]):
        writes = (end,)

        async def process_record(self, record: Record[Wide], ctx: Context[None]) -> None:
            ctx.produce(end, record.value)

    source = script(ITEMS, [Item("a", 1), Item("a", 2)])

    def build(stream: Stream[Any], make: Any, take: Computation[Any, None]) -> Pipeline:
        pipeline = Pipeline("flight", settings=QUICK)
        pipeline.inject(ITEMS, source, timestamp=time_of)
        pipeline.add(Make(stream, make), ITEMS.by(key_of), name="make")
        pipeline.add(take, stream.by(constant), name="take")
        pipeline.sink(end, Table("out", Wide))
        return pipeline

    world = World(build(middle, lambda item: Counted("x", item.number, 0), Take()))
    first = await world.start()
    await world.until(lambda: len(world.store.pending_productions()) == 2)
    await world.turns()
    await first.kill()
    source.append(inject(ITEMS, Item("a", 3)))
    world.pipeline = build(later, lambda item: Wide("new", item.number), TakeWide())
    # The class changed as well; the graph compares names of classes.
    TakeWide.__name__ = "Take"
    await world.run()
    assert world.rows() == [("old", 1), ("old", 2), ("new", 3)]


def constant(value: Any) -> str:
    return "k"


async def test_unit_tests_of_state_need_no_pipeline() -> None:
    state = Kept()
    state.marks.put("a", 1)
    assert await state.marks.get("a") == 1
    await state.queue.append(4)
    assert [v async for v in state.queue.values()] == [4]
    assert [pair async for pair in state.marks.items()] == [("a", 1)]


async def test_map_keys_of_every_kind_come_back() -> None:
    class Keyed(msgspec.Struct):
        texts: MapState[str, int] = msgspec.field(default_factory=MapState)
        numbers: MapState[int, int] = msgspec.field(default_factory=MapState)
        pairs: MapState[tuple[str, int], int] = msgspec.field(default_factory=MapState)

    found: list[Any] = []

    class Use(Computation[Item, Keyed]):
        async def process_record(self, record: Record[Item], ctx: Context[Keyed]) -> None:
            if record.value.number:
                ctx.state.texts.put("1", 1)
                ctx.state.texts.put("é/😀", 2)
                ctx.state.numbers.put(-5, 3)
                ctx.state.pairs.put(("a", 1), 4)
                return
            found.extend([pair async for pair in ctx.state.texts.items()])
            found.extend([pair async for pair in ctx.state.numbers.items()])
            found.extend([pair async for pair in ctx.state.pairs.items()])

    pipeline = Pipeline("keyed", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Use(), ITEMS.by(key_of))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1))
        await harness.inject(ITEMS, Item("a", 0))
    assert found == [("1", 1), ("é/😀", 2), (-5, 3), (("a", 1), 4)]
