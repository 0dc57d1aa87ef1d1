"""Keys chosen by the engine: those of spread and of broadcast records.

A spread record's key is one of 1,024 numbers, one for each range of 64 slots. The slot of a number
must never change, because ids in no order of seen records are kept by slot.

A broadcast record goes to each *cell* of its reader; cells divide the slots into equal parts. A
cell's key is a JSON object, which no user's key is; its slot is the first of the cell, so that its
table is on the worker with the keys that read it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS

SPREAD_KEYS = 1024
"""Keys of spread records: enough in an interval for all records that should wait (for a call to
another system, say) at the same time."""

MOST_CELLS = 1024
"""With more cells, a broadcast record would cost more than it is worth."""

CELL_MARK = b"{"
"""No other key begins with this byte."""


class Address(NamedTuple):
    key: Any
    key_text: bytes
    slot: int


@cache
def spread_addresses() -> tuple[Address, ...]:
    """Adjacent numbers are far apart; each is the first that hashes into its range of slots."""
    found: dict[int, Address] = {}
    number = 0
    while len(found) < SPREAD_KEYS:
        key_text, slot = encode_key(number)
        found.setdefault(slot * SPREAD_KEYS // SLOTS, Address(number, key_text, slot))
        number += 1
    return tuple(found.values())


def cell_address(cell: int, grain: int) -> Address:
    return Address({"cell": cell}, b'{"cell":%d}' % cell, cell * grain)
