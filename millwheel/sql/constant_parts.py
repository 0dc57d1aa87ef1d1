"""Evaluates parts of expressions that no record changes, as Postgres does when it plans a query."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.functions import ValueRefused
from millwheel.sql.generating import Generator
from millwheel.sql.types import BOOL, UNKNOWN

_EVALUATED = (
    t.Apply, t.Convert, t.NotValue, t.IsTestValue, t.DistinctValue, t.Extreme, t.NullIf,
    t.ItemsValue, t.ElementValue, t.QuantifiedValue,
)  # fmt: skip


_BY_SETTINGS = frozenset(["date", "timestamp", "timestamptz", "interval"])
"""Types with texts that depend on the settings of a session, so that Postgres does not take them
for constants."""


def folded(node: t.Typed) -> t.Typed:
    """An expression with values in place of its constant parts.

    Raises:
        SqlError: a constant part has no value, as 1 / 0.
    """
    match node:
        # In these, parts that are never reached are not evaluated either.
        case t.CaseValue():
            return _case(node)
        case t.Coalesce():
            return _coalesce(node)
        case t.LogicValue():
            return _logic(node)
    return _folded(t.with_children(node, folded))


def _folded(node: t.Typed) -> t.Typed:
    """As `folded`; the parts are folded already."""
    match node:
        case t.NullIf() if _is_null(node.left):
            return _null(node)
        case t.Convert() if _is_null(node.value):
            return _null(node)
        case t.Convert() if any(_BY_SETTINGS.intersection(pair) for pair in node.steps):
            return node
        case t.Apply():
            if node.signature.is_strict and any(map(_is_null, node.arguments)):
                return _null(node)
            if node.signature.volatility != "i":
                return node
    if not isinstance(node, _EVALUATED):
        return node
    parts = t.children(node)
    if not all(isinstance(part, t.ConstantValue) and part.type != UNKNOWN for part in parts):
        return node
    return _evaluated(node)


def _evaluated(node: t.Typed) -> t.Typed:
    generator = Generator(lambda column: column.name)
    # The code is made of typed nodes alone, as that of all expressions.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # such as: 'x' is None
        code = compile(generator.value(node), "<constant>", "eval")
    try:
        value: Any = eval(code, dict(generator.names))  # noqa: S307
    except ValueRefused as error:
        raise SqlError(str(error), node.place) from error
    return t.ConstantValue(node.type, value is None, node.place, value)


def _case(node: t.CaseValue) -> t.Typed:
    branches = []
    otherwise = node.otherwise
    for test, result in node.branches:
        test = folded(test)
        if isinstance(test, t.ConstantValue):
            if test.value is not True:
                continue
            otherwise = result
            break
        branches.append((test, folded(result)))
    otherwise = folded(otherwise)
    if not branches:
        return otherwise
    return replace(node, branches=tuple(branches), otherwise=otherwise)


def _coalesce(node: t.Coalesce) -> t.Typed:
    operands = []
    for operand in map(folded, node.operands):
        if _is_null(operand):
            continue
        operands.append(operand)
        if isinstance(operand, t.ConstantValue):
            break
    if not operands:
        return _null(node)
    return operands[0] if len(operands) == 1 else replace(node, operands=tuple(operands))


def _logic(node: t.LogicValue) -> t.Typed:
    deciding = node.kind == "OR"
    operands = []
    for operand in map(folded, node.operands):
        if isinstance(operand, t.ConstantValue) and operand.value is not None:
            if operand.value is deciding:
                return t.ConstantValue(BOOL, False, node.place, deciding)
            continue
        operands.append(operand)
    if not operands:
        return t.ConstantValue(BOOL, False, node.place, not deciding)
    if len(operands) == 1:
        return operands[0]
    if all(map(_is_null, operands)):
        return _null(node)
    nullable = any(operand.nullable for operand in operands)
    return replace(node, operands=tuple(operands), nullable=nullable)


def _is_null(node: t.Typed) -> bool:
    return isinstance(node, t.ConstantValue) and node.value is None


def _null(node: t.Typed) -> t.ConstantValue:
    return t.ConstantValue(node.type, True, node.place, None)
