"""UUIDs."""

from __future__ import annotations

import re
from uuid import RFC_4122, UUID

from millwheel.sql.functions.registry import ValueRefused, casts, implements, inline_cast

_WRITTEN = re.compile(r"[0-9a-fA-F]{4}(?:-?[0-9a-fA-F]{4}){7}")


@casts(("text", "uuid"))
def uuid(text: str) -> UUID:
    """Read a UUID: hyphens may be after each four digits, and braces around them."""
    inner = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
    if _WRITTEN.fullmatch(inner) is None:
        raise ValueRefused(f'invalid input syntax for type uuid: "{text}"')
    return UUID(hex=inner)


inline_cast("str({0})", ("uuid", "text"))


@implements("uuid_extract_version(uuid)", may_be_null=True)
def version(value: UUID) -> int | None:
    return value.version if value.variant == RFC_4122 else None
