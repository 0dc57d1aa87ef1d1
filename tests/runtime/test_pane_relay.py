"""A table with a row for each key shows the newest pane: of the last window, and of that the last
one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Pipeline, Stream, Table
from millwheel.computations import FlatMap, Windowed, count
from millwheel.testing import Harness
from millwheel.windows import Count, Early, Global, Pane, PaneOrder, Session, Sliding, Tumbling
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of

PANES = Stream("panes", Pane[int])
COPIES = Stream("copies", Pane[int])
MINUTE = Tumbling(minutes=1)
SECOND = timedelta(seconds=1)
MINUTES_LONG = timedelta(minutes=1)


class Now(msgspec.Struct):
    """A row for each key."""

    key: str
    start: float
    value: int
    retracted: bool = False


def row_of(pane: Pane[int]) -> Now:
    return Now(str(pane.key), (pane.start - at(0)) / SECOND, pane.value, pane.retracted)


def pipeline_of(
    windows: Any, *, key: tuple[str, ...] = ("key",), copied: bool = False, **options: Any
) -> Pipeline:
    pipeline = Pipeline("newest", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, lateness=timedelta(days=1))
    pipeline.add(Windowed(windows, count, to=PANES, **options), ITEMS.by(key_of))
    if copied:
        pipeline.add(FlatMap(lambda pane: [pane], to=COPIES), PANES.by(lambda pane: pane.key))
    pipeline.sink(COPIES if copied else PANES, Table("now", Now, key=key), row=row_of)
    return pipeline


async def play(harness: Harness, steps: Iterable[Item | float]) -> None:
    for step in steps:
        if isinstance(step, Item):
            await harness.inject(ITEMS, step)
        else:
            await harness.advance(ITEMS, at(step))


def now(harness: Harness) -> list[tuple[float, int]]:
    return [(start, value) for _, start, value, retracted in harness.rows("now") if not retracted]


MINUTES = [Item("a", n, n) for n in range(3)] + [Item("a", 60, 60), Item("a", 120, 120)]


@pytest.mark.parametrize(
    ("windows", "options", "wanted"),
    [
        (MINUTE, {}, (120, 1)),
        (MINUTE, {"early": Early(records=1)}, (120, 1)),
        (Sliding(2 * MINUTES_LONG, MINUTES_LONG), {"early": Early(records=1)}, (120, 1)),
        (Session(30 * SECOND), {"early": Early(records=1)}, (120, 1)),
        (Count(1), {}, (120, 1)),
    ],
)
async def test_panes_of_one_window_do_not_hide_those_of_later_ones(
    windows: Any, options: dict[str, Any], wanted: tuple[float, int]
) -> None:
    """Also where the first window has sent several, so that their numbers are higher."""
    async with Harness(pipeline_of(windows, **options)) as harness:
        await play(harness, [*MINUTES, 180])
        assert now(harness) == [wanted]


@pytest.mark.parametrize("copied", [False, True])
async def test_a_pane_that_amends_an_older_window_is_not_the_newest(copied: bool) -> None:
    pipeline = pipeline_of(MINUTE, late="amend", copied=copied)
    async with Harness(pipeline) as harness:
        await play(harness, [*MINUTES, 130, Item("a", 9, 59)])
        assert now(harness) == [(60, 1)]
        await play(harness, [Item("a", 9, 61)])
        assert now(harness) == [(60, 2)], "one that amends the newest window is"
        await play(harness, [Item("a", 200, 200), 1000, Item("a", 9, 61)])
        assert now(harness) == [(180, 1)]


async def test_batches_follow_one_another_by_number_whatever_their_times() -> None:
    async with Harness(pipeline_of(Count(1))) as harness:
        await play(harness, [Item("a", 1, 500), Item("a", 2, 100)])
        assert now(harness) == [(100, 1)]


async def test_a_joined_session_is_newer_than_its_parts() -> None:
    windows = Session(30 * SECOND)
    async with Harness(pipeline_of(windows, early=Early(records=1))) as harness:
        parts = [Item("a", 1, 0), Item("a", 2, 40), Item("a", 3, 41), Item("a", 4, 42)]
        await play(harness, [*parts, Item("a", 5, 20)])
        assert now(harness) == [(0, 5)]


def states(harness: Harness) -> list[str]:
    """The keys with state in the sink's own step."""
    return [
        row.key
        for row in harness.store.states()
        if row.computation.startswith(("panes_to", "copies_to"))
    ]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("allowed", [None, 300])
async def test_the_state_of_a_row_goes_once_no_older_pane_can_come(
    allowed: int | None, copied: bool
) -> None:
    amends = {} if allowed is None else {"allowed_lateness": allowed * SECOND, "late": "amend"}
    pipeline = pipeline_of(MINUTE, key=("key", "start"), copied=copied, **amends)
    async with Harness(pipeline) as harness:
        await play(harness, [Item(key, 1, 60 * n) for n, key in enumerate("aabb")])
        await play(harness, [240])
        assert len(harness.rows("now")) == 4
        assert len(states(harness)) == (0 if allowed is None else 4)
        await play(harness, [60 + (allowed or 0), 120 + (allowed or 0)])
        assert len(states(harness)) == (0 if allowed is None else 2)
        await play(harness, [240 + (allowed or 0) + 0.000001])
        assert states(harness) == []
        own = [
            row
            for row in harness.store.timers()
            if row.computation.startswith(("panes_to", "copies_to"))
        ]
        assert own == []


async def test_a_row_that_gets_further_panes_keeps_its_state() -> None:
    amends: Any = {"allowed_lateness": 100 * SECOND, "late": "amend"}
    async with Harness(pipeline_of(MINUTE, **amends)) as harness:
        for minute in range(5):
            await play(harness, [Item("a", minute, 60 * minute), 60 * minute + 60.000001])
            assert states(harness) == ["a"]
            assert (
                len([t for t in harness.store.timers() if t.computation.startswith("panes_to")])
                == 1
            )
        await play(harness, [Item("a", 9, 200)])  # amends window 180, and window 240 is newer
        assert now(harness) == [(240, 1)]
        await play(harness, [401])
        assert states(harness) == []


class Of(msgspec.Struct):
    start: float
    key: str
    value: int


async def test_panes_of_several_keys_may_write_one_row() -> None:
    """They have no order among them: the numbers of one key do not hide the panes of another."""
    pipeline = Pipeline("newest", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, lateness=timedelta(days=1))
    windowed = Windowed(MINUTE, count, to=PANES, early=Early(records=1))
    pipeline.add(windowed, ITEMS.by(key_of))
    table = Table("now", Of, key=("start",))
    pipeline.sink(PANES, table, row=lambda p: Of((p.start - at(0)) / SECOND, str(p.key), p.value))
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 1), Item("a", 1, 2), Item("b", 1, 3)])
        assert harness.rows("now") == [(0, "b", 1)]


# -- the order itself ------------------------------------------------------------------------


def pane(start: float, end: float, number: int) -> Pane[int]:
    return Pane("a", at(start), at(end), 0, number)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True), st.randoms())
def test_whatever_comes_late_the_newest_pane_stays(
    panes: list[tuple[int, int]], order: Any
) -> None:
    """Of fixed windows: the last window's last pane, in whatever order they arrive."""
    place = PaneOrder().place
    shown: Pane[int] | None = None
    for minute, number in order.sample(panes, len(panes)):
        each = pane(60 * minute, 60 * minute + 60, number)
        if shown is None or place(each) >= place(shown):
            shown = each
    if panes:
        assert shown is not None
        assert ((shown.start - at(0)) / SECOND // 60, shown.number) == max(panes)


def test_the_longest_lateness_of_all_writers_counts() -> None:
    orders = [PaneOrder(amended_for=0), PaneOrder(amended_for=5), PaneOrder(amended_for=None)]
    assert PaneOrder.of_all(orders[:2]) == PaneOrder(amended_for=5)
    for some in itertools.permutations(orders):
        assert PaneOrder.of_all(some) == PaneOrder()
    assert PaneOrder.of_all([]) == PaneOrder()
    assert PaneOrder.of_all([PaneOrder(True, 0), PaneOrder(False, 0)]).by_number
    assert PaneOrder(True, 0).superseded_after(at(60), 0) is None


def test_each_kind_of_window_says_how_its_panes_follow() -> None:
    def order(windows: Any, **options: Any) -> PaneOrder | None:
        return Windowed(windows, count, to=PANES, **options).pane_order

    assert order(MINUTE) == PaneOrder(amended_for=0)
    assert order(Count(2)) == PaneOrder(by_number=True, amended_for=0)
    assert order(MINUTE, late="amend") == PaneOrder()
    assert order(Global(), early=Early(records=1), late=ITEMS) == PaneOrder(amended_for=0)
    lasting = order(MINUTE, late="amend", allowed_lateness=2 * SECOND)
    assert lasting == PaneOrder(amended_for=2_000_000)
