"""The ids of weak productions: derived from the record that they come of.

A weak production is sent before it is stored. When its sender starts over it is made again, and must
not count twice where it has arrived. So its id says where it comes from, who made it, and what it says::

    1 bit, set | name: a hash of (input's name, computation, stream, ordinal) | run     | digest
                 the rest of 12 bytes                                           2 bytes   2 bytes

Receivers tell records apart by the name. The run is a mark of the worker process. The same name with
another digest means that the code did something else the second time. Within one run that is an error,
since the code is the same: it does not depend on its record alone. Otherwise the code may have been
changed in between, and the first value stays (`millwheel.runtime.interval.dedup`, decision 42).
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from xxhash import xxh3_64_digest, xxh3_128_digest

from millwheel.model import NAME_BYTES, RUN_BYTES, Delivery, name_of

_place = Struct(">II").pack
_micros = Struct(">q").pack

NO_RUN = bytes(RUN_BYTES)


def mark_of(worker: str) -> bytes:
    """The mark that a worker's weak productions bear."""
    return xxh3_64_digest(worker.encode())[:RUN_BYTES]


class WeakIds:
    """Names what is produced for one input after the other; `cause` is None while a timer runs."""

    __slots__ = ("_computation", "_made", "_run", "cause")

    def __init__(self, computation: int, run: bytes = NO_RUN) -> None:
        self._computation = computation
        self._run = run
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
        # The part of the hash that engines without the mark put there: they know each other's ids.
        digest = xxh3_64_digest(encoded + _micros(micros))[RUN_BYTES : 16 - NAME_BYTES]
        return _derived(name, self._run + digest)


def id_at(id_: bytes, slot: int) -> bytes:
    """The id of the copy for one of several places, by its slot, within one reader."""
    return _derived(xxh3_128_digest(id_[:NAME_BYTES] + _place(0, slot)), id_[NAME_BYTES:])


def _derived(name: bytes, rest: bytes) -> bytes:
    return bytes([name[0] | 0x80]) + name[1:NAME_BYTES] + rest
