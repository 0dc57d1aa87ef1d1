"""Changes and conditions of a JSON value, as an operator gives them for a state."""

from __future__ import annotations

from typing import Any


def merged(value: Any, change: Any) -> Any:
    """A value after a JSON merge patch (RFC 7396): objects are merged, a null removes a field."""
    if not isinstance(change, dict):
        return change
    after = dict(value) if isinstance(value, dict) else {}
    for name, each in change.items():
        if each is None:
            after.pop(name, None)
        else:
            after[name] = merged(after.get(name), each)
    return after


def includes(value: Any, wanted: Any) -> bool:
    """Whether an object has all fields of another one, with their values; other values are
    equal."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        return all(name in value and includes(value[name], each) for name, each in wanted.items())
    return bool(value == wanted)
