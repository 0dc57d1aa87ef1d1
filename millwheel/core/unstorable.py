"""Finds the part of a type that cannot be stored as JSON, for error messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec


def unstorable_part(value_type: Any, is_storable: Callable[[Any], bool]) -> str | None:
    """The innermost part of a type that is not storable, with its type; None: none is found.

    Args:
        is_storable: decides about a whole type.
    """
    found = _innermost(value_type, type_text(value_type), is_storable, [])
    if found is None or found[1] == value_type:
        return None
    place, part = found
    kind = get_origin(part) or part
    if instead := getattr(kind, "instead_inside", None):
        return (
            f"{place} is a {kind.__name__}, a collection with a row for each entry, which only a "
            f"field of a computation's state itself can be; make it such a field, or {instead}"
        )
    return f"{place} is of type {type_text(part)}"


def _innermost(
    part: Any, place: str, is_storable: Callable[[Any], bool], outside: list[Any]
) -> tuple[str, Any] | None:
    """None: the fault is in a part of `outside`, which the type contains again."""
    if part in outside:
        return None
    inside = [(name, of) for name, of in _parts(part, place) if not is_storable(of)]
    if not inside:
        return place, part
    found = (_innermost(of, name, is_storable, [*outside, part]) for name, of in inside)
    return next(filter(None, found), None)


def type_text(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _parts(hint: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The fields of a struct or dataclass, or the arguments of another type, each with its
    place."""
    origin = get_origin(hint) or hint
    has_fields = isinstance(origin, type) and (
        issubclass(origin, msgspec.Struct) or dataclasses.is_dataclass(origin)
    )
    if has_fields:
        try:
            hints = get_type_hints(origin)
        except Exception:  # an annotation that cannot be evaluated
            return
        names = (
            origin.__struct_fields__
            if issubclass(origin, msgspec.Struct)
            else [field.name for field in dataclasses.fields(origin)]
        )
        yield from ((f"{type_text(origin)}.{name}", hints[name]) for name in names)
        return
    is_optional = origin in (Union, UnionType)
    for argument in get_args(hint):
        if argument is not Ellipsis:
            yield (place if is_optional else f"a value in {place}"), argument
