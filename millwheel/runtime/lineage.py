"""The ids of weak productions: derived from the record that they come of.

What is not stored before it is sent is made again when its sender starts over, and must not count
twice where it has arrived. So its id says where it comes from, and what it says::

    1 bit, set | name: a hash of (input's name, computation, stream, ordinal) | digest of the value
                 the rest of 12 bytes                                           4 bytes

Records are told apart by the name. The same name with another digest means that the code did not
do the same again: an error, since dropping the second could lose a record (design, weak production).
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from xxhash import xxh3_64_digest, xxh3_128_digest

from millwheel.model import NAME_BYTES, Delivery, name_of

_place = Struct(">II").pack
_micros = Struct(">q").pack

DIGEST_BYTES = 16 - NAME_BYTES


class Lineage:
    """Names what is produced for one input after the other; `cause` is None while a timer runs."""

    __slots__ = ("_computation", "_made", "cause")

    def __init__(self, computation: int) -> None:
        self._computation = computation
        self._made = 0
        self.cause: Delivery[Any] | None = None

    def begin(self, cause: Delivery[Any] | None) -> None:
        """What is produced from now on comes of this input."""
        self.cause = cause
        self._made = 0

    def next_id(self, stream: str, encoded: bytes, micros: int) -> bytes:
        """The id of the next production of the input, if it goes to one place of each reader."""
        assert self.cause is not None
        origin = name_of(self.cause.id) + _place(self._computation, self._made)
        self._made += 1
        name = xxh3_128_digest(origin + stream.encode())
        return _derived(name, xxh3_64_digest(encoded + _micros(micros))[:DIGEST_BYTES])


def id_at(id_: bytes, slot: int) -> bytes:
    """The id of the copy for one of several places, by its slot, within one reader."""
    return _derived(xxh3_128_digest(id_[:NAME_BYTES] + _place(0, slot)), id_[NAME_BYTES:])


def _derived(name: bytes, digest: bytes) -> bytes:
    return bytes([name[0] | 0x80]) + name[1:NAME_BYTES] + digest
