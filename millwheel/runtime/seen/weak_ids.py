"""The ids of weak productions, derived from the input record that causes them.

A weak production is sent before it is stored. When its sender starts over, it is made again, and
must not count twice at a reader that has it. So its id encodes its origin, the worker process that
has made it, and its content::

    1 bit, set | name: a hash of (input's name, computation, stream, ordinal) | run     | digest
                 the rest of 12 bytes                                           2 bytes   2 bytes

Receivers identify records by the name; the run is the mark of the worker process. The same name
with another digest means that the code has made another output for the same input: within one run,
where the code is the same, an error; in different runs the first value stays
(`millwheel.runtime.seen.dedup`, decision 42).
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from xxhash import xxh3_64_digest, xxh3_128_digest

from millwheel.core.model import NAME_BYTES, RUN_BYTES, Delivery, name_of

_place = Struct(">II").pack
_micros = Struct(">q").pack

NO_RUN = bytes(RUN_BYTES)
"""The mark where the worker does not matter."""


def mark_of(worker: str) -> bytes:
    return xxh3_64_digest(worker.encode())[:RUN_BYTES]


class WeakIds:
    """Makes the ids of the productions of one input after the other."""

    __slots__ = ("_computation", "_made", "_run", "cause")

    def __init__(self, computation: int, run: bytes = NO_RUN) -> None:
        self._computation = computation
        self._run = run
        self._made = 0
        self.cause: Delivery[Any] | None = None

    def begin(self, cause: Delivery[Any] | None) -> None:
        """Set the input that causes the next productions; None: a timer runs."""
        self.cause = cause
        self._made = 0

    def next_id(self, stream: str, encoded: bytes, micros: int) -> bytes:
        """The id of the input's next production; readers with several cells derive further ids
        (`id_at`)."""
        assert self.cause is not None
        origin = name_of(self.cause.id) + _place(self._computation, self._made)
        self._made += 1
        name = xxh3_128_digest(origin + stream.encode())
        # The same part of the hash as in ids of engines without marks: both kinds recognize each
        # other's ids.
        digest = xxh3_64_digest(encoded + _micros(micros))[RUN_BYTES : 16 - NAME_BYTES]
        return _derived(name, self._run + digest)


def id_at(id_: bytes, slot: int) -> bytes:
    """The id of the copy for one of a reader's several cells, by the cell's slot."""
    return _derived(xxh3_128_digest(id_[:NAME_BYTES] + _place(0, slot)), id_[NAME_BYTES:])


def _derived(name: bytes, rest: bytes) -> bytes:
    return bytes([name[0] | 0x80]) + name[1:NAME_BYTES] + rest
