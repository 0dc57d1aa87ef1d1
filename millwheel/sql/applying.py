"""Operators, functions and aggregates, chosen as Postgres chooses them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NoReturn

from millwheel.core.suggestion import did_you_mean
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.aggregate_forms import NEVER_NULL, check_form
from millwheel.sql.catalog import POLYMORPHIC, Ambiguous, Catalog, Signature, resolved
from millwheel.sql.constant_parts import folded
from millwheel.sql.converting import Converter, is_available
from millwheel.sql.functions import GIVEN_AS, implementation_of
from millwheel.sql.functions.registry import AS_ARGUMENT, AS_JSONB, OUTPUT, Implementation
from millwheel.sql.place import Place, fail
from millwheel.sql.types import (
    BOOL,
    JSONB,
    TEXT,
    UNKNOWN,
    SqlType,
    shown,
)

CLOCK = frozenset((
    "now", "current_timestamp", "current_date", "localtimestamp", "current_time", "localtime",
    "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday",
))  # fmt: skip


class Applier(Converter):
    """Args:
    no_aggregates_in: the part of a query, if aggregates may not occur in it.
    """

    def __init__(self, catalog: Catalog, no_aggregates_in: str | None) -> None:
        super().__init__(catalog)
        self._no_aggregates_in = no_aggregates_in
        self._inside: str | None = None
        """The aggregate with the arguments that are being resolved."""

    @abstractmethod
    def resolve(self, node: s.Expression) -> t.Typed:
        """Give an expression its type."""

    def value(self, node: s.Expression) -> t.Typed:
        """Resolve an expression with a value of use; a text that nothing gives a type is `text`."""
        return folded(self.known(node))

    def condition(self, node: s.Expression, part: str) -> t.Typed:
        """Resolve an expression that has to be a boolean.

        Args:
            part: of the query, for messages: ``WHERE``.
        """
        return folded(self.truth(node, part))

    def known(self, node: s.Expression) -> t.Typed:
        """As `value`, for a part of an expression."""
        found = self.resolve(node)
        return self.implicit(found, TEXT) if found.type == UNKNOWN else found

    def truth(self, node: s.Expression, part: str) -> t.Typed:
        """As `condition`, for a part of an expression."""
        found = self.resolve(node)
        if found.type not in (BOOL, UNKNOWN):
            fail(
                node.place,
                f"the condition of {part} must be boolean, and this is {shown(found.type)}",
                "Compare it with something",
            )
        return self.implicit(found, BOOL)

    def _operation(self, node: s.Operation) -> t.Typed:
        operands = [self.resolve(each) for each in node.operands]
        return self.apply_operator(node.operator, operands, node.place)

    def apply_operator(self, symbol: str, operands: Sequence[t.Typed], place: Place) -> t.Typed:
        signature = self.operator(symbol, [each.type for each in operands], place)
        return self.apply(signature, operands, place, f"operator {symbol}")

    def operator(self, symbol: str, kinds: Sequence[SqlType], place: Place) -> Signature:
        names = [kind.name for kind in kinds]
        written = (
            f" {symbol} ".join(map(shown, kinds))
            if len(kinds) == 2
            else (f"{symbol} {shown(kinds[0])}")
        )
        try:
            found = self.catalog.operator(symbol, names)
        except Ambiguous:
            fail(place, f"operator is not unique: {written}", "Cast one side, as in x::integer")
        if found is None:
            known = self.catalog.has_operator(symbol, len(kinds))
            advice = "Cast one side so that both have types that go together"
            fail(
                place,
                f"operator does not exist: {written}",
                advice if known else f"Postgres has no operator {symbol}",
            )
        signature = resolved(found, names, self.catalog)
        if signature is None:
            fail(place, f"the types of {written} are not known", "Cast one side")
        return signature

    def _functioncall(self, node: s.FunctionCall) -> t.Typed:
        name = node.function
        if name in CLOCK and not (name == "age" and len(node.arguments) == 2):
            fail(
                node.place,
                f"{name} depends on when the query runs",
                "A record that runs again must give the same result: use a time of the record",
            )
        if self.catalog.is_aggregate(name):
            return self._aggregate(node)
        for extra, what in (
            (node.star, "*"), (node.distinct, "DISTINCT"), (node.filter, "FILTER"),
            (node.order, "ORDER BY"), (node.within, "WITHIN GROUP"),
        ):  # fmt: skip
            if extra:
                fail(node.place, f"{what} is for aggregates, and {name} is none")
        arguments = [self.resolve(each) for each in node.arguments]
        signature = self._function(node, [each.type for each in arguments])
        if signature is None and len(arguments) == 1 and self.is_type(name):
            return self.explicit(arguments[0], self.type_of(s.TypeName(name)), node.place)
        if signature is None:
            self._no_function(node, [each.type for each in arguments])
        if signature.volatility == "v":
            fail(
                node.place,
                f"{name} gives another result each time",
                "A record that runs again must give the same result",
            )
        if signature.returns_set:
            fail(node.place, f"{name} returns several rows", "Use it in FROM")
        return self.apply(signature, arguments, node.place, f"function {name}")

    def _function(self, node: s.FunctionCall, kinds: Sequence[SqlType]) -> Signature | None:
        names = [kind.name for kind in kinds]
        try:
            found = self.catalog.function(node.function, names)
        except Ambiguous:
            types = ", ".join(map(shown, kinds))
            fail(
                node.place,
                f"function {node.function}({types}) is not unique",
                "Cast an argument, as in x::text",
            )
        return None if found is None else resolved(found, names, self.catalog)

    def _no_function(self, node: s.FunctionCall, kinds: Sequence[SqlType]) -> NoReturn:
        written = f"{node.function}({', '.join(map(shown, kinds))})"
        if self.catalog.has_function(node.function):
            advice = "No function of that name takes arguments of these types; cast them"
        else:
            advice = did_you_mean(node.function, self.catalog.function_names)
        fail(node.place, f"function {written} does not exist", advice)

    def apply(
        self, signature: Signature, arguments: Sequence[t.Typed], place: Place, what: str
    ) -> t.Typed:
        implementation = implementation_of(signature.keys)
        if implementation is None:
            kinds = ", ".join(shown(SqlType(kind)) for kind in signature.arguments)
            fail(place, f"{what} with {kinds} exists in Postgres and is not available here")
        converted = tuple(
            each if kind == "any" else self.implicit(each, SqlType(kind))
            for each, kind in zip(arguments, signature.arguments, strict=True)
        )
        converted = tuple(
            self.implicit(each, TEXT) if each.type == UNKNOWN else each for each in converted
        )
        converted = self._given(signature, converted)
        nullable = _may_be_null(implementation, converted) or (
            signature.is_strict and any(each.nullable for each in converted)
        )
        return t.Apply(SqlType(signature.result), nullable, place, signature, converted)

    def _given(self, signature: Signature, values: tuple[t.Typed, ...]) -> tuple[t.Typed, ...]:
        """Values of arguments of any type in the form that the function takes."""
        form = next((GIVEN_AS[key] for key in signature.keys if key in GIVEN_AS), None)
        if form is None:
            return values
        declared = signature.declared
        if len(declared) != len(values):
            declared = signature.arguments
        return tuple(
            self._formed(each, form) if kind == "any" or kind in POLYMORPHIC else each
            for each, kind in zip(values, declared, strict=True)
        )

    def _formed(self, value: t.Typed, form: str) -> t.Typed:
        if form == "text":
            return self.explicit(value, TEXT, value.place)
        pair = value.type.name, form
        if not is_available(pair):
            fail(value.place, f"{shown(value.type)} is not available here as an argument")
        kind = {OUTPUT: TEXT, "_output": TEXT.array(), AS_JSONB: JSONB, AS_ARGUMENT: JSONB}[form]
        return t.Convert(kind, value.nullable, value.place, value, (pair,))

    # -- aggregates ---------------------------------------------------------------------------

    def _aggregate(self, node: s.FunctionCall) -> t.Typed:
        name = node.function
        if self._no_aggregates_in is not None:
            fail(node.place, f"the aggregate {name} is not allowed in {self._no_aggregates_in}")
        if self._inside is not None:
            fail(node.place, f"the aggregate {name} is inside of {self._inside}")
        check_form(node)
        self._inside = name
        try:
            arguments = [self.resolve(each) for each in node.arguments]
            arguments += [self.resolve(each.value) for each in node.within]
            keys = [self.known(each.value) for each in node.order]
            kept = None if node.filter is None else self.truth(node.filter, "FILTER")
        finally:
            self._inside = None
        signature = self._function(node, [each.type for each in arguments])
        if signature is None:
            self._no_function(node, [each.type for each in arguments])
        converted = tuple(
            self.implicit(each, TEXT if kind == "any" and each.type == UNKNOWN else SqlType(kind))
            if kind != "any" or each.type == UNKNOWN
            else each
            for each, kind in zip(arguments, signature.arguments, strict=True)
        )
        # A key that is an argument as well is sorted as it is given to the aggregate.
        keys = [
            converted[arguments.index(key)] if key in arguments else key for key in keys
        ] or list(converted[len(node.arguments) :])
        order = tuple(
            (key, each.descending, each.nulls_first)
            for key, each in zip(keys, node.order or node.within, strict=True)
        )
        if node.distinct:
            self._check_distinct_order(keys, converted)
        return t.AggregateValue(
            SqlType(signature.result), name not in NEVER_NULL, node.place, signature, converted,
            node.distinct, order, kept,
        )  # fmt: skip

    @staticmethod
    def _check_distinct_order(keys: Sequence[t.Typed], arguments: Sequence[t.Typed]) -> None:
        for key in keys:
            if key not in arguments:
                fail(
                    key.place,
                    "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument "
                    "list",
                    "Sort by the argument itself, or leave DISTINCT out",
                )

    def _over(self, node: s.Over) -> NoReturn:
        fail(
            node.place,
            f"{node.call.function}() OVER is not available here",
            "Only ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) with a limit on it is",
        )


def _may_be_null(implementation: Implementation, arguments: Sequence[t.Typed]) -> bool:
    """Whether a result may be NULL although no argument is."""
    if implementation.may_be_null != "empty":
        return implementation.may_be_null
    last = arguments[-1]
    return not (isinstance(last, t.ConstantValue) and last.value)
