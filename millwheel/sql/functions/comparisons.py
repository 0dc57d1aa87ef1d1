"""Comparisons that are those of Python."""

from __future__ import annotations

from millwheel.sql.functions.registry import inline

_SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

_INTEGERS = {
    "int2": ("int2", "int2"), "int4": ("int4", "int4"), "int8": ("int8", "int8"),
    "int24": ("int2", "int4"), "int42": ("int4", "int2"), "int28": ("int2", "int8"),
    "int82": ("int8", "int2"), "int48": ("int4", "int8"), "int84": ("int8", "int4"),
}  # fmt: skip
_FLOATS = {
    "float4": ("float4", "float4"), "float8": ("float8", "float8"),
    "float48": ("float4", "float8"), "float84": ("float8", "float4"),
}  # fmt: skip

for _end, _symbol in _SYMBOLS.items():
    for _name, (_left, _right) in {**_INTEGERS, **_FLOATS}.items():
        inline(f"({{0}} {_symbol} {{1}})", f"{_name}{_end}({_left},{_right})")
    for _kind in ("bool", "bytea", "numeric", "uuid"):
        _separator = "_" if _kind in ("numeric", "uuid") else ""
        inline(f"({{0}} {_symbol} {{1}})", f"{_kind}{_separator}{_end}({_kind},{_kind})")
    _text = {"lt": "text_lt", "le": "text_le", "gt": "text_gt", "ge": "text_ge"}.get(
        _end, f"text{_end}"
    )
    inline(f"({{0}} {_symbol} {{1}})", f"{_text}(text,text)")
