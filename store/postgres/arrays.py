"""Lists as Postgres's binary arrays, at a tenth of the cost of psycopg's own lists.

An array is a header and its elements, each after its length; all numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct
from typing import Any, ClassVar

from psycopg.adapt import AdaptersMap, Buffer, Dumper
from psycopg.pq import Format

_header = Struct("!iiiii").pack
_length = Struct("!i").pack
_NULL = _length(-1)

TEXTS = 1009
JSONBS = 3807
"""OIDs of ``text[]`` and ``jsonb[]``."""

KEPT_HEADS = 4096
"""Heads of elements up to this size are cached."""


class Packed:
    __slots__ = ("data",)

    oid: ClassVar[int]
    element_oid: ClassVar[int]

    def __init__(self, length: int, elements: bytes, *, nulls: bool = False) -> None:
        head = _header(1, nulls, self.element_oid, length, 1)
        self.data = head + elements if length else _header(0, 0, self.element_oid, 0, 1)[:12]


class _Int2s(Packed):
    oid, element_oid = 1005, 21


class _Int4s(Packed):
    oid, element_oid = 1007, 23


class _Int8s(Packed):
    oid, element_oid = 1016, 20


class _Uuids(Packed):
    oid, element_oid = 2951, 2950


class _Bits(Packed):
    oid, element_oid = 1563, 1562


class _Texts(Packed):
    oid, element_oid = TEXTS, 25


class _Jsonbs(Packed):
    oid, element_oid = JSONBS, 3802


def register(adapters: AdaptersMap) -> None:
    for kind in (_Int2s, _Int4s, _Int8s, _Uuids, _Bits, _Texts, _Jsonbs):
        name = f"Dumper of {kind.__name__}"
        adapters.register_dumper(kind, type(name, (_PackedDumper,), {"oid": kind.oid}))


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer:
        data: bytes = obj.data
        return data


def smallints(values: Sequence[int]) -> Packed:
    return _Int2s(len(values), _numbers("h", values))


def integers(values: Sequence[int]) -> Packed:
    return _Int4s(len(values), _numbers("i", values))


def bigints(values: Sequence[int]) -> Packed:
    return _Int8s(len(values), _numbers("q", values))


def _numbers(code: str, values: Sequence[int]) -> bytes:
    """`OverflowError` if a number does not fit."""
    count = len(values)
    if _are_alike(values):
        return count * _numbers(code, values[:1])
    try:
        plain = struct.pack(f"!{count}{code}", *values)
    except struct.error as error:
        raise OverflowError(str(error)) from error
    size = struct.calcsize(f"!{code}")
    found = bytearray((_length(size) + bytes(size)) * count)
    for place in range(size):  # by columns of bytes: each is one copy
        found[4 + place :: 4 + size] = plain[place::size]
    return bytes(found)


def _are_alike(values: Sequence[Any]) -> bool:
    """Often all values of a column are equal; different ones mostly show at the first
    comparison."""
    count = len(values)
    return count > 1 and values[0] == values[-1] and values.count(values[0]) == count


def uuids(values: Sequence[bytes]) -> Packed:
    return _Uuids(len(values), _length(16).join([b"", *values]))


def bits(values: Sequence[tuple[int, bytes] | None]) -> Packed:
    """Encode strings of bits, each with its length in bits; None becomes an SQL NULL."""
    parts = (_NULL if v is None else _length(4 + len(v[1])) + _length(v[0]) + v[1] for v in values)
    return _Bits(len(values), b"".join(parts), nulls=None in values)


def texts(values: Sequence[bytes | None]) -> Packed:
    """Encode texts; None becomes an SQL NULL."""
    return _elements(_Texts, _text_heads, values)


def jsonbs(values: Sequence[bytes | None]) -> Packed:
    """Encode JSON texts; None becomes an SQL NULL, and JSON's null stays a value."""
    return _elements(_Jsonbs, _jsonb_heads, values)


class _Heads(dict[int, bytes]):
    """Bytes before an element, by its size: the length of element and `more`, then `more`."""

    def __init__(self, more: bytes = b"") -> None:
        super().__init__()
        self._more = more

    def __missing__(self, size: int) -> bytes:
        head = _length(size + len(self._more)) + self._more
        if size < KEPT_HEADS:
            self[size] = head
        return head


_text_heads, _jsonb_heads = _Heads(), _Heads(b"\x01")


def _elements(kind: type[Packed], heads: _Heads, values: Sequence[bytes | None]) -> Packed:
    present = [value for value in values if value is not None]
    if len(present) == len(values):
        return kind(len(values), _headed(heads, present))
    parts = (_NULL if v is None else heads[len(v)] + v for v in values)
    return kind(len(values), b"".join(parts), nulls=True)


def _headed(heads: _Heads, values: Sequence[bytes]) -> bytes:
    if _are_alike(values):
        return len(values) * (heads[len(values[0])] + values[0])
    parts = [b""] * (2 * len(values))
    parts[::2] = map(heads.__getitem__, map(len, values))
    parts[1::2] = values
    return b"".join(parts)
