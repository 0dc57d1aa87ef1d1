from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.extractors import AllKeys


class TypeVersion(msgspec.Struct, frozen=True, array_like=True):
    version: int
    type: Any


class Code(msgspec.Struct, frozen=True):
    graph: dict[str, Any]
    states: dict[str, TypeVersion]
    streams: dict[str, TypeVersion]
    keys: AllKeys = {}
    """Key extractors by node and stream; empty if the deploy was before these were stored."""


class Generation(msgspec.Struct, frozen=True):
    number: int
    code: Code
