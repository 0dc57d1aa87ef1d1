"""Operators and functions of `jsonb`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from millwheel.sql.functions.composites.json_texts import NULL, text_of
from millwheel.sql.functions.registry import ValueRefused, implements

_INTEGER = re.compile(r"[ \t\n\r\v\f]*[+-]?[0-9]+", re.ASCII)


def type_of(value: Any) -> str:
    """The name of a JSON type."""
    if value is NULL:
        return "null"
    return _TYPES[type(value)]


_TYPES = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "number",
    Decimal: "number", float: "number",
}  # fmt: skip

implements("jsonb_typeof(jsonb)")(type_of)


# -- comparisons ----------------------------------------------------------------------------------


@implements("jsonb_eq(jsonb,jsonb)")
def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; unlike in Python, true is not 1."""
    if a != b:
        return False
    if type(a) is dict:
        return all(same(value, b[key]) for key, value in a.items())
    if type(a) is list:
        return all(map(same, a, b))
    return (type(a) is bool) is (type(b) is bool)


@implements("jsonb_ne(jsonb,jsonb)")
def differ(a: Any, b: Any) -> bool:
    return not same(a, b)


implements("array_eq(_jsonb,_jsonb)")(same)
implements("array_ne(_jsonb,_jsonb)")(differ)


@implements("jsonb_contains(jsonb,jsonb)")
def contains(a: Any, b: Any) -> bool:
    """Whether `a` has all that `b` has; an array may have a scalar."""
    if type(a) is list and type(b) not in (list, dict):
        return any(same(each, b) for each in a)
    return _has(a, b)


def _has(a: Any, b: Any) -> bool:
    if type(b) is dict:
        return type(a) is dict and all(key in a and _has(a[key], value) for key, value in b.items())
    if type(b) is list:
        return type(a) is list and all(any(_has(each, value) for each in a) for value in b)
    return same(a, b)


@implements("jsonb_contained(jsonb,jsonb)")
def contained(a: Any, b: Any) -> bool:
    return contains(b, a)


@implements("jsonb_exists(jsonb,text)")
def has_key(value: Any, key: str) -> bool:
    """Whether there is this key, or this text in an array."""
    if type(value) is dict:
        return key in value
    return key in value if type(value) is list else value == key


@implements("jsonb_exists_any(jsonb,_text)")
def has_any_key(value: Any, keys: Sequence[str | None]) -> bool:
    return any(has_key(value, key) for key in keys if key is not None)


@implements("jsonb_exists_all(jsonb,_text)")
def has_all_keys(value: Any, keys: Sequence[str | None]) -> bool:
    return all(has_key(value, key) for key in keys if key is not None)


# -- parts ----------------------------------------------------------------------------------------


@implements("jsonb_object_field(jsonb,text)", may_be_null=True)
def field(value: Any, key: str) -> Any:
    return value.get(key) if type(value) is dict else None


@implements("jsonb_array_element(jsonb,int4)", may_be_null=True)
def item(value: Any, index: int) -> Any:
    """An element, counted from 0, or from the end if negative; a scalar is its own only one."""
    if type(value) not in (list, dict):
        return value if index in (0, -1) else None
    if type(value) is list and -len(value) <= index < len(value):
        return value[index]
    return None


@implements("jsonb_object_field_text(jsonb,text)", may_be_null=True)
def field_text(value: Any, key: str) -> str | None:
    found = value.get(key) if type(value) is dict else None
    return None if found is None else text_of(found)


@implements("jsonb_array_element_text(jsonb,int4)", may_be_null=True)
def item_text(value: Any, index: int) -> str | None:
    found = item(value, index)
    return None if found is None else text_of(found)


def _keys(path: tuple[Any, ...]) -> Sequence[Any]:
    """An array, or the arguments in its place."""
    if len(path) == 1 and not isinstance(path[0], str):
        found: Sequence[Any] = path[0]
        return found
    return path


@implements("jsonb_extract_path(jsonb,_text)", may_be_null=True)
def part(value: Any, *path: Any) -> Any:
    """The value at the end of a path; None: there is none."""
    for key in _keys(path):
        if key is None or value is None:
            return None
        if type(value) is dict:
            value = value.get(key)
        elif type(value) is list and (index := index_of(key)) is not None:
            value = item(value, index)
        else:
            return None
    return value


@implements("jsonb_extract_path_text(jsonb,_text)", may_be_null=True)
def part_text(value: Any, *path: Any) -> str | None:
    found = part(value, *path)
    return None if found is None else text_of(found)


def index_of(key: str) -> int | None:
    """A text as the index of an element; None: it is none."""
    if _INTEGER.fullmatch(key) is None:
        return None
    index = int(key)
    return index if -(2**31) <= index < 2**31 else None


@implements("jsonb_array_length(jsonb)")
def array_length(value: Any) -> int:
    if type(value) is list:
        return len(value)
    kind = "a non-array" if type(value) is dict else "a scalar"
    raise ValueRefused(f"cannot get array length of {kind}")


# -- other values ---------------------------------------------------------------------------------


@implements("jsonb_concat(jsonb,jsonb)")
def joined(a: Any, b: Any) -> Any:
    if type(a) is dict and type(b) is dict:
        return {**a, **b}
    return [*_listed(a), *_listed(b)]


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else [value]


def _check_container(value: Any) -> None:
    if type(value) not in (dict, list):
        raise ValueRefused("cannot delete from scalar")


@implements("jsonb_delete(jsonb,text)")
def without_key(value: Any, key: str) -> Any:
    return without_keys(value, [key])


@implements("jsonb_delete(jsonb,_text)")
def without_keys(value: Any, *keys: Any) -> Any:
    _check_container(value)
    gone = {key for key in _keys(keys) if key is not None}
    if type(value) is dict:
        return {key: each for key, each in value.items() if key not in gone}
    return [each for each in value if not (type(each) is str and each in gone)]


@implements("jsonb_delete(jsonb,int4)")
def without_item(value: Any, index: int) -> Any:
    _check_container(value)
    if type(value) is dict:
        raise ValueRefused("cannot delete from object using integer index")
    if not -len(value) <= index < len(value):
        return value
    place = index % len(value)
    return value[:place] + value[place + 1 :]


@implements("jsonb_delete_path(jsonb,_text)")
def without_path(value: Any, path: Sequence[str | None]) -> Any:
    """Without the value at the end of a path."""
    if type(value) not in (dict, list):
        raise ValueRefused("cannot delete path in scalar")
    return _without(value, path, 0) if value and path else value


def _without(value: Any, path: Sequence[str | None], depth: int) -> Any:
    key = _path_key(path, depth)
    is_last = depth == len(path) - 1
    if type(value) not in (dict, list):
        return value
    if type(value) is dict:
        if key not in value:
            return value
        if is_last:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _without(value[key], path, depth + 1)}
    index = _path_index(key, depth)
    if not -len(value) <= index < len(value):
        return value
    place = index % len(value)
    inner = [] if is_last else [_without(value[place], path, depth + 1)]
    return [*value[:place], *inner, *value[place + 1 :]]


def _path_key(path: Sequence[str | None], depth: int) -> str:
    key = path[depth]
    if key is None:
        raise ValueRefused(f"path element at position {depth + 1} is null")
    return key


def _path_index(key: str, depth: int) -> int:
    index = index_of(key)
    if index is None:
        raise ValueRefused(f'path element at position {depth + 1} is not an integer: "{key}"')
    return index


@implements("jsonb_set(jsonb,_text,jsonb)", "jsonb_set(jsonb,_text,jsonb,bool)")
def with_value(value: Any, path: Sequence[str | None], new: Any, create: bool = True) -> Any:
    """With another value at the end of a path."""
    if type(value) not in (dict, list):
        raise ValueRefused("cannot set path in scalar")
    if not value and not create:
        return value
    return _with(value, path, new, create, 0) if path else value


def _with(value: Any, path: Sequence[str | None], new: Any, create: bool, depth: int) -> Any:
    key = _path_key(path, depth)
    is_last = depth == len(path) - 1
    if type(value) not in (dict, list):
        return value
    if type(value) is dict:
        if key not in value:
            return {**value, key: new} if is_last and create else value
        return {**value, key: new if is_last else _with(value[key], path, new, create, depth + 1)}
    index = _path_index(key, depth)
    if -len(value) <= index < len(value):
        place = index % len(value)
        inner = new if is_last else _with(value[place], path, new, create, depth + 1)
        return [*value[:place], inner, *value[place + 1 :]]
    if not (is_last and create):
        return value
    return [*value, new] if index > 0 or not value else [new, *value]


@implements("jsonb_strip_nulls(jsonb)", "jsonb_strip_nulls(jsonb,bool)")
def without_nulls(value: Any, in_arrays: bool = False) -> Any:
    """Without keys that have the value null."""
    if type(value) is dict:
        return {
            key: without_nulls(each, in_arrays) for key, each in value.items() if each is not NULL
        }
    if type(value) is list:
        return [
            without_nulls(each, in_arrays) for each in value if not (in_arrays and each is NULL)
        ]
    return value
