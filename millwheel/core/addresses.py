"""Keys chosen by the engine: those of spread and of broadcast records.

The key of a spread record is one of 1,024 numbers, one for each range of 64 slots. Which number a
record gets is free: the number is stored with the record, or follows from the place of its row. The
slot of a number must never change, because the ids of seen records are kept by slot.

A broadcast record goes to each *cell* of its reader; cells divide the slots into equal parts. The
key of a cell is a JSON object, which no user's key is. Its slot is the first slot of the cell, so
that the cell's table is on the worker that has the keys that read it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS

SPREAD_KEYS = 1024
"""Number of keys of spread records: an interval has enough of them for all records that should wait
(for a call to another system, say) at the same time."""

MOST_CELLS = 1024
"""Maximum number of cells; with more, a broadcast record would cost more than it is worth."""

CELL_MARK = b"{"
"""First canonical byte of every cell's key, and of no other key."""


class Address(NamedTuple):
    """The destination of a record: its key, the key's canonical bytes, and its slot."""

    key: Any
    key_text: bytes
    slot: int


@cache
def spread_addresses() -> tuple[Address, ...]:
    """One number for each of the `SPREAD_KEYS` equal ranges of slots, adjacent numbers far apart.

    Each is the first number that hashes into its range; after about 8,000 numbers every range has
    one.
    """
    found: dict[int, Address] = {}
    number = 0
    while len(found) < SPREAD_KEYS:
        key_text, slot = encode_key(number)
        found.setdefault(slot * SPREAD_KEYS // SLOTS, Address(number, key_text, slot))
        number += 1
    return tuple(found.values())


def cell_address(cell: int, grain: int) -> Address:
    """The key and slot of a cell; each cell has `grain` slots."""
    return Address({"cell": cell}, b'{"cell":%d}' % cell, cell * grain)
