"""Streams: typed, globally named channels; the reader chooses the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millwheel.codec import Codec
from millwheel.errors import GraphError
from millwheel.model import Key

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
        value_type: a msgspec.Struct, a dataclass, or a plain JSON type.
        version: raised by one with every change of the type.
        migrations: for each older version, a function from its decoded JSON to the next one's.
    """

    def __init__(
        self,
        name: str,
        value_type: type[V],
        *,
        version: int = 1,
        migrations: Mapping[int, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.name = check_name(name, "stream")
        self.value_type = value_type
        self.version = version
        self.migrations = dict(migrations or {})
        self.codec: Codec[V] = Codec(value_type, what=f"stream {name!r}")

    def by(self, extractor: Callable[[V], Key]) -> Input[V]:
        """This stream, read with the key that `extractor` takes from each value."""
        return Input(self, extractor)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {getattr(self.value_type, '__name__', self.value_type)})"


@dataclass(frozen=True)
class Input(Generic[V_co]):
    """A stream as one consumer reads it: keyed by `extractor`."""

    stream: Stream[Any]
    extractor: Callable[[Any], Key]

    @property
    def extractor_name(self) -> str:
        """How the extractor is called in the stored graph."""
        return getattr(self.extractor, "__qualname__", type(self.extractor).__name__)
