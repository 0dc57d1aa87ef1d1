"""JSON after a round trip through a ``jsonb`` column."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec


def jsonb_text(value: bytes) -> bytes:
    """JSON as ``jsonb`` returns it: with other spaces, order of names and form of numbers."""
    return _jsonb(json.loads(value, parse_float=Decimal)).encode()


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _jsonb(value: Any) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
        parts = (f"{_jsonb(name)}: {_jsonb(value[name])}" for name in names)
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_jsonb, value)) + "]"
    if isinstance(value, Decimal):
        return format(value if value else abs(value), "f")
    return json.dumps(value, ensure_ascii=False)
