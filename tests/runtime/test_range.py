"""MapState.range: what it reads, in which order, from memory, the store and both at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel import Context, MapState, Record
from millwheel.context import call_of
from millwheel.errors import UserCodeError
from millwheel.runtime.keys import map_entries as entries
from millwheel.testing import inject
from tests.support.examples import examples
from tests.support.pipelines import QUICK, Kept, doing, script
from tests.support.values import ITEMS, Item
from tests.support.worlds import World, run_and_fold


def name(number: int) -> str:
    return f"{number:03d}"


async def read(found: MapState[str, int], first: int, until: int, **limit: Any) -> dict[str, int]:
    return {key: value async for key, value in found.range(name(first), name(until), **limit)}


# -- in memory ---------------------------------------------------------------------------------


async def test_a_range_begins_at_its_first_key_and_ends_before_its_last() -> None:
    found: MapState[str, int] = MapState()
    for number in (30, 10, 20, 40):
        found.put(name(number), number)
    assert [key async for key, _ in found.range("010", "040")] == ["010", "020", "030"]
    assert [key async for key, _ in found.range("011", "041")] == ["020", "030", "040"]
    assert [key async for key, _ in found.range("", "~")] == ["010", "020", "030", "040"]
    assert [key async for key, _ in found.range("040", "010")] == []
    assert [key async for key, _ in found.range("010", "010")] == []
    assert [key async for key, _ in found.range("", "~", limit=2)] == ["010", "020"]
    assert [key async for key, _ in found.range("", "~", limit=0)] == []


async def test_a_bound_stands_before_every_key_it_begins() -> None:
    found: MapState[str, int] = MapState()
    for key in ("10", "10/1", "10/2", "11"):
        found.put(key, 0)
    assert [key async for key, _ in found.range("10", "11")] == ["10", "10/1", "10/2"]
    assert [key async for key, _ in found.range("10/", "10/2")] == ["10/1"]
    assert [key async for key, _ in found.range("0", "10")] == []


async def test_entries_can_be_removed_while_they_are_read() -> None:
    found: MapState[str, int] = MapState()
    for number in range(5):
        found.put(name(number), number)
    async for key, number in found.range(name(0), name(4)):
        found.remove(key)
        found.remove(name(number + 1))
    assert [key async for key, _ in found.items()] == [name(4)]


async def test_whole_numbers_have_no_range() -> None:
    found: MapState[Any, int] = MapState()
    with pytest.raises(UserCodeError, match=r"range\(\) needs keys that are strings"):
        _ = [entry async for entry in found.range(1, 2)]  # type: ignore[arg-type]


# -- from the store ----------------------------------------------------------------------------


def counting(world: World) -> list[tuple[str, str]]:
    """The scans of the store from now on."""
    calls: list[tuple[str, str]] = []
    scan = world.store.scan_entries

    async def counted(*arguments: Any) -> Any:
        calls.append((arguments[3], arguments[4]))
        return await scan(*arguments)

    world.store.scan_entries = counted  # type: ignore[method-assign, assignment]
    return calls


async def test_a_range_fetches_itself_and_little_else() -> None:
    seen: list[Any] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        marks = ctx.state.marks
        if record.value.number == 0:
            for number in range(999):
                marks.put(name(number), number)
        else:
            first = record.value.number
            cell: Any = call_of(ctx).cell
            seen.append((await read(marks, first, first + 3), len(cell._entries.cells)))

    source = script(ITEMS, [Item("a", 0)])
    world = World(doing(source, do, settings=replace(QUICK, eager_entries=3)))
    await run_and_fold(world)
    for number in (500, 502, 504, 490, 10):
        source.append(inject(ITEMS, Item("a", number)))
    calls = counting(world)
    await run_and_fold(world)
    assert [list(found.values()) for found, _ in seen] == [
        [n, n + 1, n + 2] for n in (500, 502, 504, 490, 10)
    ]
    assert seen[0][1] == seen[2][1] <= entries.READ_AHEAD + 4
    assert len(calls) == 3, "the second and third ranges were in memory"
    assert calls[1][1] == 'marks/"500', "only what is missing is fetched"


async def test_a_name_after_all_others_is_known_to_be_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next window of a key is, of which most former ones are in the store alone."""
    monkeypatch.setattr(entries, "TRIM_CELLS", 20)

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        marks = ctx.state.marks
        number = record.value.number
        assert await marks.get(name(number)) is None
        marks.put(name(number), number)
        assert await marks.get(name(number // 2)) == number // 2

    asked: list[str] = []
    source = script(ITEMS, [Item("a", number) for number in range(300)])
    limits = replace(QUICK, chunk_records=10, bundle_records=10, fold_seconds=0.01)
    world = World(doing(source, do, settings=replace(limits, eager_entries=3)))
    fetch = world.store.load_entry

    async def counted(*arguments: Any) -> Any:
        asked.append(arguments[3])
        return await fetch(*arguments)

    world.store.load_entry = counted  # type: ignore[method-assign, assignment]
    await world.run()
    for number in range(300, 400):
        source.append(inject(ITEMS, Item("a", number)))
    await world.run()
    new = [entry for entry in asked if int(entry[-4:-1]) > 299]
    assert new == ['marks/"300"'], "asked once after a restart"
    await world.close()


@pytest.mark.parametrize("read_by", ["items", "range"])
async def test_a_failure_after_a_blind_write_hides_no_stored_entry(read_by: str) -> None:
    """The written cell stands for the stored one while the map is loaded; when it is taken back,
    the stored one must be looked up again."""
    seen: list[Any] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        marks = ctx.state.marks
        if record.value.number == 0:
            for number in range(20):
                marks.put(name(number), number)
        elif record.value.number == 1:
            marks.put(name(7), -1)
            if read_by == "items":
                assert len([key async for key, _ in marks.items()]) == 20
            else:
                assert len(await read(marks, 0, 99)) == 20
            raise ValueError("on purpose")
        else:
            seen.append(await marks.get(name(7)))
            seen.append(await read(marks, 5, 9))

    source = script(ITEMS, [Item("a", 0)])
    limits = replace(QUICK, eager_entries=3, chunk_records=1, bundle_records=1)
    world = World(doing(source, do, settings=limits, on_error="dead_letter"))
    await run_and_fold(world)
    source.append(inject(ITEMS, Item("a", 1)))
    source.append(inject(ITEMS, Item("a", 2)))
    await run_and_fold(world)
    assert seen == [7, {name(n): n for n in range(5, 9)}]


# -- against a model ---------------------------------------------------------------------------

ACTS = st.one_of(
    st.tuples(st.sampled_from(["put", "remove", "get"]), st.integers(0, 40), st.just(0)),
    st.tuples(st.sampled_from(["range", "sweep", "one"]), st.integers(0, 40), st.integers(0, 15)),
    st.tuples(st.sampled_from(["restart", "fail"]), st.integers(0, 40), st.integers(0, 15)),
)


class Model(msgspec.Struct):
    """What the map should hold."""

    marks: dict[str, int] = msgspec.field(default_factory=dict)

    def do(self, act: str, first: int, length: int, value: int) -> dict[str, int]:
        until = first + length
        found = {k: v for k, v in sorted(self.marks.items()) if name(first) <= k < name(until)}
        if act == "put":
            self.marks[name(first)] = value
        elif act == "remove":
            self.marks.pop(name(first), None)
        elif act == "get":
            return {k: v for k, v in self.marks.items() if k == name(first)}
        elif act == "sweep":
            for key in found:
                del self.marks[key]
        elif act == "one":
            return dict(list(found.items())[:1])
        return found if act in ("range", "sweep") else {}


@settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    acts=st.lists(ACTS, min_size=1, max_size=60),
    eager=st.sampled_from([1, 4, 64]),
    cache=st.sampled_from([0, 3_000, 1 << 20]),
    chunk=st.sampled_from([1, 7, 100]),
    ahead=st.sampled_from([1, 3, 256]),
    trim=st.sampled_from([2, 10, 4096]),
    folds=st.sampled_from([0.05, 2.0]),
)
def test_a_range_gives_what_a_dictionary_would(
    acts: list[tuple[str, int, int]],
    eager: int,
    cache: int,
    chunk: int,
    ahead: int,
    trim: int,
    folds: float,
) -> None:
    """Through folds, trimmed and evicted keys, restarts and code that fails."""
    wrong: list[Any] = []
    before: list[Model] = []
    model = Model()
    for number, (act, first, length) in enumerate(acts):
        before.append(Model(dict(model.marks)))
        model.do(act, first, length, number)

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        number = record.value.number
        act, first, length = acts[number]
        marks = ctx.state.marks
        expected = Model(dict(before[number].marks))
        found: dict[str, int] = {}
        if act == "put":
            marks.put(name(first), number)
        elif act == "remove":
            marks.remove(name(first))
        elif act == "get":
            value = await marks.get(name(first))
            found = {} if value is None else {name(first): value}
        elif act == "range":
            found = await read(marks, first, first + length)
        elif act == "one":
            found = await read(marks, first, first + length, limit=1)
        elif act == "sweep":
            async for key, value in marks.range(name(first), name(first + length)):
                found[key] = value
                marks.remove(key)
        elif act == "fail":
            marks.put(name(first), -1)
            marks.remove(name(first + length))
            await read(marks, first, first + length)
            raise ValueError(act)
        if found != expected.do(act, first, length, number):
            wrong.append((number, acts[number], found))
        if list(found) != sorted(found):
            wrong.append((number, "order", list(found)))

    async def go() -> None:
        limits = replace(
            QUICK, eager_entries=eager, cache_bytes=cache, chunk_records=chunk,
            bundle_records=chunk, fold_seconds=folds, housekeeping_seconds=0.05,
        )  # fmt: skip
        source = script(ITEMS, [])
        world = World(doing(source, do, settings=limits, on_error="dead_letter"))
        for number, (act, _, _) in enumerate(acts):
            source.append(inject(ITEMS, Item("a", number)))
            if act == "restart":
                await world.run()
        await world.run()
        assert wrong == []
        assert {e.removeprefix("marks/"): v for e, v in world.state("do", "a").items() if e} == {
            f'"{key}"': value for key, value in model.marks.items()
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "READ_AHEAD", ahead)
        patch.setattr(entries, "TRIM_CELLS", trim)
        asyncio.run(go())


async def test_a_queue_is_not_read_past_what_it_held_before() -> None:
    """What was removed stays in memory until it is folded away, but no range looks at it."""
    looked: list[int] = []

    async def do(record: Record[Item], ctx: Context[Kept]) -> None:
        marks = ctx.state.marks
        number = record.value.number
        async for key, _ in marks.range("", "~"):
            marks.remove(key)
        marks.put(name(number), number)
        if number == 50:
            marks.put(name(20), 20)  # what was removed can come back
        cell: Any = call_of(ctx).cell
        looked.append(len(cell._entries._order["marks/"]))

    limits = replace(QUICK, chunk_records=1, bundle_records=1, fold_seconds=1000.0)
    source = script(ITEMS, [Item("a", number) for number in range(100)])
    world = World(doing(source, do, settings=limits))
    await world.run()
    assert max(looked) <= 4
    assert {e for e in world.state("do", "a") if e} == {'marks/"099"'}
