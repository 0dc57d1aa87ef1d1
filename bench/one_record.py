"""``python -m bench.one_record``: the way of one record alone, as calls of the product's functions.

A record passes two strong stages on the in-memory store, alone, from its injection until its
effects are durable and its promises published. Counted are calls of Python functions in the
product's files, and crossings: calls from a file to another one. `millwheel.testing` is left out.
A test (``tests/project/test_one_record.py``) sets limits.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import millwheel
from bench.workload import BALANCES, PAYMENTS, START, Balance, Follow, KeepBalance, Payment
from millwheel import Pipeline, Stream
from millwheel.core.clock import VirtualClock
from millwheel.runtime.engine import Engine
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.store.memory.store import MemoryStore
from millwheel.testing import inject
from millwheel.testing.script import Script

ROOT = Path(millwheel.__file__).parent
ROOTS = [(ROOT / name).resolve() for name in ("", "store", "timers", "computations")]


@dataclass
class Way:
    """The way of a record."""

    calls: Counter[str] = field(default_factory=Counter)
    """Calls of functions, by file."""
    crossings: int = 0
    functions: set[tuple[str, str]] = field(default_factory=set)

    def rooms(self) -> list[tuple[str, int, int]]:
        """The rooms with their numbers of files and calls, the most calls first."""
        files: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for name, count in self.calls.items():
            room = name.rpartition("/")[0] or "millwheel"
            files[room] += 1
            calls[room] += count
        return [(room, files[room], count) for room, count in calls.most_common()]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Count within the block."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (name := _file(frame)) is None:
            return
        self.calls[name] += 1
        self.functions.add((name, frame.f_code.co_qualname))
        caller = frame.f_back
        while caller is not None and (from_ := _file(caller)) is None:
            caller = caller.f_back
        if caller is not None and from_ != name:
            self.crossings += 1


_names: dict[str, str | None] = {}


def _file(frame: FrameType) -> str | None:
    """The product's file of a frame, or None."""
    path = frame.f_code.co_filename
    if path not in _names:
        full = Path(path).resolve()
        root = next((root for root in ROOTS if full.is_relative_to(root)), None)
        name = None if root is None else full.relative_to(root.parent).as_posix()
        _names[path] = None if name is None or "/testing/" in name else name
    return _names[path]


async def follow() -> Way:
    """The way of a record whose key has been seen before."""
    script = Script("payments")
    pipeline = Pipeline("one_record")
    pipeline.inject(PAYMENTS, script, timestamp=lambda payment: payment.at)
    pipeline.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    pipeline.add(Follow(Stream("kept", Balance)), BALANCES.by(lambda balance: balance.account))
    clock = VirtualClock()
    store = MemoryStore("one_record", clock=clock)
    engine = Engine(pipeline, store, clock=clock, process=FREE_OF_CHARGE)
    way = Way()
    await engine.start()
    for _ in range(3):
        script.append(inject(PAYMENTS, Payment(START, 1, 10)))
        await engine.run()
    script.append(inject(PAYMENTS, Payment(START, 1, 10)))
    with way.followed():
        await engine.run()
    await engine.stop()
    await store.close()
    return way


def main() -> None:
    """Follow a record, and print its way."""
    way = asyncio.run(follow())
    print(
        f"one record alone, two stages: {len(way.calls)} files, {len(way.functions)} functions, "
        f"{way.calls.total():,} calls, {way.crossings:,} crossings"
    )
    for room, files, calls in way.rooms():
        print(f"{calls:6,} calls in {files:2} files of {room}")


if __name__ == "__main__":
    main()
