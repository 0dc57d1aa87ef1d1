"""Fields that a viewer has sent, in an address or a form, as values of a struct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from millwheel.errors import UsageError

FIELDS = TypeVar("FIELDS", bound=msgspec.Struct)

MOST_FIELDS = 100


def fields_of(encoded: str) -> dict[str, str]:
    """The fields of a query or of a form. `UsageError` for those that no page sends."""
    try:
        pairs = parse_qsl(encoded, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise UsageError(f"there are more than {MOST_FIELDS} fields") from error
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"the field {name!r} is given twice: give it once")
        if "\0" in name or "\0" in value:
            raise UsageError(f"the field {name!r} has a NUL character, which Postgres cannot have")
        found[name] = value
    return found


def read_fields(given: Mapping[str, str], kind: type[FIELDS], place: str) -> FIELDS:
    """Fields as a struct; empty ones count as left out.

    `UsageError`, which begins with `place`, for fields that it does not have, and wrong values.
    """
    known = kind.__struct_fields__
    for name in given:
        if name not in known:
            raise UsageError(f"{place} has no field {name!r}, but: {', '.join(known) or 'none'}")
    values = {name: value for name, value in given.items() if value != ""}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{place}: a field is missing or wrong: {error}") from error
