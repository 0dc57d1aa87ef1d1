"""One text for all values that are equal.

Keys of steps, among others, are distinguished by their text, and equal values may differ in it: 1.0
and 1.00, -0.0 and 0.0, one instant in two zones, a dict or a set in another order.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Annotated, Any, TypeAlias

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_OTHER_FORMS: tuple[type, ...] = (Decimal, datetime)
_PLAIN = frozenset((str, int, bool, type(None)))
_LARGE = 1e16
"""Floats from here on have no fraction, and JSON writes them with an exponent."""

NEVER_MINUS_ZERO = "millwheel: never minus zero"

Sum: TypeAlias = Annotated[float, msgspec.Meta(extra={NEVER_MINUS_ZERO: True})]
"""A float that is 0.0 or a sum that began with it, and so never minus zero: the store keeps it."""


def canonical_json(value: Any) -> bytes:
    """A whole float is the int, as in Postgres and Python; a Decimal is a text.

    `TypeError`, `ValueError` or `msgspec.MsgspecError` if the value cannot be JSON.
    """
    if type(value) in _PLAIN:
        return _encode(value)
    plain = msgspec.to_builtins(
        value, builtin_types=_OTHER_FORMS, str_keys=True, order="deterministic"
    )
    return _encode(_canonical(plain))


def _canonical(value: Any) -> Any:
    match value:
        case float():
            return canonical_number(value)
        case Decimal():
            return decimal_text(value)
        case datetime():
            return value if value.tzinfo is None else value.astimezone(UTC)
        case list() | tuple():
            return [_canonical(item) for item in value]
        case dict():
            return {name: _canonical(item) for name, item in value.items()}
    return value


def canonical_number(number: float) -> int | float | str:
    """An int if it is whole, and a text for NaN, which equals itself here."""
    if number != number:
        return "NaN"
    return int(number) if number.is_integer() and abs(number) < _LARGE else number


def decimal_text(number: Decimal | int) -> str:
    """The shortest exact text; NaN equals itself, as in Postgres."""
    number = Decimal(number)
    if number.is_nan():
        return "NaN"
    return str(number.normalize(_EXACT)) if number else "0"


def fraction_digits(number: Decimal) -> int:
    """Digits after the point, without zeros at the end; negative for zeros before the point."""
    exponent = number.normalize(_EXACT).as_tuple().exponent if number else 0
    return -exponent if isinstance(exponent, int) else 0  # NaN and infinities have none


EXACT_DIGITS = 147_455
"""A ``numeric`` in Postgres has 131,072 before the point, 16,383 after it."""

_ADDING = Context(
    prec=EXACT_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, InvalidOperation]
)


def exact_sum(one: Decimal | int, other: Decimal | int) -> Decimal:
    """Python's own sum stops at 28 digits. `ValueError` above `EXACT_DIGITS`, or for both
    infinities."""
    try:
        return _ADDING.add(Decimal(one), Decimal(other))
    except (Inexact, InvalidOperation) as error:
        raise ValueError(
            f"the sum of {one!r:.80} and {other!r:.80} has more than {EXACT_DIGITS:,} digits, or "
            "is not a number"
        ) from error
