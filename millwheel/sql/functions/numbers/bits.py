"""Whole numbers as rows of bits, and in other bases."""

from __future__ import annotations

from millwheel.sql.functions.registry import implements, inline

_WIDTHS = {"int2": 16, "int4": 32, "int8": 64}
_BASES = {"to_hex": "x", "to_oct": "o", "to_bin": "b"}


def _register(kind: str, width: int) -> None:
    pair = f"({kind},{kind})"
    inline("({0} & {1})", f"{kind}and{pair}")
    inline("({0} | {1})", f"{kind}or{pair}")
    inline("({0} ^ {1})", f"{kind}xor{pair}")
    inline("(~{0})", f"{kind}not({kind})")
    # The processor takes the lowest bits of the number of places, and shifts 16 bits as 32.
    places = max(width, 32) - 1
    half, mask = 1 << (width - 1), (1 << width) - 1

    def shifted(value: int, by: int) -> int:
        return (((value << (by & places)) + half) & mask) - half

    implements(f"{kind}shl({kind},int4)")(shifted)
    inline(f"({{0}} >> ({{1}} & {places}))", f"{kind}shr({kind},int4)")
    if kind != "int2":
        for name, base in _BASES.items():
            inline(f"format({{0}} & {mask}, '{base}')", f"{name}({kind})")


for _kind, _width in _WIDTHS.items():
    _register(_kind, _width)
