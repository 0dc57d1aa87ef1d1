"""What each combination of switches promises, and that a checker can tell them apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream
from millwheel.core.chunk import Chunk, Outbox
from millwheel.core.model import Delivery
from millwheel.graph.node import DeliveryMode, Productions
from millwheel.runtime.lane import commit_builder as commits
from millwheel.runtime.lane.commit_builder import build_commit
from millwheel.runtime.lane.open_commit import OpenCommit
from millwheel.runtime.lane.sorting import Sorter
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.store.port.commit import Commit
from millwheel.testing import (
    advance,
    assert_at_least_once,
    assert_at_most_once,
    assert_exactly_once,
    inject,
)
from tests.support.pipelines import script
from tests.support.values import ITEMS, Item, at, key_of, time_of

HALVES = Stream("halves", Item)
DONE = Stream("done", Item)
INPUTS = [
    *(inject(ITEMS, Item("abc"[n % 3], n, float(n))) for n in range(10)),
    advance(ITEMS, at(20)),
]


class Halve(Computation[Item, None]):
    """Two for one."""

    writes = (HALVES,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        item = record.value
        for half in (0, 1):
            ctx.produce(HALVES, Item(f"key {half}", 2 * item.number + half, item.second))


class Finish(Computation[Item, None]):
    """Passes on."""

    writes = (DONE,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(DONE, record.value)


EXPECTED = {
    DONE: [Item(f"key {half}", 2 * n + half, float(n)) for n in range(10) for half in (0, 1)]
}

Check = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Cell:
    """How both computations are added, and what that promises."""

    productions: Productions
    exactly_once: bool
    delivery: DeliveryMode
    holds: Check
    fails: tuple[Check, ...]
    """What it does not promise, and a crash shows."""


CELLS = {
    "strong, exactly once": Cell("strong", True, "acknowledged", assert_exactly_once, ()),
    "weak, exactly once": Cell("weak", True, "acknowledged", assert_exactly_once, ()),
    "strong, at least once": Cell(
        "strong",
        False,
        "acknowledged",
        assert_at_least_once,
        (assert_exactly_once, assert_at_most_once),
    ),
    "weak, at least once": Cell(
        "weak",
        False,
        "acknowledged",
        assert_at_least_once,
        (assert_exactly_once, assert_at_most_once),
    ),
    "strong, at most once": Cell(
        "strong",
        True,
        "at_most_once",
        assert_at_most_once,
        (assert_exactly_once, assert_at_least_once),
    ),
    "weak, at most once": Cell(
        "weak",
        True,
        "at_most_once",
        assert_at_most_once,
        (assert_exactly_once, assert_at_least_once),
    ),
}


def pipeline(cell: Cell) -> Pipeline:
    made = Pipeline("promises")
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    switches: dict[str, Any] = {
        "productions": cell.productions,
        "exactly_once": cell.exactly_once,
        "delivery": cell.delivery,
    }
    made.add(Halve(), ITEMS.by(key_of), **switches)
    # The last hop writes the table, whose rows without a key tell everything that came: it notes
    # what it has seen, or not, as its own switch says.
    switches["productions"] = "strong"
    made.add(Finish(), HALVES.by(lambda item: item.number), **switches)
    return made


@pytest.mark.parametrize("name", CELLS)
async def test_each_cell_keeps_what_it_promises(name: str) -> None:
    cell = CELLS[name]
    await cell.holds(pipeline(cell), INPUTS, EXPECTED, max_crashes=15)


@pytest.mark.parametrize(
    ("name", "check"), [(name, check) for name, cell in CELLS.items() for check in cell.fails]
)
async def test_each_cell_promises_no_more_than_it_says(name: str, check: Check) -> None:
    """The same runs, judged by a promise that was not made."""
    with pytest.raises(AssertionError, match=r"crash|takeover"):
        await check(pipeline(CELLS[name]), INPUTS, EXPECTED, max_crashes=15)


# -- builds that are broken on purpose ---------------------------------------------------------


def forget_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are not noted as seen."""

    def unseen(buckets: Buckets, open_commit: OpenCommit) -> Commit:
        commit = build_commit(buckets, open_commit)
        commit.seen.clear()
        return commit

    monkeypatch.setattr("millwheel.runtime.lane.committer.build_commit", unseen)


def acknowledge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is acknowledged when it was received, and not when what it did is durable."""
    deduplicate = Sorter._deduplicate

    async def early(self: Sorter, interval: Any, deliveries: Any, on_wait: Any) -> Any:
        fresh = await deduplicate(self, interval, deliveries, on_wait)
        self._exchange.acknowledge(item for item in fresh if isinstance(item, Delivery))
        return fresh

    sort_chunk = Sorter.sort_chunk

    async def chunk_early(self: Sorter, interval: Any, chunk: Chunk, on_wait: Any) -> Any:
        groups = await sort_chunk(self, interval, chunk, on_wait)
        if groups is not None:
            self._exchange.acknowledge((), [chunk])
        return groups

    monkeypatch.setattr(Sorter, "_deduplicate", early)
    monkeypatch.setattr(Sorter, "sort_chunk", chunk_early)


def send_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is produced is sent once more, as something new."""
    number = commits.number

    def twice(interval: Any, outbox: Outbox, stamp: int) -> list[Chunk]:
        for chunks in outbox.of.values():
            chunks += [chunk.part(range(len(chunk))) for chunk in chunks]
        return number(interval, outbox, stamp)

    monkeypatch.setattr(commits, "number", twice)


def forget_unacknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not acknowledged is not sent again after a crash."""

    async def nothing(self: Any, interval: Any, log: Any) -> None: ...

    monkeypatch.setattr("millwheel.runtime.ownership.restoring.Restoring._send_again", nothing)


@pytest.mark.parametrize(
    ("name", "break_it"),
    [
        ("strong, exactly once", forget_seen),
        ("weak, exactly once", forget_seen),
        ("strong, exactly once", acknowledge_early),
        ("strong, at least once", acknowledge_early),
        ("weak, at least once", acknowledge_early),
        ("strong, exactly once", send_twice),
        ("strong, at most once", send_twice),
        ("strong, exactly once", forget_unacknowledged),
        ("strong, at least once", forget_unacknowledged),
    ],
)
async def test_the_checker_finds_broken_builds(
    name: str, break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    cell = CELLS[name]
    with pytest.raises(AssertionError):
        await cell.holds(pipeline(cell), INPUTS, EXPECTED, max_crashes=15)
