"""Whether values of one type are values of another, from the fingerprints of both.

A fingerprint is the JSON schema of a type (`millwheel.core.codec.type_fingerprint`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STRUCTURE = frozenset({"$ref", "anyOf", "discriminator", "type", "properties", "required"})
_PARTS = frozenset({"additionalProperties", "items", "prefixItems", "minItems", "default", "enum"})


def reads(stored: Any, new: Any) -> bool:
    """Whether code with the type `new` reads each stored value as it is, and loses nothing of it:
    the types are equal but for names, optional fields, and wider alternatives."""
    if not (_is_fingerprint(stored) and _is_fingerprint(new)):
        return bool(stored == new)
    return _Growth(stored["parts"], new["parts"]).reads(stored["type"], new["type"])


def _is_fingerprint(found: Any) -> bool:
    return isinstance(found, Mapping) and found.keys() == {"type", "parts"}


class _Growth:
    def __init__(self, stored: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._stored = stored
        self._new = new
        self._supposed: set[tuple[Any, Any]] = set()
        """Pairs of named types that are being compared: a type may contain itself."""

    def reads(self, stored: Any, new: Any) -> bool:
        names = stored.get("$ref"), new.get("$ref")
        if names in self._supposed:
            return True
        if names != (None, None):
            self._supposed.add(names)
        stored = self._stored.get(names[0], stored)
        new = self._new.get(names[1], new)
        if not new:  # any value
            return True
        if "anyOf" in stored:
            return all(self.reads(one, new) for one in stored["anyOf"])
        if "anyOf" in new:
            return any(self._reads_one(stored, one) for one in new["anyOf"])
        return self._is_wider(stored, new)

    def _reads_one(self, stored: Any, new: Any) -> bool:
        before = set(self._supposed)
        if self.reads(stored, new):
            return True
        self._supposed = before
        return False

    def _is_wider(self, stored: Any, new: Any) -> bool:
        """Of two schemas without alternatives."""
        rest = (stored.keys() | new.keys()) - _STRUCTURE - _PARTS
        if any(stored.get(name) != new.get(name) for name in rest):
            return False
        kinds = stored.get("type"), new.get("type")
        if kinds != ("integer", "number") and kinds[0] != kinds[1]:
            return False
        if "enum" in new and not ("enum" in stored and _within(stored["enum"], new["enum"])):
            return False
        return self._has_wider_fields(stored, new) and self._has_wider_items(stored, new)

    def _has_wider_fields(self, stored: Any, new: Any) -> bool:
        fields, wider = stored.get("properties", {}), new.get("properties", {})
        if not fields.keys() <= wider.keys():
            return False
        if stored.get("additionalProperties") is False and fields.keys() != wider.keys():
            return False  # former code, which still runs, refuses the additional ones
        if not set(new.get("required", ())) <= set(stored.get("required", ())):
            return False
        if any(
            "default" in of and of["default"] != wider[n].get("default") for n, of in fields.items()
        ):
            return False  # a field of a value may be left out, as it has its default
        if not all(self.reads(of, wider[name]) for name, of in fields.items()):
            return False
        return self._of_part("additionalProperties", stored, new)

    def _has_wider_items(self, stored: Any, new: Any) -> bool:
        items, wider = stored.get("prefixItems", []), new.get("prefixItems", [])
        if len(items) > len(wider) or stored.get("minItems", 0) < new.get("minItems", 0):
            return False
        if not all(map(self.reads, items, wider)):
            return False
        return self._of_part("items", stored, new)

    def _of_part(self, name: str, stored: Any, new: Any) -> bool:
        one, other = stored.get(name), new.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            return self.reads(one, other)
        return bool(one == other)


def _within(some: list[Any], all_: list[Any]) -> bool:
    return all(value in all_ for value in some)
