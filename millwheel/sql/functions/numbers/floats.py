"""Types `float4` and `float8`: arithmetic, texts and casts.

A value of `float4` is a Python float with a value that 32 bits can have. NaN and infinity are no
values here: a result that would be one is refused.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal

from millwheel.sql.functions.numbers.decimals import SPECIAL, numeric
from millwheel.sql.functions.numbers.integers import LIMITS, SHOWN, SPACE
from millwheel.sql.functions.registry import (
    ValueRefused,
    casts,
    implements,
    inline,
    inline_cast,
)

Operation = Callable[[float, float], float]

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F.]+(?:[pP][+-]?[0-9]+)?")
_IS_ZERO = re.compile(r"[+-]?[0.]+(?:[eE].*)?")
_SINGLE = struct.Struct("<f")
_DOUBLE, _BITS = struct.Struct("<d"), struct.Struct("<q")

OVERFLOW, UNDERFLOW = "value out of range: overflow", "value out of range: underflow"


# -- arithmetic -----------------------------------------------------------------------------------


def narrowed(value: float) -> float:
    """A value in 32 bits.

    Raises:
        ValueRefused: it is too large, or too close to zero.
    """
    try:
        (found,) = _SINGLE.unpack(_SINGLE.pack(value))
    except OverflowError:
        raise ValueRefused(OVERFLOW) from None
    if not found and value:
        raise ValueRefused(UNDERFLOW)
    return found  # type: ignore[no-any-return]


def add(a: float, b: float) -> float:
    found = a + b
    if math.isinf(found):
        raise ValueRefused(OVERFLOW)
    return found


def subtract(a: float, b: float) -> float:
    found = a - b
    if math.isinf(found):
        raise ValueRefused(OVERFLOW)
    return found


def multiply(a: float, b: float) -> float:
    found = a * b
    if math.isinf(found):
        raise ValueRefused(OVERFLOW)
    if not found and a and b:
        raise ValueRefused(UNDERFLOW)
    return found


def divide(a: float, b: float) -> float:
    if not b:
        raise ValueRefused("division by zero")
    found = a / b
    if math.isinf(found):
        raise ValueRefused(OVERFLOW)
    if not found and a:
        raise ValueRefused(UNDERFLOW)
    return found


def _single(operation: Operation) -> Operation:
    return lambda a, b: narrowed(operation(a, b))


for _name, _operation in {"pl": add, "mi": subtract, "mul": multiply, "div": divide}.items():
    implements(
        f"float8{_name}(float8,float8)",
        f"float48{_name}(float4,float8)",
        f"float84{_name}(float8,float4)",
    )(_operation)
    implements(f"float4{_name}(float4,float4)")(_single(_operation))

for _kind in ("float4", "float8"):
    inline("(-{0})", f"{_kind}um({_kind})")
    inline("{0}", f"{_kind}up({_kind})")
    inline("abs({0})", f"{_kind}abs({_kind})", f"abs({_kind})")


# -- from texts and other numbers -----------------------------------------------------------------


def _out_of_range(text: str, shown: str) -> ValueRefused:
    return ValueRefused(f'"{text}" is out of range for type {shown}')


def _body(text: str, shown: str) -> str:
    """A text that is a number, without the space around it."""
    body = text.strip(SPACE)
    if _NUMBER.fullmatch(body):
        return body
    if SPECIAL.fullmatch(body) or _HEXADECIMAL.fullmatch(body):
        raise ValueRefused(f"{body} is not available as a value of type {shown}")
    raise ValueRefused(f'invalid input syntax for type {shown}: "{text}"')


@casts(("text", "float8"))
def float8(text: str) -> float:
    """Read a number."""
    return _double(_body(text, "double precision"), "double precision")


def _double(body: str, shown: str) -> float:
    found = float(body)
    if math.isinf(found) or (not found and not _IS_ZERO.fullmatch(body)):
        raise _out_of_range(body, shown)
    return found


@casts(("text", "float4"))
def float4(text: str) -> float:
    """Read a number, rounded once."""
    body = _body(text, "real")
    near = _double(body, "real")
    return near if not near else _from_exact(Decimal(body), near, body)


def _from_exact(exact: Decimal | int, near: float, text: str) -> float:
    """A number in 32 bits, of which `near` is the closest float."""
    if exact != near and not _BITS.unpack(_DOUBLE.pack(near))[0] & 1:
        # An odd last bit keeps the second rounding from meeting a tie that is none.
        near = math.nextafter(near, math.inf if exact > near else -math.inf)
    try:
        return narrowed(near)
    except ValueRefused:
        raise _out_of_range(text, "real") from None


@casts(("numeric", "float8"))
@implements("float8(numeric)")
def float8_of_numeric(value: Decimal) -> float:
    found = float(value)
    if math.isinf(found) or (not found and value):
        raise _out_of_range(format(value, "f"), "double precision")
    return found


@casts(("numeric", "float4"))
@implements("float4(numeric)")
def float4_of_numeric(value: Decimal) -> float:
    near = float(value)
    if math.isinf(near) or (not near and value):
        raise _out_of_range(format(value, "f"), "real")
    return _from_exact(value, near, format(value, "f")) if near else near


@casts(*((kind, "float4") for kind in LIMITS))
@implements(*(f"float4({kind})" for kind in LIMITS))
def float4_of_integer(value: int) -> float:
    return _from_exact(value, float(value), "")


inline_cast("float({0})", *((kind, "float8") for kind in LIMITS))
inline("float({0})", *(f"float8({kind})" for kind in LIMITS))

inline_cast("{0}", ("float4", "float8"))
inline("{0}", "float8(float4)")
casts(("float8", "float4"))(narrowed)
implements("float4(float8)")(narrowed)


# -- to other numbers -----------------------------------------------------------------------------


def _register(kind: str, limit: int) -> None:
    def whole(value: float) -> int:
        found = round(value)
        if -limit <= found < limit:
            return found
        raise ValueRefused(f"{SHOWN[kind]} out of range")

    casts(("float4", kind), ("float8", kind))(whole)
    implements(f"{kind}(float4)", f"{kind}(float8)")(whole)


for _target, _limit in LIMITS.items():
    _register(_target, _limit)


@casts(("float8", "numeric"))
@implements("numeric(float8)")
def numeric_of_float8(value: float) -> Decimal:
    return numeric(f"{value:.15g}")


@casts(("float4", "numeric"))
@implements("numeric(float4)")
def numeric_of_float4(value: float) -> Decimal:
    return numeric(f"{value:.6g}")


# -- to texts -------------------------------------------------------------------------------------


@casts(("float8", "text"))
def float8_text(value: float) -> str:
    """The shortest text that gives the same value."""
    text = repr(value)
    size = abs(value)
    if size < 1e15:
        return text[:-2] if text.endswith(".0") else text
    return _text(value, 53, -1074, 15)


@casts(("float4", "text"))
def float4_text(value: float) -> str:
    """The shortest text that gives the same value."""
    size = abs(value)
    if 1e-4 <= size < 1e6 or not size:
        text = f"{value:.6g}"
        if float4(text) == value:
            return text
    return _text(value, 24, -149, 6)


def _text(value: float, bits: int, least: int, most_places: int) -> str:
    digits, exponent = _shortest(abs(value), bits, least)
    sign = "-" if value < 0 else ""
    places = exponent + len(digits) - 1
    if -4 <= places < most_places:
        return f"{sign}{Decimal(f'{digits}E{exponent}'):f}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'-' if places < 0 else '+'}{abs(places):02}"


def _shortest(value: float, bits: int, least: int) -> tuple[str, int]:
    """The fewest digits that are closer to a value than to its neighbours, and their exponent.

    Python's `repr` may also choose a number just between two values, which Postgres does not.

    Args:
        bits: of the mantissa.
        least: the smallest exponent of 2.
    """
    _, exponent = math.frexp(value)
    exponent = max(exponent - bits, least)
    mantissa = int(math.ldexp(value, -exponent)) if exponent < 0 else int(value) >> exponent
    below = 1 if mantissa == 1 << (bits - 1) and exponent > least else 2
    up, down = max(exponent - 2, 0), max(2 - exponent, 0)
    here, low, high = (
        each << up for each in (4 * mantissa, 4 * mantissa - below, 4 * mantissa + 2)
    )
    places = math.floor(math.log10(value)) + 1
    while True:
        unit = (10 ** max(places, 0)) << down
        factor = 10 ** max(-places, 0)
        if (low * factor // unit + 1) * unit < high * factor:
            break
        places -= 1
    digits, rest = divmod(here * factor, unit)
    if 2 * rest > unit or (2 * rest == unit and digits & 1):
        digits += 1
    if digits * unit <= low * factor:
        digits += 1
    elif digits * unit >= high * factor:
        digits -= 1
    return str(digits), places
