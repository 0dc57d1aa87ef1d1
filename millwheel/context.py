"""The `Context` of a call to user code, and the `Effects` that the call asks for.

A `Context` collects decisions in an `Effects` as data. Nothing is written before the commit
that carries them. One `Context` serves the records of one key within one commit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import datetime
from typing import Any, Generic, NoReturn, Protocol

from typing_extensions import TypeVar

from millwheel.bundles import BundleId
from millwheel.core.chunk import Outbox
from millwheel.core.model import (
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
from millwheel.core.redaction import shown_key
from millwheel.errors import UserCodeError
from millwheel.state import UNKNOWN
from millwheel.streams import Stream

S = TypeVar("S")
T = TypeVar("T", default=None)
V = TypeVar("V")

TimerIdentity = tuple[bytes, str, str]
"""Key, kind and tag."""


Produced = tuple["Route", "StateCell", Any, bytes, int]
"""A production: its route and its key, the value and its stored form, and its timestamp."""


class Effects:
    """The effects of processing some records of one interval; merged into the open commit."""

    __slots__ = (
        "caused",
        "counters",
        "dead_letters",
        "held",
        "keeper",
        "lineage",
        "lines",
        "produced",
        "productions",
        "rows",
        "settled",
        "size",
        "statements",
        "timers",
        "together",
    )

    def __init__(self) -> None:
        self.productions = Outbox()
        self.produced: list[Produced] = []
        """Productions that have no address yet, in their order."""
        self.together = False
        """Whether addresses are given to many productions together; otherwise to each one at
        once."""
        self.caused: list[tuple[Delivery[Any], Delivery[Any]]] = []
        """Weak productions, as pairs of the input record and the production."""
        self.lineage: Lineage | None = None
        """Gives the productions of a weak computation their ids."""
        self.keeper: Keeper | None = None
        """The interval with the low watermark that these productions must not be behind."""
        self.held: list[int] = []
        """Times at which the keeper holds its watermark until these productions are in a log.

        Only productions older than their input are here; their input holds the watermark for the
        others.
        """
        self.timers: dict[TimerIdentity, tuple[int, int, Key, int] | None] = {}
        """(due, hold, key, slot) of each timer, or None if it was cancelled or has fired."""
        self.rows: list[tuple[Any, tuple[Any, ...]]] = []
        """Rows of tables, as (table sink, column values)."""
        self.statements: list[tuple[str, Sequence[Any]]] = []
        self.lines: list[bytes] = []
        """Lines for the interval's part file."""
        self.dead_letters: list[Any] = []
        self.settled: list[Any] = []
        """Outcomes of operators' requests."""
        self.counters: dict[str, int] = {}
        self.size = 0

    @property
    def promised(self) -> int:
        """The low watermark that the keeper has published so far."""
        return MIN_TIME if self.keeper is None else self.keeper.promised

    def hold(self, micros: int) -> None:
        """Hold the low watermark for a production that is older than its input."""
        if self.keeper is not None:
            self.keeper.keep_back(micros)
            self.held.append(micros)

    def let_up(self) -> None:
        """Release the holds: the productions are in a log, or were discarded."""
        if self.keeper is not None:
            for micros in self.held:
                self.keeper.let_up(micros)
        self.held.clear()

    def count(self, name: str, by: int) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + by

    def take(self, other: Effects) -> None:
        """Move all effects of `other` here, and leave `other` empty for its next use."""
        if other.productions:
            self.productions.take(other.productions)
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
        if other.settled:
            self.settled += other.settled
            other.settled.clear()
        if other.counters or other.statements or other.lines or other.dead_letters:
            self._take_rest(other)
        self.size += other.size
        other.size = 0

    def _take_rest(self, other: Effects) -> None:
        self.statements += other.statements
        self.lines += other.lines
        self.dead_letters += other.dead_letters
        for name, count in other.counters.items():
            self.count(name, count)
        other.statements.clear()
        other.lines.clear()
        other.dead_letters.clear()
        other.counters.clear()

    def are_stored(self) -> bool:
        """Whether a commit has to carry any of the effects; weak productions need none."""
        return bool(
            self.productions
            or self.timers
            or self.rows
            or self.statements
            or self.lines
            or self.dead_letters
            or self.settled
            or self.counters
        )

    def clear(self) -> None:
        """Discard all effects."""
        self.let_up()
        self.produced.clear()
        Effects().take(self)

    def others(self) -> tuple[Sized, ...]:
        """The containers of all effects besides productions and timers: if they are empty, so is
        their `mark`. They stay the same objects until `split`."""
        return (*[getattr(self, name) for name in _LISTS], self.counters)

    def mark(self) -> EffectsMark:
        """The present end of the effects besides productions and timers, for `split`."""
        return [len(getattr(self, name)) for name in _LISTS], dict(self.counters), self.size

    def split(self, productions: int, mark: EffectsMark | None, key_text: bytes) -> Effects:
        """Leave only the effects since a mark, which are those of one key; gives the others.

        Args:
            productions: the number of productions at the mark.
            mark: None: there were no other effects.
        """
        lengths, counters, size = mark or (_NONE, {}, 0)
        before = Effects()
        before.keeper, before.size, before.counters = self.keeper, size, counters
        before.produced = self.produced[:productions]
        del self.produced[:productions]
        for name, length in zip(_LISTS, lengths, strict=True):
            found = getattr(self, name)
            setattr(before, name, found[:length])
            del found[:length]
        for identity in [name for name in self.timers if name[0] != key_text]:
            before.timers[identity] = self.timers.pop(identity)
        self.counters = {
            name: count - counters.get(name, 0)
            for name, count in self.counters.items()
            if count != counters.get(name, 0)
        }
        self.size -= size
        return before


_LISTS = ("rows", "statements", "lines", "dead_letters", "held")
"""The lists of an `Effects` besides its productions."""
_NONE = [0] * len(_LISTS)

EffectsMark = tuple[list[int], dict[str, int], int]
"""Lengths of the lists of an `Effects` at some moment, its counters, and its size."""


class Keeper(Protocol):
    """Publishes the low watermark of an interval."""

    promised: int
    """The published low watermark, in microseconds."""

    def keep_back(self, micros: int) -> None:
        """Publish no later watermark than this, until `let_up` has been called as often."""
        ...

    def let_up(self, micros: int) -> None: ...


class Lineage(Protocol):
    """Gives weak productions their ids, derived from the input record."""

    cause: Delivery[Any] | None
    """The input record; None while a timer runs, which has strong productions."""

    def begin(self, cause: Delivery[Any] | None) -> None: ...


class Route(Protocol):
    """The destinations of one stream from one computation: consumers and table sinks."""

    @property
    def readers(self) -> Sequence[Any]:
        """The readers of the stream."""
        ...

    def address(self, outbox: Outbox, produced: Sequence[Produced]) -> int:
        """Add productions of this route to the outbox, with their addresses; gives their size."""
        ...

    def send(self, effects: Effects, cell: StateCell, value: Any, micros: int) -> None:
        """Encode the value once, and add one delivery per consumer and one row per sink.

        Args:
            cell: the producing key and its state.
        """
        ...


class StateCell(Protocol):
    """One key and its state object."""

    key: Key
    key_text: bytes
    slot: int
    opened: Any
    """The state object; `UNKNOWN` before `open_state`."""

    def open_state(self) -> Any: ...

    def replace_state(self, state: Any) -> None: ...


class SharedTable(Protocol):
    """The table that all keys of a cell share."""

    def snapshot(self) -> Any: ...


MAX_TAG_BYTES = 1024
"""Maximum size of a timer's tag, which is in an index beside the key."""

PROCESSED = "processed"
RECORDS_OUT = "records_out"
DEAD_LETTERS = "dead_letters"
BAD_ROWS = "bad_rows"
BLOOM_MAYBES = "bloom_maybes"
DUPLICATES_DROPPED = "duplicates_dropped"
WEAK_CHANGED = "weak_changed"
STRAGGLERS = "stragglers"
REPLAYS = "replays"
COMMON_COUNTERS = frozenset(
    [PROCESSED, RECORDS_OUT, DEAD_LETTERS, BAD_ROWS, BLOOM_MAYBES, DUPLICATES_DROPPED]
)
"""Counters of the engine with a column in `millwheel status`, and a metric of their own."""
ENGINE_COUNTERS = COMMON_COUNTERS | {WEAK_CHANGED, STRAGGLERS, REPLAYS}
"""Counters of the engine, shown beside those of user code, which may not change them."""

MAX_COUNTER_NAME = 200
"""Maximum size of a counter's name, in bytes."""
MAX_COUNT = 2**53
"""Maximum change of a counter in one call."""

_STATEMENT = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*([A-Za-z]+)", re.DOTALL)
_ALLOWED = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "WITH"})


ReportLateUse = Callable[[UserCodeError], None]
"""Called with the error when a `Context` is used after its call."""


class Context(Generic[S, T]):
    """The argument `ctx` of `process_record` and `process_timer`; valid only during the call.

    Any use after the call has ended, by a task that the call started and did not await, raises
    `UserCodeError` and stops the worker, because the record may already be durable.
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
        """Set the next key, and the times and the shared table that are fixed for its call."""
        self._cell = cell
        self._watermark = watermark
        self._promised = promised
        self._now = now
        self._share(table)

    def _end(self, report_late_use: ReportLateUse) -> None:
        """Refuse and report every use from now on: the call has ended."""
        self._report_late_use = report_late_use
        self.__class__ = EndedBundleContext if isinstance(self, BundleContext) else EndedContext

    def _share(self, table: SharedTable | None) -> None:
        """Set the shared table of the next key."""
        self._table = table
        self._shared = None

    @property
    def key(self) -> Key:
        """The key of the record or timer being processed."""
        return self._cell.key

    @property
    def bundle_id(self) -> BundleId:
        """The number of the bundle that is being processed, in `process_bundle`."""
        raise UserCodeError(
            f"{self._name} reads ctx.bundle_id, but its records do not come in bundles; give the "
            "class `bundles = Bundles()` and process_bundle in place of process_record"
        )

    @property
    def state(self) -> S:
        """The state of this key: change it in place, or assign a new one.

        The change is committed with this record or not at all. An empty state takes no row.
        """
        cell = self._cell
        state: S = cell.opened
        return cell.open_state() if state is UNKNOWN else state

    @state.setter
    def state(self, state: S) -> None:
        self._cell.replace_state(state)

    @property
    def shared(self) -> T:
        """The table built from broadcast records; it stays the same during the whole call.

        Do not change it: only `Computation.process_broadcast` may. Other records may see a change
        made here, but it is never stored; a `Harness` reports it as an error.
        """
        if self._shared is None and self._table is not None:
            self._shared = self._table.snapshot()
        shared: T = self._shared
        return shared

    @property
    def low_watermark(self) -> datetime:
        """The input low watermark: no record on time will arrive with an older timestamp."""
        return from_micros(self._watermark)

    @property
    def low_watermark_micros(self) -> int:
        """The input low watermark in microseconds since the epoch, the unit of `Record.micros`."""
        return self._watermark

    @property
    def output_watermark(self) -> datetime:
        """The low watermark published to the readers of this computation's streams.

        It may advance while user code waits.
        """
        return from_micros(max(self._promised, self._effects.promised))

    @property
    def now(self) -> datetime:
        """Wall time, read once for all records of the same commit."""
        return from_micros(self._now)

    def set_timer(self, at: datetime, tag: str = "", kind: TimerKind = "watermark") -> None:
        """Call `process_timer` for this key when the low watermark (or the clock) passes `at`.

        The timer replaces one with the same kind and tag. A timer in the past fires right after
        this record.
        """
        due = min(to_micros(at), MAX_TIME - 1)  # at the end of time every timer is due
        if tag != "" or kind not in ("watermark", "wall"):
            tag = self._checked(tag, kind)
        hold = max(due, self._promised)
        cell = self._cell
        self._effects.timers[(cell.key_text, kind, tag)] = (due, hold, cell.key, cell.slot)

    def cancel_timer(self, tag: str = "", kind: TimerKind = "watermark") -> None:
        """Cancel the timer of this kind and tag, if it is set."""
        if tag != "" or kind not in ("watermark", "wall"):
            tag = self._checked(tag, kind)
        self._effects.timers[(self._cell.key_text, kind, tag)] = None

    def hold_watermark(self, at: datetime, tag: str = "") -> None:
        """Hold the low watermark of this computation at `at` until `release_watermark` is called.

        Use it for an output that the key's state will produce later: with the timestamp `at` it
        will not be late, however long it waits. The hold replaces one with the same tag. A
        published watermark cannot be taken back: a hold behind `output_watermark` holds it there.
        At the end of time, when the last watermark timer of the computation has fired, all holds
        end.
        """
        due = min(to_micros(at), MAX_TIME - 1)
        if tag != "":
            tag = self._checked(tag, "watermark")
        cell, promised = self._cell, self._promised
        hold = due if due > promised else promised
        self._effects.timers[(cell.key_text, "hold", tag)] = (due, hold, cell.key, cell.slot)

    def release_watermark(self, tag: str = "") -> None:
        """Release the hold of this tag, if there is one."""
        if tag != "":
            tag = self._checked(tag, "watermark")
        self._effects.timers[(self._cell.key_text, "hold", tag)] = None

    def _checked(self, tag: str, kind: str) -> str:
        """The tag as a plain `str`, after a check of tag and kind."""
        if kind not in ("watermark", "wall"):
            raise UserCodeError(
                f"{self._name}: a timer's kind must be 'watermark' or 'wall', not {kind!r:.80}"
            )
        if _is_storable(tag, MAX_TAG_BYTES):
            return str.__str__(tag)  # the text of a StrEnum: the store takes plain strings only
        raise UserCodeError(
            f"{self._name}: a timer's tag must be a str of at most {MAX_TAG_BYTES:,} bytes "
            f"without NUL and lone surrogates, not {tag!r:.80}"
        )

    def produce(self, stream: Stream[V], value: V, timestamp: datetime | None = None) -> None:
        """Send `value` to every reader of `stream`.

        Args:
            timestamp: None means the timestamp of the record (or timer) being processed. It may be
                older, but not older than `output_watermark`, which may advance while user code
                waits; after this call it does not pass the output.

        Raises:
            UserCodeError: the class does not declare the stream in ``writes``, the value is not of
                the stream's type, or the timestamp is older than the published watermark (I7).
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
                    f"{self._place()}: an output of stream {stream.name!r} has the "
                    f"timestamp {timestamp.isoformat()}, outside the range of event time, from "
                    f"{from_micros(MIN_TIME).date()} to {from_micros(MAX_TIME).date()}"
                )
            if micros < self._micros:
                promised = max(self._promised, self._effects.promised)
                if micros < promised:
                    raise UserCodeError(
                        f"{self._place()}: an output of stream {stream.name!r} has the timestamp "
                        f"{timestamp.isoformat()}, older than both its input "
                        f"({from_micros(self._micros).isoformat()}) and the low watermark already "
                        f"promised downstream ({from_micros(promised).isoformat()}); the output "
                        "of an on-time record would be late. Use the record's timestamp or a "
                        "later one"
                    )
                self._effects.hold(micros)
        route.send(self._effects, self._cell, value, micros)

    def _place(self) -> str:
        """The computation and key, for errors."""
        return f"{self._name}, key {shown_key(self.key)}"

    def execute(self, sql: str, params: Sequence[Any] = ()) -> None:
        """Run a statement on your own tables in the transaction that commits this record.

        The statement is deferred to the commit and returns no result. Parameters are written
        ``%s``. Transaction control, SET and LOCK are refused, since they would break the commit.
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
        """Add to a counter of this computation; `millwheel status` shows it. Exact despite
        crashes."""
        if not isinstance(by, int) or not -MAX_COUNT <= by <= MAX_COUNT:
            raise UserCodeError(
                f"{self._name}: the counter {name!r:.80} moves by a whole number of at most 2**53, "
                f"not by {by!r:.80}"
            )
        if not _is_storable(name, MAX_COUNTER_NAME):
            raise UserCodeError(
                f"{self._name}: a counter's name must be a str of at most {MAX_COUNTER_NAME} bytes "
                f"without NUL and lone surrogates, not {name!r:.80}"
            )
        name = str.__str__(name)
        if name in ENGINE_COUNTERS:
            raise UserCodeError(
                f"{self._name}: the counter {name!r} is the engine's own; choose another name"
            )
        counters = self._effects.counters
        counters[name] = counters.get(name, 0) + by


class TimerlessContext(Context[S, T]):
    """The context of a computation without `process_timer`: it refuses to set timers."""

    __slots__ = ()

    def set_timer(self, at: datetime, tag: str = "", kind: TimerKind = "watermark") -> NoReturn:
        raise UserCodeError(
            f"{self._name} sets a timer but defines no process_timer to run when it fires; "
            "define `async def process_timer(self, timer, ctx)`"
        )


class WeakContext(Context[S, T]):
    """The context of a computation with weak productions, which must not depend on the time."""

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
                f"{self._name} read ctx.{what} while it processed a record, but its productions "
                "are weak: they are made again after a crash, and must be the same then. Take "
                'times from the record, add it with productions="strong", or, if its output does '
                "not depend on the time, declare that in the class: order_insensitive = True"
            )


class WeakTimerlessContext(TimerlessContext[S, T], WeakContext[S, T]):
    """The context of a computation with weak productions and without `process_timer`."""

    __slots__ = ()


class SpreadContext(Context[S, T]):
    """The context of a computation that reads its streams spread: it has no timers or holds."""

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
            f"{self._name} {what}, but it reads its streams by STREAM.spread(): the engine chooses "
            "its keys, which mean nothing. Read them by a key, STREAM.by(...)"
        )


class WeakSpreadContext(SpreadContext[S, T], WeakContext[S, T]):
    """The context of a computation with weak productions that reads its streams spread."""

    __slots__ = ()


class ScopeOwner(Protocol):
    """The worker that processes a bundle, as far as the bundle's context is concerned."""

    async def is_current(self) -> bool: ...
    async def store_id(self) -> str: ...


class BundleContext(SpreadContext[S, T]):
    """The context of a numbered bundle, which has no key: its records have many."""

    __slots__ = ("_bundle_id", "_latest", "_owner")

    def _begin(
        self, bundle_id: BundleId, records: Sequence[Record[Any]], owner: ScopeOwner
    ) -> None:
        """Set the next bundle.

        The default timestamp of a production is that of the newest record; it may be as old as the
        oldest record.
        """
        self._bundle_id = bundle_id
        self._owner = owner
        times = [record.micros for record in records]
        self._micros = min(times)
        self._latest = from_micros(max(times))

    @property
    def bundle_id(self) -> BundleId:
        return self._bundle_id

    async def is_owner(self) -> bool:
        """Whether this worker still owns the bundle's scope, by the store: if it does not, another
        one delivers the bundle."""
        return await self._owner.is_current()

    async def store_id(self) -> str:
        """The pipeline's name, and a text that tells its store from every other: for names in other
        systems. A copy of the store (a restored dump) has the same one."""
        return await self._owner.store_id()

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

    def _place(self) -> str:
        return f"{self._name}, {self._bundle_id}"

    def _refuse(self, what: str) -> NoReturn:
        raise UserCodeError(
            f"{self._name} {what} in process_bundle, but the records of a bundle have many keys. "
            "Do that in a separate computation before this one"
        )


class Ended:
    """Refuses every use of a `Context` after the end of its call."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself and debuggers read these
            return object.__getattribute__(self, name)
        raise _late_use(self, name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _late_use(self, name)


class EndedContext(Ended, Context[S, T]):
    """A context after the end of its call."""

    __slots__ = ()


class EndedBundleContext(Ended, BundleContext[S, T]):
    """The context of a numbered bundle after the end of its call."""

    __slots__ = ()


def _late_use(context: Ended, what: str) -> UserCodeError:
    """Report the error for one late use, and return it."""
    name = object.__getattribute__(context, "_name")
    error = UserCodeError(
        f"{name} used ctx.{what} after the call that ctx belongs to had ended, so it has no "
        "effect. Inside process_record (or process_timer, process_bundle), await every task that "
        "it starts and that uses ctx, for example with asyncio.TaskGroup"
    )
    object.__getattribute__(context, "_report_late_use")(error)
    return error


def _is_storable(text: object, limit: int) -> bool:
    """Whether an object is a `str` of at most `limit` bytes that Postgres can store."""
    if not isinstance(text, str):
        return False
    if text.isascii():  # nearly always, and the cheapest check
        return len(text) <= limit and "\0" not in text
    try:
        return len(text.encode()) <= limit and "\0" not in text
    except UnicodeEncodeError:
        return False
