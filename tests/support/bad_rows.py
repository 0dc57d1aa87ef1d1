"""Rows of JSON that cannot be read, and a type with code that fails."""

from __future__ import annotations

import msgspec

from millwheel.core.json_rows import MOST_DEPTH

RATES = {"EUR": 1.0}


class Payment(msgspec.Struct):
    """A value with code that may raise anything."""

    number: int
    currency: str = "EUR"
    rate: float = 0.0

    def __post_init__(self) -> None:
        self.rate = RATES[self.currency]


def nested(levels: int, number: int = 1) -> bytes:
    """A payment with an unknown member, which is nested so deep with it."""
    return b'{"number":%d,"x":%b%b}' % (number, b"[" * (levels - 1), b"]" * (levels - 1))


BAD_ROWS = {
    "no JSON": b'{"number":1',
    "another type": b'{"number":"one"}',
    "null": b"null",
    "its code fails": b'{"number":1,"currency":"XXX"}',
    "nested deeper than the limit": nested(MOST_DEPTH + 1),
    "nested near the limit of the interpreter": nested(930),
    "nested beyond the interpreter": nested(100_000),
    "not UTF-8 in an unknown member": b'{"number":1,"note":"caf\xe9"}',
}
