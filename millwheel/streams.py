"""Streams: typed, named channels. The reader chooses how it reads: by key, spread, or by
broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, timedelta
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from millwheel.core.codec import Codec, Migration
from millwheel.core.extractors import Keys, fingerprint
from millwheel.core.functions import check_function
from millwheel.core.model import EPOCH, Key
from millwheel.core.names import check_name

__all__ = ["Broadcast", "Input", "Stream"]

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True)
class StreamFacts:
    """Facts about the values of a stream that a query writes.

    Attributes:
        is_updating: later values replace former ones.
        owners: fields that hold the key of the computation that makes a value, so that values with
            equal ones are made in an order: for each part, the fields that have it. None: none are
            known.
        instants: fields from which a value's timestamp follows, and how: those of its window. None:
            no query writes it.
        spreads: fields that are times near a value's timestamp, with the least and the greatest
            number of microseconds from the field to the timestamp. None: any field may be the event
            time.
    """

    is_updating: bool = False
    owners: tuple[frozenset[str], ...] | None = None
    instants: Mapping[str, str] | None = None
    spreads: Mapping[str, tuple[int, int]] | None = None


class Stream(Generic[V]):
    """A named channel of records with values of one type.

    ```python
    def add_cents(old: dict[str, int]) -> dict[str, int]:
        return {**old, "cents": 0}

    BILLS = Stream("bills", Order, version=2, migrations={1: add_cents})
    ```

    Args:
        name: unique in a pipeline; lower case, digits, underscores.
        value_type: a msgspec.Struct, a dataclass, or a plain JSON type. JSON has no NaN and
            infinity: use ``float | None`` for "not known".
        version: increase it by one with every change of the type.
        migrations: for each older version, a function that converts its decoded JSON to the next
            one; see `Computation.migrations`. A failure stops the worker with `MigrationFailed`.
    """

    def __init__(
        self,
        name: str,
        value_type: type[V],
        *,
        version: int = 1,
        migrations: Mapping[int, Migration] | None = None,
    ) -> None:
        self.name = check_name(name, "stream")
        self.value_type = value_type
        self.version = version
        self.migrations: dict[int, Migration] = dict(migrations or {})
        self.codec: Codec[V] = Codec(value_type, what=f"stream {name!r}")
        self.facts = StreamFacts()
        """Those that queries know; they set them (`millwheel.sql`)."""

    def by(self, extractor: Callable[[V], Key], *, version: int = 1) -> Input[V]:
        """Read this stream by the key that `extractor` returns for each value.

        ```python
        pipeline.add(AddUp(), ORDERS.by(lambda order: (order.customer, order.item)))
        ```

        Records of one key are processed in one place, one after the other, with the key's state and
        timers.

        Args:
            version: increase it by one when the code of the extractor changes and the reader keeps
                state by its keys. The state of keys that no longer occur stays in the store.

        Raises:
            GraphError: `extractor` is not a function, or is a coroutine function.
        """
        check_function(
            extractor, f"stream {self.name!r}: the key in by(...)", "returns the key of a value"
        )
        return Input(self, extractor, version=version)

    def spread(self) -> Input[V]:
        """Read this stream for work that depends on no key (parse, enrich, call a service).

        ```python
        from millwheel.computations import FlatMap

        ITEMS = Stream("items", str)
        pipeline.add(FlatMap(lambda order: order.item.split(), to=ITEMS), ORDERS.spread())
        ```

        A record produced by a computation goes to an interval of the reader on the same worker, if
        there is one; rows of a source go evenly to all intervals. Records are processed in
        parallel, in any order. `Context.key` is a meaningless number, so the reader has no state
        and no timers.
        """
        return Input(self, None)

    def broadcast(self) -> Broadcast[V]:
        """Read this stream into a table that all keys of the reader share: rules, rates, a small
        list.

        ```python
        class Check(Computation[Order, None, int, Spent]):
            async def process_broadcast(self, record: Record[int], shared: Spent) -> None:
                shared.cents = record.value

            async def process_record(
                self, record: Record[Order], ctx: Context[None, Spent]
            ) -> None:
                ctx.count("too much", record.value.cents > ctx.shared.cents)

        LIMITS = Stream("limits", int)
        pipeline.inject(LIMITS, Inbox())
        pipeline.add(Check(), ORDERS.by(customer), LIMITS.broadcast())
        ```

        Each of ``Settings.broadcast_cells`` ranges of keys gets each record and stores the table.
        As in any input, a silent source holds the low watermark: see ``idle_after`` of `inject`.
        """
        return Broadcast(self)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {getattr(self.value_type, '__name__', self.value_type)})"


@dataclass(frozen=True)
class Input(Generic[V_co]):
    """A stream as one consumer reads it: keyed by `extractor`, or spread.

    ```python
    reading = ORDERS.by(customer)
    assert isinstance(reading, Input)
    assert (reading.name, reading.key_type) == ("orders", "str")
    ```
    """

    stream: Stream[Any]
    extractor: Callable[[Any], Key] | None
    """Returns the key of a value; None: the engine chooses the key."""
    relayed: Stream[Any] | None = None
    """The user's stream, if a relay reads its rows and `stream` is the hidden stream behind it."""
    version: int = 1

    @property
    def name(self) -> str:
        return (self.relayed or self.stream).name

    @property
    def keys(self) -> Keys | None:
        """The identity of the extractor, which a deploy compares; None: the engine chooses keys."""
        if self.extractor is None:
            return None
        return Keys(self.version, fingerprint(self.extractor))

    @property
    def extractor_name(self) -> str:
        """The extractor's name in the stored graph; no function's name contains brackets."""
        if self.extractor is None:
            return "spread()"
        return getattr(self.extractor, "__qualname__", type(self.extractor).__name__)

    @property
    def manner(self) -> str:
        return "spread" if self.extractor is None else f"by {self.extractor_name}"

    @property
    def key_type(self) -> str | None:
        """The type of the key, such as ``str`` or ``(str, int)``; None if it is not known.

        It is the extractor's return annotation. An extractor without one (a lambda) is called with
        an empty value of the stream's type.
        """
        if self.extractor is None:
            return None
        declared = _declared_key_type(self.extractor)
        if declared is not None:
            return declared
        try:
            return _shown_key_type(self.extractor(_empty_value(self.stream.value_type)))
        except Exception:  # user code may fail in any way on a value that it never gets otherwise
            return None


@dataclass(frozen=True)
class Broadcast(Generic[V_co]):
    """A stream that one consumer reads by broadcast: all keys see each record.

    ```python
    reading = ORDERS.broadcast()
    assert isinstance(reading, Broadcast)
    assert reading.name == "orders"
    ```
    """

    stream: Stream[Any]
    relayed: Stream[Any] | None = None

    extractor_name = "broadcast()"
    manner = "broadcast"

    @property
    def name(self) -> str:
        return (self.relayed or self.stream).name


class _Unknown:
    """Replaces a part of an empty value that has no obvious empty value; it is not a key."""


def _declared_key_type(extractor: Callable[[Any], Key]) -> str | None:
    if extractor in (str, int):
        return extractor.__name__
    try:
        hint = get_type_hints(extractor).get("return")
    except Exception:  # a name cannot be resolved, or it is not a function
        return None
    if hint in (str, int):
        return str(hint.__name__)
    parts = get_args(hint)
    if get_origin(hint) is tuple and parts and all(part in (str, int) for part in parts):
        return f"({', '.join(part.__name__ for part in parts)})"
    return None


def _shown_key_type(key: Any) -> str | None:
    if type(key) in (str, int):
        return type(key).__name__
    if type(key) is tuple and key and all(type(part) in (str, int) for part in key):
        return f"({', '.join(type(part).__name__ for part in key)})"
    return None


def _empty_value(value_type: Any) -> Any:
    kind = get_origin(value_type) or value_type
    if kind is datetime:
        return EPOCH
    if kind is date:
        return EPOCH.date()
    if kind in (str, int, float, bool, bytes, list, dict, set, frozenset, timedelta):
        return kind()
    if kind is tuple:
        return tuple(_empty_value(part) for part in get_args(value_type) if part is not Ellipsis)
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
        hints = get_type_hints(kind)
        return kind(
            **{
                field.name: _empty_value(hints[field.name])
                for field in (
                    msgspec.structs.fields(kind)
                    if issubclass(kind, msgspec.Struct)
                    else fields(kind)
                )
            }
        )
    return _Unknown()
