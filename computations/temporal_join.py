"""Joins each record with the version of a table's row at the record's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from millwheel import Computation, Context, Input, MapState, Record, Stream, Timer
from millwheel.computations.joins import check_apart, check_pair, check_pair_functions
from millwheel.computations.late import LateRecords
from millwheel.computations.timeline import (
    BATCH,
    FIRST,
    Waking,
    between,
    first_instant,
    hold,
    moment_of,
    passed_by,
    stamp,
    wake,
    wake_for_next,
    waking_state,
    written,
)

L = TypeVar("L")
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - the output


class TableState(Waking, Generic[L, T]):
    """The versions of one row, and the records that are waiting for their version to be certain."""

    versions: MapState[str, T] = msgspec.field(default_factory=MapState)
    waiting: MapState[str, L] = msgspec.field(default_factory=MapState)


class TemporalJoin(Computation[L | T, TableState[L, T]], Generic[L, T, O]):
    """Joins each record with the newest version of its key's row that is not younger than the
    record.

    ```python
    PRICES, PRICED = Stream("prices", Order), Stream("priced", int)
    join = TemporalJoin(ORDERS, PRICES, to=PRICED, combine=lambda order, price: price.cents)
    pipeline.inject(PRICES, Inbox())
    pipeline.add(join, ORDERS.by(lambda order: order.item), PRICES.by(lambda price: price.item))
    async with Harness(pipeline) as harness:
        await harness.inject(PRICES, Order("", "tea", 320), at=at(0))
        await harness.inject(ORDERS, TEA, at=at(60))
        await harness.advance(PRICES, at(120))
        await harness.advance(ORDERS, at(120))
        assert harness.produced(PRICED) == [320]
    ```

    A record waits until the low watermark (the lesser one of both inputs) has passed its time; then
    its version is certain. With ``wait=False`` it is joined at once with the versions that have
    arrived, so that the result depends on the speed of the two inputs. The result has the record's
    timestamp.

    A late record (older than the low watermark) is counted (``late_dropped``, ``late_sent``). A
    late version applies to later records, unless a newer one is behind the low watermark as well;
    results that were sent are not corrected (``late_versions``, ``late_versions_dropped``).

    State per key: the newest version behind the low watermark, for ever, and all younger ones. Of
    two versions of one instant, the last one to arrive applies.

    Args:
        records: the stream to join.
        table: the stream of versions of rows, each valid from its timestamp on.
        to: the stream of results.
        combine: returns the result of a record and a version.
        unmatched: returns the result of a record older than every version. None: the record is
            dropped and counted (``unmatched``).
        wait: whether a record waits until its version is certain.
        late: the stream for late records. None: they are dropped.

    Raises:
        GraphError: the streams are one.
    """

    def __init__(
        self,
        records: Stream[L],
        table: Stream[T],
        *,
        to: Stream[O],
        combine: Callable[[L, T], O],
        unmatched: Callable[[L], O] | None = None,
        wait: bool = True,
        late: Stream[L] | None = None,
    ) -> None:
        check_apart("TemporalJoin", records, table)
        check_pair_functions("TemporalJoin", combine)
        self._records = records
        self._table = table
        self._to = to
        self._combine = combine
        self._unmatched = unmatched
        self._wait = wait
        self.rules = {"wait": wait}
        self._late = LateRecords(late)
        self.writes = written(to, late)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        return waking_state(
            "TableState", versions=self._table.value_type, waiting=self._records.value_type
        )

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        check_pair(self, inputs, self._records, self._table)

    async def process_record(self, record: Record[L | T], ctx: Context[TableState[L, T]]) -> None:
        if record.stream == self._table.name:
            await self._take_version(record, ctx)
        elif record.micros < ctx.low_watermark_micros:
            self._late.take(record, ctx)
        elif self._wait:
            hold(ctx, ctx.state.waiting, record.micros, cast(L, record.value))
            wake(ctx, record.micros)
        else:
            version = None
            for _, _, row in await between(ctx.state.versions, FIRST, record.micros):
                version = (row,)
            self._send(cast(L, record.value), version, record.micros, ctx)

    async def _take_version(self, record: Record[L | T], ctx: Context[TableState[L, T]]) -> None:
        versions = ctx.state.versions
        watermark = ctx.low_watermark_micros
        if record.micros < watermark:
            newer = await first_instant(versions, since=record.micros + 1)
            if newer is not None and newer < watermark:
                self._late.drop(
                    record,
                    ctx,
                    "late_versions_dropped",
                    "give the injector of the table a greater lateness=",
                )
                return
            ctx.count("late_versions")
        versions.put(stamp(record.micros), cast(T, record.value))
        wake(ctx, record.micros)  # then the versions before it can be removed

    async def process_timer(self, timer: Timer, ctx: Context[TableState[L, T]]) -> None:
        state = ctx.state
        passed = passed_by(ctx)
        versions = await between(state.versions, FIRST, passed)
        holds = -1  # index of the version that is valid at the time of the present record
        records = 0
        for entry, micros, value in await between(state.waiting, FIRST, passed, limit=BATCH):
            while holds + 1 < len(versions) and versions[holds + 1][1] <= micros:
                holds += 1
            self._send(value, (versions[holds][2],) if holds >= 0 else None, micros, ctx)
            state.waiting.remove(entry)
            records += 1
        if records < BATCH:
            holds = len(versions) - 1  # of all passed versions, only the newest is still valid
        for entry, _, _ in versions[: max(holds, 0)]:
            state.versions.remove(entry)
        wake_for_next(
            ctx,
            await first_instant(state.waiting),
            await first_instant(state.versions, since=passed + 1),
        )

    def _send(
        self, value: L, version: tuple[T] | None, micros: int, ctx: Context[TableState[L, T]]
    ) -> None:
        if version is not None:
            ctx.produce(self._to, self._combine(value, version[0]), moment_of(micros))
        elif self._unmatched is not None:
            ctx.produce(self._to, self._unmatched(value), moment_of(micros))
        else:
            ctx.count("unmatched")
