"""Lines of CSV as Postgres writes them."""

from __future__ import annotations

from collections.abc import Sequence


def csv_line(values: Sequence[str | None]) -> str:
    """NULL is empty, and an empty text is quoted."""
    return ",".join(map(_quoted, values)) + "\n"


def _quoted(value: str | None) -> str:
    if value is None:
        return ""
    if value and not any(character in value for character in ',"\n\r'):
        return value
    return '"' + value.replace('"', '""') + '"'
