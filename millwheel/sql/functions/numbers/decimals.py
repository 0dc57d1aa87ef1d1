"""Type `numeric`: decimals with the scale that Postgres shows.

The exponent of a value is minus its display scale, and zero has no sign.
"""

from __future__ import annotations

import math
import re
from decimal import (
    ROUND_CEILING,
    ROUND_DOWN,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Context,
    Decimal,
    InvalidOperation,
    Overflow,
    Rounded,
)
from functools import lru_cache

from millwheel.sql.functions.numbers.integers import LIMITS, SHOWN, SPACE, int4, whole_number
from millwheel.sql.functions.registry import (
    ValueRefused,
    casts,
    implements,
    inline,
    inline_cast,
    modifies,
)

ZERO, ONE, MINUS_ONE = Decimal(0), Decimal(1), Decimal(-1)

MOST_BEFORE, MOST_AFTER = 131_072, 16_383
"""Digits before and after the point."""

MOST_CHOSEN = 1000
"""The largest scale that a function chooses by itself."""

LEAST_DIGITS = 16
"""Significant digits that quotients and roots have at least."""

_PRECISION = 300_000
"""More digits than an exact product has."""

STORED = Context(
    prec=_PRECISION, rounding=ROUND_HALF_UP, Emin=-999_999, Emax=MOST_BEFORE - 1,
    traps=[Overflow, InvalidOperation],
)  # fmt: skip
"""For results; a larger one overflows."""

WIDE = Context(
    prec=_PRECISION, rounding=ROUND_HALF_UP, Emin=-9_999_999, Emax=9_999_999,
    traps=[Overflow, InvalidOperation],
)  # fmt: skip
"""For interim results."""

_PRODUCTS = Context(
    prec=MOST_AFTER + 1, rounding=ROUND_HALF_UP, Emin=0, Emax=MOST_BEFORE - 1,
    traps=[Overflow, Rounded],
)  # fmt: skip
"""For products of few digits; others are rounded, which is trapped."""

_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+(?:_[0-9]+)*(?:\.(?:[0-9]+(?:_[0-9]+)*)?)?|\.[0-9]+(?:_[0-9]+)*)"
    r"(?:[eE]([+-]?[0-9]+(?:_[0-9]+)*))?"
)
SPECIAL = re.compile(r"(?:nan|[+-]?inf(?:inity)?)", re.I)


def overflow() -> ValueRefused:
    return ValueRefused("value overflows numeric format")


def stored(value: Decimal) -> Decimal:
    """A result, which has to fit, and has no sign if it is zero.

    Raises:
        ValueRefused: it has too many digits.
    """
    if not value:
        return value.copy_abs()
    if value.adjusted() >= MOST_BEFORE:
        raise overflow()
    return value


@lru_cache(4096)
def unit(scale: int) -> Decimal:
    """One at the last of the digits after the point."""
    return Decimal((0, (1,), -scale))


def scale_of(value: Decimal) -> int:
    """The number of digits after the point."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return -exponent


def weight(value: Decimal) -> int:
    """The place of the first digit in base 10000."""
    return value.adjusted() // 4 if value else 0


def leading(value: Decimal, count: int = 1) -> int:
    """The first digits in base 10000 of a number that is not negative."""
    return int(value.scaleb(-4 * (weight(value) - count + 1), WIDE))


def rounded(value: Decimal, scale: int, rounding: str = ROUND_HALF_UP) -> Decimal:
    """A value with as many digits after the point; less than 0: zeros before it."""
    found = value.quantize(unit(scale), rounding, WIDE)
    if scale < 0:
        found = found.quantize(ONE, None, WIDE)
    return found if found else found.copy_abs()


def product(a: Decimal, b: Decimal, scale: int) -> Decimal:
    return rounded(WIDE.multiply(a, b), scale)


def quotient(a: Decimal, b: Decimal, scale: int) -> Decimal:
    """A quotient, rounded once."""
    if not b:
        raise ValueRefused("division by zero")
    found = WIDE.divide_int(a.scaleb(scale + 1, WIDE), b)
    return rounded(found.scaleb(-scale - 1, WIDE), scale)


def scale_of_quotient(a: Decimal, b: Decimal) -> int:
    """The number of digits after the point that Postgres chooses for a quotient."""
    places = weight(a) - weight(b)
    if leading(a.copy_abs()) <= leading(b.copy_abs()):
        places -= 1
    return min(max(LEAST_DIGITS - 4 * places, scale_of(a), scale_of(b), 0), MOST_CHOSEN)


# -- operators ------------------------------------------------------------------------------------

_add, _subtract, _multiply = STORED.add, STORED.subtract, _PRODUCTS.multiply


@implements("numeric_add(numeric,numeric)")
def add(a: Decimal, b: Decimal) -> Decimal:
    try:
        return _add(a, b)
    except Overflow:
        raise overflow() from None


@implements("numeric_sub(numeric,numeric)")
def subtract(a: Decimal, b: Decimal) -> Decimal:
    try:
        return _subtract(a, b)
    except Overflow:
        raise overflow() from None


@implements("numeric_mul(numeric,numeric)")
def multiply(a: Decimal, b: Decimal) -> Decimal:
    try:
        found = _multiply(a, b)
    except (Overflow, Rounded):
        found = WIDE.multiply(a, b)
        return stored(rounded(found, min(scale_of(found), MOST_AFTER)))
    return found if found else found.copy_abs()


@implements("numeric_div(numeric,numeric)")
def divide(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise ValueRefused("division by zero")
    return stored(quotient(a, b, scale_of_quotient(a, b)))


@implements("numeric_mod(numeric,numeric)", "mod(numeric,numeric)")
def modulo(a: Decimal, b: Decimal) -> Decimal:
    """The remainder, which has the sign of `a`."""
    if not b:
        raise ValueRefused("division by zero")
    return stored(WIDE.remainder(a, b))


@implements("div(numeric,numeric)", "numeric_div_trunc(numeric,numeric)")
def divide_whole(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise ValueRefused("division by zero")
    return stored(WIDE.divide_int(a, b))


implements("numeric_uminus(numeric)")(STORED.minus)
inline("{0}", "numeric_uplus(numeric)")
inline("{0}.copy_abs()", "numeric_abs(numeric)", "abs(numeric)")


# -- functions ------------------------------------------------------------------------------------


@implements("round(numeric)")
def nearest(value: Decimal) -> Decimal:
    return stored(rounded(value, 0))


@implements("round(numeric,int4)")
def nearest_at(value: Decimal, scale: int) -> Decimal:
    return stored(rounded(value, min(max(scale, -MOST_BEFORE - 1), MOST_AFTER)))


@implements("trunc(numeric)")
def truncated(value: Decimal) -> Decimal:
    return rounded(value, 0, ROUND_DOWN)


@implements("trunc(numeric,int4)")
def truncated_at(value: Decimal, scale: int) -> Decimal:
    return rounded(value, min(max(scale, -MOST_BEFORE), MOST_AFTER), ROUND_DOWN)


@implements("ceil(numeric)", "ceiling(numeric)")
def ceiling(value: Decimal) -> Decimal:
    return stored(rounded(value, 0, ROUND_CEILING))


@implements("floor(numeric)")
def floor(value: Decimal) -> Decimal:
    return stored(rounded(value, 0, ROUND_FLOOR))


@implements("sign(numeric)")
def sign(value: Decimal) -> Decimal:
    return ONE if value > 0 else MINUS_ONE if value < 0 else ZERO


implements("scale(numeric)")(scale_of)


@implements("min_scale(numeric)")
def least_scale(value: Decimal) -> int:
    return max(0, scale_of(value.normalize(WIDE))) if value else 0


@implements("trim_scale(numeric)")
def trimmed(value: Decimal) -> Decimal:
    return rounded(value, least_scale(value))


def _whole(a: Decimal, b: Decimal) -> tuple[int, int, int]:
    """Both as multiples of one in the larger scale, and that scale."""
    scale = max(scale_of(a), scale_of(b))
    return int(a.scaleb(scale, WIDE)), int(b.scaleb(scale, WIDE)), scale


@implements("gcd(numeric,numeric)")
def greatest_divisor(a: Decimal, b: Decimal) -> Decimal:
    first, second, scale = _whole(a, b)
    return Decimal(math.gcd(first, second)).scaleb(-scale, WIDE)


@implements("lcm(numeric,numeric)")
def least_multiple(a: Decimal, b: Decimal) -> Decimal:
    first, second, scale = _whole(a, b)
    return stored(Decimal(math.lcm(first, second)).scaleb(-scale, WIDE))


@implements("factorial(int8)")
def factorial(number: int) -> Decimal:
    if number < 0:
        raise ValueRefused("factorial of a negative number is undefined")
    if number > 32177:
        raise overflow()
    return Decimal(math.factorial(number))


@implements("width_bucket(numeric,numeric,numeric,int4)")
def bucket(value: Decimal, low: Decimal, high: Decimal, count: int) -> int:
    """The number of the bucket, of `count` equal ones, that a value is in; counted from 1."""
    if count <= 0:
        raise ValueRefused("count must be greater than zero")
    if low == high:
        raise ValueRefused("lower bound cannot equal upper bound")
    if low > high:
        value, low, high = value.copy_negate(), low.copy_negate(), high.copy_negate()
    if value < low:
        return 0
    if value >= high:
        return int4(count + 1)
    part = WIDE.multiply(WIDE.subtract(value, low), Decimal(count))
    return int(WIDE.divide_int(part, WIDE.subtract(high, low))) + 1


# -- texts and casts ------------------------------------------------------------------------------


@casts(("text", "numeric"))
def numeric(text: str) -> Decimal:
    """Read a number, which may have an exponent, or be a whole one in another base."""
    body = text.strip(SPACE)
    match = _NUMBER.fullmatch(body)
    if match is None:
        return _special(text, body)
    if match[1] is not None and abs(int(match[1])) > 2**30 - 1:
        raise overflow()
    value = Decimal(body)
    scale = scale_of(value)
    if scale > MOST_AFTER:
        raise overflow()
    value = stored(value)
    if scale < 0:
        return value.quantize(ONE, None, WIDE) if value else ZERO
    return value


def _special(text: str, body: str) -> Decimal:
    if SPECIAL.fullmatch(body):
        raise ValueRefused(f"{body} is not available as a value of type numeric")
    number = whole_number(body)
    if number is None:
        raise ValueRefused(f'invalid input syntax for type numeric: "{text}"')
    return stored(Decimal(number))


inline_cast("format({0}, 'f')", ("numeric", "text"))


@modifies("numeric")
def modified(value: Decimal, *modifiers: int) -> Decimal:
    """Round to the scale of ``numeric(precision, scale)``.

    Raises:
        ValueRefused: there are more digits before the point than allowed.
    """
    precision, scale = _modifiers(modifiers)
    found = rounded(value, scale)
    if found and found.adjusted() >= precision - scale:
        raise ValueRefused("numeric field overflow")
    return found


@lru_cache(1024)
def _modifiers(modifiers: tuple[int, ...]) -> tuple[int, int]:
    if len(modifiers) > 2:
        raise ValueRefused("invalid NUMERIC type modifier")
    precision, scale = modifiers if len(modifiers) == 2 else (modifiers[0], 0)
    if not 1 <= precision <= 1000:
        raise ValueRefused(f"NUMERIC precision {precision} must be between 1 and 1000")
    if not -1000 <= scale <= 1000:
        raise ValueRefused(f"NUMERIC scale {scale} must be between -1000 and 1000")
    return precision, scale


def _register(kind: str, limit: int) -> None:
    def whole(value: Decimal) -> int:
        found = int(value.to_integral_value(ROUND_HALF_UP))
        if -limit <= found < limit:
            return found
        raise ValueRefused(f"{SHOWN[kind]} out of range")

    casts(("numeric", kind))(whole)
    implements(f"{kind}(numeric)")(whole)
    casts((kind, "numeric"))(Decimal)
    implements(f"numeric({kind})")(Decimal)


for _kind, _limit in LIMITS.items():
    _register(_kind, _limit)
