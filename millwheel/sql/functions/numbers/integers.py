"""Whole numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from millwheel.sql.functions.registry import (
    BY_CONSTANT,
    ValueRefused,
    casts,
    implements,
    inline,
    inline_cast,
)

LIMITS = {"int2": 2**15, "int4": 2**31, "int8": 2**63}
SHOWN = {"int2": "smallint", "int4": "integer", "int8": "bigint"}
SPACE = " \t\n\r\v\f"
_MIXED = {
    "int2": ("int2", "int2", "int2"), "int4": ("int4", "int4", "int4"),
    "int8": ("int8", "int8", "int8"), "int24": ("int2", "int4", "int4"),
    "int42": ("int4", "int2", "int4"), "int28": ("int2", "int8", "int8"),
    "int82": ("int8", "int2", "int8"), "int48": ("int4", "int8", "int8"),
    "int84": ("int8", "int4", "int8"),
}  # fmt: skip
"""By the name of a pair of types: both, and that of the result."""

_DECIMAL = re.compile(r"[ \t\n\r\v\f]*([+-]?[0-9]+(?:_[0-9]+)*)[ \t\n\r\v\f]*")
_OTHER_BASE = re.compile(r"([+-]?0(?:[xX](?:_?[0-9a-fA-F]+)+|[oO](?:_?[0-7]+)+|[bB](?:_?[01]+)+))")


def _checked(kind: str) -> Callable[[int], int]:
    limit = LIMITS[kind]

    def check(value: int) -> int:
        if -limit <= value < limit:
            return value
        raise ValueRefused(f"{SHOWN[kind]} out of range")

    return check


int2, int4, int8 = (_checked(kind) for kind in LIMITS)
CHECKS = {"int2": int2, "int4": int4, "int8": int8}


def quotient(a: int, b: int) -> int:
    """Division towards zero."""
    if not b:
        raise ValueRefused("division by zero")
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


def remainder(a: int, b: int) -> int:
    """It has the sign of `a`."""
    if not b:
        raise ValueRefused("division by zero")
    found = abs(a) % abs(b)
    return -found if a < 0 else found


def _remainder_by(b: int) -> Callable[[int], int] | None:
    """As `remainder`, for one divisor above zero."""
    return (lambda a: a % b if a >= 0 else -(-a % b)) if b > 0 else None


BY_CONSTANT[remainder] = _remainder_by


def _register(name: str, left: str, right: str, result: str) -> None:
    check, pair = CHECKS[result], f"({left},{right})"
    implements(f"{name}pl{pair}")(lambda a, b: check(a + b))
    implements(f"{name}mi{pair}")(lambda a, b: check(a - b))
    implements(f"{name}mul{pair}")(lambda a, b: check(a * b))
    implements(f"{name}div{pair}")(lambda a, b: check(quotient(a, b)))
    if left == right:
        implements(f"{name}mod{pair}", f"mod{pair}")(remainder)
        implements(f"{name}um({left})")(lambda a: check(-a))
        implements(f"{name}abs({left})", f"abs({left})")(lambda a: check(abs(a)))
        inline("{0}", f"{name}up({left})")
        if left != "int2":
            implements(f"gcd{pair}")(lambda a, b: check(math.gcd(a, b)))
            implements(f"lcm{pair}")(lambda a, b: check(math.lcm(a, b)))


for _name, _types in _MIXED.items():
    _register(_name, *_types)

for _source in LIMITS:
    for _target, _limit in LIMITS.items():
        if _limit > LIMITS[_source]:
            inline_cast("{0}", (_source, _target))
            inline("{0}", f"{_target}({_source})")
        elif _limit < LIMITS[_source]:
            casts((_source, _target))(CHECKS[_target])
            implements(f"{_target}({_source})")(CHECKS[_target])
    inline_cast("str({0})", (_source, "text"))


def whole_number(text: str) -> int | None:
    """Read a number that may be in another base (``0x1f``); None: it is none."""
    if match := _DECIMAL.fullmatch(text):
        return int(match[1])
    if match := _OTHER_BASE.fullmatch(text.strip(SPACE)):
        return int(match[1], 0)
    return None


def _integer(kind: str) -> Callable[[str], int]:
    limit = LIMITS[kind]

    def read(text: str) -> int:
        try:
            value = whole_number(text)
        except ValueError:  # Python reads no number of more than 4300 digits.
            value = limit
        if value is None:
            raise ValueRefused(f'invalid input syntax for type {SHOWN[kind]}: "{text}"')
        if not -limit <= value < limit:
            raise ValueRefused(f'value "{text}" is out of range for type {SHOWN[kind]}')
        return value

    return read


for _kind in LIMITS:
    casts(("text", _kind))(_integer(_kind))
