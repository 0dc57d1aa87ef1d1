"""Keys that the engine chooses: of records that are spread, and of those that go to all.

A spread record gets one of 1,024 numbers, one for each 64 slots. Which number it gets is free
(it is stored with the record, or follows from the place of its row); that a number has always the
same slot is not: the ids that were seen are kept by slot.

A broadcast record goes to each *cell* of its reader, an equal part of the slots. A cell's key is a
JSON object, which no key of a user's is; its slot is the first of the cell, so that a cell's table
is wherever the keys are that read it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from millwheel.codec import encode_key
from millwheel.model import SLOTS

SPREAD_KEYS = 1024
"""At least as many as records of an interval that should wait for something at a time."""

MOST_CELLS = 1024
"""More would make a broadcast record dearer than any use of it."""

CELL_MARK = b"{"
"""Begins the canonical bytes of a cell's key, and of no other."""


class Address(NamedTuple):
    """Where a record goes: its key, in canonical bytes too, and its slot."""

    key: Any
    key_text: bytes
    slot: int


@cache
def spread_addresses() -> tuple[Address, ...]:
    """One number for each `SPREAD_KEYS`-th of the slots, neighbours far from each other.

    They are the first numbers that hash there: after 8,000 or so all places are taken.
    """
    found: dict[int, Address] = {}
    number = 0
    while len(found) < SPREAD_KEYS:
        key_text, slot = encode_key(number)
        found.setdefault(slot * SPREAD_KEYS // SLOTS, Address(number, key_text, slot))
        number += 1
    return tuple(found.values())


def cell_address(cell: int, grain: int) -> Address:
    """The key of a cell, which takes `grain` slots."""
    return Address({"cell": cell}, b'{"cell":%d}' % cell, cell * grain)
