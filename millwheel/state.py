"""State as user code sees it: one object per key, and collections with entries that load
separately.

A state object is one row; a field of type `MapState` or `ListState` has a row per entry, so that
its cost depends on the entries that a record uses. Outside a pipeline (``Model()`` in a unit test),
collections keep their entries in memory.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from operator import attrgetter
from typing import (
    Any,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec

from millwheel.core.codec import TYPES_KNOWN, Codec, field_hints, key_text, shown
from millwheel.core.model import Key
from millwheel.core.stored_form import Fidelity
from millwheel.errors import GraphError, UserCodeError

__all__ = ["ListState", "MapState", "changes"]

K = TypeVar("K", bound="str | int | tuple[str | int, ...]")
V = TypeVar("V")
S = TypeVar("S")

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "UNKNOWN"})()


MAX_FIELD_BYTES = 63
"""Maximum length of a collection's field name, which begins the names of its entries."""


class Cells(Protocol):
    """The entries of one key, which collections read and write."""

    def lookup(self, entry: str, codec: Codec[Any]) -> Any:
        """The value in memory, `ABSENT` if there is none, or `UNKNOWN` if it must be fetched."""
        ...

    async def fetch(self, entry: str, codec: Codec[Any]) -> Any:
        """The stored value, or `ABSENT`."""
        ...

    def store(self, entry: str, codec: Codec[Any], value: Any) -> None: ...

    def erase(self, entry: str, codec: Codec[Any]) -> None: ...

    def scan(self, prefix: str, codec: Codec[Any]) -> AsyncIterator[tuple[str, Any]]:
        """All entries that start with `prefix`, in the order of their names."""
        ...

    def span(
        self, prefix: str, first: str, until: str, codec: Codec[Any]
    ) -> AsyncIterator[tuple[str, Any]]:
        """The entries of the collection `prefix` in [first, until), in order, loaded on demand.

        No entry has the name of a bound.
        """
        ...

    def known(self, prefix: str) -> list[str] | None:
        """The names of all entries that start with `prefix`, if all are in memory."""
        ...


class LocalCells:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def lookup(self, entry: str, codec: Codec[Any]) -> Any:
        return self.values.get(entry, ABSENT)

    async def fetch(self, entry: str, codec: Codec[Any]) -> Any:
        return self.values.get(entry, ABSENT)

    def store(self, entry: str, codec: Codec[Any], value: Any) -> None:
        self.values[entry] = value

    def erase(self, entry: str, codec: Codec[Any]) -> None:
        self.values.pop(entry, None)

    async def scan(self, prefix: str, codec: Codec[Any]) -> AsyncIterator[tuple[str, Any]]:
        for entry in sorted(self.values):
            if entry.startswith(prefix):
                yield entry, self.values[entry]

    async def span(
        self, prefix: str, first: str, until: str, codec: Codec[Any]
    ) -> AsyncIterator[tuple[str, Any]]:
        for entry in sorted(name for name in self.values if first < name < until):
            if entry in self.values:  # it may have been removed since
                yield entry, self.values[entry]

    def known(self, prefix: str) -> list[str] | None:
        return [entry for entry in self.values if entry.startswith(prefix)]


_ANY: Codec[Any] = Codec(Any, what="state entry")


class Collection:
    __slots__ = ("_cells", "_codec", "_key_type", "_prefix")

    def __init__(self) -> None:
        self._cells: Cells = LocalCells()
        self._prefix = ""
        self._codec: Codec[Any] = _ANY
        self._key_type: Any = Any

    def bind(self, cells: Cells, prefix: str, codec: Codec[Any], key_type: Any) -> None:
        """Attach to the cells of one key; called by the engine."""
        self._cells = cells
        self._prefix = prefix
        self._codec = codec
        self._key_type = key_type

    def is_part_of(self, cells: Cells, prefix: str) -> bool:
        return self._cells is cells and self._prefix == prefix

    def take_over(self, cells: Cells, prefix: str, codec: Codec[Any], key_type: Any) -> None:
        """Bind the collection, and move its entries from memory into the cells, which are empty."""
        assert isinstance(self._cells, LocalCells)
        local = self._cells.values
        self.bind(cells, prefix, codec, key_type)
        for entry, value in local.items():
            self._check_key(entry)
            cells.store(prefix + entry, self._codec_of(entry), value)

    def is_loose(self) -> bool:
        return isinstance(self._cells, LocalCells)

    @staticmethod
    def entries_of(cells: Cells, prefix: str) -> list[str] | None:
        """The entries of the collection under `prefix`; None if memory does not have them all."""
        return cells.known(prefix)

    def _codec_of(self, entry: str) -> Codec[Any]:
        return self._codec

    def _check_key(self, text: str) -> None:
        """Refuse a key, given as JSON, that is not of the declared type."""

    async def _read(self, entry: str) -> Any:
        value = self._cells.lookup(entry, self._codec)
        if value is UNKNOWN:
            value = await self._cells.fetch(entry, self._codec)
        return value


class MapState(Collection, Generic[K, V]):
    """A map from keys to values, with a row for each entry.

    ```python
    from msgspec import field

    class Basket(Struct):
        items: MapState[str, int] = field(default_factory=MapState)

    basket = Basket()  # as in a unit test
    basket.items.put("tea", 300)
    assert await basket.items.get("tea") == 300
    ```

    Reading may wait for the store, so it is awaited; writing never waits. A value changed in place
    after `get` is stored as if it had been `put`. A new map assigned to the field replaces the
    stored map if all of that is in memory; otherwise call `clear` first.
    """

    __slots__ = ()
    instead_inside = "a dict"
    """The type for a map within a value."""

    def _entry(self, key: K) -> str:
        return self._prefix + key_text(cast(Key, key)).decode()

    async def get(self, key: K) -> V | None:
        """The value of `key`, or None.

        ```python
        prices: MapState[str, int] = MapState()
        assert await prices.get("tea") is None
        ```
        """
        value = await self._read(self._entry(key))
        return None if value is ABSENT else cast(V, value)

    async def contains(self, key: K) -> bool:
        return await self._read(self._entry(key)) is not ABSENT

    def put(self, key: K, value: V) -> None:
        """Set the value of `key`.

        ```python
        prices: MapState[str, int] = MapState()
        prices.put("tea", 300)
        assert [entry async for entry in prices.items()] == [("tea", 300)]
        ```
        """
        entry = self._entry(key)
        if type(key) is not self._key_type:
            self._check_key(entry[len(self._prefix) :])
        self._cells.store(entry, self._codec, value)

    def _check_key(self, text: str) -> None:
        try:
            msgspec.json.decode(text, type=self._key_type)
        except msgspec.MsgspecError as error:
            raise UserCodeError(
                f"{self._codec.what}: {text:.200} is not a key of this map: {error}"
            ) from error

    def remove(self, key: K) -> None:
        self._cells.erase(self._entry(key), self._codec)

    async def clear(self) -> None:
        """Remove all entries; reads the whole map."""
        async for entry, _ in self._cells.scan(self._prefix, self._codec):
            self._cells.erase(entry, self._codec)

    async def items(self) -> AsyncIterator[tuple[K, V]]:
        """All entries, ordered by the JSON text of their keys; reads the whole map."""
        start = len(self._prefix)
        async for entry, value in self._cells.scan(self._prefix, self._codec):
            yield msgspec.json.decode(entry[start:], type=self._key_type), value

    def range(
        self: MapState[str, V], first: str, until: str, *, limit: int | None = None
    ) -> AsyncIterator[tuple[str, V]]:
        """The entries from `first` (inclusive) to `until` (exclusive), in order; loads few others.

        ```python
        days: MapState[str, int] = MapState()
        for day in ("2024-01-01", "2024-01-02", "2024-02-01"):
            days.put(day, 1)
        since = [day async for day, _ in days.range("2024-01-02", "2024-03")]
        assert since == ["2024-01-02", "2024-02-01"]
        ```

        The order is that of the keys' JSON, and so that of strings without space, ``!``, ``"``,
        backslash and control characters. Integers have none: write numbers with leading zeros, and
        instants as ``isoformat(timespec="microseconds")``. Entries may be changed and removed while
        they are read.

        Args:
            limit: maximum number of entries to read. Use it instead of leaving the loop.

        Raises:
            UserCodeError: a bound is not a string.
        """
        if not (isinstance(first, str) and isinstance(until, str)):
            raise UserCodeError(
                f"{self._codec.what}: range() needs keys that are strings, not from {first!r:.80} "
                f"to {until!r:.80}: JSON has no order for other keys"
            )
        # Without the closing quote, a bound sorts before every string that begins with it.
        span = self._cells.span(
            self._prefix, self._entry(first)[:-1], self._entry(until)[:-1], self._codec
        )
        return _MapRange(span, len(self._prefix), limit)


class _MapRange(AsyncIterator[tuple[str, V]]):
    """Entries of a map in order. It is no generator: asyncio's list of generators costs more than
    most ranges."""

    __slots__ = ("_left", "_span", "_start")

    def __init__(self, span: AsyncIterator[tuple[str, V]], start: int, limit: int | None) -> None:
        self._span = span
        self._start = start
        self._left = limit

    async def __anext__(self) -> tuple[str, V]:
        left = self._left
        if left is not None:
            if left <= 0:
                raise StopAsyncIteration
            self._left = left - 1
        entry, value = await anext(self._span)
        return msgspec.json.decode(entry[self._start :]), value


BOUNDS = "#"
"""Name of a list's entry with its bounds."""

_BOUNDS: Codec[tuple[int, int]] = Codec(tuple[int, int], what="bounds of a ListState")


class ListState(Collection, Generic[V]):
    """A queue of values with a row for each: append at the end, take from the front.

    ```python
    from msgspec import field

    class Queue(Struct):
        orders: ListState[Order] = field(default_factory=ListState)

    queue = Queue()  # as in a unit test
    await queue.orders.append(TEA)
    assert await queue.orders.pop_first() == TEA
    ```
    """

    __slots__ = ()
    instead_inside = "a list"
    """The type for a queue within a value."""

    async def _bounds(self) -> tuple[int, int]:
        value = self._cells.lookup(self._prefix + BOUNDS, _BOUNDS)
        if value is UNKNOWN:
            value = await self._cells.fetch(self._prefix + BOUNDS, _BOUNDS)
        return (0, 0) if value is ABSENT else cast("tuple[int, int]", value)

    def _keep(self, first: int, end: int) -> None:
        if first == end:
            self._cells.erase(self._prefix + BOUNDS, _BOUNDS)
        else:
            self._cells.store(self._prefix + BOUNDS, _BOUNDS, (first, end))

    def _entry(self, index: int) -> str:
        return f"{self._prefix}{index:015d}"

    async def append(self, value: V) -> None:
        """Add `value` at the end.

        ```python
        words: ListState[str] = ListState()
        await words.append("tea")
        assert [word async for word in words.values()] == ["tea"]
        ```
        """
        first, end = await self._bounds()
        self._cells.store(self._entry(end), self._codec, value)
        self._keep(first, end + 1)

    async def pop_first(self) -> V | None:
        """Remove and return the oldest value, or None if the list is empty.

        ```python
        words: ListState[str] = ListState()
        assert await words.pop_first() is None
        ```
        """
        first, end = await self._bounds()
        if first == end:
            return None
        value = await self._read(self._entry(first))
        self._cells.erase(self._entry(first), self._codec)
        self._keep(first + 1, end)
        return cast(V, value)

    async def clear(self) -> None:
        first, end = await self._bounds()
        for index in range(first, end):
            self._cells.erase(self._entry(index), self._codec)
        self._keep(end, end)

    @staticmethod
    def entries_of(cells: Cells, prefix: str) -> list[str] | None:
        """The entries of the list, in memory or not, as its stored bounds determine them."""
        bounds = cells.lookup(prefix + BOUNDS, _BOUNDS)
        if bounds is UNKNOWN:
            return None
        if bounds is ABSENT:
            return []
        return [prefix + BOUNDS, *(f"{prefix}{index:015d}" for index in range(*bounds))]

    def _codec_of(self, entry: str) -> Codec[Any]:
        return _BOUNDS if entry == "#" else self._codec

    async def length(self) -> int:
        first, end = await self._bounds()
        return end - first

    async def values(self) -> AsyncIterator[V]:
        """All values, oldest first."""
        first, end = await self._bounds()
        for index in range(first, end):
            yield cast(V, await self._read(self._entry(index)))


class StateLayout(Generic[S]):
    """The stored form of a state type: one entry for its plain part, and each collection
    separately."""

    def __init__(self, state_type: Any, *, owner: str, limit: int) -> None:
        self.state_type = None if state_type in (None, type(None)) else state_type
        self.owner = owner
        self.collections: dict[str, tuple[type[Collection], Any, Codec[Any]]] = {}
        self.stateless = self.state_type is None
        self.empty: bytes = b"null"
        self.has_fidelity = True
        """Whether user code sees no difference between a state and the one read from the store."""
        if get_origin(self.state_type) in (Union, types.UnionType):
            raise GraphError(
                f"the state of {owner} is of type {self.state_type}, so its empty state is "
                "ambiguous. Name one class with a default for every field: its instance without "
                "arguments is the state of a key without stored state"
            )
        if self.stateless:
            self.fingerprint: dict[str, Any] = {}
            self.encode: Callable[[Any], bytes] = lambda _: self.empty
            """Encodes the plain part of a state object as JSON."""
            return
        self._find_collections(limit)
        plain_type: Any = self.state_type
        if self.collections:
            plain_type = _plain_type(self.state_type, frozenset(self.collections))
        self.codec: Codec[Any] = Codec(
            plain_type, what=f"state of {owner}", limit=limit, setting="max_state_bytes"
        )
        self.has_fidelity = all(
            codec.fidelity == Fidelity.FULL
            for codec in (self.codec, *(codec for _, _, codec in self.collections.values()))
        )
        self.encode = self.codec.encode
        if self.collections:
            self._plain_values = _fields_of(plain_type.__struct_fields__)
            self.bound: Callable[[Any], Any] = attrgetter(*self.collections)
            """The collections of a state object, to detect whether one was replaced."""
            self.encode = self._encode_plain
            if not plain_type.__struct_fields__:
                self.encode = lambda _: b"{}"
        self.fingerprint = {
            "plain": self.codec.fingerprint,
            "collections": {
                name: [kind.__name__, repr(key_type), codec.fingerprint]
                for name, (kind, key_type, codec) in self.collections.items()
            },
        }
        try:
            self.empty = self.encode(self.new())
        except TypeError as error:
            raise GraphError(
                f"the state of {owner} has no empty value: {self._name()}() fails with: {error}. "
                "Give each field a default"
            ) from error

    def field_of(self, entry: str) -> str | None:
        """The collection that an entry is a value of; None: it is no value, as the bounds of a
        list, or no collection of this type has it."""
        field, _, name = entry.partition("/")
        return field if field in self.collections and name != BOUNDS else None

    def _name(self) -> str:
        return _name_of(self.state_type)

    def new(self) -> Any:
        make = cast("Callable[[], Any]", get_origin(self.state_type) or self.state_type)
        return make()

    def _find_collections(self, limit: int) -> None:
        origin = get_origin(self.state_type) or self.state_type
        if not _has_fields(origin):
            return
        variables = dict(
            zip(getattr(origin, "__parameters__", ()), get_args(self.state_type), strict=False)
        )
        for name, hint in field_hints(origin).items():
            kind = get_origin(hint) or hint
            if kind is MapState or kind is ListState:
                if len(name.encode()) > MAX_FIELD_BYTES:
                    raise GraphError(
                        f"the state of {self.owner}: {name!r} is too long a name for a "
                        f"{kind.__name__}; the limit is {MAX_FIELD_BYTES} bytes"
                    )
                arguments = [_substitute(a, variables) for a in get_args(hint)] or [Any, Any]
                key_type = arguments[0] if kind is MapState else int
                codec: Codec[Any] = Codec(
                    arguments[-1],
                    what=f"{self._name()}.{name} of {self.owner}",
                    limit=limit,
                    setting="max_state_bytes",
                )
                self.collections[name] = (kind, key_type, codec)

    def check(self, state: Any) -> None:
        """Check that an object can be the state.

        Raises:
            UserCodeError: the computation has no state, or its state is of another type.
        """
        kind = get_origin(self.state_type) or self.state_type
        if kind is None or (_has_fields(kind) and not isinstance(state, kind)):
            raise UserCodeError(
                f"{shown(state)} cannot be the state of {self.owner}, which is of type "
                f"{self._name()}"
            )

    def _encode_plain(self, state: Any) -> bytes:
        return self.codec.encode(self.codec.value_type(*self._plain_values(state)))

    def settle(self, encoded: bytes, state: Any) -> tuple[bytes, Any]:
        """A just encoded state, and the object that a restart reads from it.

        An object with collections stays, and its plain part is replaced.

        Raises:
            UserCodeError: it is no value of the type.
        """
        if not self.collections:
            return self.codec.settle(encoded, state)
        plain = self.codec.value_type(*self._plain_values(state))
        encoded, found = self.codec.settle(encoded, plain)
        return encoded, self._with_plain(state, found)

    def _with_plain(self, state: Any, plain: Any) -> Any:
        for name in plain.__struct_fields__:
            setattr(state, name, getattr(plain, name))
        return state

    def decode(self, encoded: bytes | None, cells: Cells | None = None) -> Any:
        """A state object from its stored plain part (None: empty), with collections bound to
        `cells`."""
        if self.stateless:
            return None
        if not self.collections:
            return self.new() if encoded is None else self.codec.read(encoded)
        assert cells is not None
        state = self.new()
        if encoded is not None:
            self._with_plain(state, self.codec.read(encoded))
        for name, (_, key_type, codec) in self.collections.items():
            getattr(state, name).bind(cells, name + "/", codec, key_type)
        return state


def _name_of(state_type: Any) -> str:
    return getattr(state_type, "__name__", str(state_type))


@lru_cache(maxsize=TYPES_KNOWN)
def _plain_type(state_type: Any, collections: frozenset[str]) -> Any:
    origin = get_origin(state_type) or state_type
    hints = field_hints(origin, include_extras=True)
    plain = [(name, hint) for name, hint in hints.items() if name not in collections]
    return msgspec.defstruct(f"{_name_of(state_type)}Plain", plain)


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
    )


def _fields_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda state: tuple(getattr(state, name) for name in names)


def _substitute(hint: Any, variables: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return variables.get(hint, Any)
    arguments = get_args(hint)
    if not arguments or not variables:
        return hint
    replaced = tuple(_substitute(argument, variables) for argument in arguments)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return Union[replaced]  # noqa: UP007 - built at run time
    subscript: Callable[[Any], Any] = cast(Any, origin).__class_getitem__
    return subscript(replaced if len(replaced) > 1 else replaced[0])


CHANGED = "changed_fields"
"""Attribute of a migration that says so."""


StateMigration: TypeAlias = Callable[[dict[str, Any]], Any]


def changes(*fields: str) -> Callable[[StateMigration], StateMigration]:
    """Declare that a migration of a state changes these fields alone, by their former and present
    names. Until a state is migrated, the view ``state_of_NAME`` shows its other columns.

    ```python
    from typing import Any

    @changes("dollars", "cents")
    def in_cents(old: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in old.items() if name != "dollars"}
        return {**rest, "cents": round(old.get("dollars", 0) * 100)}

    assert in_cents({"dollars": 1.5, "sales": 2}) == {"sales": 2, "cents": 150}
    ```

    A migration that changes another field fails (`millwheel.errors.MigrationFailed`).
    """

    def declare(migration: StateMigration) -> StateMigration:
        @functools.wraps(migration)
        def checked(old: dict[str, Any]) -> Any:
            before = _others(copy.deepcopy(old), fields)
            new = migration(old)
            after = _others(msgspec.to_builtins(new), fields)
            changed = sorted(
                name
                for name in before.keys() | after.keys()
                if name not in before or name not in after or before[name] != after[name]
            )
            if changed:
                raise ValueError(
                    f"it changes {', '.join(changed)}, which changes({', '.join(fields)}) does not "
                    "name"
                )
            return new

        setattr(checked, CHANGED, frozenset(fields))
        return checked

    return declare


def changed_fields(migration: Any) -> frozenset[str] | None:
    """The fields that a migration changes; None: it does not say."""
    return getattr(migration, CHANGED, None)


def _others(value: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if name not in fields}
