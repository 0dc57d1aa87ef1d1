"""Texts, bytes and UUIDs."""

from millwheel.sql.functions.texts import (  # noqa: F401
    bytes,
    patterns,
    quoting,
    regular_expressions,
    texts,
    uuids,
)
