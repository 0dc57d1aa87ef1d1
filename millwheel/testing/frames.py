"""Values and states as tables, for people who look at them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from millwheel.core.distribution import install
from millwheel.errors import UsageError
from millwheel.state import BOUNDS, ListState, StateLayout

if TYPE_CHECKING:
    from pandas import DataFrame

    from millwheel.store.memory import ShownState

NULLABLE: dict[type, str] = {int: "Int64", bool: "boolean"}
"""Types of pandas for columns with None, which would otherwise become floats and objects."""


def frame(values: Iterable[Any], columns: Sequence[str] = ()) -> DataFrame:
    """A DataFrame of pandas with a row for each value.

    ```python
    pipeline.add(AddUp(), ORDERS.by(customer))
    pipeline.sink(ORDERS, Table("bill", Order))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK)
        assert list(frame(harness.produced(SPENT))["value"]) == [300, 390]
        assert frame(harness.states("add_up"))["cents"].sum() == 390
        bill = frame(harness.rows("bill"), ["customer", "item", "cents"])
        assert bill.groupby("customer").cents.sum()["ann"] == 390
    ```

    The columns are the fields of structs, dataclasses and dicts, those of nested ones as
    ``value.cents``; the names given for parts of tuples, or their numbers; and ``value`` for
    everything else. Integers remain integers beside None.

    Args:
        columns: names for the parts of tuples.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise UsageError(
            f"frame() needs the package pandas, which is not installed: {install('spark')}"
        ) from error
    rows = [dict(_cells(value, columns)) for value in values]
    names = list(dict.fromkeys(name for row in rows for name in row)) or list(columns)
    data = {name: _column(pandas, [row.get(name) for row in rows]) for name in names}
    return pandas.DataFrame(data, columns=names)


def _cells(value: Any, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    elif _has_fields(value):
        yield from _fields_of(value, "")
    elif isinstance(value, tuple):
        names = columns or getattr(value, "_fields", None) or [str(n) for n in range(len(value))]
        yield from zip(names, value, strict=True)
    else:
        yield "value", value


def _fields_of(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else _names_of(value)
    for name in names:
        part = getattr(value, name)
        if _has_fields(part):
            yield from _fields_of(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def _names_of(value: Any) -> list[str]:
    return [field.name for field in fields(value)]


def _has_fields(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) or (
        is_dataclass(value) and not isinstance(value, type)
    )


def _column(pandas: Any, values: list[Any]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if None in values and len(kinds) == 1:
        kind = NULLABLE.get(kinds.pop())
        try:
            return pandas.Series(values, dtype=kind)
        except (OverflowError, TypeError):  # more than 64 bits
            return pandas.Series(values, dtype="object")
    return pandas.Series(values, dtype=None if values else "object")


# -- states -------------------------------------------------------------------------------


def state_rows(
    states: Iterable[ShownState], layout: StateLayout[Any] | None
) -> list[dict[str, Any]]:
    """A row for each key, ordered by key, without the tables of broadcast records."""
    kinds = (
        {} if layout is None else {name: kind for name, (kind, *_) in layout.collections.items()}
    )
    rows: dict[str, dict[str, Any]] = {}
    for state in states:
        if isinstance(state.key, dict):  # the address of a broadcast table
            continue
        key = _hashable(state.key)
        empty: dict[str, Any] = {
            name: [] if kind is ListState else {} for name, kind in kinds.items()
        }
        row = rows.setdefault(repr(key), {"key": key, **empty})
        name, _, entry = state.entry.partition("/")
        if not name:
            found = state.value if isinstance(state.value, dict) else {"state": state.value}
            row.update({"state.key" if f == "key" else f: part for f, part in found.items()})
        elif kinds[name] is not ListState:
            row[name][_hashable(json.loads(entry))] = state.value
        elif entry != BOUNDS:
            row[name].append(state.value)
    return sorted(rows.values(), key=_place)


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def _place(row: dict[str, Any]) -> list[tuple[str, Any]]:
    """The place of a key among keys of any types."""
    parts = row["key"] if isinstance(row["key"], tuple) else (row["key"],)
    return [(type(part).__name__, part) for part in parts]
