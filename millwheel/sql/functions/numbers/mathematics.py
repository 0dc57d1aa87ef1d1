"""Mathematical functions of `float8`."""

from __future__ import annotations

import math
from collections.abc import Callable

from millwheel.sql.functions.numbers.floats import OVERFLOW, UNDERFLOW, divide, multiply
from millwheel.sql.functions.numbers.integers import int4
from millwheel.sql.functions.registry import ValueRefused, implements, inline

RADIANS = 0.0174532925199432957692
"""Of a degree."""

_OUTSIDE = "input is out of range"

inline(repr(math.pi), "pi()")


# -- rounding -------------------------------------------------------------------------------------


def _register_rounding(function: Callable[[float], int], *keys: str) -> None:
    implements(*keys)(lambda value: math.copysign(function(value), value))


_register_rounding(round, "round(float8)", "dround(float8)")
_register_rounding(math.trunc, "trunc(float8)", "dtrunc(float8)")
_register_rounding(math.ceil, "ceil(float8)", "ceiling(float8)")
_register_rounding(math.floor, "floor(float8)")


@implements("sign(float8)")
def sign(value: float) -> float:
    return 1.0 if value > 0 else -1.0 if value < 0 else 0.0


# -- powers and logarithms ------------------------------------------------------------------------


@implements("sqrt(float8)", "dsqrt(float8)")
def square_root(value: float) -> float:
    if value < 0:
        raise ValueRefused("cannot take square root of a negative number")
    return math.sqrt(value)


implements("cbrt(float8)", "dcbrt(float8)")(math.cbrt)


@implements("power(float8,float8)", "pow(float8,float8)", "dpow(float8,float8)")
def power(base: float, exponent: float) -> float:
    if not base and exponent < 0:
        raise ValueRefused("zero raised to a negative power is undefined")
    if base < 0 and not exponent.is_integer():
        raise ValueRefused(
            "a negative number raised to a non-integer power yields a complex result"
        )
    try:
        found = math.pow(base, exponent)
    except OverflowError:
        raise ValueRefused(OVERFLOW) from None
    if not found and base:
        raise ValueRefused(UNDERFLOW)
    return found


@implements("exp(float8)", "dexp(float8)")
def exponential(value: float) -> float:
    try:
        found = math.exp(value)
    except OverflowError:
        raise ValueRefused(OVERFLOW) from None
    if not found:
        raise ValueRefused(UNDERFLOW)
    return found


def _register_logarithm(function: Callable[[float], float], *keys: str) -> None:
    @implements(*keys)
    def logarithm(value: float) -> float:
        if value <= 0:
            what = "a negative number" if value else "zero"
            raise ValueRefused(f"cannot take logarithm of {what}")
        return function(value)


_register_logarithm(math.log, "ln(float8)", "dlog1(float8)")
_register_logarithm(math.log10, "log(float8)", "log10(float8)", "dlog10(float8)")


# -- angles ---------------------------------------------------------------------------------------


@implements("degrees(float8)")
def degrees(value: float) -> float:
    return divide(value, RADIANS)


@implements("radians(float8)")
def radians(value: float) -> float:
    return multiply(value, RADIANS)


def _register(name: str, function: Callable[[float], float]) -> None:
    """A function that is infinite, or not defined, for some values."""

    @implements(f"{name}(float8)")
    def found(value: float) -> float:
        try:
            return function(value)
        except OverflowError:
            raise ValueRefused(f"{name} is infinite, which is not available") from None
        except ValueError:
            raise ValueRefused(_OUTSIDE) from None


for _function in (
    math.sin, math.cos, math.tan, math.asin, math.acos, math.atan, math.sinh, math.cosh, math.tanh,
    math.asinh, math.acosh, math.atanh, math.erf, math.erfc,
):  # fmt: skip
    _register(_function.__name__, _function)

implements("atan2(float8,float8)")(math.atan2)


@implements("cot(float8)")
def cotangent(value: float) -> float:
    found = math.tan(value)
    if not found or math.isinf(1.0 / found):
        raise ValueRefused("cot is infinite, which is not available")
    return 1.0 / found


# -- buckets --------------------------------------------------------------------------------------


@implements("width_bucket(float8,float8,float8,int4)")
def bucket(value: float, low: float, high: float, count: int) -> int:
    """The number of the bucket, of `count` equal ones, that a value is in; counted from 1."""
    if count <= 0:
        raise ValueRefused("count must be greater than zero")
    if low == high:
        raise ValueRefused("lower bound cannot equal upper bound")
    if low > high:
        value, low, high = -value, -low, -high
    if value < low:
        return 0
    if value >= high:
        return int4(count + 1)
    if math.isinf(high - low):
        value, low, high = value / 2, low / 2, high / 2
    return min(int(count * ((value - low) / (high - low))), count - 1) + 1
