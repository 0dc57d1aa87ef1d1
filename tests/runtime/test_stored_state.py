"""State in memory is the state that is stored: a stop between any two records changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from millwheel import Computation, Context, MapState, Pipeline, Record, Settings, Stream, Table
from millwheel.testing import Harness, inject
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, time_of
from tests.support.worlds import World


class Visits(msgspec.Struct):
    """State of types that JSON in Postgres does not keep."""

    recent: dict[str, int] = {}
    info: dict[str, Any] = {}
    due: datetime | None = None
    balance: float = 0.0
    last: MapState[str, dict[str, Any]] = msgspec.field(default_factory=MapState)


class Plain(msgspec.Struct):
    """The same without collections."""

    recent: dict[str, int] = {}
    info: dict[str, Any] = {}
    due: datetime | None = None
    balance: float = 0.0


class Rate(msgspec.Struct):
    """A state with a round trip that changes minus zero alone."""

    balance: float = 0.0


class Seen(msgspec.Struct):
    """The state that user code saw at a record."""

    number: int
    text: str


SEEN = Stream("seen", Seen)
PAGES = ["zebra", "yak", "x", "zebra", "cat", "ant", "bee", "yak", "x"]
BERLIN = ZoneInfo("Europe/Berlin")


def look(state: Any) -> str:
    """All of a plain state that user code can see."""
    return repr([getattr(state, name) for name in state.__struct_fields__ if name != "last"])


def visit(state: Any, page: str, number: int) -> None:
    if not isinstance(state, Rate):
        state.recent[page] = state.recent.pop(page, 0) + 1
        if len(state.recent) > 3:
            del state.recent[next(iter(state.recent))]
        state.info.setdefault("first", (page, 1e16))
        day = timedelta(days=1)
        start = datetime(2024, 3, 29, 9, tzinfo=BERLIN)
        state.due = start if state.due is None else state.due + day
    state.balance = -0.0 if number % 2 else state.balance + 1


class Keep(Computation[Item, Any]):
    """Shows its state before each record, and changes it."""

    writes = (SEEN,)

    def __init__(self, state_type: Any) -> None:
        self._state_type = state_type

    @property
    def state_type(self) -> Any:
        return self._state_type

    async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
        state, item = ctx.state, record.value
        texts = [look(state)]
        if isinstance(state, Visits):
            texts.append(repr(await state.last.get("all")))
            entry = await state.last.get("all") or {}
            entry[item.key] = (item.number, -0.0)
            state.last.put("all", entry)
        visit(state, item.key, item.number)
        ctx.produce(SEEN, Seen(item.number, " ".join(texts)))


class SetAgain(Keep):
    """Sets, at each record, what has the stored JSON already and another form in memory."""

    async def process_record(self, record: Record[Item], ctx: Context[Any]) -> None:
        state = ctx.state
        texts = [look(state)]
        if isinstance(state, Visits):
            texts.append(repr(await state.last.get("all")))
            state.last.put("all", {"pair": (1, 2)})
        if isinstance(state, Rate):
            state.balance = -0.0
        else:
            state.info = {"pair": (1, 2)}
        ctx.produce(SEEN, Seen(record.value.number, " ".join(texts)))


def pipeline_of(keep: Keep, source: Any, settings: Settings = QUICK) -> Pipeline:
    pipeline = Pipeline("stored", settings=settings)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(keep, ITEMS.by(lambda item: "all"), name="keep")
    pipeline.sink(SEEN, Table("seen", Seen))
    return pipeline


async def seen(
    state_type: Any, parts: Sequence[int], settings: Settings = QUICK, kind: type[Keep] = Keep
) -> list[Any]:
    """The states that user code sees at the items, with a new engine after each part of them."""
    items = [Item(page, number, number) for number, page in enumerate(PAGES)]
    source = script(ITEMS, items[: parts[0]])
    world = World(pipeline_of(kind(state_type), source, settings))
    for first, until in zip(parts, [*parts[1:], None], strict=True):
        engine = await world.start()
        await world.until(engine.done.is_set)
        await engine.stop()
        if until is not None:
            for item in items[first:until]:
                source.append(inject(ITEMS, item))
    return sorted(world.store.rows("seen"))


@pytest.mark.parametrize("state_type", [Visits, Plain, Rate])
@pytest.mark.parametrize("chunk", [1, 4, 100])
async def test_a_stop_changes_nothing_that_user_code_sees(state_type: Any, chunk: int) -> None:
    """Whether records of a key run in one chunk, in several, or after a restart from the store."""
    settings = replace(QUICK, chunk_records=chunk)
    once = await seen(state_type, [len(PAGES)], settings)
    assert len(once) == len(PAGES)
    assert len({text for _, text in once}) > 1
    for parts in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [2, 4, 9], [5, 9]):
        assert await seen(state_type, parts, settings) == once


@pytest.mark.parametrize("state_type", [Visits, Plain, Rate])
@pytest.mark.parametrize("chunk", [1, 4, 100])
async def test_what_is_set_again_is_seen_as_it_is_stored(state_type: Any, chunk: int) -> None:
    """Its text has not changed, but its form in memory has."""
    settings = replace(QUICK, chunk_records=chunk)
    texts = [text for _, text in await seen(state_type, [len(PAGES)], settings, SetAgain)]
    assert not any("(1, 2)" in text or "-0.0" in text for text in texts)
    assert len(set(texts[1:])) == 1
    assert state_type is Rate or "[1, 2]" in texts[1]


class Odd(Computation[Item, Plain]):
    """Keeps a value that JSON does not keep, in a field or in an entry."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    async def process_record(self, record: Record[Item], ctx: Context[Plain]) -> None:
        for name, value in self._values.items():
            setattr(ctx.state, name, value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"info": {"first": ("a", 1)}}, r"info\['first'\] is \('a', 1\) in memory, and \['a', 1\]"),
        ({"due": datetime(2024, 3, 29, 9, tzinfo=BERLIN)}, "due is .*zoneinfo.*Berlin.* in memory"),
        ({"balance": -0.0, "recent": {"a": 1}}, r"balance is -0\.0 in memory, and 0\.0"),
    ],
)
async def test_the_harness_tells_of_the_first_difference(values: dict[str, Any], told: str) -> None:
    pipeline = Pipeline("odd", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Odd(values), ITEMS.by(lambda item: item.key))
    async with Harness(pipeline) as harness:
        with pytest.warns(UserWarning, match=f"state of odd: {told}"):
            await harness.inject(ITEMS, Item("a", 1))
        await harness.inject(ITEMS, Item("b", 1))  # told once


async def test_the_harness_is_silent_about_what_comes_back() -> None:
    values = {
        "recent": {"b": 1, "a": 2},
        "due": datetime(2024, 3, 29, 9, tzinfo=UTC),
        "balance": 1.5,
    }
    pipeline = Pipeline("even", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Odd(values), ITEMS.by(lambda item: item.key))
    async with Harness(pipeline) as harness:
        await harness.inject(ITEMS, Item("a", 1))
        assert harness.state("odd", "a")[""]["recent"] == {"a": 2, "b": 1}
