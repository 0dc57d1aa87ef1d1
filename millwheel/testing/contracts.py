"""Checks of a source and of a sink that a user has written, against the rules of the engine.

Each check raises `AssertionError` with the rule that is broken, and the values that show it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import msgspec

from millwheel.bundles import BundleId, Bundles
from millwheel.core.model import Record
from millwheel.errors import InputError
from millwheel.sinks import BundleSink
from millwheel.sources import GrowingSource, Lag, Partition, Reader, Row, Source

WAIT_SECONDS = 10.0

MORE_ROWS = 200
"""Further rows that are read to come to the end of a source, which may have none."""


async def check_source(make: Callable[[], Source], value_type: Any, *, rows: int = 10) -> None:
    r"""Check the contract of `millwheel.sources` on a source.

    ```python
    from pathlib import Path

    line = '{"customer": "ann", "item": "tea", "cents": 300}\n'
    Path("orders.jsonl").write_text(10 * line)
    await check_source(lambda: JsonLines("orders.jsonl"), Order, rows=10)
    ```

    The source may have more rows, and may grow. Rows that it has shown must not change.

    Args:
        make: makes the source; it is called several times, as by several workers.
        value_type: the type of the stream.
        rows: rows of each partition that are read, which it must have; at least 2.

    Raises:
        AssertionError: a rule is broken.
    """
    assert rows >= 2, "give rows=2 or more"
    first, second = make(), make()
    _hold(
        first.describe() == second.describe(),
        "describe() is the same for the same source",
        first.describe(),
        second.describe(),
    )
    _json("describe()", first.describe())
    _hold(isinstance(first.bounded, bool), "bounded is True or False", first.bounded)
    for identity, partition, again in await _partitions(first, second):
        await _check_partition(identity, first, partition, again, value_type, rows)


async def _partitions(first: Source, second: Source) -> list[tuple[str, Partition, Partition]]:
    if isinstance(first, GrowingSource) and isinstance(second, GrowingSource):
        _hold(not first.bounded, "a source that finds partitions has no end", first.bounded)
        discovery = first.discover(None)
        names = list(await asyncio.wait_for(discovery.look(), WAIT_SECONDS))
        position = discovery.position()
        _json("position() of the discovery", position)
        discovery.close()
        resumed = second.discover(position)
        known = await asyncio.wait_for(resumed.look(), WAIT_SECONDS)
        _hold(len(set(names)) == len(names), "identities differ", names)
        _hold(
            [name for name in known if name in names] in (names, []),
            "partitions keep their order when they are looked for again",
            names,
            list(known),
        )
        resumed.close()
        return [(name, first.partition(name), second.partition(name)) for name in names]
    one, other = first.partitions(), second.partitions()
    names = [partition.identity for partition in one]
    _hold(bool(names), "partitions() gives the partitions, unless the source is a GrowingSource")
    _hold(len(set(names)) == len(names), "identities differ", names)
    _hold(
        names == [partition.identity for partition in other],
        "partitions() gives the same ones in the same order each time",
        names,
    )
    return list(zip(names, one, other, strict=True))


async def _check_partition(
    what: str,
    source: Source,
    partition: Partition,
    again: Partition,
    value_type: Any,
    rows: int,
) -> None:
    with closing(await partition.open(value_type, None)) as reader:
        _hold(await _is_cut_short(reader), f"{what}: read(1) gives at most one row")
        _hold(not reader.caught_up, f"{what}: caught_up is false while rows wait", True)
    with closing(await partition.open(value_type, None)) as reader:
        await _check_reader(what, source, reader, again, value_type, rows)


async def _check_reader(
    what: str, source: Source, reader: Reader, again: Partition, value_type: Any, rows: int
) -> None:
    found = await _read(what, reader, rows)
    _check_rows(what, source, found, value_type)
    if not source.bounded:
        _hold(not reader.ended, f"{what}: only a bounded source ends")
    _hold(isinstance(reader.lag(), Lag), f"{what}: lag() is a Lag", reader.lag())
    share = reader.progress()
    _hold(share is None or 0 <= share <= 1, f"{what}: progress() is None, or from 0 to 1", share)
    await _check_wait(what, reader)
    await _check_caught_up(what, reader)
    for number in _bounds(found):
        position = reader.position(number)
        _json(f"{what}: position({number})", position)
        stored = msgspec.json.decode(msgspec.json.encode(position))
        expected = [row for row in found if row.offset >= number]
        with closing(await again.open(value_type, stored)) as resumed:
            rest = await _read(what, resumed, len(expected)) if expected else []
        _hold(
            [_shown(row) for row in rest[: len(expected)]] == [_shown(row) for row in expected],
            f"{what}: opened at position({number}), it reads the rows from that number on, under "
            "the same numbers, and no row before it",
            [_shown(row) for row in expected],
            [_shown(row) for row in rest],
        )


async def _is_cut_short(reader: Reader) -> bool:
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not (found := await reader.read(1)) and asyncio.get_running_loop().time() < deadline:
        await asyncio.wait_for(reader.wait(), WAIT_SECONDS)
    return len(found) <= 1


async def _read(what: str, reader: Reader, rows: int) -> list[Row]:
    found: list[Row] = []
    for limit in itertools.cycle((1, 2, 3)):
        some = list(await asyncio.wait_for(reader.read(limit), WAIT_SECONDS))
        _hold(len(some) <= limit, f"{what}: read({limit}) gives at most so many rows", len(some))
        found += some
        if len(found) >= rows:
            break
        if not some:
            _hold(not reader.ended, f"{what}: it has {rows} rows or more", len(found))
            try:
                await asyncio.wait_for(reader.wait(), WAIT_SECONDS)
            except TimeoutError:
                _hold(False, f"{what}: wait() returns while there are rows", len(found))
    return found


def _check_rows(what: str, source: Source, rows: Sequence[Row], value_type: Any) -> None:
    numbers = [row.offset for row in rows]
    _hold(
        all(low < high for low, high in itertools.pairwise([-1, *numbers])),
        f"{what}: numbers rise, from 0 on",
        numbers,
    )
    for row in rows:
        _hold(
            (row.error is not None) + (row.watermark is not None) <= 1
            and (row.error is None or isinstance(row.error, InputError)),
            f"{what}: a row has a value, or an InputError, or a watermark",
            row,
        )
        if row.error is None and row.watermark is None:
            text = msgspec.json.encode(row.value)
            _hold(
                msgspec.json.decode(text, type=value_type) == row.value,
                f"{what}: a value equals its decoded JSON",
                row.value,
                text,
            )
            if getattr(source, "timestamps", False):
                _hold(row.micros is not None, f"{what}: each row has a timestamp (micros)", row)


async def _check_wait(what: str, reader: Reader) -> None:
    if reader.ended:
        return
    waiting = asyncio.ensure_future(reader.wait())
    await asyncio.sleep(0.01)
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        pass
    except InputError as error:
        _hold(False, f"{what}: wait() may be cancelled at any time", error)


async def _check_caught_up(what: str, reader: Reader) -> None:
    """A reader that finds no further row says that it has read everything."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_SECONDS
    more = 0
    while not (reader.caught_up or reader.ended) and more < MORE_ROWS:
        if rows := await reader.read(100):
            more += len(rows)
            deadline = loop.time() + WAIT_SECONDS
            continue
        late = loop.time() > deadline
        _hold(not late, f"{what}: caught_up is true once all rows are read", False)
        await asyncio.sleep(0.01)


def _bounds(rows: Sequence[Row]) -> list[int]:
    """Numbers to resume from: each row, gaps, and behind the last one read."""
    numbers = [row.offset for row in rows]
    gaps = [low + 1 for low, high in itertools.pairwise(numbers) if high > low + 1]
    return sorted({*numbers, *gaps, numbers[-1] + 1})


def _shown(row: Row) -> tuple[int, Any, str]:
    return row.offset, row.value, "" if row.error is None else str(row.error)


async def check_sink(
    make: Callable[[], BundleSink],
    values: Sequence[Any],
    read: Callable[[], Sequence[Any] | Awaitable[Sequence[Any]]],
) -> None:
    """Check that a sink writes each bundle once, whatever comes again.

    ```python
    from collections.abc import Sequence
    from typing import Any

    from millwheel.context import BundleContext

    class Ledger:
        bundles, key = Bundles(records=100), None
        lines: list[str] = []  # in place of another database, which has both
        last: dict[int, int] = {}

        def describe(self) -> dict[str, str]:
            return {"ledger": "lines"}

        async def deliver(
            self, records: Sequence[Record[str]], ctx: BundleContext[Any, Any]
        ) -> None:
            if self.last.get(ctx.bundle_id.scope, 0) < ctx.bundle_id.number:
                self.lines.extend(record.value for record in records)
                self.last[ctx.bundle_id.scope] = ctx.bundle_id.number

        async def close(self) -> None: ...

    await check_sink(Ledger, ["a", "b", "c", "d", "e"], lambda: Ledger.lines)
    ```

    Args:
        make: makes the sink; it is called several times, as by several workers.
        values: five different values of the stream, or more.
        read: returns the values written so far, in the sink's order and in the form of `values`; it
            may be awaitable.

    Raises:
        AssertionError: a rule is broken.
    """
    assert len(values) >= 5, "give five values or more"
    sink = make()
    _hold(isinstance(sink.bundles, Bundles), "bundles is a Bundles(...)", sink.bundles)
    _hold(sink.key is None or callable(sink.key), "key is None, or a function", sink.key)
    _json("describe()", sink.describe())
    a, b, c, d, e = values[:5]
    await _deliver(sink, 1, 1, [a, b])
    _hold(
        await _found(read) == [a, b],
        "a bundle is durable when deliver returns",
        await _found(read),
    )
    await _deliver(sink, 1, 1, [a, b], is_repeat=True)
    _hold(
        await _found(read) == [a, b],
        "a bundle that comes again is not written again",
        await _found(read),
    )
    await _deliver(sink, 1, 2, [c])
    await sink.close()
    other = make()
    await _deliver(other, 1, 2, [c], is_repeat=True)
    _hold(await _found(read) == [a, b, c], "nor by another worker", await _found(read))
    await _deliver(other, 1, 700, [d], previous=2)
    _hold(await _found(read) == [a, b, c, d], "numbers may jump", await _found(read))
    await _deliver(other, 2, 1, [e])
    _hold(
        await _found(read) == [a, b, c, d, e],
        "each scope has numbers of its own",
        await _found(read),
    )
    await _deliver(other, 1, 700, [d], is_repeat=True, previous=2)
    await _deliver(other, 2, 1, [e], is_repeat=True)
    _hold(
        await _found(read) == [a, b, c, d, e],
        "each scope has numbers of its own",
        await _found(read),
    )
    await other.close()


async def _found(read: Callable[[], Sequence[Any] | Awaitable[Sequence[Any]]]) -> list[Any]:
    found = read()
    return list(await found if isinstance(found, Awaitable) else found)


class _Context:
    def __init__(self, bundle_id: BundleId) -> None:
        self.bundle_id = bundle_id
        self.now = datetime.now(UTC)

    async def is_owner(self) -> bool:
        return True

    async def store_id(self) -> str:
        return "check_sink.000000000000"

    def own_name(self, name: str) -> str:
        return name


async def _deliver(
    sink: BundleSink,
    scope: int,
    number: int,
    values: Sequence[Any],
    *,
    is_repeat: bool = False,
    previous: int | None = None,
) -> None:
    records = [Record("", value, 0, "checked") for value in values]
    before = number - 1 if previous is None else previous
    context: Any = _Context(BundleId(scope, number, before, is_repeat, time.time_ns() // 1000))
    await asyncio.wait_for(sink.deliver(records, context), WAIT_SECONDS)


def _json(what: str, value: Any) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, msgspec.MsgspecError) as error:
        _hold(False, f"{what} consists of JSON values", error, value)


def _hold(condition: bool, rule: str, *shown: Any) -> None:
    """
    Raises:
        AssertionError: the rule does not hold.
    """
    if not condition:
        values = "".join(f"\n  {value!r:.500}" for value in shown)
        raise AssertionError(f"rule broken: {rule}{values}")
