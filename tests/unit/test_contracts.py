"""`check_source` and `check_sink`: good ones pass, and each broken rule is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import Bundles, JsonLines
from millwheel.fetching import FetchingReader
from millwheel.sources import Row
from millwheel.testing import check_sink, check_source


class Count(msgspec.Struct):
    """A value."""

    n: int


class Numbers:
    """A source of numbers, every third of which is left out; `broken` breaks one of its rules."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.bounded = broken == "ends"

    def describe(self) -> dict[str, Any]:
        return {"numbers": object() if self.broken == "description" else "all"}

    def partitions(self) -> list[Any]:
        names = ["one", "one" if self.broken == "identity" else "two"]
        if self.broken == "order" and id(self) % 2:
            names.reverse()
        return [NumbersPartition(name, self.broken) for name in names]


class NumbersPartition:
    def __init__(self, identity: str, broken: str) -> None:
        self.identity = identity
        self.broken = broken

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> NumbersReader:
        first = 0 if position is None else position["next"]
        if self.broken == "position" and first:
            first += 1
        return NumbersReader(first, self.broken)


class NumbersReader(FetchingReader):
    def __init__(self, first: int, broken: str) -> None:
        super().__init__()
        self.first = first
        self.broken = broken

    async def fetch(self) -> Sequence[Row]:
        await asyncio.sleep(0)
        first, self.first = self.first, self.first + 10
        if self.broken == "silent" and first >= 20:
            await asyncio.Event().wait()
        rows = [Row(n, n, Count(n)) for n in range(first, first + 10) if n % 3]
        if self.broken == "numbers":
            rows.reverse()
        if self.broken == "value":
            rows[0].value = "one"
        return rows

    @property
    def caught_up(self) -> bool:
        return self.broken == "caught up" or super().caught_up

    async def read(self, limit: int) -> Sequence[Row]:
        return await super().read(limit + (self.broken == "limit"))

    def position(self, acknowledged: int) -> dict[str, Any]:
        if self.broken == "ahead":
            return {"next": self.first}
        return {"next": acknowledged if self.broken != "json" else object()}


async def test_good_sources_pass(tmp_path: Path) -> None:
    await check_source(Numbers, Count)
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(b'{"n":%d}\n' % n for n in range(12)))
    await check_source(lambda: JsonLines(path), Count)
    await check_source(lambda: JsonLines(path, follow=True), Count)
    await check_source(lambda: JsonLines(str(tmp_path / "*.jsonl"), follow=True), Count)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ("description", "describe"),
        ("identity", "identities differ"),
        ("numbers", "numbers rise"),
        ("value", "a value equals its decoded JSON|Expected"),
        ("limit", "gives at most"),
        ("caught up", "caught_up is false while rows wait"),
        ("silent", "caught_up is true once all rows are read"),
        ("position", "reads the rows from that number on"),
        ("ahead", "reads the rows from that number on"),
        ("json", "consists of JSON values"),
    ],
)
async def test_a_broken_rule_is_named(
    broken: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.testing.contracts.WAIT_SECONDS", 1.0)
    with pytest.raises((AssertionError, msgspec.MsgspecError), match=rule):
        await check_source(lambda: Numbers(broken), Count)


class Book:
    """A sink in memory that remembers the last number of each scope; `broken` breaks a rule."""

    bundles = Bundles()
    key = None

    def __init__(self, shelf: dict[str, Any], broken: str = "") -> None:
        self.shelf = shelf
        self.broken = broken
        self.seen: dict[int, int] = {}

    def describe(self) -> dict[str, Any]:
        return {"book": True}

    async def deliver(self, records: Sequence[Any], ctx: Any) -> None:
        scope = 0 if self.broken == "one scope" else ctx.bundle_id.scope
        done = self.seen if self.broken == "in memory" else self.shelf["done"]
        number = ctx.bundle_id.number
        last = done.get(scope, 0)
        if self.broken != "writes again" and last >= number:
            return
        if self.broken == "no jumps" and number != last + 1:
            return
        self.shelf["written"] += [record.value for record in records]
        done[scope] = number

    async def close(self) -> None: ...


def book(broken: str) -> tuple[Callable[[], Book], Callable[[], Sequence[Any]]]:
    shelf: dict[str, Any] = {"written": [], "done": {}}
    return lambda: Book(shelf, broken), lambda: list(shelf["written"])


async def test_a_good_sink_passes() -> None:
    make, read = book("")
    await check_sink(make, ["a", "b", "c", "d", "e"], read)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ("writes again", "a bundle that comes again is not written again"),
        ("in memory", "nor by another worker"),
        ("no jumps", "numbers may jump"),
        ("one scope", "each scope has numbers of its own"),
    ],
)
async def test_a_broken_sink_is_named(broken: str, rule: str) -> None:
    make, read = book(broken)
    with pytest.raises(AssertionError, match=rule):
        await check_sink(make, ["a", "b", "c", "d", "e"], read)
