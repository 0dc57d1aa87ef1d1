"""Roots, powers and logarithms of `numeric`, with the digits that Postgres gives.

They are computed in the same steps, each rounded to the same scale, as in Postgres, so that also
the last digit is the same.
"""

from __future__ import annotations

import math
from decimal import Decimal

from millwheel.sql.functions.numbers.decimals import (
    LEAST_DIGITS,
    MINUS_ONE,
    MOST_BEFORE,
    MOST_CHOSEN,
    ONE,
    WIDE,
    ZERO,
    leading,
    overflow,
    product,
    quotient,
    rounded,
    scale_of,
    stored,
    unit,
    weight,
)
from millwheel.sql.functions.registry import ValueRefused, implements

_LOG_E = 0.434294481903252
_LOG_2 = 0.301029995663981
_MOST_EXPONENT = 6000
"""Larger exponents of e overflow."""

_LOW, _HIGH = Decimal("0.9"), Decimal("1.1")
_TEN, _TWO = Decimal(10), Decimal(2)
_EXTRA = 8
"""Digits more than the result has."""


def _chosen(digits: int, *values: Decimal) -> int:
    """A scale with 16 significant digits, and not less than those of the arguments."""
    return min(max(LEAST_DIGITS - digits, 0, *map(scale_of, values)), MOST_CHOSEN)


def _zero(scale: int) -> Decimal:
    return ZERO.quantize(unit(scale), None, WIDE)


# -- roots ----------------------------------------------------------------------------------------


def root(value: Decimal, scale: int) -> Decimal:
    """A square root; a scale less than 0 rounds before the point."""
    if not value:
        return _zero(max(scale, 0))
    digits = math.isqrt(int(value.scaleb(2 * scale + 2, WIDE)))
    return Decimal((digits + 5) // 10).scaleb(-scale, WIDE)


@implements("sqrt(numeric)", "numeric_sqrt(numeric)")
def square_root(value: Decimal) -> Decimal:
    if value < 0:
        raise ValueRefused("cannot take square root of a negative number")
    return root(value, _chosen(2 * weight(value) + 1, value))


# -- powers of e ----------------------------------------------------------------------------------


def exponential(value: Decimal, scale: int) -> Decimal:
    """A power of e, by the Taylor series of a small exponent that is then doubled."""
    size = float(value)
    if abs(size) >= _MOST_EXPONENT:
        if size > 0:
            raise overflow()
        return _zero(scale)
    places, halvings, part = int(size * _LOG_E), 0, size
    while abs(part) > 0.01:
        halvings, part = halvings + 1, part / 2
    if halvings:
        value = WIDE.multiply(value, Decimal(5**halvings)).scaleb(-halvings, WIDE)
    digits = max(1 + places + scale + int(halvings * _LOG_2), 0) + _EXTRA
    found = _series(value, digits - 1)
    for _ in range(halvings):
        found = product(found, found, max(digits - 8 * weight(found), 0))
    return rounded(found, scale)


def _series(value: Decimal, scale: int) -> Decimal:
    found = WIDE.add(ONE, value)
    term, number = quotient(product(value, value, scale), _TWO, scale), 2
    while term:
        found = WIDE.add(found, term)
        number += 1
        term = quotient(product(term, value, scale), Decimal(number), scale)
    return found


@implements("exp(numeric)", "numeric_exp(numeric)")
def exponential_of(value: Decimal) -> Decimal:
    digits = min(max(float(value) * _LOG_E, -2000.0), 2000.0)
    return stored(exponential(value, _chosen(int(digits), value)))


# -- logarithms -----------------------------------------------------------------------------------


def _places(value: Decimal) -> int:
    """The place of the first digit of a logarithm, estimated."""
    if value <= 0:
        return 0
    if _LOW <= value <= _HIGH:
        rest = WIDE.subtract(value, ONE).copy_abs()
        return weight(rest) * 4 + int(math.log10(leading(rest))) if rest else 0
    count = min(_digits(value), 2)
    size = math.log(leading(value, count)) + (weight(value) - count + 1) * 4 * 2.302585092994046
    return int(math.log10(abs(size)))


def _digits(value: Decimal) -> int:
    """The number of digits in base 10000 without zeros at the end."""
    return weight(value) - -scale_of(value.normalize(WIDE)) // 4 + 1


def logarithm(value: Decimal, scale: int) -> Decimal:
    """A natural logarithm: roots bring the value close to 1, where a series gives it.

    Raises:
        ValueRefused: the value is not positive.
    """
    if value <= 0:
        what = "a negative number" if value else "zero"
        raise ValueRefused(f"cannot take logarithm of {what}")
    roots = 0
    while value <= _LOW:
        value, roots = root(value, scale - 2 * weight(value) + _EXTRA), roots + 1
    while value >= _HIGH:
        value, roots = root(value, scale - 2 * weight(value) + _EXTRA), roots + 1
    more = scale + int((roots + 1) * _LOG_2) + _EXTRA
    found = quotient(WIDE.subtract(value, ONE), WIDE.add(value, ONE), more)
    power, square, number = found, product(found, found, more), 1
    while True:
        number += 2
        power = product(power, square, more)
        term = quotient(power, Decimal(number), more)
        if not term:
            break
        found = WIDE.add(found, term)
        if weight(term) < weight(found) - more * 2 // 4:
            break
    return product(found, Decimal(2 ** (roots + 1)), scale)


@implements("ln(numeric)", "numeric_ln(numeric)")
def natural(value: Decimal) -> Decimal:
    return stored(logarithm(value, _chosen(_places(value), value)))


@implements("log(numeric,numeric)", "numeric_log(numeric,numeric)")
def logarithm_to(base: Decimal, value: Decimal) -> Decimal:
    of_base, of_value = _places(base), _places(value)
    scale = _chosen(of_value - of_base, base, value)
    more = scale + of_value - of_base + _EXTRA
    divisor = logarithm(base, max(more - of_base, 0))
    return stored(quotient(logarithm(value, max(more - of_value, 0)), divisor, scale))


@implements("log(numeric)", "log10(numeric)")
def common(value: Decimal) -> Decimal:
    return logarithm_to(_TEN, value)


# -- powers ---------------------------------------------------------------------------------------


@implements("power(numeric,numeric)", "pow(numeric,numeric)", "numeric_power(numeric,numeric)")
def power(base: Decimal, exponent: Decimal) -> Decimal:
    if not base and exponent < 0:
        raise ValueRefused("zero raised to a negative power is undefined")
    is_whole = exponent == exponent.to_integral_value()
    if is_whole and -(2**31) <= exponent < 2**31:
        return stored(_whole_power(base, int(exponent), scale_of(exponent)))
    if not base:
        return _zero(LEAST_DIGITS)
    if base > 0:
        return stored(_power(base, exponent))
    if not is_whole:
        raise ValueRefused(
            "a negative number raised to a non-integer power yields a complex result"
        )
    found = _power(base.copy_abs(), exponent)
    return stored(WIDE.multiply(found, MINUS_ONE) if int(exponent) % 2 else found)


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    places = _places(base)
    near = max(8 - places, 0)
    size = float(product(logarithm(base, near), exponent, near))
    if abs(size) > _MOST_EXPONENT * 3.01 / 3:
        if size > 0:
            raise overflow()
        return _zero(MOST_CHOSEN)
    digits = int(size * _LOG_E)
    scale = _chosen(digits, base, exponent)
    more = max(max(scale + digits, 0) - places + _EXTRA, 0)
    return exponential(product(logarithm(base, more), exponent, more), scale)


def _whole_power(base: Decimal, exponent: int, exponent_scale: int) -> Decimal:
    size = _size(base, exponent)
    if size > MOST_BEFORE:
        raise overflow()
    if size + 1 < -MOST_CHOSEN:
        return _zero(MOST_CHOSEN)
    scale = min(max(_chosen(int(size), base), exponent_scale), MOST_CHOSEN)
    if exponent == 0:
        return rounded(ONE, scale)
    if exponent == 1:
        return rounded(base, scale)
    if exponent == -1:
        return quotient(ONE, base, scale)
    if exponent == 2:
        return product(base, base, scale)
    if not base:
        return _zero(scale)
    digits = 1 + scale + int(size) + int(math.log(abs(exponent))) + _EXTRA
    found = _multiplied(base, abs(exponent), digits)
    if found is not None:
        return quotient(ONE, found, scale) if exponent < 0 else rounded(found, scale)
    if exponent > 0:
        raise overflow()
    return _zero(scale)


def _size(base: Decimal, exponent: int) -> float:
    """The logarithm of a power, estimated."""
    if not base:
        return 0.0
    value = base.copy_abs()
    count = min(_digits(value), 4)
    return exponent * (math.log10(leading(value, count)) + (weight(value) - count + 1) * 4)


def _multiplied(base: Decimal, exponent: int, digits: int) -> Decimal | None:
    """A power by squares, with so many significant digits; None: it is too large."""
    found = base if exponent & 1 else ONE
    while exponent := exponent >> 1:
        most = min(digits - 8 * weight(base), 2 * scale_of(base))
        base = product(base, base, max(most, 0))
        if exponent & 1:
            most = min(
                digits - 4 * (weight(base) + weight(found)), scale_of(base) + scale_of(found)
            )
            found = product(base, found, max(most, 0))
        if max(weight(base), weight(found)) >= MOST_BEFORE // 4:
            return None
    return found
