"""What a source of the user's raises is told as the source's fault, and not as a bug of
millwheel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from millwheel import Pipeline
from millwheel.errors import InputError, MillwheelError, UserCodeError
from millwheel.sources import Lag, Row
from tests.support.pipelines import QUICK, Quiet
from tests.support.values import ITEMS, Item, key_of, time_of
from tests.support.worlds import World


def leave() -> None:
    sys.exit(3)


def fail() -> None:
    raise ValueError("boom")


def refuse() -> None:
    raise InputError("the table is not there: make it")


class Broken:
    """One row, without an end; one of its methods fails."""

    identity = "broken"
    bounded = False
    ended = False

    def __init__(self, method: str, how: Callable[[], None]) -> None:
        self._method, self._how = method, how
        self._has_read = False

    def _call(self, method: str) -> None:
        if method == self._method:
            self._how()

    def describe(self) -> dict[str, Any]:
        return {}

    def partitions(self) -> list[Any]:
        return [self]

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> Any:
        self._call("open")
        return self

    async def read(self, limit: int) -> list[Row]:
        self._call("read")
        rows = [] if self._has_read else [Row(0, 0, Item("a", 1))]
        self._has_read = True
        return rows

    async def wait(self) -> None:
        self._call("wait")
        await asyncio.Event().wait()

    def position(self, acknowledged: int) -> dict[str, Any]:
        self._call("position")
        return {}

    @property
    def caught_up(self) -> bool:
        self._call("caught_up")
        return True

    def progress(self) -> None:
        self._call("progress")

    def lag(self) -> Lag:
        self._call("lag")
        return Lag()

    def close(self) -> None:
        pass


class Growing(Broken):
    """It has no partition, and looks for some."""

    def partitions(self) -> list[Any]:
        return []

    def partition(self, identity: str) -> Any:
        return self

    def discover(self, position: dict[str, Any] | None) -> Any:
        self._call("discover")
        return self

    async def look(self) -> list[str]:
        self._call("look")
        return ["a table"] if self._method == "first_position" else []

    def first_position(self, identity: str) -> dict[str, Any] | None:
        self._call("first_position")
        return None

    def position(self, acknowledged: int = 0) -> dict[str, Any]:
        return super().position(acknowledged)


async def failure_of(source: Any) -> MillwheelError:
    pipeline = Pipeline("blamed", settings=QUICK)
    pipeline.inject(ITEMS, source, timestamp=time_of)
    pipeline.add(Quiet(), ITEMS.by(key_of))
    world = World(pipeline)
    try:
        engine = await world.start()
        for _ in range(50):
            await world.turns(tick=0.1)
            engine.progress()
            for task in engine.exchange.source_tasks:
                task.lag()
    except MillwheelError as error:
        return error
    else:
        assert isinstance(engine.failure, MillwheelError)
        return engine.failure
    finally:
        await world.close()


METHODS = [
    *((Broken, method) for method in ("open", "read", "wait", "position", "progress", "lag")),
    (Broken, "caught_up"),
    *((Growing, method) for method in ("discover", "look", "first_position", "wait")),
]


@pytest.mark.parametrize(("how", "says"), [(leave, "SystemExit: 3"), (fail, "ValueError: boom")])
@pytest.mark.parametrize(("kind", "method"), METHODS)
async def test_an_error_of_a_source_is_the_sources_fault(
    kind: type[Broken], method: str, how: Callable[[], None], says: str
) -> None:
    error = await failure_of(kind(method, how))
    assert isinstance(error, UserCodeError)
    assert f"the source of 'items_injector' failed in {kind.__name__}.{method}: {says}\n" in str(
        error
    )
    assert isinstance(error.__cause__, (SystemExit, ValueError))


async def test_an_error_that_says_what_to_do_stays_as_it_is() -> None:
    error = await failure_of(Broken("read", refuse))
    assert isinstance(error, InputError)
    assert str(error) == "the table is not there: make it"


class Numbered(Broken):
    """It gives rows with these numbers, some at a time."""

    def __init__(self, *reads: list[int]) -> None:
        super().__init__("", fail)
        self._reads = list(reads)

    async def read(self, limit: int) -> list[Row]:
        return [Row(n, n, Item("a", n)) for n in self._reads.pop(0)] if self._reads else []


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        ([[-1, 0]], "gave row number -1: "),
        ([[0, 3, 2]], "gave row number 2 after row number 3: "),
        ([[0, 3], [3, 4]], "gave row number 3 after row number 3: "),
        ([[0, 3], [1, 4]], "gave row number 1 after row number 3: "),
    ],
)
async def test_numbers_that_do_not_rise_are_refused_and_no_row_is_taken_for_processed(
    reads: list[list[int]], says: str
) -> None:
    error = await failure_of(Numbered(*reads))
    assert isinstance(error, UserCodeError)
    assert f"the source of 'items_injector' {says}" in str(error)
