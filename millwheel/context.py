"""The `Context` of a call to user code collects decisions as data, in the `Effects` of its `Call`.

A table for each kind of computation lists the members that it may not use (`RefusedMembers`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, wraps
from typing import Any, Generic, NoReturn

from typing_extensions import TypeVar

from millwheel.bundles import BundleId
from millwheel.core.counters import ENGINE_COUNTERS
from millwheel.core.effects import BundleCall, Call
from millwheel.core.model import (
    MAX_TIME,
    MIN_TIME,
    Key,
    Statement,
    TimerKind,
    from_micros,
    to_micros,
)
from millwheel.core.no_rows import NO_ROWS
from millwheel.core.redaction import shown_key
from millwheel.errors import UserCodeError
from millwheel.state import UNKNOWN
from millwheel.streams import Stream

__all__ = ["BundleContext", "Context"]

S = TypeVar("S")
T = TypeVar("T", default=None)
V = TypeVar("V")

MAX_TAG_BYTES = 1024
"""Maximum size of a timer's tag, which is in an index beside the key."""

MAX_COUNTER_NAME = 200
MAX_COUNT = 2**53

ReportLateUse = Callable[[UserCodeError], None]

_STATEMENT = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*([A-Za-z]+)", re.DOTALL)
_ALLOWED = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "WITH"})


class Context(Generic[S, T]):
    """The argument `ctx` of `process_record` and `process_timer`; valid only during the call.

    ```python
    class Large(Computation[Order, Spent]):
        writes = (KEPT,)

        async def process_record(self, record: Record[Order], ctx: Context[Spent]) -> None:
            ctx.state.cents += record.value.cents
            if ctx.state.cents > 1_000_00:
                ctx.produce(KEPT, record.value)
    ```

    A use after the call has ended, by a task that was not awaited, raises `UserCodeError` and stops
    the worker, because the record may already be durable.
    """

    __slots__ = ("_call", "_report_late_use")

    _report_late_use: ReportLateUse

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def key(self) -> Key:
        """The key of the record or timer being processed."""
        return self._call.cell.key

    @property
    def bundle_id(self) -> BundleId:
        """The number of the bundle being processed, in `process_bundle`."""
        raise UserCodeError(
            f"{self._call.name} reads ctx.bundle_id, but its records do not come in bundles; give "
            "the class `bundles = Bundles()` and process_bundle in place of process_record"
        )

    @property
    def state(self) -> S:
        """The state of this key: change it in place, or assign a new one.

        ```python
        class Receipts(Computation[Order, Spent]):
            async def process_record(self, record: Record[Order], ctx: Context[Spent]) -> None:
                ctx.state.cents += record.value.cents

        pipeline.add(Receipts(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA, MILK)
            assert harness.state("receipts", "ann") == {"": {"cents": 390}}
        ```

        The change is committed with this record or not at all. An empty state takes no row.
        """
        cell = self._call.cell
        state: S = cell.opened
        return cell.open_state() if state is UNKNOWN else state

    @state.setter
    def state(self, state: S) -> None:
        self._call.cell.replace_state(state)

    @property
    def shared(self) -> T:
        """The table built from broadcast records; it stays the same during the whole call.

        ```python
        class Check(Computation[Order, None, int, Spent]):
            async def process_broadcast(self, record: Record[int], shared: Spent) -> None:
                shared.cents = record.value  # the newest limit

            async def process_record(
                self, record: Record[Order], ctx: Context[None, Spent]
            ) -> None:
                ctx.count("too much", record.value.cents > ctx.shared.cents)
        ```

        Only `Computation.process_broadcast` may change it: a change made here is never stored, but
        other records may see it. A `Harness` reports it as an error.
        """
        call = self._call
        if call.shared is None and call.table is not None:
            call.shared = call.table.snapshot()
        shared: T = call.shared
        return shared

    @property
    def low_watermark(self) -> datetime:
        """The input low watermark: no record on time will arrive with an older timestamp."""
        return from_micros(self._call.watermark)

    @property
    def low_watermark_micros(self) -> int:
        """The input low watermark in microseconds since the epoch, as `Record.micros`."""
        return self._call.watermark

    @property
    def output_watermark(self) -> datetime:
        """The low watermark published to the readers of this computation's streams.

        It may advance while user code waits.
        """
        return from_micros(max(self._call.promised, self._call.effects.promised))

    @property
    def now(self) -> datetime:
        """Wall time, read once for all records of the same commit."""
        return from_micros(self._call.now)

    def set_timer(self, at: datetime, tag: str = "", kind: TimerKind = "watermark") -> None:
        """Call `process_timer` for this key when the low watermark (or the clock) passes `at`.

        ```python
        class Remind(Computation[Order, None]):
            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                ctx.set_timer(record.timestamp + timedelta(hours=1), tag=record.value.item)
                ctx.set_timer(ctx.now + timedelta(seconds=5), "poll", kind="wall")

            async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
                print(timer.kind, timer.tag, timer.at)
        ```

        The timer replaces one with the same kind and tag. A timer in the past fires right after
        this record.
        """
        due = min(to_micros(at), MAX_TIME - 1)  # at the end of time every timer is due
        if tag != "" or kind not in ("watermark", "wall"):
            tag = self._checked(tag, kind)
        call = self._call
        hold, cell = max(due, call.promised), call.cell
        call.effects.timers[(cell.key_text, kind, tag)] = (due, hold, cell.key, cell.slot)

    def cancel_timer(self, tag: str = "", kind: TimerKind = "watermark") -> None:
        """Cancel the timer of this kind and tag, if it is set.

        ```python
        class Remind(Computation[Order, None]):
            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                if record.value.cents < 0:  # it is paid
                    ctx.cancel_timer(record.value.item)
                else:
                    ctx.set_timer(record.timestamp + timedelta(hours=1), record.value.item)

            async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
                print(f"{ctx.key} has not paid for {timer.tag}")
        ```
        """
        if tag != "" or kind not in ("watermark", "wall"):
            tag = self._checked(tag, kind)
        self._call.effects.timers[(self._call.cell.key_text, kind, tag)] = None

    def hold_watermark(self, at: datetime, tag: str = "") -> None:
        """Hold the low watermark of this computation at `at` until `release_watermark` is called.

        ```python
        class Basket(Computation[Order, Spent]):
            async def process_record(self, record: Record[Order], ctx: Context[Spent]) -> None:
                if ctx.state.cents == 0:  # the sum will be produced with this timestamp
                    ctx.hold_watermark(record.timestamp)
                ctx.state.cents += record.value.cents
        ```

        A later output with the timestamp `at` then is not late, however long it waits. The hold
        replaces one with the same tag. A published watermark cannot be taken back: a hold behind
        `output_watermark` holds it there. All holds end at the end of time, after the last
        watermark timer.
        """
        due = min(to_micros(at), MAX_TIME - 1)
        if tag != "":
            tag = self._checked(tag, "watermark")
        call = self._call
        hold, cell = max(due, call.promised), call.cell
        call.effects.timers[(cell.key_text, "hold", tag)] = (due, hold, cell.key, cell.slot)

    def release_watermark(self, tag: str = "") -> None:
        """Release the hold of this tag, if there is one."""
        if tag != "":
            tag = self._checked(tag, "watermark")
        self._call.effects.timers[(self._call.cell.key_text, "hold", tag)] = None

    def _checked(self, tag: str, kind: str) -> str:
        if kind not in ("watermark", "wall"):
            raise UserCodeError(
                f"{self._call.name}: a timer's kind must be 'watermark' or 'wall', not {kind!r:.80}"
            )
        if _is_storable(tag, MAX_TAG_BYTES):
            return str.__str__(tag)  # the text of a StrEnum: the store takes plain strings only
        raise UserCodeError(
            f"{self._call.name}: a timer's tag must be a str of at most {MAX_TAG_BYTES:,} bytes "
            f"without NUL and lone surrogates, not {tag!r:.80}"
        )

    def produce(self, stream: Stream[V], value: V, timestamp: datetime | None = None) -> None:
        """Send `value` to every reader of `stream`.

        ```python
        class Divide(Computation[Order, None]):
            writes = (KEPT, SPENT)

            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                ctx.produce(SPENT, record.value.cents)
                ctx.produce(KEPT, record.value, timestamp=record.timestamp + timedelta(hours=1))

        pipeline.add(Divide(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert (harness.produced(SPENT), harness.produced(KEPT)) == ([300], [TEA])
        ```

        Args:
            timestamp: None: that of the record (or timer) being processed. It may be older, but not
                older than `output_watermark`, which may advance while user code waits, but not past
                the output.

        Raises:
            UserCodeError: the class does not declare the stream in ``writes``, the value is not of
                the stream's type, or the timestamp is older than the published watermark (I7).
        """
        call = self._call
        route = call.routes.get(stream.name)
        if route is None:
            raise UserCodeError(
                f"{call.name} produced to stream {stream.name!r}, which is not among its "
                f"`writes` ({', '.join(sorted(call.routes)) or 'none'}); declare it there"
            )
        if timestamp is None:
            micros = call.micros
        else:
            micros = to_micros(timestamp)
            if not MIN_TIME <= micros <= MAX_TIME:
                raise UserCodeError(
                    f"{self._place()}: an output of stream {stream.name!r} has the "
                    f"timestamp {timestamp.isoformat()}, outside the range of event time, from "
                    f"{from_micros(MIN_TIME).date()} to {from_micros(MAX_TIME).date()}"
                )
            if micros < call.micros:
                promised = max(call.promised, call.effects.promised)
                if micros < promised:
                    raise UserCodeError(
                        f"{self._place()}: an output of stream {stream.name!r} has the timestamp "
                        f"{timestamp.isoformat()}, older than both its input "
                        f"({from_micros(call.micros).isoformat()}) and the low watermark already "
                        f"promised downstream ({from_micros(promised).isoformat()}); the output "
                        "of an on-time record would be late. Use the record's timestamp or a "
                        "later one"
                    )
                call.effects.hold(micros)
        route.send(call.effects, call.cell, value, micros)

    def _place(self) -> str:
        return f"{self._call.name}, key {shown_key(self.key)}"

    def execute(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a statement on your own tables in the transaction that commits this record.

        ```python
        class Charge(Computation[Order, None]):
            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                order = record.value
                ctx.execute("INSERT INTO bill VALUES (%s, %s)", [order.customer, order.cents])

        pipeline.add(Charge(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert harness.statements() == [("INSERT INTO bill VALUES (%s, %s)", ("ann", 300))]
        ```

        The statement runs at the commit and returns no result: a use of one is a `UserCodeError`.
        Parameters are written ``%s``.
        Transaction control, SET and LOCK are refused, since they would break the commit.
        """
        match = _STATEMENT.match(sql)
        verb = match.group(1).upper() if match else ""
        if verb not in _ALLOWED:
            raise UserCodeError(
                f"{self._call.name}: ctx.execute takes INSERT, UPDATE, DELETE, MERGE, SELECT or "
                f"WITH, not {verb or sql!r:.60}; the statement runs inside the record's own commit"
            )
        caller = sys._getframe(1)
        statement = Statement(sql)
        statement.caller = (caller.f_code, caller.f_lasti)
        effects = self._call.effects
        effects.statements.append((statement, tuple(params)))
        effects.size += len(sql) + 64
        return NO_ROWS  # type: ignore[no-any-return]  # each use of it is a mistake of the caller

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of this computation, exact despite crashes; `millwheel status` shows it.

        ```python
        class Audit(Computation[Order, None]):
            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                ctx.count("cents", record.value.cents)

        pipeline.add(Audit(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA, MILK)
            assert harness.counters("audit")["cents"] == 390
        ```
        """
        if not isinstance(by, int) or not -MAX_COUNT <= by <= MAX_COUNT:
            raise UserCodeError(
                f"{self._call.name}: the counter {name!r:.80} moves by a whole number of at most "
                f"2**53, not by {by!r:.80}"
            )
        if not _is_storable(name, MAX_COUNTER_NAME):
            raise UserCodeError(
                f"{self._call.name}: a counter's name must be a str of at most {MAX_COUNTER_NAME} "
                f"bytes without NUL and lone surrogates, not {name!r:.80}"
            )
        name = str.__str__(name)
        if name in ENGINE_COUNTERS:
            raise UserCodeError(
                f"{self._call.name}: the counter {name!r} is the engine's own; choose another name"
            )
        counters = self._call.effects.counters
        counters[name] = counters.get(name, 0) + by


@dataclass(frozen=True, eq=False)
class RefusedMembers:
    """Members of `Context` that a kind of computation may not use."""

    members: Mapping[str, str]
    reason: str
    """The error, with the computation's ``name`` and the words ``did``."""
    of_records: bool = False

    def check(self, call: Call, member: str) -> None:
        if self.of_records and (call.effects.lineage is None or call.effects.lineage.cause is None):
            return
        raise UserCodeError(self.reason.format(name=call.name, did=self.members[member]))


TIMERLESS = RefusedMembers(
    {"set_timer": "sets a timer"},
    "{name} {did} but defines no process_timer to run when it fires; "
    "define `async def process_timer(self, timer, ctx)`",
)

_OF_TIMERS = {
    "set_timer": "set a timer",
    "cancel_timer": "cancelled a timer",
    "hold_watermark": "held the low watermark",
    "release_watermark": "released the low watermark",
}

SPREAD = RefusedMembers(
    _OF_TIMERS,
    "{name} {did}, but it reads its streams by STREAM.spread(): the engine chooses "
    "its keys, which mean nothing. Read them by a key, STREAM.by(...)",
)

BUNDLED = RefusedMembers(
    _OF_TIMERS
    | {
        "key": "asked for its key",
        "state": "asked for its state",
        "state=": "set its state",
        "shared": "asked for a shared table",
    },
    "{name} {did} in process_bundle, but the records of a bundle have many keys. "
    "Do that in a separate computation before this one",
)

_TIMES = ("low_watermark", "low_watermark_micros", "output_watermark", "now")

WEAK = RefusedMembers(
    {member: f"read ctx.{member}" for member in _TIMES},
    "{name} {did} while it processed a record, but its productions "
    "are weak: they are made again after a crash, and must be the same then. Take "
    'times from the record, add it with productions="strong", or, if its output does '
    "not depend on the time, declare that in the class: order_insensitive = True",
    of_records=True,
)


@cache
def context_class(*refusals: RefusedMembers) -> type[Context[Any, Any]]:
    if not refusals:
        return Context
    made = type("Context", (Context,), {"__slots__": (), "__module__": __name__})
    for refusal in refusals:
        _refuse(made, refusal)
    return made


def _refuse(made: type[Context[Any, Any]], refusal: RefusedMembers) -> None:
    for member in refusal.members:
        if not member.endswith("="):
            setattr(made, member, _checked(getattr(made, member), member, refusal))


def _checked(known: Any, member: str, refusal: RefusedMembers) -> Any:
    code: Any = known.fget if isinstance(known, property) else known

    @wraps(code)
    def use(context: Context[Any, Any], *args: Any, **options: Any) -> Any:
        refusal.check(context._call, member)
        return code(context, *args, **options)

    def assign(context: Context[Any, Any], value: Any) -> None:
        refusal.check(context._call, f"{member}=")

    if not isinstance(known, property):
        return use
    return property(use, assign if f"{member}=" in refusal.members else known.fset)


class BundleContext(Context[S, T]):
    """The context of a numbered bundle, which has no key: its records have many.

    ```python
    from typing import Any

    async def deliver(records: list[Record[Order]], ctx: BundleContext[Any, Any]) -> None:
        if ctx.bundle_id.is_repeat and not await ctx.is_owner():
            return  # another worker delivers it
        print(await ctx.store_id(), ctx.bundle_id.number, len(records))
    ```
    """

    __slots__ = ()

    _call: BundleCall

    @property
    def bundle_id(self) -> BundleId:
        bundle_id: BundleId = self._call.bundle_id
        return bundle_id

    async def is_owner(self) -> bool:
        """Whether the store still has this worker as the scope's owner; otherwise another one
        delivers."""
        return await self._call.owner.is_current()

    async def store_id(self) -> str:
        """The pipeline's name and a text unique to the store, for names in other systems.

        A copy of the store (a restored dump) has the same one.
        """
        return await self._call.owner.store_id()

    def own_name(self, name: str) -> str:
        """A name that is given in code, for use in other systems.

        A fork, and code that runs under another name (``--as``), get another one, with the
        pipeline's name at its end: they run the same code (``docs/howto/run/forks.md``).
        """
        return self._call.owner.own_name(name)

    def produce(self, stream: Stream[V], value: V, timestamp: datetime | None = None) -> None:
        super().produce(stream, value, self._call.latest if timestamp is None else timestamp)

    def _place(self) -> str:
        return f"{self._call.name}, {self._call.bundle_id}"


_refuse(BundleContext, BUNDLED)


class Ended:
    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself and debuggers read these
            return object.__getattribute__(self, name)
        raise _late_use(self, name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _late_use(self, name)


class EndedContext(Ended, Context[S, T]):
    __slots__ = ()


class EndedBundleContext(Ended, BundleContext[S, T]):
    __slots__ = ()


def end_context(context: Context[Any, Any], report_late_use: ReportLateUse) -> None:
    """Refuse and report every use from now on: the call has ended."""
    context._report_late_use = report_late_use
    context.__class__ = EndedBundleContext if isinstance(context, BundleContext) else EndedContext


def call_of(context: object) -> Call:
    """The call of a context, also of one that has ended."""
    call: Call = object.__getattribute__(context, "_call")
    return call


def reporter_of(context: Ended) -> ReportLateUse:
    report: ReportLateUse = object.__getattribute__(context, "_report_late_use")
    return report


def _late_use(context: Ended, member: str) -> UserCodeError:
    error = UserCodeError(
        f"{call_of(context).name} used ctx.{member} after the call that ctx belongs to had ended, "
        "so it has no effect. Inside process_record (or process_timer, process_bundle), await "
        "every task that it starts and that uses ctx, for example with asyncio.TaskGroup"
    )
    reporter_of(context)(error)
    return error


def _is_storable(text: object, limit: int) -> bool:
    if not isinstance(text, str):
        return False
    if text.isascii():  # nearly always, and the cheapest check
        return len(text) <= limit and "\0" not in text
    try:
        return len(text.encode()) <= limit and "\0" not in text
    except UnicodeEncodeError:
        return False
