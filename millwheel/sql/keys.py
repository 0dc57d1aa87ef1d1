"""Grouped values as keys: a key is a text, a whole number, or a tuple of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.functions import CASTS
from millwheel.sql.generated import Generated, compiled
from millwheel.sql.generating import Generator
from millwheel.sql.types import shown

_WHOLE = ("int2", "int4", "int8")
_TEXTS = ("text", "varchar")
_BY_TEXT = ("numeric", "date", "time", "timestamp", "timestamptz", "uuid", "bytea")
"""Types with values that become texts in keys."""


def check_key(value: t.Typed) -> None:
    """Raises:
    SqlError: values of this type cannot be grouped by.
    """
    if value.type.name not in (*_WHOLE, *_TEXTS, *_BY_TEXT, "bool"):
        raise SqlError(f"groups by {shown(value.type)} are not available", value.place)


def is_same_key(left: t.Typed, right: t.Typed) -> bool:
    """Whether equal values of two expressions have the same part of a key."""
    for kinds in (_WHOLE, _TEXTS, *((kind,) for kind in (*_BY_TEXT, "bool"))):
        if left.type.name in kinds:
            return right.type.name in kinds
    return False


def _to_text(kind: str) -> Callable[..., str]:
    if kind == "numeric":
        return _without_zeros
    implementation = CASTS[kind, "text"]
    if implementation.function is not None:
        return implementation.function
    source = f"def as_text(value):\n    return {implementation.template.format('value')}\n"
    return compiled("as_text", source, {})


def _without_zeros(value: Decimal) -> str:
    """Equal numbers have one text."""
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


def _encoded(part: str, value: t.Typed, generator: Generator) -> str:
    kind = value.type.name
    null = '""' if kind in _WHOLE or kind == "bool" else "0"
    if kind == "bool":
        code = f"int({part})"
    elif kind in _BY_TEXT:
        code = f"{generator.name('as_text', _to_text(kind))}({part})"
    else:
        code = part
    return f"({null} if {part} is None else {code})" if value.nullable else code


def decoded(part: str, value: t.Typed, generator: Generator) -> str:
    """The Python for a grouped value, given that for its part of the key."""
    kind = value.type.name
    null = '""' if kind in _WHOLE or kind == "bool" else "0"
    if kind == "bool":
        code = f"({part} == 1)"
    elif kind in _BY_TEXT:
        function = CASTS["text", kind].function
        code = f"{generator.name('of_text', function)}({part})"
    else:
        code = part
    return f"(None if {part} == {null} else {code})" if value.nullable else code


def key_maker(keys: Sequence[t.Typed], meaning: str) -> Generated:
    """The function that gives the key of a partial sum."""
    parts = [f"partial.k{number}" for number in range(len(keys))]
    return key_function("partial", parts, keys, Generator(lambda column: column.name), meaning)


def key_of(values: Sequence[t.ColumnValue], meaning: str) -> Generated:
    """The function that gives the key of a record with these columns."""
    parts = [f"record.{value.name}" for value in values]
    return key_function("record", parts, values, Generator(lambda column: column.name), meaning)


def key_function(
    parameter: str,
    parts: Sequence[str],
    values: Sequence[t.Typed],
    generator: Generator,
    meaning: str,
) -> Generated:
    """The function that gives a key.

    Args:
        parts: the Python for the parts of the key, given the parameter.
        values: the expressions that they are.
    """
    lines, encoded = [], []
    for part, value in zip(parts, values, strict=True):
        name = generator.local()
        lines.append(f"    {name} = {part}\n")
        encoded.append(_encoded(name, value, generator))
    key = encoded[0] if len(encoded) == 1 else f"({', '.join(encoded)})" if encoded else '""'
    source = f"def key({parameter}):\n{''.join(lines)}    return {key}\n"
    return Generated("key", source, generator.names, meaning, generator.places)
