"""Booleans as texts and as whole numbers."""

from __future__ import annotations

from millwheel.sql.functions.registry import ValueRefused, casts, inline_cast

_TRUE = frozenset(["1", "on", "t", "tr", "tru", "true", "y", "ye", "yes"])
_FALSE = frozenset(["0", "of", "off", "f", "fa", "fal", "fals", "false", "n", "no"])


@casts(("text", "bool"))
def boolean(text: str) -> bool:
    """Read a boolean."""
    word = text.strip(" \t\n\r\v\f").lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueRefused(f'invalid input syntax for type boolean: "{text}"')


inline_cast('("true" if {0} else "false")', ("bool", "text"))
inline_cast("(1 if {0} else 0)", ("bool", "int4"))
inline_cast("({0} != 0)", ("int4", "bool"))
