"""Streams: typed, globally named channels; the reader chooses how it reads one.

``STREAM.by(key)``
    Records of one key go to one place, one after the other. State and timers are per key.

``STREAM.spread()``
    The work does not depend on a key (parse, enrich, call a service): the engine chooses where a
    record goes, near to where it was made and evenly. No state, no timers, no order.

``STREAM.broadcast()``
    Every key's records see what came by it: rules, small tables (`Computation.process_broadcast`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, timedelta
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from millwheel.codec import Codec, Migration
from millwheel.errors import GraphError
from millwheel.extractors import Keys, fingerprint
from millwheel.model import EPOCH, Key

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}\Z")


def check_name(name: str, what: str) -> str:
    """`name`, if it can name a stream, computation, pipeline or table everywhere it is used."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise GraphError(
            f"{name!r} cannot name a {what}: use lower-case letters, digits and underscores, "
            "starting with a letter, 48 characters at the most"
        )
    return name


class Stream(Generic[V]):
    """A named channel of records whose values have one type.

    Args:
        name: unique in a pipeline; lower case, digits, underscores.
        value_type: a msgspec.Struct, a dataclass, or a plain JSON type. A float may be neither NaN
            nor infinite, since JSON has no such numbers: write ``float | None`` for "not known".
        version: raised by one with every change of the type.
        migrations: for each older version, a function from its decoded JSON (of a struct a ``dict``)
            to the next one's; to go back, for each newer one, to the one before. One that fails
            stops the worker with `MigrationFailed`.
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

    def by(self, extractor: Callable[[V], Key], *, version: int = 1) -> Input[V]:
        """This stream, read with the key that `extractor` takes from each value.

        Args:
            version: raised by one when the code of the extractor is changed and the reader keeps
                state by its keys. State of keys that it gives no more stays where it is.
        """
        return Input(self, extractor, version=version)

    def spread(self) -> Input[V]:
        """This stream, for work that depends on no key: the engine chooses where a record goes.

        A record that a computation produced goes to an interval of the reader on the same worker,
        if there is one, so that it need not travel; rows of a source go evenly to all. Records
        are processed in parallel and in any order. `Context.key` is a number that means nothing,
        so the reader has no state and no timers; what it makes is read on by key.
        """
        return Input(self, None)

    def broadcast(self) -> Broadcast[V]:
        """This stream, for a table that all keys of the reader share: rules, rates, a small list.

        Each of its records goes to `Computation.process_broadcast`, which changes the table;
        records of the other inputs see it as `Context.shared`. It is stored once for each of
        ``Settings.broadcast_cells`` ranges of keys, and a record is sent to each of them. A source
        that falls silent holds the low watermark here as anywhere: see ``idle_after`` of `inject`.
        """
        return Broadcast(self)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {getattr(self.value_type, '__name__', self.value_type)})"


@dataclass(frozen=True)
class Input(Generic[V_co]):
    """A stream as one consumer reads it: keyed by `extractor`, or spread."""

    stream: Stream[Any]
    extractor: Callable[[Any], Key] | None
    """None: the engine chooses."""
    relayed: Stream[Any] | None = None
    """Of rows of a source the stream itself; `stream` is the hidden one that carries them."""
    version: int = 1
    """Of the extractor."""

    @property
    def name(self) -> str:
        """What the stream is called by who wrote the pipeline."""
        return (self.relayed or self.stream).name

    @property
    def keys(self) -> Keys | None:
        """How keys are taken, as a deploy compares it; None: the engine chooses."""
        if self.extractor is None:
            return None
        return Keys(self.version, fingerprint(self.extractor))

    @property
    def extractor_name(self) -> str:
        """How the extractor is called in the stored graph; brackets are in no function's name."""
        if self.extractor is None:
            return "spread()"
        return getattr(self.extractor, "__qualname__", type(self.extractor).__name__)

    @property
    def manner(self) -> str:
        """How the stream is read, for people."""
        return "spread" if self.extractor is None else f"by {self.extractor_name}"

    @property
    def key_type(self) -> str | None:
        """What kind of key it gives, like ``str`` or ``(str, int)``; None if that is not known.

        Told by the extractor's annotation. One without (a lambda) is tried on an empty value
        of the stream's type.
        """
        if self.extractor is None:
            return None
        declared = _declared_key_type(self.extractor)
        if declared is not None:
            return declared
        try:
            return _shown_key_type(self.extractor(_empty_value(self.stream.value_type)))
        except Exception:  # whatever it is, user code meets a value it was not made for
            return None


@dataclass(frozen=True)
class Broadcast(Generic[V_co]):
    """A stream whose every record all keys of a consumer get to see."""

    stream: Stream[Any]
    relayed: Stream[Any] | None = None
    """Of rows of a source the stream itself; `stream` is the hidden one that carries them."""

    extractor_name = "broadcast()"
    manner = "broadcast"

    @property
    def name(self) -> str:
        """What the stream is called by who wrote the pipeline."""
        return (self.relayed or self.stream).name


class _Unknown:
    """Stands in an empty value for what has no obvious empty value: it is no key."""


def _declared_key_type(extractor: Callable[[Any], Key]) -> str | None:
    if extractor in (str, int):
        return extractor.__name__
    try:
        hint = get_type_hints(extractor).get("return")
    except Exception:  # a name that cannot be looked up, or no function at all
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
    """A value with nothing in it, as good as can be."""
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
