"""Arrays of one dimension, which are lists. NULL equals NULL among elements, and comes last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millwheel.sql.functions.registry import (
    GIVEN_AS,
    REFUSED,
    ValueRefused,
    implements,
    inline,
)

Array = Sequence[Any]


def element(array: Array, index: int) -> Any:
    """An element, counted from 1; None: there is none."""
    return array[index - 1] if 1 <= index <= len(array) else None


def quantified(
    array: Array | None,
    is_all: bool,
    value: Any,
    test: Callable[[Any], bool | None],
) -> bool | None:
    """Whether a test holds for any, or for all, of an array's items, by three-valued logic."""
    if array is None:
        return None
    if not array:
        return is_all
    if value is None:
        return None
    found = [test(item) for item in array]
    if is_all:
        return False if False in found else None if None in found else True
    return True if True in found else None if None in found else False


# -- comparisons ----------------------------------------------------------------------------------


def compared(a: Array, b: Array) -> int:
    """Less than 0, 0 or more than 0, as `a` is before, equal to or after `b`."""
    for left, right in zip(a, b, strict=False):
        if left == right:
            continue
        if left is None:
            return 1
        if right is None:
            return -1
        return -1 if left < right else 1
    return len(a) - len(b)


inline("({0} == {1})", "array_eq(anyarray,anyarray)")
inline("({0} != {1})", "array_ne(anyarray,anyarray)")
implements("array_lt(anyarray,anyarray)")(lambda a, b: compared(a, b) < 0)
implements("array_le(anyarray,anyarray)")(lambda a, b: compared(a, b) <= 0)
implements("array_gt(anyarray,anyarray)")(lambda a, b: compared(a, b) > 0)
implements("array_ge(anyarray,anyarray)")(lambda a, b: compared(a, b) >= 0)


@implements("arraycontains(anyarray,anyarray)")
def contains(a: Array, b: Array) -> bool:
    """Whether `a` has all elements of `b`; NULL is none of them."""
    return all(item is not None and item in a for item in b)


@implements("arraycontained(anyarray,anyarray)")
def contained(a: Array, b: Array) -> bool:
    return contains(b, a)


@implements("arrayoverlap(anyarray,anyarray)")
def overlap(a: Array, b: Array) -> bool:
    return any(item is not None and item in b for item in a)


for _kind in ("jsonb", "bpchar"):
    # Their elements may be equal in another way than Python's.
    _array = f"_{_kind}"
    REFUSED.update(f"array_{name}({_array},{_array})" for name in ("lt", "le", "gt", "ge"))
    REFUSED.update(
        f"array{name}({_array},{_array})" for name in ("contains", "contained", "overlap")
    )
    REFUSED.update(
        f"array_{name}({_array},{_kind})" for name in ("position", "positions", "remove")
    )
    REFUSED.update({
        f"array_position({_array},{_kind},int4)", f"array_replace({_array},{_kind},{_kind})",
        f"array_sort({_array})", f"array_sort({_array},bool)", f"array_sort({_array},bool,bool)",
    })  # fmt: skip


def _bare(array: Array) -> list[str | None]:
    return [None if each is None else each.rstrip(" ") for each in array]


implements("array_eq(_bpchar,_bpchar)")(lambda a, b: _bare(a) == _bare(b))
implements("array_ne(_bpchar,_bpchar)")(lambda a, b: _bare(a) != _bare(b))


# -- sizes ----------------------------------------------------------------------------------------


@implements("array_length(anyarray,int4)", "array_upper(anyarray,int4)", may_be_null=True)
def length(array: Array, dimension: int) -> int | None:
    return len(array) or None if dimension == 1 else None


@implements("array_lower(anyarray,int4)", may_be_null=True)
def lowest(array: Array, dimension: int) -> int | None:
    return 1 if array and dimension == 1 else None


@implements("array_ndims(anyarray)", may_be_null=True)
def dimensions(array: Array) -> int | None:
    return 1 if array else None


@implements("array_dims(anyarray)", may_be_null=True)
def bounds(array: Array) -> str | None:
    return f"[1:{len(array)}]" if array else None


inline("len({0})", "cardinality(anyarray)")


# -- search ---------------------------------------------------------------------------------------


@implements(
    "array_position(anycompatiblearray,anycompatible)",
    "array_position(anycompatiblearray,anycompatible,int4)",
    may_be_null=True,
)
def position(array: Array | None, item: Any, start: int | None = 1) -> int | None:
    """Where an element is, at this place or later; None: nowhere."""
    if not array:
        return None
    if start is None:
        raise ValueRefused("initial position must not be null")
    for place in range(max(start - 1, 0), len(array)):
        if array[place] == item:
            return place + 1
    return None


@implements("array_positions(anycompatiblearray,anycompatible)", may_be_null=True)
def positions(array: Array | None, item: Any) -> list[int] | None:
    if array is None:
        return None
    return [place for place, each in enumerate(array, 1) if each == item]


# -- other arrays ---------------------------------------------------------------------------------


@implements("array_append(anycompatiblearray,anycompatible)")
def appended(array: Array | None, item: Any) -> list[Any]:
    return [*(array or ()), item]


@implements("array_prepend(anycompatible,anycompatiblearray)")
def prepended(item: Any, array: Array | None) -> list[Any]:
    return [item, *(array or ())]


@implements("array_cat(anycompatiblearray,anycompatiblearray)", may_be_null=True)
def joined(a: Array | None, b: Array | None) -> Array | None:
    """Both, one after the other; NULL adds nothing."""
    if a is None or b is None:
        return b if a is None else a
    return [*a, *b]


@implements("array_remove(anycompatiblearray,anycompatible)", may_be_null=True)
def removed(array: Array | None, item: Any) -> list[Any] | None:
    return None if array is None else [each for each in array if each != item]


@implements("array_replace(anycompatiblearray,anycompatible,anycompatible)", may_be_null=True)
def replaced(array: Array | None, old: Any, new: Any) -> list[Any] | None:
    return None if array is None else [new if each == old else each for each in array]


inline("{0}[::-1]", "array_reverse(anyarray)")


@implements("array_sort(anyarray)")
@implements("array_sort(anyarray,bool)")
@implements("array_sort(anyarray,bool,bool)")
def sorted_array(
    array: Array, descending: bool = False, nulls_first: bool | None = None
) -> list[Any]:
    """In order; NULL is last, or first in descending order, unless it is said."""
    found = sorted((each for each in array if each is not None), reverse=descending)
    nulls = [None] * (len(array) - len(found))
    first = descending if nulls_first is None else nulls_first
    return [*nulls, *found] if first else [*found, *nulls]


@implements("trim_array(anyarray,int4)")
def trimmed(array: Array, count: int) -> Array:
    if not 0 <= count <= len(array):
        raise ValueRefused(f"number of elements to trim must be between 0 and {len(array)}")
    return array[: len(array) - count]


# -- texts ----------------------------------------------------------------------------------------

GIVEN_AS.update({
    "array_to_string(anyarray,text)": "_output", "array_to_string(anyarray,text,text)": "_output",
})  # fmt: skip


@implements("array_to_string(anyarray,text)")
def to_text(array: Sequence[str | None], separator: str) -> str:
    return separator.join([each for each in array if each is not None])


@implements("array_to_string(anyarray,text,text)", may_be_null=True)
def to_text_with_nulls(
    array: Sequence[str | None] | None, separator: str | None, null: str | None
) -> str | None:
    if array is None or separator is None:
        return None
    if null is None:
        return to_text(array, separator)
    return separator.join([null if each is None else each for each in array])


@implements("string_to_array(text,text)", "string_to_array(text,text,text)", may_be_null=True)
def from_text(
    text: str | None, separator: str | None, null: str | None = None
) -> list[str | None] | None:
    """The parts of a text: its characters if the separator is NULL."""
    if text is None:
        return None
    if not text:
        return []
    if separator is None:
        parts = list(text)
    elif separator:
        parts = text.split(separator)
    else:
        parts = [text]
    return [*parts] if null is None else [None if each == null else each for each in parts]
