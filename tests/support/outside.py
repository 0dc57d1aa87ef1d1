"""A database outside of the store, and a pipeline that writes to it in numbered bundles."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from millwheel import Bundles, Computation, Context, Key, Pipeline, Record, Settings, Stream, Table
from millwheel.core.model import Delivery
from millwheel.store.port.commit import Commit, IntervalCommit
from tests.support.clusters import number_of
from tests.support.pipelines import QUICK, Tally, script
from tests.support.values import ITEMS, TALLY, Counted, Item, key_of, time_of

DONE = Stream("done", Counted)

PASSED = Stream("passed", Counted)

Bundle = tuple[int, int]
"""Scope and number."""


class Outside:
    """A database that is not the store: it keeps the last number of each scope with the rows, in
    one transaction, and sees to it that the engine keeps its word."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        """Key and number, in the order in which they were written."""
        self.sent: dict[tuple[Key, int], list[int]] = defaultdict(list)
        """Per key and log the numbers of its records, in the order in which they were written."""
        self.last: dict[int, int] = {}
        self.given: dict[Bundle, list[tuple[Key, Any]]] = {}
        """What came under each number, each time."""
        self.calls: list[Bundle] = []
        self.commits: list[Commit] | None = None
        """What is durable; None: nobody watches."""

    def begin(self, bundle: Bundle, records: Sequence[Record[Any]]) -> None:
        """A call comes in."""
        scope, number = bundle
        content = [(record.key, record.value) for record in records]
        known = self.given.setdefault(bundle, content)
        assert known == content, f"bundle {bundle} has other records now, or in another order"
        if self.commits is not None:
            open_ = open_bundles(self.commits, scope).get(number)
            assert open_ is not None, f"bundle {bundle} is given before its number is durable"
            assert len(open_) == len(content)
        self.calls.append(bundle)

    def write(self, bundle: Bundle, records: Sequence[Record[Any]]) -> None:
        """One transaction."""
        scope, number = bundle
        last = self.last.get(scope)
        if last is not None and number <= last:
            return
        if last is not None:
            assert number == last + 1, f"after {last} of scope {scope} came {number}"
        self.last[scope] = number
        self.rows += [(record.value.key, record.value.number) for record in records]
        for record in records:
            assert isinstance(record, Delivery)
            self.sent[record.key, record.log].append(record.seq)

    def check(self, values: list[Item]) -> None:
        """Everything is there once, and of each key in its sender's order (I14)."""
        assert Counter(self.rows) == Counter((v.key, v.number) for v in values)
        for which, numbers in self.sent.items():
            assert numbers == sorted(numbers), f"{which}: out of order"


def open_bundles(commits: Sequence[Commit], scope: int) -> dict[int, list[str]]:
    """Per number of a scope, the ids that durable commits say are in it."""
    found: dict[int, list[str]] = {}
    for link in links(commits, scope):
        bundle = msgspec.json.decode(link.position or b"{}").get("bundle", {})
        if "open" in bundle:
            assert found.setdefault(bundle["number"], bundle["open"]) == bundle["open"]
    return found


def links(commits: Sequence[Commit], scope: int) -> list[IntervalCommit]:
    return [link for c in commits for link in c.intervals if link.interval_id == scope]


Moment = Callable[[Bundle], Awaitable[None] | None]


class ToOutside(Computation[Any, None]):
    """Writes items, or what was counted of them, outside; tells of each that it did."""

    writes: tuple[Stream[Any], ...] = (DONE,)

    def __init__(self, outside: Outside, bundles: Bundles, pause: int = 0) -> None:
        self.bundles = bundles
        self.outside = outside
        self.moment: Moment | None = None
        """Something may happen here: before the transaction outside, and after it."""
        self._pause = pause

    async def process_bundle(self, records: Sequence[Record[Any]], ctx: Context[None]) -> None:
        bundle = (ctx.bundle_id.scope, ctx.bundle_id.number)
        self.outside.begin(bundle, records)
        await self._wait(bundle)
        self.outside.write(bundle, records)
        await self._wait(bundle)
        for record in records:
            ctx.produce(DONE, Counted(record.value.key, record.value.number, bundle[1]))
        ctx.count("bundles")

    async def _wait(self, bundle: Bundle) -> None:
        for _ in range(self._pause):
            await asyncio.sleep(0)
        if self.moment is not None and (answer := self.moment(bundle)) is not None:
            await answer


THREE = Bundles(records=3, seconds=0.2)

FEW = replace(QUICK, chunk_records=4, bundle_records=6, max_unacked_records=9)


def outward(
    outside: Outside,
    values: list[Item] | None = None,
    bundles: Bundles = THREE,
    limits: Settings = FEW,
    sources: int = 1,
    computation: Computation[Any, None] | None = None,
    *,
    weakly: bool = False,
    **options: Any,
) -> Pipeline:
    """Items are counted by key, and go outside by their number, so to any interval; or `weakly`, by
    way of somebody who passes on what nobody has stored."""
    made = Pipeline("outward", settings=limits)
    for number in range(sources):
        made.inject(
            ITEMS,
            script(ITEMS, (values or [])[number::sources], f"part {number}"),
            timestamp=time_of,
            name=f"source_{number}",
        )
    made.add(Tally(), ITEMS.by(key_of))
    tally = TALLY
    if weakly:
        made.add(Pass(PASSED), TALLY.by(number_of), productions="weak")
        tally = PASSED
    made.add(
        computation or ToOutside(outside, bundles), tally.by(by_key), name="to_outside", **options
    )
    made.sink(DONE, Table("out", Counted, numbered=True))
    return made


class Pass(Computation[Any, None]):
    """Passes on to a stream of the test's."""

    def __init__(self, to: Stream[Any]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


def by_key(counted: Counted) -> str:
    return counted.key
