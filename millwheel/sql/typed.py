"""Expressions with their types, operators and functions resolved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from millwheel.sql.catalog import Signature
from millwheel.sql.place import Place
from millwheel.sql.types import SqlType


@dataclass(frozen=True)
class Typed:
    type: SqlType
    nullable: bool
    """Whether the value may be NULL."""
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class ColumnValue(Typed):
    """A column of the input."""

    table: str
    name: str


@dataclass(frozen=True)
class ConstantValue(Typed):
    value: Any
    """None: NULL. Of the type `unknown`: a text."""


@dataclass(frozen=True)
class Apply(Typed):
    """A function or an operator."""

    signature: Signature
    arguments: tuple[Typed, ...]


@dataclass(frozen=True)
class AggregateValue(Typed):
    signature: Signature
    arguments: tuple[Typed, ...]
    distinct: bool
    order: tuple[tuple[Typed, bool, bool], ...]
    """Expression, descending, NULL first."""
    filter: Typed | None


@dataclass(frozen=True)
class Convert(Typed):
    """A cast; `steps` are the pairs of types that it goes through."""

    value: Typed
    steps: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LogicValue(Typed):
    kind: str
    operands: tuple[Typed, ...]


@dataclass(frozen=True)
class NotValue(Typed):
    operand: Typed


@dataclass(frozen=True)
class IsTestValue(Typed):
    """Whether the operand is `value`, which is None, True or False."""

    operand: Typed
    value: bool | None
    negated: bool


@dataclass(frozen=True)
class DistinctValue(Typed):
    """``IS [NOT] DISTINCT FROM``, by an operator of equality."""

    equals: Signature
    left: Typed
    right: Typed
    negated: bool


@dataclass(frozen=True)
class CaseValue(Typed):
    branches: tuple[tuple[Typed, Typed], ...]
    otherwise: Typed


@dataclass(frozen=True)
class Coalesce(Typed):
    operands: tuple[Typed, ...]


@dataclass(frozen=True)
class NullIf(Typed):
    """The first operand, or NULL if both are equal."""

    equals: Signature
    left: Typed
    right: Typed


@dataclass(frozen=True)
class Extreme(Typed):
    """``GREATEST`` and ``LEAST``, by an operator that says which of two is it."""

    better: Signature
    operands: tuple[Typed, ...]


@dataclass(frozen=True)
class ItemsValue(Typed):
    items: tuple[Typed, ...]


@dataclass(frozen=True)
class ElementValue(Typed):
    array: Typed
    index: Typed


@dataclass(frozen=True)
class QuantifiedValue(Typed):
    """``value operator ANY (array)``; of `InList` the items are an array as well."""

    operator: Signature
    value: Typed
    array: Typed
    is_all: bool
    bound: str = "item"
    item: Typed | None = None
    """The array's item, converted to the operator's type."""


def children(node: Typed) -> tuple[Typed, ...]:
    """The expressions that an expression consists of."""
    match node:
        case Apply() | AggregateValue():
            found = node.arguments
            if isinstance(node, AggregateValue):
                found += tuple(value for value, _, _ in node.order)
                found += (node.filter,) if node.filter is not None else ()
            return found
        case Convert():
            return (node.value,)
        case LogicValue() | Coalesce() | Extreme():
            return node.operands
        case NotValue() | IsTestValue():
            return (node.operand,)
        case DistinctValue():
            return node.left, node.right
        case NullIf():
            return node.left, node.right
        case CaseValue():
            tests = tuple(part for branch in node.branches for part in branch)
            return (*tests, node.otherwise)
        case ItemsValue():
            return node.items
        case ElementValue():
            return node.array, node.index
        case QuantifiedValue():
            return node.value, node.array
        case _:
            return ()


def walk(node: Typed) -> list[Typed]:
    """The expression and all that it contains."""
    return [node, *(part for child in children(node) for part in walk(child))]


def with_children(node: Typed, change: Callable[[Typed], Typed]) -> Typed:
    """An expression with each of its parts changed."""
    changed = {
        each.name: _with_changed(getattr(node, each.name), change)
        for each in fields(node)
        if each.name not in ("type", "nullable", "place")
    }
    return replace(node, **changed)


def _with_changed(value: Any, change: Callable[[Typed], Typed]) -> Any:
    if isinstance(value, Typed):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_with_changed(each, change) for each in value)
    return value


def rewrite(node: Typed, change: Callable[[Typed], Typed | None]) -> Typed:
    """An expression with parts replaced, from the outside to the inside.

    Args:
        change: returns the replacement of a part, or None if its own parts are to be looked at.
    """
    found = change(node)
    if found is not None:
        return found
    changed = {
        each.name: _rewritten(getattr(node, each.name), change)
        for each in fields(node)
        if each.name not in ("type", "nullable", "place")
    }
    return replace(node, **changed)


def _rewritten(value: Any, change: Callable[[Typed], Typed | None]) -> Any:
    if isinstance(value, Typed):
        return rewrite(value, change)
    if isinstance(value, tuple) and not isinstance(value, str):
        return tuple(_rewritten(each, change) for each in value)
    return value


def written(node: Typed | None) -> str:
    """A text with the meaning of an expression, which stays the same as long as that does."""
    match node:
        case None:
            return ""
        case ColumnValue():
            return f"{node.table}.{node.name}"
        case ConstantValue():
            return f"{node.value!r}::{node.type.name}"
        case Apply() | AggregateValue():
            inner = ", ".join(map(written, node.arguments))
            extra = ""
            if isinstance(node, AggregateValue):
                order = [(written(value), *rest) for value, *rest in node.order]
                kept = None if node.filter is None else written(node.filter)
                extra = f" {node.distinct} {order} {kept}"
            return f"{node.signature.key}{node.signature.code}[{inner}]{extra}"
        case Convert():
            return f"{written(node.value)}::{node.type.name}{node.type.modifier}"
        case _:
            inner = ", ".join(map(written, children(node)))
            if isinstance(node, Extreme):
                inner = f"{node.better.key} {inner}"
            if isinstance(node, QuantifiedValue):
                inner = f"{node.operator.key} {inner}"
            kept_parts = [
                str(getattr(node, name))
                for name in ("kind", "value", "negated", "is_all")
                if hasattr(node, name) and not isinstance(getattr(node, name), Typed)
            ]
            return f"{type(node).__name__}{kept_parts}[{inner}]"
