"""Every kind of window through a pipeline: equal to brute force, and nothing left behind.

Scripts of records and watermarks are run one step at a time, so that the low watermark at each
record is known; the answers to compare with are searched for by the words of the definitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.computations import Fold, Windowed, collect, count, total
from millwheel.core.model import MAX_TIME, MIN_TIME, to_micros
from millwheel.errors import GraphError
from millwheel.store.memory.tables import changes_of
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from millwheel.testing.script import ScriptStep
from millwheel.windows import (
    LAST_INSTANT,
    Count,
    Early,
    Global,
    Months,
    Pane,
    Session,
    Sliding,
    Span,
    Tumbling,
    instant,
)
from tests.support.drawing import examples
from tests.support.pipelines import QUICK, script
from tests.support.values import ITEMS, Item, at, key_of, time_of
from tests.support.worlds import Gate, World, read_on

LISTS = Stream("lists", Pane[list[int]])
SUMS = Stream("sums", Pane[int])
LATE = Stream("late", Item)
SECOND = timedelta(seconds=1)
FAR = 10**6
"""Seconds that a record may come behind the newest: only scripts move the watermark."""

numbers: Fold[Item, list[int], list[int]] = Fold(
    list, lambda kept, item: [*kept, item.number], sorted, list[int], lambda a, b: a + b
)
"""Which items a window holds: the strictest fold to compare with."""
alone = replace(numbers, merge=None)


def pipeline_of(windows: Any, fold: Any = numbers, to: Any = LISTS, **options: Any) -> Pipeline:
    pipeline = Pipeline("kinds", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, lateness=timedelta(seconds=FAR))
    pipeline.add(Windowed(windows, fold, to=to, **options), ITEMS.by(key_of))
    return pipeline


Script = list[Item | float]
"""Items, and instants (in seconds) to which the watermark moves."""


async def play(harness: Harness, steps: Iterable[Item | float], *, together: bool = False) -> None:
    """Play a script. Records with no watermark between them arrive together if that is said."""
    items: list[Item] = []

    async def arrive() -> None:
        for some in [items] if together else [[item] for item in items]:
            if some:
                await harness.inject(ITEMS, *some)
        items.clear()

    for step in steps:
        if isinstance(step, Item):
            items.append(step)
        else:
            await arrive()
            await harness.advance(ITEMS, at(step))
    await arrive()


def final_panes(panes: Iterable[Pane[Any]]) -> dict[tuple[Any, float, float], Any]:
    """(key, start, end) in seconds -> value of what a table by (key, start) would show."""
    table: dict[tuple[Any, datetime], Pane[Any]] = {}
    for pane in panes:
        known = table.get((pane.key, pane.start))
        assert known is None or known.number < pane.number, "numbers rise"
        table[pane.key, pane.start] = pane
    return {
        (pane.key, (pane.start - at(0)) / SECOND, (pane.end - at(0)) / SECOND): pane.value
        for pane in table.values()
        if not pane.retracted
    }


async def check_reader(record: Record[Pane[Any]], ctx: Context[None]) -> None:
    """Panes are never late at their reader; those that are not amendments stand inside."""
    pane = record.value
    assert ctx.low_watermark <= record.timestamp, "on time at its reader"
    if not pane.late and not pane.retracted:
        assert pane.start <= record.timestamp < pane.end
        if not pane.early:
            assert record.timestamp == pane.end - timedelta(microseconds=1)


class Check(Computation[Pane[Any], None]):
    async def process_record(self, record: Record[Pane[Any]], ctx: Context[None]) -> None:
        await check_reader(record, ctx)


# -- equal to batch ------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A kind of windows, what is late, and a script.

    A step is a watermark (by how much it moves on) or a record (its key, and how far before
    the watermark it is), in seconds.
    """

    size: int
    slide: int
    allowed: int | None
    late: Literal["drop", "amend", "stream"]
    early: Early | None
    merges: bool
    together: bool
    steps: tuple[tuple[str, int] | int, ...]

    def script(self) -> Script:
        watermark = 0
        steps: Script = []
        for number, step in enumerate(self.steps):
            if isinstance(step, int):
                watermark += step
                steps.append(float(watermark))
            else:
                steps.append(Item(step[0], number, float(max(0, watermark + step[1]))))
        return steps

    @property
    def options(self) -> dict[str, Any]:
        return {
            "late": LATE if self.late == "stream" else self.late,
            "allowed_lateness": None if self.allowed is None else self.allowed * SECOND,
            "early": self.early,
        }

    def takes(self, end: float, watermark: float) -> bool:
        """Whether a window that ends there takes a record, by the words of the documents."""
        if end > watermark:  # seconds: its last microsecond is not behind the watermark
            return True
        if self.late == "drop" or (self.late == "stream" and self.allowed is None):
            return False
        return self.allowed is None or end + self.allowed >= watermark


steps_of = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("aaab"), st.integers(-16, 10)),
        st.tuples(st.sampled_from("aaab"), st.integers(-3, 5)),
        st.integers(1, 6),
    ),
    min_size=4,
    max_size=20,
).map(tuple)
"""Records near the watermark, behind and before it, and steps of the watermark."""
lateness = st.sampled_from(
    [("drop", None), ("amend", None), ("amend", 0), ("amend", 7), ("stream", None), ("stream", 7)]
)
earlies = st.sampled_from([None, None, None, Early(records=1), Early(records=2)])


@st.composite
def trials(draw: Any, early: Any = earlies) -> Trial:
    slide, number = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    late, allowed = draw(lateness)
    return Trial(
        slide * number,
        slide,
        allowed,
        late,
        draw(early),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(steps_of),
    )


def check_sliding(trial: Trial) -> None:
    """Each window's last pane, dropped records, and nothing left of any window."""
    windows = Sliding(trial.size * SECOND, trial.slide * SECOND)
    expected: dict[tuple[Any, float, float], list[int]] = defaultdict(list)
    left_out: list[int] = []
    amended = 0
    watermark = float("-inf")
    steps = trial.script()
    for step in steps:
        if not isinstance(step, Item):
            watermark = max(watermark, step)
            continue
        starts = [
            start
            for start in range(int(step.second) - trial.size + 1, int(step.second) + 1)
            if (start + to_micros(at(0)) // 10**6) % trial.slide == 0
        ]
        taken = [s for s in starts if trial.takes(s + trial.size, watermark)]
        for start in taken:
            expected[step.key, start, start + trial.size].append(step.number)
        if not taken:
            left_out.append(step.number)
        amended += any(s + trial.size <= watermark for s in taken)

    async def go() -> None:
        fold = numbers if trial.merges else alone
        pipeline = pipeline_of(windows, fold, **trial.options)
        pipeline.add(Check(), LISTS.by(lambda pane: pane.key))
        async with Harness(pipeline) as harness:
            await play(harness, steps, together=trial.together)
            await harness.advance(ITEMS, at(500))
            panes = harness.produced(LISTS)
            assert final_panes(panes) == expected
            on_time = [(p.key, p.start) for p in panes if not p.late and not p.early]
            assert len(on_time) == len(set(on_time)), "one pane at the watermark"
            counters = harness.counters("make_lists")
            if trial.late == "stream":
                assert [item.number for item in harness.produced(LATE)] == left_out
            assert counters.get("late_dropped", 0) + counters.get("late_sent", 0) == len(left_out)
            assert counters.get("late_amended", 0) == amended
            if trial.late != "amend" or trial.allowed is not None:
                assert harness.state("make_lists", "a") == {}
                assert harness.state("make_lists", "b") == {}
            assert harness.store.timers() == []

    asyncio.run(go())


@pytest.mark.filterwarnings("ignore:.*the fold has no merge")
@examples(40)
@given(trials())
def test_final_panes_of_standing_and_sliding_windows_equal_batch(trial: Trial) -> None:
    check_sliding(trial)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.*the fold has no merge")
@examples(20_000)
@given(trials())
def test_final_panes_of_standing_and_sliding_windows_equal_batch_long(trial: Trial) -> None:
    check_sliding(trial)


def sessions_of(items: list[Item], gap: int) -> list[list[Item]]:
    """Who is connected by steps below the gap, earliest first."""
    groups: list[list[Item]] = []
    for item in sorted(items, key=lambda item: item.second):
        if groups and item.second - groups[-1][-1].second < gap:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def check_sessions(trial: Trial) -> None:
    """The sessions that remain, after those that were taken back, equal a merge of all records
    that came in time. A record comes in time if the session that it would be in does."""
    gap = trial.size
    accepted: dict[str, list[Item]] = {"a": [], "b": []}
    frozen: list[tuple[str, list[Item]]] = []
    left_out: list[int] = []
    watermark = float("-inf")
    steps = trial.script()
    for step in steps:
        if not isinstance(step, Item):
            watermark = max(watermark, step)
            for key, items in accepted.items():
                for group in sessions_of(items, gap):
                    if not trial.takes(group[-1].second + gap, watermark):
                        frozen.append((key, group))
                        accepted[key] = [i for i in accepted[key] if i not in group]
            continue
        groups = sessions_of([*accepted[step.key], step], gap)
        (mine,) = [group for group in groups if step in group]
        if trial.takes(mine[-1].second + gap, watermark):
            accepted[step.key].append(step)
        else:
            left_out.append(step.number)
    frozen += [(key, group) for key in accepted for group in sessions_of(accepted[key], gap)]
    expected = sorted(
        (key, group[0].second, group[-1].second + gap, sorted(item.number for item in group))
        for key, group in frozen
    )

    async def go() -> None:
        pipeline = pipeline_of(Session(gap * SECOND), **trial.options)
        pipeline.add(Check(), LISTS.by(lambda pane: pane.key))
        async with Harness(pipeline) as harness:
            await play(harness, steps, together=trial.together)
            await harness.advance(ITEMS, at(500))
            found = last_of_sessions(harness.produced(LISTS))
            assert found == expected
            counters = harness.counters("make_lists")
            assert counters.get("late_dropped", 0) + counters.get("late_sent", 0) == len(left_out)
            if trial.late == "stream":
                assert [item.number for item in harness.produced(LATE)] == left_out
            if trial.late != "amend" or trial.allowed is not None:
                assert harness.state("make_lists", "a") == {}
                assert harness.state("make_lists", "b") == {}
            assert harness.store.timers() == []

    asyncio.run(go())


def last_of_sessions(panes: list[Pane[list[int]]]) -> list[tuple[Any, float, float, list[int]]]:
    """What remains of a log of panes: the last of each (key, start), until it is taken back.

    After a session has expired another may start at the same instant: a pane whose records
    are not all in the next one stands for itself.
    """
    rows: dict[tuple[Any, datetime], Pane[list[int]]] = {}
    done: list[Pane[list[int]]] = []
    for pane in panes:
        known = rows.get((pane.key, pane.start))
        if known is not None and not set(known.value) <= set(pane.value):
            done.append(known)
        rows[pane.key, pane.start] = pane
    return sorted(
        (p.key, (p.start - at(0)) / SECOND, (p.end - at(0)) / SECOND, p.value)
        for p in [*rows.values(), *done]
        if not p.retracted
    )


@examples(40)
@given(trials())
def test_sessions_equal_a_brute_force_merge(trial: Trial) -> None:
    check_sessions(trial)


@pytest.mark.soak
@examples(20_000)
@given(trials())
def test_sessions_equal_a_brute_force_merge_long(trial: Trial) -> None:
    check_sessions(trial)


TOGETHER: dict[str, Script] = {
    "one session is made": [Item("a", 1, 0), Item("a", 2, 9), Item("a", 3, 40)],
    "out of order": [Item("a", 1, 20), Item("a", 2, 0), Item("a", 3, 9), Item("a", 4, 12)],
    "two sessions are joined": [
        Item("a", 1, 0), Item("a", 2, 16), 1.0, Item("a", 3, 8), Item("a", 4, 12),
    ],
    "the start moves": [Item("a", 1, 16), 1.0, Item("a", 2, 8), Item("a", 3, 12)],
    "on time, in a session that has closed": [
        Item("a", 1, 0), 12.0, Item("a", 2, 5), Item("a", 3, 6),
    ],
    "some are late": [Item("a", 1, 30), 25.0, Item("a", 2, 26), Item("a", 3, 2), Item("a", 4, 27)],
}  # fmt: skip


@pytest.mark.parametrize("what", TOGETHER)
@pytest.mark.parametrize("windows", [Session(10 * SECOND), Sliding(20 * SECOND, 10 * SECOND)])
@pytest.mark.parametrize("late", ["drop", "amend", LATE])
async def test_records_that_come_together_give_the_panes_of_one_by_one(
    what: str, windows: Any, late: Any
) -> None:
    found: list[Any] = []
    for together in (True, False):
        async with Harness(pipeline_of(windows, late=late)) as harness:
            await play(harness, TOGETHER[what], together=together)
            await harness.advance(ITEMS, at(500))
            sent = harness.produced(LATE) if late is LATE else []
            found.append((harness.produced(LISTS), harness.counters("make_lists"), sent))
    assert found[0] == found[1]


# -- sessions ------------------------------------------------------------------------------


def lists(start: float, end: float, value: list[int], number: int = 0, **how: bool) -> Any:
    how = {"final": True} | how
    return Pane("a", at(start), at(end), value, number, **how)


async def test_a_late_record_joins_two_sessions_that_were_told() -> None:
    """The second one is taken back: who keeps panes by key and start would keep it for ever."""
    pipeline = pipeline_of(Session(10 * SECOND), late="amend", allowed_lateness=60 * SECOND)
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 0), Item("a", 2, 15), 40.0, Item("a", 3, 8)])
        assert harness.produced(LISTS) == [
            lists(0, 10, [1], final=False),
            lists(15, 25, [2], final=False),
            lists(15, 25, [2], 1, late=True, retracted=True),
            lists(0, 25, [1, 2, 3], 2, late=True, final=False),
        ]
        assert harness.counters("make_lists")["late_amended"] == 1
        await harness.advance(ITEMS, at(85) + SECOND / 1000)
        assert harness.state("make_lists", "a") == {}
        assert harness.store.timers() == []


async def test_a_session_whose_start_moves_is_told_anew() -> None:
    pipeline = pipeline_of(Session(10 * SECOND), late="amend")
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 10), 30.0, Item("a", 2, 4)])
        assert harness.produced(LISTS)[1:] == [
            lists(10, 20, [1], 1, late=True, retracted=True),
            lists(4, 20, [1, 2], 2, late=True, final=False),
        ]


async def test_a_record_may_open_a_closed_session_again() -> None:
    """It joins it to one that is open: the whole is on time."""
    pipeline = pipeline_of(Session(10 * SECOND), late="amend", allowed_lateness=60 * SECOND)
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 0), Item("a", 2, 18), 20.0, Item("a", 3, 9), 40.0])
        assert harness.produced(LISTS) == [
            lists(0, 10, [1], final=False),
            lists(0, 28, [1, 2, 3], 1, final=False),
        ]


async def test_a_session_opened_again_is_told_before_it_is_forgotten() -> None:
    """The watermark passes its new end and its old expiry at once."""
    pipeline = pipeline_of(Session(10 * SECOND), late="amend", allowed_lateness=0 * SECOND)
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 0), 10.0, Item("a", 2, 9), 500.0])
        assert final_panes(harness.produced(LISTS)) == {("a", 0, 19): [1, 2]}
        assert harness.state("make_lists", "a") == {}
        assert harness.store.timers() == []


async def test_sessions_that_were_joined_are_found_where_either_was() -> None:
    """The last record is near to what was the second session alone."""
    async with Harness(pipeline_of(Session(10 * SECOND))) as harness:
        times = enumerate((5, 18, 9, 26))
        await play(harness, [*(Item("a", number, second) for number, second in times), 50.0])
        assert harness.produced(LISTS) == [lists(5, 36, [0, 1, 2, 3])]


async def test_records_a_gap_apart_are_two_sessions() -> None:
    async with Harness(pipeline_of(Session(10 * SECOND))) as harness:
        await play(harness, [Item("a", 1, 0), Item("a", 2, 10), Item("a", 3, 19.999999), 50.0])
        assert harness.produced(LISTS) == [lists(0, 10, [1]), lists(10, 29.999999, [2, 3])]


async def test_early_panes_of_sessions_that_join_are_taken_back() -> None:
    pipeline = pipeline_of(Session(10 * SECOND), early=Early(records=1))
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 0), Item("a", 2, 12), Item("a", 3, 6), 40.0])
        assert final_panes(harness.produced(LISTS)) == {("a", 0, 22): [1, 2, 3]}
        assert [p.retracted for p in harness.produced(LISTS)] == [False, False, True, False, False]


async def test_panes_of_what_is_new_add_up_over_sessions_that_join() -> None:
    """Nothing is taken back: each pane told only what no other tells."""
    pipeline = pipeline_of(
        Session(10 * SECOND), late="amend", early=Early(records=1), accumulate=False
    )
    steps: Script = [Item("a", 1, 0), Item("a", 2, 12), Item("a", 3, 6), 40.0, Item("a", 4, 30)]
    async with Harness(pipeline) as harness:
        await play(harness, [*steps, 60.0])
        panes = harness.produced(LISTS)
        assert [pane.value for pane in panes] == [[1], [2], [3], [4]]
        assert not any(pane.retracted for pane in panes)


async def test_a_session_that_has_grown_is_kept_until_its_new_expiry() -> None:
    """The timer that would forget it stands where it was set when the session first closed."""
    pipeline = pipeline_of(Session(10 * SECOND), late="amend", allowed_lateness=20 * SECOND)
    steps: Script = [Item("a", 1, 0), 19.0, Item("a", 2, 8), 31.0, Item("a", 3, 17), 500.0]
    async with Harness(pipeline) as harness:
        await play(harness, steps)
        assert final_panes(harness.produced(LISTS)) == {("a", 0, 27): [1, 2, 3]}
        assert harness.state("make_lists", "a") == {}


@pytest.mark.parametrize("told", [False, True])
async def test_sessions_that_join_leave_the_timers_of_one(told: bool) -> None:
    pipeline = pipeline_of(
        Session(10 * SECOND), late="amend", allowed_lateness=60 * SECOND, early=Early(seconds=5)
    )
    async with Harness(pipeline, start=at(0)) as harness:
        await play(harness, [Item("a", 1, 0), Item("a", 2, 15)])
        assert len(harness.store.timers()) == 4
        await play(harness, [*([40.0] if told else []), Item("a", 3, 8)])
        assert len(harness.store.timers()) == (1 if told else 2)


async def test_a_session_that_grows_does_not_write_its_timer_again() -> None:
    source = script(ITEMS, [Item("a", number, number) for number in range(20)])
    pipeline = Pipeline("kinds", settings=replace(QUICK, chunk_records=1, bundle_records=1))
    pipeline.inject(ITEMS, source, timestamp=time_of, lateness=timedelta(seconds=FAR))
    pipeline.add(Windowed(Session(10 * SECOND), count, to=SUMS), ITEMS.by(key_of))
    world = World(pipeline)
    await world.run()
    assert len(world.commits) >= 20
    assert sum(len(commit.timers) for commit in world.commits) == 1


class Waiting(Windowed[Item, Any, Any]):
    """Waits with the item 0."""

    gate = Gate()

    def process_record(self, record: Record[Item], ctx: Context[Any]) -> Coroutine[Any, Any, None]:
        return self._wait(record, ctx)

    async def _wait(self, record: Record[Item], ctx: Context[Any]) -> None:
        if record.value.number == 0:
            await self.gate.wait()
        await super().process_record(record, ctx)


async def told_behind_a_far_item(
    windows: Any,
    first: list[Item],
    second: float,
    then: list[Item],
    after: list[Item],
    timers_first: bool = False,
) -> list[Any]:
    """The panes of three lots of items. The second one is processed when the watermark is at
    `second` already, but no timer that is due by it has fired, or only those that had been set
    before: all wait behind a far item of their key."""
    waiting = Waiting(windows, numbers, to=LISTS)
    waiting.gate = gate = Gate()
    source = script(ITEMS, first)
    pipeline = Pipeline("kinds", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of, lateness=timedelta(seconds=FAR))
    pipeline.add(waiting, ITEMS.by(key_of))
    pipeline.sink(LISTS, Table("told", Told), row=told_of)
    world = World(pipeline)
    engine = await world.start()
    await world.until(lambda: world.counter("make_lists", "processed") == len(first))
    await world.turns()
    source.append(inject(ITEMS, Item("a", 0, 300)))
    read_on(engine)
    await world.until(lambda: gate.reached == 1)
    source.append(advance(ITEMS, at(second)))
    if timers_first:
        read_on(engine)
        await world.turns()
    for item in then:
        source.append(inject(ITEMS, item))
    read_on(engine)
    await world.until(
        lambda: world.interval("make_lists").watermarks.input == to_micros(at(second))
    )
    await world.turns()
    gate.open()
    await world.turns()
    for item in after:
        source.append(inject(ITEMS, item))
    read_on(engine)
    await world.turns()
    source.append(advance(ITEMS, at(500)))
    read_on(engine)
    await world.turns()
    await world.close()
    assert world.store.timers() == []
    return sorted(
        ((start - at(0)) / SECOND, (end - at(0)) / SECOND, found)
        for start, end, found in world.rows("told")
        if found != [0]
    )


async def test_a_session_is_over_when_the_watermark_says_so_not_when_its_timer_fires() -> None:
    """What is near it then begins one of its own, which keeps its place when the other is
    forgotten."""
    one, two, three = Item("a", 1, 0), Item("a", 2, 9), Item("a", 3, 16)
    told = await told_behind_a_far_item(Session(10 * SECOND), [one], 15, [two], [three])
    assert told == [(0, 10, [1]), (9, 26, [2, 3])]


async def test_windows_that_have_closed_together_are_told_together() -> None:
    """The first one's timer tells the next one too: what comes then is too late for both."""
    windows, one, two = Sliding(20 * SECOND, 10 * SECOND), Item("a", 1, 12), Item("a", 2, 25)
    told = await told_behind_a_far_item(windows, [one], 35, [two], [], timers_first=True)
    assert told == [(0, 20, [1]), (10, 30, [1]), (20, 40, [2])]


async def test_a_late_slice_sets_no_timer_but_those_that_forget_it() -> None:
    pipeline = pipeline_of(
        Sliding(20 * SECOND, 10 * SECOND), late="amend", allowed_lateness=100 * SECOND
    )
    async with Harness(pipeline) as harness:
        await play(harness, [50.0, Item("a", 1, 5)])
        assert [pane.value for pane in harness.produced(LISTS)] == [[1], [1]]
        assert len(harness.store.timers()) == 2


# -- early panes, and panes of what is new ---------------------------------------------------


async def test_early_panes_every_n_records() -> None:
    pipeline = pipeline_of(Tumbling(minutes=1), early=Early(records=2))
    async with Harness(pipeline) as harness:
        await play(harness, [*(Item("a", n, n) for n in range(5)), 60.0])
        assert harness.produced(LISTS) == [
            lists(0, 60, [0, 1], early=True, final=False),
            lists(0, 60, [0, 1, 2, 3], 1, early=True, final=False),
            lists(0, 60, [0, 1, 2, 3, 4], 2),
        ]


async def test_early_panes_after_some_time() -> None:
    """So long after the first record that none has shown; nothing new, no pane."""
    pipeline = pipeline_of(Tumbling(minutes=1), early=Early(seconds=5))
    pipeline.add(Check(), LISTS.by(lambda pane: pane.key))
    async with Harness(pipeline, start=at(0)) as harness:
        await harness.inject(ITEMS, Item("a", 1, 0))
        await harness.sleep(4)
        await harness.inject(ITEMS, Item("a", 2, 1))
        assert harness.produced(LISTS) == []
        await harness.sleep(1)
        assert harness.produced(LISTS) == [lists(0, 60, [1, 2], early=True, final=False)]
        await harness.sleep(20)
        assert len(harness.produced(LISTS)) == 1
        await harness.inject(ITEMS, Item("a", 3, 2))
        await harness.advance(ITEMS, at(60))
        assert harness.produced(LISTS)[1:] == [lists(0, 60, [1, 2, 3], 1)]
        assert harness.store.timers() == [], "no timer outlives its window"
        assert harness.state("make_lists", "a") == {}


async def test_early_panes_by_records_or_time_whichever_is_first() -> None:
    pipeline = pipeline_of(Tumbling(minutes=1), early=Early(records=2, seconds=5))
    async with Harness(pipeline, start=at(0)) as harness:
        await harness.inject(ITEMS, Item("a", 1, 0), Item("a", 2, 1), Item("a", 3, 2))
        assert [pane.value for pane in harness.produced(LISTS)] == [[1, 2]]
        await harness.sleep(5)
        assert [pane.value for pane in harness.produced(LISTS)] == [[1, 2], [1, 2, 3]]


async def test_panes_of_what_is_new() -> None:
    pipeline = pipeline_of(
        Tumbling(minutes=1), late="amend", early=Early(records=2), accumulate=False
    )
    async with Harness(pipeline) as harness:
        await play(harness, [*(Item("a", n, n) for n in range(4)), Item("b", 4, 5), 60.0])
        await play(harness, [Item("a", 5, 3)])
        told = [(p.key, p.value, p.number, p.early, p.late) for p in harness.produced(LISTS)]
        assert told == [
            ("a", [0, 1], 0, True, False),
            ("a", [2, 3], 1, True, False),
            ("b", [4], 0, False, False),
            ("a", [5], 2, False, True),
        ]


@examples(40)
@given(
    trials(early=st.sampled_from([None, Early(records=1), Early(records=2)])),
    st.sampled_from(["tumbling", "sliding", "session"]),
)
def test_panes_of_what_is_new_sum_up_to_panes_of_everything(trial: Trial, kind: str) -> None:
    size, slide = trial.size * SECOND, trial.slide * SECOND
    kinds: dict[str, Any] = {
        "tumbling": Tumbling(size),
        "sliding": Sliding(size, slide),
        "session": Session(size),
    }
    steps = [*trial.script(), 500.0]

    async def run(accumulate: bool) -> list[Pane[list[int]]]:
        pipeline = pipeline_of(kinds[kind], accumulate=accumulate, **trial.options)
        async with Harness(pipeline) as harness:
            await play(harness, steps, together=trial.together)
            return harness.produced(LISTS)

    async def go() -> None:
        whole, parts = await run(True), await run(False)
        assert all(pane.value for pane in parts)
        if kind == "session":  # bounds differ: what was told is not told again
            told = [number for pane in parts for number in pane.value]
            assert sorted(told) == sorted({n for pane in whole for n in pane.value})
        else:
            sums: dict[Any, list[int]] = defaultdict(list)
            for pane in parts:
                sums[pane.key, pane.start] += pane.value
            last = {(pane.key, pane.start): pane.value for pane in whole}
            assert {window: sorted(values) for window, values in sums.items()} == last

    asyncio.run(go())


# -- count and global windows ------------------------------------------------------------------


async def test_count_windows_close_on_their_last_record() -> None:
    """Whatever the watermark says: nothing is late. Panes are numbered through the key."""
    pipeline = pipeline_of(Count(3))
    pipeline.add(Check2(), LISTS.by(lambda pane: pane.key))
    async with Harness(pipeline) as harness:
        steps: Script = [Item("a", 1, 30), Item("a", 2, 10), Item("b", 9, 0), 100.0]
        await play(
            harness, [*steps, Item("a", 3, 20), *(Item("a", n, n) for n in range(4, 9)), 500.0]
        )
        micro = timedelta(microseconds=1)
        assert harness.produced(LISTS) == [
            Pane("a", at(10), at(30) + micro, [1, 2, 3], 0, final=True),
            Pane("a", at(4), at(6) + micro, [4, 5, 6], 1, final=True),
        ]
        assert harness.state("make_lists", "a")[""] == {"panes": 2}
        assert len(harness.state("make_lists", "b")) == 1


class Check2(Computation[Pane[Any], None]):
    """Panes of late records are not late at their reader."""

    async def process_record(self, record: Record[Pane[Any]], ctx: Context[None]) -> None:
        assert ctx.low_watermark <= record.timestamp


async def test_count_windows_may_be_told_early() -> None:
    pipeline = pipeline_of(Count(3), early=Early(seconds=5))
    async with Harness(pipeline, start=at(0)) as harness:
        await harness.inject(ITEMS, Item("a", 1, 30), Item("a", 2, 10))
        await harness.sleep(5)
        await harness.inject(ITEMS, Item("a", 3, 1))
        told = [(p.value, p.number, p.early, p.final) for p in harness.produced(LISTS)]
        assert told == [([1, 2], 0, True, False), ([1, 2, 3], 1, False, True)]
        assert harness.store.timers() == []


@examples(40)
@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 5))
def test_count_windows_equal_batches_of_a_list(keys: list[str], number: int) -> None:
    items = [Item(key, n, (n * 37) % 50) for n, key in enumerate(keys)]

    async def go() -> None:
        async with Harness(pipeline_of(Count(number))) as harness:
            await harness.inject(ITEMS, *items)
            await harness.advance(ITEMS, at(600))
            for key in "abc":
                mine = [item.number for item in items if item.key == key]
                whole = len(mine) // number * number
                found = [pane for pane in harness.produced(LISTS) if pane.key == key]
                assert [n for pane in found for n in pane.value] == mine[:whole]
                assert [pane.number for pane in found] == list(range(len(found)))
                assert all(len(pane.value) == number for pane in found)

    asyncio.run(go())


async def test_a_global_window_tells_early_and_at_the_end_of_time() -> None:
    pipeline = pipeline_of(Global(), count, SUMS, early=Early(records=2))
    pipeline.add(Check(), SUMS.by(lambda pane: pane.key))
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", n, n * 1000) for n in range(3)])
        await harness.advance(ITEMS, at(10**9))
        assert [(p.value, p.early) for p in harness.produced(SUMS)] == [(2, True)]
        await harness.advance(ITEMS, instant(MAX_TIME))
        assert [(p.value, p.early) for p in harness.produced(SUMS)] == [(2, True), (3, False)]
        assert harness.state("make_sums", "a") == {}


# -- the ends of time -------------------------------------------------------------------------

DAY = timedelta(days=1)
LONG: list[Any] = [
    Tumbling(7 * DAY),
    Tumbling(7 * DAY, zone="Europe/Berlin"),
    Tumbling(DAY, zone="America/New_York"),
    Tumbling(DAY, zone="Pacific/Auckland"),
    Tumbling(timedelta.max),
    Months(5),
    Months(zone="Pacific/Auckland"),
    Months(10**6),
    Sliding(7 * DAY, DAY),
    Sliding(7 * DAY, DAY, zone="Europe/Berlin"),
    Session(30 * DAY),
    Session(timedelta.max),
]


@pytest.mark.parametrize("windows", LONG, ids=repr)
@pytest.mark.parametrize("late", ["drop", "amend"])
async def test_windows_that_reach_beyond_the_calendar_are_told(windows: Any, late: Any) -> None:
    """At both ends of it. Their bounds stop there; all of them are over when the input has
    ended."""
    ends = {0: MIN_TIME, 1: MIN_TIME + 1, 2: LAST_INSTANT - 20 * 86_400_000_000, 3: LAST_INSTANT}
    pipeline = Pipeline("kinds", settings=QUICK)
    values = [Item("ab"[number // 2], number) for number in ends]
    pipeline.inject(
        ITEMS, script(ITEMS, values), timestamp=lambda item: instant(ends[item.number]),
        lateness=timedelta.max,
    )  # fmt: skip
    options = {"late": late, "allowed_lateness": 40 * DAY} if late == "amend" else {}
    pipeline.add(Windowed(windows, numbers, to=LISTS, **options), ITEMS.by(key_of))
    pipeline.add(Check2(), LISTS.by(lambda pane: pane.key))
    pipeline.sink(LISTS, Table("told", Told), row=told_of)
    world = World(pipeline)
    await world.run(close_at_end=True)
    times = windows.number if isinstance(windows, Sliding) else 1
    told = [(tuple(numbers), start < end) for start, end, numbers in world.rows("told")]
    assert all(right for _, right in told)
    assert Counter(number for numbers, _ in told for number in numbers) == dict.fromkeys(
        ends, times
    )
    assert len(world.commits) < 100
    assert world.store.states() == []
    assert world.store.timers() == []


class Told(msgspec.Struct):
    """A pane by its bounds."""

    start: datetime
    end: datetime
    numbers: list[int]


def told_of(pane: Pane[list[int]]) -> Told:
    return Told(pane.start, pane.end, pane.value)


# -- local time -----------------------------------------------------------------------------


class Summed(msgspec.Struct):
    """A pane of a day."""

    key: str
    start: datetime
    end: datetime
    value: int


def row_of(pane: Pane[int]) -> Summed:
    return Summed(str(pane.key), pane.start, pane.end, pane.value)


def check_local_days(zone: str, day: datetime, hours: Any, seconds: list[int]) -> None:
    """Five days around `day`: hours summed into local days equal days and a plain count."""
    hourly, direct, summed = (Stream(name, Pane[int]) for name in ("hours", "direct", "summed"))
    days = Tumbling(days=1, zone=zone)
    base = (day - at(0)) / SECOND
    values = [Item("ab"[n % 2], n, base + second) for n, second in enumerate(seconds)]
    pipeline = Pipeline("days", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of, lateness=timedelta(days=9))
    pipeline.add(Windowed(hours, count, to=hourly), ITEMS.by(key_of))
    pipeline.add(
        Windowed(days, total(lambda pane: pane.value), to=summed), hourly.by(lambda p: p.key)
    )
    pipeline.add(Windowed(days, count, to=direct), ITEMS.by(key_of))
    pipeline.sink(summed, Table("summed", Summed), row=row_of)
    pipeline.sink(direct, Table("direct", Summed), row=row_of)
    world = World(pipeline)
    asyncio.run(world.run(close_at_end=True))
    assert sorted(world.rows("summed"), key=str) == sorted(world.rows("direct"), key=str)
    there = ZoneInfo(zone)
    counts: dict[tuple[str, Any], int] = defaultdict(int)
    for value in values:
        counts[value.key, time_of(value).astimezone(there).date()] += 1
    assert {
        (key, start.astimezone(there).date()): value
        for key, start, _, value in world.rows("direct")
    } == counts


changes_of_clocks = st.sampled_from(
    [
        ("America/New_York", datetime(2024, 3, 10, tzinfo=UTC), Tumbling(hours=1)),
        ("America/New_York", datetime(2024, 11, 3, tzinfo=UTC), Tumbling(hours=1)),
        ("Europe/Berlin", datetime(2024, 10, 27, tzinfo=UTC), Tumbling(hours=1)),
        (
            "Asia/Kolkata",
            datetime(2024, 3, 10, tzinfo=UTC),
            Tumbling(hours=1, zone="Asia/Kolkata"),
        ),
        (
            "Australia/Lord_Howe",
            datetime(2024, 4, 7, tzinfo=UTC),
            Tumbling(hours=1, zone="Australia/Lord_Howe"),
        ),
    ]
)
minutes_of_days = st.lists(st.integers(-48 * 60, 72 * 60), min_size=1, max_size=60)


@examples(25)
@given(changes_of_clocks, minutes_of_days)
def test_hourly_panes_summed_into_local_days_equal_direct_days(
    where: tuple[str, datetime, Tumbling], minutes: list[int]
) -> None:
    check_local_days(*where, [60 * minute for minute in minutes])


@pytest.mark.soak
@examples(5_000)
@given(changes_of_clocks, minutes_of_days)
def test_hourly_panes_summed_into_local_days_equal_direct_days_long(
    where: tuple[str, datetime, Tumbling], minutes: list[int]
) -> None:
    check_local_days(*where, [60 * minute for minute in minutes])


async def test_months_and_windows_of_your_own() -> None:
    class Halves:
        """The first and the second half of each minute: a user's own windows."""

        def spans(self, micros: int) -> list[Span]:
            start = micros - micros % 30_000_000
            return [self.at(start)]

        def at(self, start: int) -> Span:
            return Span(start, start + 30_000_000)

    async with Harness(pipeline_of(Halves())) as harness:
        await play(harness, [Item("a", 1, 29), Item("a", 2, 30), 90.0])
        assert harness.produced(LISTS) == [lists(0, 30, [1]), lists(30, 60, [2])]
    async with Harness(pipeline_of(Months())) as harness:
        await play(harness, [Item("a", 1, 0), Item("a", 2, 31 * 86_400), 90 * 86_400.0])
        assert harness.produced(LISTS) == [
            lists(0, 31 * 86_400, [1]),
            lists(31 * 86_400, 60 * 86_400, [2]),
        ]


# -- what a record costs ---------------------------------------------------------------------


async def bytes_of_a_record(entries: int) -> float:
    """Bytes of state and timers that a record writes, with so many slices under one key."""
    source = script(ITEMS, [Item("a", 0, second) for second in range(entries)])
    pipeline = Pipeline("kinds", settings=replace(QUICK, chunk_records=2000, bundle_records=2000))
    pipeline.inject(ITEMS, source, timestamp=time_of, lateness=timedelta(seconds=FAR))
    windowed = Windowed(Sliding(100_000 * SECOND, SECOND), count, to=SUMS)
    pipeline.add(windowed, ITEMS.by(key_of))
    world = World(pipeline)
    engine = await world.start()

    async def processed(number: int) -> None:
        await world.until(lambda: world.counter("make_sums", "processed") >= number)

    for number in range(1000, entries, 1000):
        await processed(number)
    await processed(entries)
    await world.turns()
    assert len(world.state("make_sums", "a")) == entries
    taken = len(world.commits)
    for number in range(20):
        source.append(inject(ITEMS, Item("a", number, (number * 7919) % entries)))
        read_on(engine)
        await processed(entries + number + 1)
        await world.turns()
    await world.close()
    written = sum(
        sum(len(part) for part in row if isinstance(part, (bytes, str)))
        for commit in world.commits[taken:]
        for row in [*chain.from_iterable(map(changes_of, commit.states)), *commit.timers]
    )
    assert len(world.commits) >= taken + 20, "each record has a commit of its own"
    return written / 20


async def test_a_record_writes_no_more_into_twenty_thousand_slices_than_into_ten() -> None:
    few, many_ = await bytes_of_a_record(10), await bytes_of_a_record(20_000)
    assert 0 < many_ <= 2 * few, (few, many_)


@pytest.mark.parametrize("late", ["drop", "amend"])
async def test_two_rows_of_slices_that_became_one_close_once(late: Any) -> None:
    """Each had its timer; the watermark passes both at once."""
    pipeline = pipeline_of(Sliding(40 * SECOND, 10 * SECOND), late=late)
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", n, 10 * n) for n in (0, 6, 1, 2, 3, 4, 5)])
        await play(harness, [500.0])
        assert [pane.value for pane in harness.produced(LISTS)] == [
            list(range(max(0, n - 3), min(n, 6) + 1)) for n in range(10)
        ]
        assert harness.store.timers() == []


@pytest.mark.parametrize("base", [0, -(10**10)])
@pytest.mark.parametrize("slide", [1, 25])
async def test_slices_are_merged_in_order_of_time_however_many_there_are(
    slide: int, base: int
) -> None:
    """A hundred slices are looked for in another way than four; before 1970 as after."""
    in_order = replace(numbers, result=lambda kept: kept)
    windows = Sliding(100 * SECOND, slide * SECOND)
    items = [Item("a", n, base + s) for n, s in enumerate((50, 10, 120, 99))]
    async with Harness(pipeline_of(windows, in_order)) as harness:
        await play(harness, [*items, base + 500.0])
        expected = {
            ("a", start, start + 100): [
                item.number
                for item in sorted(items, key=lambda item: item.second)
                if start <= item.second < start + 100
            ]
            for start in range(base - 100, base + 150, slide)
        }
        assert final_panes(harness.produced(LISTS)) == {k: v for k, v in expected.items() if v}
        assert harness.state("make_lists", "a") == {}


async def test_a_fold_that_cannot_merge_says_what_it_costs() -> None:
    windows = Sliding(60 * SECOND, 10 * SECOND)
    with pytest.warns(UserWarning, match="all 6 windows.*give it merge="):
        pipeline = pipeline_of(windows, alone)
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 0)])
        assert len(harness.state("make_lists", "a")) == 6
    async with Harness(pipeline_of(windows)) as harness:
        await play(harness, [Item("a", 1, 0), Item("a", 2, 5)])
        assert len(harness.state("make_lists", "a")) == 1
        assert len(harness.store.timers()) == 1


# -- through every mode ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "options", "expected"),
    [
        (
            Sliding(20 * SECOND, 10 * SECOND),
            {},
            [(-10, 10, [1, 2]), (0, 20, [1, 2, 3]), (10, 30, [3]), (30, 50, [4]), (40, 60, [4])],
        ),
        (Session(10 * SECOND), {}, [(0, 22, [1, 2, 3]), (40, 50, [4])]),
        (Count(2), {}, None),
        (Tumbling(20 * SECOND), {"early": Early(records=3)}, [(0, 20, [1, 2, 3]), (40, 60, [4])]),
    ],
    ids=["sliding", "session", "count", "early"],
)
async def test_each_kind_holds_through_every_mode_of_the_kit(
    windows: Any, options: dict[str, Any], expected: list[tuple[float, float, list[int]]] | None
) -> None:
    values = [Item("a", 1, 0), Item("a", 3, 12), Item("a", 2, 5), Item("a", 4, 40)]
    micro = timedelta(microseconds=1)
    if expected is None:
        panes = [
            Pane("a", at(0), at(12) + micro, [1, 3], 0, final=True),
            Pane("a", at(5), at(40) + micro, [2, 4], 1, final=True),
        ]
    else:
        panes = [lists(*pane) for pane in expected]
    if options:
        panes[0] = msgspec.structs.replace(panes[0], number=1)
        panes.append(lists(0, 20, [1, 2, 3], early=True, final=False))
    steps: list[ScriptStep[Any]] = [inject(ITEMS, value) for value in values]
    await assert_exactly_once(
        pipeline_of(windows, **options), [*steps, advance(ITEMS, at(600))], {LISTS: panes}
    )


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: pipeline_of(Session(SECOND), alone),
            "'lists'.*sessions need a fold that can merge",
        ),
        (lambda: pipeline_of(Global()), "a global window.*early=Early"),
        (lambda: pipeline_of(Count(3), late="amend"), "count windows.*no record is late"),
        (lambda: pipeline_of(Count(3), late=LATE), "count windows.*no record is late"),
        (lambda: pipeline_of(Tumbling(SECOND), late="amen"), "'lists'.*not 'amen'"),
        (lambda: pipeline_of(Tumbling(SECOND), late=None), "'lists'.*not None"),
        (
            lambda: pipeline_of(SECOND),
            "'lists': windows must be such as Tumbling.*not datetime.timedelta",
        ),
        (lambda: pipeline_of(Session), "'lists': windows must be such as Tumbling.*not <class"),
        (lambda: pipeline_of(Tumbling), "'lists': windows must be such as Tumbling.*not <class"),
        (
            lambda: pipeline_of(Tumbling(SECOND), len),
            "'lists': the fold must be a Fold.*not <built-in",
        ),
        (lambda: pipeline_of(Tumbling(SECOND), total), "'lists': the fold must be a Fold.*total"),
        (lambda: pipeline_of(Tumbling(SECOND), early=5), "'lists': early must be an Early.*not 5"),
        (
            lambda: pipeline_of(Tumbling(SECOND), late="amend", allowed_lateness=5),
            "'lists': allowed_lateness must be a timedelta.*not 5",
        ),
        (
            lambda: pipeline_of(Tumbling(SECOND), late="amend", allowed_lateness=-SECOND),
            "'lists': allowed_lateness must be a timedelta of zero or more.*not -0:00:01",
        ),
        (
            lambda: pipeline_of(Tumbling(SECOND), allowed_lateness=SECOND),
            "'lists': allowed_lateness.*late records are dropped; give it together with late=",
        ),
        (
            lambda: pipeline_of(Tumbling(SECOND), late=Stream("words", str)),
            "late records of stream 'items' are of type Item, but stream 'words'.* of type str",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    make: Callable[[], Pipeline], reason: str
) -> None:
    with pytest.raises(GraphError, match=reason):
        make()


def test_late_records_of_several_streams_go_to_a_stream_of_both_types() -> None:
    others = Stream("others", int)
    both: Stream[Any] = Stream("both", Item | int)  # type: ignore[arg-type]
    Pipeline("p").add(
        Windowed(Tumbling(SECOND), count, to=SUMS, late=both),
        ITEMS.by(key_of),
        others.by(lambda number: str(number)),
    )
    with pytest.raises(GraphError, match="late records of stream 'others' are of type int"):
        Pipeline("p").add(
            Windowed(Tumbling(SECOND), count, to=SUMS, late=LATE),
            ITEMS.by(key_of),
            others.by(lambda number: str(number)),
        )


async def test_within_what_is_allowed_amended_then_to_the_stream() -> None:
    pipeline = pipeline_of(Tumbling(minutes=1), late=LATE, allowed_lateness=30 * SECOND)
    async with Harness(pipeline) as harness:
        await play(harness, [Item("a", 1, 5), 90.0, Item("a", 2, 6), 90.000001, Item("a", 3, 7)])
        assert [pane.value for pane in harness.produced(LISTS)] == [[1], [1, 2]]
        assert harness.produced(LATE) == [Item("a", 3, 7)]
        counters = harness.counters("make_lists")
        assert (counters["late_amended"], counters["late_sent"]) == (1, 1)
        assert harness.state("make_lists", "a") == {}
        assert harness.store.timers() == []


async def test_collect_keeps_the_order_of_arrival() -> None:
    items = Stream("collected", Pane[list[Item]])
    async with Harness(pipeline_of(Tumbling(minutes=1), collect(Item), items)) as harness:
        await play(harness, [Item("a", 2, 5), Item("a", 1, 3), 60.0])
        (pane,) = harness.produced(items)
        assert [item.number for item in pane.value] == [2, 1]
