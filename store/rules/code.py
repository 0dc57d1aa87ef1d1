from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.extractors import AllKeys


class TypeVersion(msgspec.Struct, frozen=True, array_like=True):
    """A type of state or of a stream's values: its version and its fingerprint."""

    version: int
    type: Any


class Code(msgspec.Struct, frozen=True):
    """The parts of a pipeline's code that stored data depend on."""

    graph: dict[str, Any]
    states: dict[str, TypeVersion]
    """By node."""
    streams: dict[str, TypeVersion]
    keys: AllKeys = {}
    """Key extractors, by node and stream; empty if the deploy was before these were stored."""


class Generation(msgspec.Struct, frozen=True):
    """Code that was deployed."""

    number: int
    code: Code
