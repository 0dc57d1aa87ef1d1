"""What user code may do while one record or timer is processed, and what it did.

A `Context` collects decisions in an `Effects`; nothing is written before the commit that
carries them (style: decide as data, write later). One `Context` serves the records of one
key within one bundle.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NoReturn, Protocol

from typing_extensions import TypeVar

from millwheel.bundles import BundleId
from millwheel.errors import UserCodeError
from millwheel.model import (
    MAX_TIME,
    MIN_TIME,
    Delivery,
    Key,
    Record,
    Statement,
    TimerKind,
    from_micros,
    to_micros,
)
from millwheel.streams import Stream

S = TypeVar("S")
T = TypeVar("T", default=None)
V = TypeVar("V")

TimerIdentity = tuple[bytes, str, str]
"""Key, kind and tag."""


class Effects:
    """What processing some records of one interval asks for; merged into a bundle."""

    __slots__ = (
        "caused",
        "counters",
        "dead_letters",
        "held",
        "keeper",
        "lineage",
        "lines",
        "productions",
        "rows",
        "size",
        "statements",
        "timers",
    )

    def __init__(self) -> None:
        self.productions: list[Delivery[Any]] = []
        self.caused: list[tuple[Delivery[Any], Delivery[Any]]] = []
        """Weak productions, each behind the record that it comes of."""
        self.lineage: Lineage | None = None
        """Of a weak computation: how its productions are called."""
        self.keeper: Keeper | None = None
        """Whose low watermark the productions here are not to be behind."""
        self.held: list[int] = []
        """What it is kept back at for them, until they stand in a log: others are held by their input,
        which is no newer."""
        self.timers: dict[TimerIdentity, tuple[int, int, Key, int] | None] = {}
        """(due, hold, key, slot), or None for a cancelled or fired timer."""
        self.rows: list[tuple[Any, tuple[Any, ...]]] = []
        """(table sink, column values)."""
        self.statements: list[tuple[str, Sequence[Any]]] = []
        self.lines: list[bytes] = []
        """Lines for the interval's part file."""
        self.dead_letters: list[Any] = []
        self.counters: dict[str, int] = {}
        self.size = 0

    @property
    def promised(self) -> int:
        """What its keeper has promised by now."""
        return MIN_TIME if self.keeper is None else self.keeper.promised

    def hold(self, micros: int) -> None:
        """Keep the low watermark back for a production that is older than its input."""
        if self.keeper is not None:
            self.keeper.keep_back(micros)
            self.held.append(micros)

    def let_up(self) -> None:
        """What was held for stands in a log, or never was."""
        if self.keeper is not None:
            for micros in self.held:
                self.keeper.let_up(micros)
        self.held.clear()

    def take(self, other: Effects) -> None:
        """Add what `other` holds, and leave it empty for the next use."""
        if other.productions:
            self.productions += other.productions
            other.productions.clear()
        if other.timers:
            self.timers.update(other.timers)
            other.timers.clear()
        if other.rows:
            self.rows += other.rows
            other.rows.clear()
        if other.caused:
            self.caused += other.caused
            other.caused.clear()
        if other.held:
            self.held += other.held
            other.held.clear()
        if other.counters or other.statements or other.lines or other.dead_letters:
            self._take_rest(other)
        self.size += other.size
        other.size = 0

    def _take_rest(self, other: Effects) -> None:
        self.statements += other.statements
        self.lines += other.lines
        self.dead_letters += other.dead_letters
        for name, count in other.counters.items():
            self.counters[name] = self.counters.get(name, 0) + count
        other.statements.clear()
        other.lines.clear()
        other.dead_letters.clear()
        other.counters.clear()

    def are_stored(self) -> bool:
        """Whether a commit has to carry any of it: weak productions alone need none."""
        return bool(
            self.productions
            or self.timers
            or self.rows
            or self.statements
            or self.lines
            or self.dead_letters
            or self.counters
        )

    def clear(self) -> None:
        """Forget everything."""
        self.let_up()
        Effects().take(self)


class Keeper(Protocol):
    """Promises a low watermark."""

    promised: int

    def keep_back(self, micros: int) -> None:
        """Promise no more than this, until as many times `let_up` is called."""
        ...

    def let_up(self, micros: int) -> None: ...


class Lineage(Protocol):
    """Gives weak productions their ids, by the record that they come of."""

    cause: Delivery[Any] | None
    """None while a timer runs: what that produces is strong."""

    def begin(self, cause: Delivery[Any] | None) -> None: ...


class Route(Protocol):
    """Where records of one stream go from one computation: consumers and table sinks."""

    def send(self, effects: Effects, cell: StateCell, value: Any, micros: int, hold: int) -> None:
        """Encode once, and add one delivery per consumer and one row per sink; `cell` is the
        producing key's."""
        ...


class StateCell(Protocol):
    """One key and its state object."""

    key: Key
    key_text: bytes
    slot: int

    def open_state(self) -> Any: ...

    def replace_state(self, state: Any) -> None: ...


class SharedTable(Protocol):
    """What all keys of a cell share."""

    def snapshot(self) -> Any: ...


MAX_TAG_BYTES = 1024
"""A timer's tag: it stands in an index beside its key."""

PROCESSED = "processed"
DEAD_LETTERS = "dead_letters"
BAD_ROWS = "bad_rows"
BLOOM_MAYBES = "bloom_maybes"
DUPLICATES_DROPPED = "duplicates_dropped"
WEAK_CHANGED = "weak_changed"
STRAGGLERS = "stragglers"
REPLAYS = "replays"
ENGINE_COUNTERS = frozenset(
    [
        PROCESSED, DEAD_LETTERS, BAD_ROWS, BLOOM_MAYBES, DUPLICATES_DROPPED, WEAK_CHANGED,
        STRAGGLERS, REPLAYS,
    ]
)  # fmt: skip
"""Counters that stand beside those of user code, which may not move them."""

MAX_COUNTER_NAME = 200
MAX_COUNT = 2**53
"""What a counter may move by at a time."""

_STATEMENT = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*([A-Za-z]+)", re.DOTALL)
_ALLOWED = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "WITH"})


ReportLateUse = Callable[[UserCodeError], None]
"""Called with the error when a `Context` is used after its call."""


class Context(Generic[S, T]):
    """Handed to `process_record` and `process_timer`; valid only during that call.

    Each use after the call has ended, by a task that the call started and did not await, raises
    `UserCodeError` and stops the worker: the record may be durable by then.
    """

    __slots__ = (
        "_cell",
        "_effects",
        "_micros",
        "_name",
        "_now",
        "_promised",
        "_report_late_use",
        "_routes",
        "_shared",
        "_table",
        "_watermark",
    )

    def __init__(self, name: str, routes: Mapping[str, Route], effects: Effects) -> None:
        self._name = name
        self._routes = routes
        self._effects = effects
        self._cell: StateCell
        self._watermark = self._promised = self._now = 0
        self._micros = 0
        """The timestamp of the record or timer being processed."""
        self._table: SharedTable | None = None
        self._shared: Any = None

    def _open(
        self,
        cell: StateCell,
        watermark: int,
        promised: int,
        now: int,
        table: SharedTable | None = None,
    ) -> None:
        """The next key, and what is frozen for it: times, and what it shares with others."""
        self._cell = cell
        self._watermark = watermark
        self._promised = promised
        self._now = now
        self._share(table)

    def _end(self, report_late_use: ReportLateUse) -> None:
        """Refuse and report every use from now on: the call that it was made for has ended."""
        self._report_late_use = report_late_use
        self.__class__ = EndedBundleContext if isinstance(self, BundleContext) else EndedContext

    def _share(self, table: SharedTable | None) -> None:
        """What the next key shares with others."""
        self._table = table
        self._shared = None

    @property
    def key(self) -> Key:
        """The key whose record or timer is being processed."""
        return self._cell.key

    @property
    def bundle_id(self) -> BundleId:
        """The number of the bundle that is being processed, in `process_bundle`."""
        raise UserCodeError(
            f"{self._name} asks for its bundle_id, but its records do not come in bundles; give the "
            "class `bundles = Bundles()` and process_bundle in place of process_record"
        )

    @property
    def state(self) -> S:
        """The state of this key: change it in place, or assign a new one.

        It is committed with this record or not at all. The empty state takes no row.
        """
        state: S = self._cell.open_state()
        return state

    @state.setter
    def state(self, state: S) -> None:
        self._cell.replace_state(state)

    @property
    def shared(self) -> T:
        """The table that broadcast records have made; the same one for the whole call.

        To be read only: `Computation.process_broadcast` changes it. What is changed here may be
        seen by other records, is never stored, and is an error in a `Harness`.
        """
        if self._shared is None and self._table is not None:
            self._shared = self._table.snapshot()
        shared: T = self._shared
        return shared

    @property
    def low_watermark(self) -> datetime:
        """The input low watermark: no record that is on time comes with an older timestamp."""
        return from_micros(self._watermark)

    @property
    def output_watermark(self) -> datetime:
        """The low watermark promised to the readers of this computation's streams, by now: it may move
        while user code waits."""
        return from_micros(max(self._promised, self._effects.promised))

    @property
    def now(self) -> datetime:
        """Wall time, one reading for the whole bundle."""
        return from_micros(self._now)

    def set_timer(self, at: datetime, tag: str = "", kind: TimerKind = "watermark") -> None:
        """Call `process_timer` for this key when the low watermark (or the clock) passes `at`.

        A timer of the same kind and tag is replaced. One in the past fires right after
        this record.
        """
        due = min(to_micros(at), MAX_TIME - 1)  # at the end of time every timer is due
        if tag != "" or kind not in ("watermark", "wall"):
            tag = self._checked(tag, kind)
        hold = max(due, self._promised)
        cell = self._cell
        self._effects.timers[(cell.key_text, kind, tag)] = (due, hold, cell.key, cell.slot)

    def cancel_timer(self, tag: str = "", kind: TimerKind = "watermark") -> None:
        """Forget the timer of this kind and tag, if it is set."""
        if tag != "" or kind not in ("watermark", "wall"):
            tag = self._checked(tag, kind)
        self._effects.timers[(self._cell.key_text, kind, tag)] = None

    def hold_watermark(self, at: datetime, tag: str = "") -> None:
        """Keep the low watermark of this computation at `at` until it is released.

        For what the key's state owes its readers: an output with the timestamp `at` will not
        be late, however long it waits. A hold of the same tag is replaced. What is promised
        already cannot be taken back: a hold behind `output_watermark` holds that. At the end
        of time, when the last watermark timer of the computation has fired, all holds end.
        """
        due = min(to_micros(at), MAX_TIME - 1)
        if tag != "":
            tag = self._checked(tag, "watermark")
        cell, promised = self._cell, self._promised
        hold = due if due > promised else promised
        self._effects.timers[(cell.key_text, "hold", tag)] = (due, hold, cell.key, cell.slot)

    def release_watermark(self, tag: str = "") -> None:
        """Let go of the hold of this tag, if there is one."""
        if tag != "":
            tag = self._checked(tag, "watermark")
        self._effects.timers[(self._cell.key_text, "hold", tag)] = None

    def _checked(self, tag: str, kind: str) -> str:
        """A tag that can be stored, if the kind is one."""
        if kind not in ("watermark", "wall"):
            raise UserCodeError(
                f"{self._name}: a timer's kind is 'watermark' or 'wall', not {kind!r:.80}"
            )
        if _is_storable(tag, MAX_TAG_BYTES):
            return str.__str__(tag)  # of a StrEnum its text: the store knows plain ones only
        raise UserCodeError(
            f"{self._name}: a timer's tag is a short text ({MAX_TAG_BYTES:,} bytes at the most) "
            f"without NUL and lone surrogates: {tag!r:.80}"
        )

    def produce(self, stream: Stream[V], value: V, timestamp: datetime | None = None) -> None:
        """Send `value` to every reader of `stream`.

        Args:
            timestamp: None means the timestamp of the record (or timer) being processed. An older
                one is possible as far as `output_watermark` allows, which may move while user code
                waits; from here on it does not pass the output.

        Raises:
            UserCodeError: the class does not declare the stream in ``writes``, the value is
                not of its type, or the timestamp is older than what was promised (I7).
        """
        route = self._routes.get(stream.name)
        if route is None:
            raise UserCodeError(
                f"{self._name} produced to stream {stream.name!r}, which is not among its "
                f"`writes` ({', '.join(sorted(self._routes)) or 'none'}); declare it there"
            )
        if timestamp is None:
            micros = self._micros
        else:
            micros = to_micros(timestamp)
            if not MIN_TIME <= micros <= MAX_TIME:
                raise UserCodeError(
                    f"{self._whose()}: an output of stream {stream.name!r} has the "
                    f"timestamp {timestamp.isoformat()}, outside of time as it is kept here, from "
                    f"{from_micros(MIN_TIME).date()} up to {from_micros(MAX_TIME).date()}"
                )
            if micros < self._micros:
                promised = max(self._promised, self._effects.promised)
                if micros < promised:
                    raise UserCodeError(
                        f"{self._whose()}: an output of stream {stream.name!r} has the "
                        f"timestamp {timestamp.isoformat()}, older than both its input "
                        f"({from_micros(self._micros).isoformat()}) and the low watermark already "
                        f"promised downstream ({from_micros(promised).isoformat()}); an on-time "
                        "record's output would be late. Use the record's timestamp or later"
                    )
                self._effects.hold(micros)
        promised = self._promised
        hold = micros if micros > promised else promised
        route.send(self._effects, self._cell, value, micros, hold)

    def _whose(self) -> str:
        """Whose output it is, for errors."""
        return f"{self._name}, key {self.key!r:.80}"

    def execute(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a statement on your own tables in the transaction that commits this record.

        It is deferred to the commit and gives no result. Parameters are written ``%s``.
        Transaction control, SET and LOCK are refused: they would break the commit apart.
        """
        match = _STATEMENT.match(sql)
        verb = match.group(1).upper() if match else ""
        if verb not in _ALLOWED:
            raise UserCodeError(
                f"{self._name}: ctx.execute takes INSERT, UPDATE, DELETE, MERGE, SELECT or WITH, "
                f"not {verb or sql!r:.60}; the statement runs inside the record's own commit"
            )
        caller = sys._getframe(1)
        statement = Statement(sql)
        statement.caller = (caller.f_code, caller.f_lasti)
        self._effects.statements.append((statement, tuple(params)))
        self._effects.size += len(sql) + 64

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of this computation that `millwheel status` shows; exact over crashes."""
        if not isinstance(by, int) or not -MAX_COUNT <= by <= MAX_COUNT:
            raise UserCodeError(
                f"{self._name}: the counter {name!r:.80} moves by a whole number of at most 2**53, "
                f"not by {by!r:.80}"
            )
        if not _is_storable(name, MAX_COUNTER_NAME):
            raise UserCodeError(
                f"{self._name}: a counter's name is a short text ({MAX_COUNTER_NAME} bytes at the "
                f"most) without NUL and lone surrogates: {name!r:.80}"
            )
        name = str.__str__(name)
        if name in ENGINE_COUNTERS:
            raise UserCodeError(
                f"{self._name}: the counter {name!r} is the engine's own; choose another name"
            )
        counters = self._effects.counters
        counters[name] = counters.get(name, 0) + by


class TimerlessContext(Context[S, T]):
    """Of a computation without `process_timer`: no timer could ever fire."""

    __slots__ = ()

    def set_timer(self, at: datetime, tag: str = "", kind: TimerKind = "watermark") -> NoReturn:
        raise UserCodeError(
            f"{self._name} sets timers but defines no process_timer, so nothing would happen when one "
            "fires; define `async def process_timer(self, timer, ctx)`"
        )


class WeakContext(Context[S, T]):
    """Of a computation with weak productions: what they say must not depend on when it runs."""

    __slots__ = ()

    @property
    def low_watermark(self) -> datetime:
        self._refuse("low_watermark")
        return from_micros(self._watermark)

    @property
    def output_watermark(self) -> datetime:
        self._refuse("output_watermark")
        return super().output_watermark

    @property
    def now(self) -> datetime:
        self._refuse("now")
        return from_micros(self._now)

    def _refuse(self, what: str) -> None:
        lineage = self._effects.lineage
        if lineage is not None and lineage.cause is not None:
            raise UserCodeError(
                f"{self._name} asked for ctx.{what} while it processed a record, but its productions "
                "are weak: they are made again after a crash, and must say the same then. Take "
                'times from the record, add it with productions="strong", or, if what it produces '
                "is the same at any time, say so in the class: order_insensitive = True"
            )


class WeakTimerlessContext(TimerlessContext[S, T], WeakContext[S, T]):
    """Of a computation with weak productions and without `process_timer`."""

    __slots__ = ()


class SpreadContext(Context[S, T]):
    """Of a computation that reads its streams spread: a key that means nothing keeps nothing."""

    __slots__ = ()

    def set_timer(self, at: datetime, tag: str = "", kind: TimerKind = "watermark") -> NoReturn:
        self._refuse("set a timer")

    def cancel_timer(self, tag: str = "", kind: TimerKind = "watermark") -> NoReturn:
        self._refuse("cancelled a timer")

    def hold_watermark(self, at: datetime, tag: str = "") -> NoReturn:
        self._refuse("held the low watermark")

    def release_watermark(self, tag: str = "") -> NoReturn:
        self._refuse("released the low watermark")

    def _refuse(self, what: str) -> NoReturn:
        raise UserCodeError(
            f"{self._name} {what}, but it reads its streams by STREAM.spread(): its keys are the "
            "engine's and mean nothing. Read them by a key, STREAM.by(...)"
        )


class WeakSpreadContext(SpreadContext[S, T], WeakContext[S, T]):
    """Of a computation with weak productions that reads its streams spread."""

    __slots__ = ()


class BundleContext(SpreadContext[S, T]):
    """Of a numbered bundle: its records have many keys, so there is none."""

    __slots__ = ("_bundle_id", "_latest")

    def _begin(self, bundle_id: BundleId, records: Sequence[Record[Any]]) -> None:
        """The next bundle: what is produced counts as its newest record, if nothing else is said,
        and may be as old as its oldest."""
        self._bundle_id = bundle_id
        times = [record.micros for record in records]
        self._micros = min(times)
        self._latest = from_micros(max(times))

    @property
    def bundle_id(self) -> BundleId:
        return self._bundle_id

    @property
    def key(self) -> NoReturn:
        self._refuse("asked for its key")

    @property
    def state(self) -> NoReturn:
        self._refuse("asked for its state")

    @state.setter
    def state(self, state: S) -> NoReturn:
        self._refuse("set its state")

    @property
    def shared(self) -> NoReturn:
        self._refuse("asked for a shared table")

    def produce(self, stream: Stream[V], value: V, timestamp: datetime | None = None) -> None:
        super().produce(stream, value, self._latest if timestamp is None else timestamp)

    def _whose(self) -> str:
        return f"{self._name}, {self._bundle_id}"

    def _refuse(self, what: str) -> NoReturn:
        raise UserCodeError(
            f"{self._name} {what} in process_bundle, but the records of a bundle have many keys. "
            "Do it in a computation of its own, before this one"
        )


class Ended:
    """Refuses every use of a `Context` whose call has ended."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):  # how Python itself and debuggers look at an object
            return object.__getattribute__(self, name)
        raise _late_use(self, name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _late_use(self, name)


class EndedContext(Ended, Context[S, T]):
    """A context whose call has ended."""

    __slots__ = ()


class EndedBundleContext(Ended, BundleContext[S, T]):
    """The context of a numbered bundle whose call has ended."""

    __slots__ = ()


def _late_use(context: Ended, what: str) -> UserCodeError:
    """The error for one late use, reported."""
    name = object.__getattribute__(context, "_name")
    error = UserCodeError(
        f"{name} used ctx.{what} after the call that ctx was made for had ended, so it can have no "
        "effect. Await inside process_record (or process_timer, process_bundle) every task that it "
        "starts and that uses ctx, for example with asyncio.TaskGroup"
    )
    object.__getattribute__(context, "_report_late_use")(error)
    return error


def _is_storable(text: object, limit: int) -> bool:
    """Whether it is a text of at most `limit` bytes that Postgres can hold."""
    if not isinstance(text, str):
        return False
    if text.isascii():  # as good as always, and then there is little to look at
        return len(text) <= limit and "\0" not in text
    try:
        return len(text.encode()) <= limit and "\0" not in text
    except UnicodeEncodeError:
        return False
