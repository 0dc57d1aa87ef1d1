"""Spark's SQL for typed expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from millwheel.core.model import to_micros
from millwheel.spark.queries.equivalents import (
    AGGREGATES,
    CASTS,
    ORDERED,
    SIGNATURES,
    TYPES,
    Equivalent,
)
from millwheel.sql import typed as t
from millwheel.sql.catalog import Signature
from millwheel.sql.functions import ValueRefused, cast_of
from millwheel.sql.functions.registry import applied
from millwheel.sql.types import SqlType, shown

MOST_DIGITS = 37
MOST_CHARACTERS = 20_000
"""Of one expression; parts that guard others stand in it twice."""
_SUFFIXES = {"int2": "S", "int4": "", "int8": "L"}
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.,:;-+*/()<>=!?@#%&|[]"
)
"""Characters that stand for themselves in a text of Spark's SQL, whatever its settings are."""


class NotTheSame(Exception):
    """No expression of Spark is known to have the same meaning; the text names the part."""


class Translator:
    """Translates expressions, and notes whether one may fail.

    Args:
        column: gives Spark's SQL for a column.
    """

    def __init__(self, column: Callable[[t.ColumnValue], str]) -> None:
        self._column_of = column
        self.may_fail = False
        """Whether an expression so far raises an error for some values."""
        self._known: dict[int, tuple[t.Typed, str, bool]] = {}
        """By the identity of an expression: it, its SQL, and whether it may fail."""

    def value(self, node: t.Typed) -> str:
        """Spark's SQL with the value of `node`.

        Raises:
            NotTheSame: there is none.
        """
        if id(node) not in self._known:
            before, self.may_fail = self.may_fail, False
            self._known[id(node)] = node, self._made(node), self.may_fail
            self.may_fail |= before
        _, made, may_fail = self._known[id(node)]
        self.may_fail |= may_fail
        return made

    def _made(self, node: t.Typed) -> str:
        if node.type.name not in TYPES:
            raise NotTheSame(f"the type {shown(node.type)}")
        method = getattr(self, "_" + type(node).__name__.removesuffix("Value").lower(), None)
        if method is None:
            raise NotTheSame(f"{type(node).__name__.removesuffix('Value').lower()} expressions")
        made: str = method(node)
        if len(made) > MOST_CHARACTERS:
            raise NotTheSame("a long expression, which Spark would compute slowly")
        return made

    def truth(self, node: t.Typed) -> str:
        """Spark's SQL that is TRUE if `node` is; otherwise FALSE or NULL.

        A part after AND is not computed where the part before is NULL: the classes stop there,
        while Spark and Postgres go on, and may fail.

        Raises:
            NotTheSame: there is none.
        """
        if not isinstance(node, t.LogicValue):
            return self.value(node)
        *parts, last = map(self.truth, node.operands)
        if node.kind == "AND" and any(map(self._may_fail, node.operands[1:])):
            parts = [f"({part} IS TRUE)" for part in parts]
        return f"({f' {node.kind} '.join([*parts, last])})"

    def _may_fail(self, node: t.Typed) -> bool:
        self.value(node)
        return self._known[id(node)][2]

    def _column(self, node: t.ColumnValue) -> str:
        return self._column_of(node)

    def _constant(self, node: t.ConstantValue) -> str:
        return literal(node.value, node.type)

    def _apply(self, node: t.Apply) -> str:
        found = self._of(node.signature, SIGNATURES)
        if found.may_fail and not any(isinstance(part, t.ColumnValue) for part in t.walk(node)):
            # Spark would compute it beforehand, for a stream without records too.
            raise NotTheSame(f"{node.signature.name} of constants, which may fail")
        if found.divides and _constant_of(node.arguments[1]) not in (None, 0, -1):
            found = found._replace(may_fail=False)
        nullable = [each for each in node.arguments if each.nullable]
        failing = [each for each in node.arguments if self._may_fail(each)]
        if any(each is not other for each in nullable for other in failing):
            # With NULL in one, Spark would not compute the other, which Postgres and the class do.
            raise NotTheSame(f"{node.signature.name} of a part that may fail, beside NULL")
        return self._filled(found, *map(self.value, node.arguments))

    def _aggregate(self, node: t.AggregateValue) -> str:
        name = node.signature.name
        if node.distinct or node.order:
            raise NotTheSame(f"{name} with {'DISTINCT' if node.distinct else 'ORDER BY'}")
        found = self._of(node.signature, AGGREGATES)
        self._check_aggregated(node)
        kept = "" if node.filter is None else f" FILTER (WHERE {self.truth(node.filter)})"
        return self._filled(found, *map(self.value, node.arguments), filter=kept)

    def _check_aggregated(self, node: t.AggregateValue) -> None:
        """Refuse values that fail unless something guards them: in aggregates Spark computes parts
        that occur twice beforehand, whatever its settings are."""
        kept = node.filter
        if kept is not None and any(map(self._may_fail, [kept, *node.arguments])):
            raise NotTheSame(f"{node.signature.name} with FILTER of values that may fail")
        for argument in filter(self._may_fail, node.arguments):
            if any(map(self._may_fail, t.children(argument))):
                raise NotTheSame(f"{node.signature.name} of parts that may fail")

    def _of(self, signature: Signature, known: Mapping[str, Equivalent]) -> Equivalent:
        found = _first(known, signature.keys)
        if found is None:
            kinds = ", ".join(shown(SqlType(kind)) for kind in signature.arguments)
            raise NotTheSame(f"{signature.name}({kinds})")
        return found

    def _filled(self, found: Equivalent, *parts: str, **named: str) -> str:
        self.may_fail |= found.may_fail
        return found.template.format(*parts, **named)

    def _convert(self, node: t.Convert) -> str:
        if isinstance(node.value, t.ConstantValue):
            return _converted_constant(node, node.value)
        code = self.value(node.value)
        for source, target in node.steps:
            if source == target:
                code = self._modified(code, node.type)
            elif (source, target) in CASTS:
                code = self._filled(CASTS[source, target], code)
            else:
                one, other = shown(SqlType(source)), shown(SqlType(target))
                raise NotTheSame(f"the cast from {one} to {other}")
        return code

    def _modified(self, code: str, kind: SqlType) -> str:
        """A whole number is the same in numeric(p) and numeric(p, 0), or has too many digits."""
        digits, *scale = kind.modifier or (0,)
        if kind.name != "numeric" or any(scale) or not 0 < digits <= MOST_DIGITS:
            raise NotTheSame(f"the type {shown(kind)}")
        self.may_fail = True
        return f"CAST(CAST({code} AS DECIMAL({digits},0)) AS {TYPES['numeric']})"

    # -- logic ----------------------------------------------------------------------------------

    def _logic(self, node: t.LogicValue) -> str:
        return f"({f' {node.kind} '.join(map(self.value, node.operands))})"

    def _not(self, node: t.NotValue) -> str:
        return f"(NOT {self.value(node.operand)})"

    def _istest(self, node: t.IsTestValue) -> str:
        word = {None: "NULL", True: "TRUE", False: "FALSE"}[node.value]
        return f"({self.value(node.operand)} IS {'NOT ' if node.negated else ''}{word})"

    def _distinct(self, node: t.DistinctValue) -> str:
        self._of(node.equals, SIGNATURES)
        left, right = self.value(node.left), self.value(node.right)
        return f"({left} IS {'NOT ' if node.negated else ''}DISTINCT FROM {right})"

    def _case(self, node: t.CaseValue) -> str:
        branches = " ".join(
            f"WHEN {self.truth(test)} THEN {self.value(result)}" for test, result in node.branches
        )
        return f"(CASE {branches} ELSE {self.value(node.otherwise)} END)"

    def _coalesce(self, node: t.Coalesce) -> str:
        return f"coalesce({', '.join(map(self.value, node.operands))})"

    def _nullif(self, node: t.NullIf) -> str:
        equal = self._filled(
            self._of(node.equals, SIGNATURES), self.value(node.left), self.value(node.right)
        )
        null = literal(None, node.type)
        return f"(CASE WHEN {equal} THEN {null} ELSE {self.value(node.left)} END)"

    def _extreme(self, node: t.Extreme) -> str:
        name = "greatest" if "gt" in node.better.name else "least"
        if node.type.name not in ORDERED:
            raise NotTheSame(f"{name} of {shown(node.type)}")
        return f"{name}({', '.join(map(self.value, node.operands))})"


def _converted_constant(node: t.Convert, constant: t.ConstantValue) -> str:
    """The value of a cast that does not depend on a column."""
    value = constant.value
    try:
        for source, target in node.steps:
            implementation = None if source == target else cast_of(source, target)
            if implementation is None:
                raise NotTheSame(f"the cast of a constant to {shown(node.type)}")
            value = None if value is None else applied(implementation)(value)
    except ValueRefused as error:
        raise NotTheSame(f"the constant {constant.value!r}, which is refused: {error}") from error
    return literal(value, node.type)


def literal(value: Any, kind: SqlType) -> str:
    """A constant.

    Raises:
        NotTheSame: Spark has no such value.
    """
    name = kind.name
    if name not in TYPES:
        raise NotTheSame(f"the type {shown(kind)}")
    if value is None:
        return f"CAST(NULL AS {TYPES[name]})"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if name in _SUFFIXES:
        # The least number has no literal: a minus sign is an operator.
        return f"{value}{_SUFFIXES[name]}" if value >= 0 else f"CAST({value} AS {TYPES[name]})"
    if name == "float8":
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, str):
        return f"'{value}'" if _PLAIN.issuperset(value) else f"CAST(X'{_hex(value)}' AS STRING)"
    if isinstance(value, datetime):
        return f"timestamp_micros({to_micros(value)}L)"
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    assert isinstance(value, Decimal), value
    _, digits, exponent = value.as_tuple()
    if exponent != 0 or len(digits) > MOST_DIGITS:
        raise NotTheSame(f"the number {value}")
    return f"CAST({value} AS {TYPES[name]})"


def _constant_of(node: t.Typed) -> Any:
    """The value of a constant, also after a cast; None: it is none."""
    while isinstance(node, t.Convert):
        node = node.value
    return node.value if isinstance(node, t.ConstantValue) else None


def _hex(text: str) -> str:
    return text.encode().hex()


def _first(known: Mapping[str, Equivalent], keys: Iterable[str]) -> Equivalent | None:
    return next((known[key] for key in keys if key in known), None)
