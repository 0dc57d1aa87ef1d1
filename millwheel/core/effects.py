"""One call of user code, and its effects as data: nothing is written before their commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from typing import Any, Protocol

from millwheel.core.chunk import Outbox
from millwheel.core.model import MIN_TIME, Delivery, Key

TimerIdentity = tuple[bytes, str, str]
"""Key, kind and tag."""


Produced = tuple["Route", "StateCell", Any, bytes, int]


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
        """Productions without addresses yet, in order."""
        self.together = False
        """Many productions get their addresses together; otherwise each at once."""
        self.caused: list[tuple[Delivery[Any], Delivery[Any]]] = []
        """Input record and weak production."""
        self.lineage: Lineage | None = None
        self.keeper: Keeper | None = None
        """The interval with the low watermark that these productions must not be behind."""
        self.held: list[int] = []
        """Times of productions older than their input, at which the keeper holds its watermark
        until they are in a log."""
        self.timers: dict[TimerIdentity, tuple[int, int, Key, int] | None] = {}
        """(due, hold, key, slot) of each timer, or None if it was cancelled or has fired."""
        self.rows: list[tuple[Any, tuple[Any, ...]]] = []
        """Table sink and column values."""
        self.statements: list[tuple[str, Sequence[Any]]] = []
        self.lines: list[bytes] = []
        self.dead_letters: list[Any] = []
        self.settled: list[Any] = []
        self.counters: dict[str, int] = {}
        self.size = 0

    @property
    def promised(self) -> int:
        return MIN_TIME if self.keeper is None else self.keeper.promised

    def hold(self, micros: int) -> None:
        """Hold the low watermark for a production that is older than its input."""
        if self.keeper is not None:
            self.keeper.keep_back(micros)
            self.held.append(micros)

    def let_up(self) -> None:
        """The productions are in a log, or were discarded."""
        if self.keeper is not None:
            for micros in self.held:
                self.keeper.let_up(micros)
        self.held.clear()

    def count(self, name: str, by: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    def take(self, other: Effects) -> None:
        """Leaves `other` empty for its next use."""
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
        self.let_up()
        self.produced.clear()
        Effects().take(self)

    def others(self) -> tuple[Sized, ...]:
        """The containers of all effects besides productions and timers: if they are empty, so is
        their `mark`. They stay the same objects until `split`."""
        return (*[getattr(self, name) for name in _LISTS], self.counters)

    def mark(self) -> EffectsMark:
        return [len(getattr(self, name)) for name in _LISTS], dict(self.counters), self.size

    def split(self, productions: int, mark: EffectsMark | None, key_text: bytes) -> Effects:
        """Leave only the effects since a mark, which are those of one key; returns the others.

        `productions` is the number at the mark. No mark: there were no other effects.
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
_NONE = [0] * len(_LISTS)

EffectsMark = tuple[list[int], dict[str, int], int]
"""Lengths of the lists, counters, and size."""


class Keeper(Protocol):
    promised: int
    """The published low watermark, in microseconds."""

    def keep_back(self, micros: int) -> None:
        """Publish no later watermark until `let_up` has been called as often."""
        ...

    def let_up(self, micros: int) -> None: ...


class Lineage(Protocol):
    cause: Delivery[Any] | None
    """The input record; None while a timer runs, which has strong productions."""

    def begin(self, cause: Delivery[Any] | None) -> None: ...


class Route(Protocol):
    @property
    def readers(self) -> Sequence[Any]: ...

    def send(self, effects: Effects, cell: StateCell, value: Any, micros: int) -> None:
        """The value is encoded once; `cell` is the producing key and its state."""
        ...


class StateCell(Protocol):
    key: Key
    key_text: bytes
    slot: int
    opened: Any
    """`UNKNOWN` before `open_state`."""

    def open_state(self) -> Any: ...

    def replace_state(self, state: Any) -> None: ...


class SharedTable(Protocol):
    def snapshot(self) -> Any: ...


class Call:
    """The engine sets the key and the times before each call of user code; a `millwheel.Context`
    shows them."""

    __slots__ = (
        "cell",
        "effects",
        "micros",
        "name",
        "now",
        "promised",
        "routes",
        "shared",
        "table",
        "watermark",
    )

    def __init__(self, name: str, routes: Mapping[str, Route], effects: Effects) -> None:
        self.name = name
        self.routes = routes
        self.effects = effects
        self.cell: StateCell
        self.watermark = self.promised = self.now = 0
        """The input low watermark, the published one, and the wall time, in microseconds."""
        self.micros = 0
        """Timestamp of the record or timer being processed."""
        self.table: SharedTable | None = None
        self.shared: Any = None

    def open(
        self,
        cell: StateCell,
        watermark: int,
        promised: int,
        now: int,
    ) -> None:
        self.cell, self.watermark, self.promised, self.now = cell, watermark, promised, now

    def share(self, table: SharedTable | None) -> None:
        self.table, self.shared = table, None


class ScopeOwner(Protocol):
    async def is_current(self) -> bool: ...
    async def store_id(self) -> str: ...
    def own_name(self, name: str) -> str: ...


class BundleCall(Call):
    __slots__ = ("bundle_id", "latest", "owner")

    bundle_id: Any
    latest: datetime
    """Timestamp of the newest record, the default of productions."""
    owner: ScopeOwner
