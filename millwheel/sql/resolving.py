"""Gives each expression its type, and each operator and function its signature, as Postgres would.

Without a server: by the rules and data of `millwheel.sql.catalog`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.applying import Applier
from millwheel.sql.catalog import Catalog, Signature, postgres
from millwheel.sql.functions import implementation_of
from millwheel.sql.place import Place, fail
from millwheel.sql.types import (
    BOOL,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    UNKNOWN,
    SqlType,
    shown,
)

INT4_MAX, INT8_MAX = 2**31 - 1, 2**63 - 1


class ColumnLookup(Protocol):
    """The columns that an expression may use."""

    def column(self, name: s.Name) -> t.Typed:
        """Raises:
        SqlError: there is no such column, or several.
        """
        ...


class Resolver(Applier):
    """Args:
    scope: the columns.
    no_aggregates_in: the part of a query, if aggregates may not occur in it.
    """

    def __init__(
        self,
        scope: ColumnLookup,
        *,
        no_aggregates_in: str | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        super().__init__(catalog or postgres(), no_aggregates_in)
        self._scope = scope

    def resolve(self, node: s.Expression) -> t.Typed:
        """Raises:
        SqlError: the expression has no meaning in Postgres, or is not available.
        """
        method: Callable[[s.Expression], t.Typed] = getattr(self, "_" + type(node).__name__.lower())
        return method(node)

    # -- literals and columns ----------------------------------------------------------------

    def _name(self, node: s.Name) -> t.Typed:
        return self._scope.column(node)

    def _star(self, node: s.Star) -> NoReturn:
        fail(node.place, "* stands for columns, and no value", "Name a column")

    def _number(self, node: s.Number) -> t.Typed:
        text = node.text
        if text.lstrip("-").isdigit():
            value = int(text)
            for kind, most in ((INT4, INT4_MAX), (INT8, INT8_MAX)):
                if -most - 1 <= value <= most and not (value < 0 and -value > most + 1):
                    return t.ConstantValue(kind, False, node.place, value)
        return self.constant(text, NUMERIC, node.place)

    def _text(self, node: s.Text) -> t.Typed:
        return t.ConstantValue(UNKNOWN, False, node.place, node.value)

    def _truth(self, node: s.Truth) -> t.Typed:
        return t.ConstantValue(BOOL, False, node.place, node.value)

    def _null(self, node: s.Null) -> t.Typed:
        return t.ConstantValue(UNKNOWN, True, node.place, None)

    def _castto(self, node: s.CastTo) -> t.Typed:
        return self.explicit(self.resolve(node.value), self.type_of(node.to), node.place)

    # -- logic ----------------------------------------------------------------------------------

    def _logic(self, node: s.Logic) -> t.Typed:
        operands = tuple(self.truth(each, node.kind) for each in node.operands)
        return t.LogicValue(
            BOOL, any(each.nullable for each in operands), node.place, node.kind, operands
        )

    def _not(self, node: s.Not) -> t.Typed:
        operand = self.truth(node.operand, "NOT")
        return t.NotValue(BOOL, operand.nullable, node.place, operand)

    def _istest(self, node: s.IsTest) -> t.Typed:
        if node.test == "NULL":
            operand = self.known(node.operand)
            return t.IsTestValue(BOOL, False, node.place, operand, None, node.negated)
        operand = self.truth(node.operand, f"IS {node.test}")
        value = {"TRUE": True, "FALSE": False, "UNKNOWN": None}[node.test]
        return t.IsTestValue(BOOL, False, node.place, operand, value, node.negated)

    def _equality(
        self, left: t.Typed, right: t.Typed, place: Place, symbol: str = "="
    ) -> tuple[Signature, t.Typed, t.Typed]:
        signature = self.operator(symbol, (left.type, right.type), place)
        if implementation_of(signature.keys) is None:
            fail(place, f"{shown(left.type)} and {shown(right.type)} cannot be compared here")
        first, second = signature.arguments
        return signature, self.implicit(left, SqlType(first)), self.implicit(right, SqlType(second))

    def _distinct(self, node: s.Distinct) -> t.Typed:
        left, right = self.resolve(node.left), self.resolve(node.right)
        equals, left, right = self._equality(left, right, node.place)
        return t.DistinctValue(BOOL, False, node.place, equals, left, right, node.negated)

    def _case(self, node: s.Case) -> t.Typed:
        tests: list[t.Typed] = []
        for test, _ in node.branches:
            if node.subject is None:
                tests.append(self.truth(test, "CASE WHEN"))
            else:
                equal = s.Operation(test.place, "=", (node.subject, test))
                tests.append(self.resolve(equal))
        results = [self.resolve(result) for _, result in node.branches]
        otherwise = (
            t.ConstantValue(UNKNOWN, True, node.place, None)
            if node.otherwise is None
            else self.resolve(node.otherwise)
        )
        *results, otherwise = self._unified([*results, otherwise], node.place, "CASE")
        nullable = any(each.nullable for each in (*results, otherwise))
        branches = tuple(zip(tests, results, strict=True))
        return t.CaseValue(otherwise.type, nullable, node.place, branches, otherwise)

    def _unified(self, values: Sequence[t.Typed], place: Place, what: str) -> list[t.Typed]:
        # Postgres looks at ELSE first.
        first = [values[-1], *values[:-1]] if what == "CASE" else list(values)
        kind = self.catalog.common_type([each.type.name for each in first])
        if kind is None:
            kinds = sorted({shown(each.type) for each in values if each.type != UNKNOWN})
            fail(place, f"{what} types {' and '.join(kinds)} cannot be matched", "Cast one of them")
        return [self.implicit(each, SqlType(kind)) for each in values]

    def _choice(self, node: s.Choice) -> t.Typed:
        values = [self.resolve(each) for each in node.operands]
        if node.kind == "NULLIF":
            equals, left, right = self._equality(values[0], values[1], node.place)
            return t.NullIf(left.type, True, node.place, equals, left, right)
        operands = tuple(self._unified(values, node.place, node.kind))
        nullable = all(each.nullable for each in operands)
        kind = operands[0].type.plain
        if node.kind == "COALESCE":
            return t.Coalesce(kind, nullable, node.place, operands)
        symbol = ">" if node.kind == "GREATEST" else "<"
        better = self.operator(symbol, (kind, kind), node.place)
        return t.Extreme(kind, nullable, node.place, better, operands)

    # -- arrays ---------------------------------------------------------------------------------

    def _inlist(self, node: s.InList) -> t.Typed:
        symbol = "<>" if node.negated else "="
        values = [self.resolve(each) for each in (node.value, *node.items)]
        # With a common type of all, Postgres compares with an array of that type.
        common = self.catalog.common_type([each.type.name for each in values])
        if len(node.items) > 1 and common is not None:
            values = [self.implicit(each, SqlType(common)) for each in values]
        tests = tuple(
            self.apply_operator(symbol, (values[0], each), each.place) for each in values[1:]
        )
        if len(tests) == 1:
            return tests[0]
        nullable = any(each.nullable for each in tests)
        return t.LogicValue(BOOL, nullable, node.place, "AND" if node.negated else "OR", tests)

    def _quantified(self, node: s.Quantified) -> t.Typed:
        value, array = self.resolve(node.value), self.resolve(node.array)
        if array.type == UNKNOWN:
            array = self.implicit(
                array, (TEXT if value.type == UNKNOWN else value.type).plain.array()
            )
        element = array.type.element
        if element is None:
            fail(node.array.place, f"ANY and ALL need an array, and this is {shown(array.type)}")
        item = t.ColumnValue(element, True, node.place, "", "item")
        operator = self.operator(node.operator, (value.type, element), node.place)
        if operator.result != "bool" or implementation_of(operator.keys) is None:
            fail(node.place, f"operator {node.operator} is not available with ANY or ALL here")
        first, second = (SqlType(kind) for kind in operator.arguments)
        return t.QuantifiedValue(
            BOOL, True, node.place, operator, self.implicit(value, first), array, node.is_all,
            "item", self.implicit(item, second),
        )  # fmt: skip

    def _items(self, node: s.Items) -> t.Typed:
        if not node.items:
            fail(node.place, "the type of an empty array is not known", "Write '{}'::text[]")
        items = self._unified([self.resolve(each) for each in node.items], node.place, "ARRAY")
        if items[0].type.element is not None:
            fail(node.place, "arrays of arrays are not available")
        return t.ItemsValue(items[0].type.plain.array(), False, node.place, tuple(items))

    def _element(self, node: s.Element) -> t.Typed:
        array = self.resolve(node.array)
        if array.type.name == "jsonb":
            return self._subscript(node, array)
        if array.type.element is None:
            fail(node.place, f"{shown(array.type)} has no elements", "[...] is for arrays")
        index = self.converted(self.resolve(node.index), INT4, node.index.place, "ia")
        return t.ElementValue(array.type.element, True, node.place, array, index)

    def _subscript(self, node: s.Element, value: t.Typed) -> t.Typed:
        index = self.resolve(node.index)
        return self.apply_operator("->", (value, index), node.place)
