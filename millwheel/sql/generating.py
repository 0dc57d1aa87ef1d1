"""Python for typed expressions.

NULL is None. An expression that may be NULL is tested where it is used, one that cannot be is not:
``cents > 10`` over a column that is never NULL becomes ``(record.cents > 10)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millwheel.sql import typed as t
from millwheel.sql.catalog import Signature
from millwheel.sql.functions import (
    BY_CONSTANT,
    MODIFIERS,
    Implementation,
    cast_of,
    implementation_of,
)
from millwheel.sql.functions.composites.lists import element, quantified
from millwheel.sql.place import Place

Access = Callable[[t.ColumnValue], str]
"""Gives the Python for a column."""

_LITERALS = (bool, int, str, bytes, type(None))


class Generator:
    """Writes expressions; `names` holds the objects that they use.

    Args:
        access: gives the Python for a column.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self.names: dict[str, Any] = {}
        self.places: dict[str, Place] = {}
        """Where in the query each part of the code begins, by its text."""
        self._known: dict[int, str] = {}
        self._count = 0

    def name(self, hint: str, value: Any) -> str:
        """A name for a value, the same for the same object."""
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = f"{hint}_{len(self.names)}"
            self.names[found] = value
        return found

    def local(self) -> str:
        """A name for an interim value."""
        self._count += 1
        return f"_{self._count}"

    def row(self, kind: type, columns: Mapping[str, t.Typed]) -> str:
        """An expression of Python that makes a row."""
        fields = ", ".join(f"{name}={self.value(value)}" for name, value in columns.items())
        return f"{self.name('Row', kind)}({fields})"

    # -- expressions ----------------------------------------------------------------------------

    def value(self, node: t.Typed) -> str:
        """An expression of Python with the value of `node`; None: NULL."""
        method = getattr(self, "_" + type(node).__name__.removesuffix("Value").lower())
        made: str = method(node)
        if _may_fail(node):
            self.places.setdefault(made, node.place)
        return made

    def truth(self, node: t.Typed) -> str:
        """An expression of Python that is true if `node` is TRUE; if it is FALSE or NULL, not."""
        if isinstance(node, t.LogicValue):
            word = f" {node.kind.lower()} "
            return f"({word.join(map(self.truth, node.operands))})"
        return self.value(node)

    def _column(self, node: t.ColumnValue) -> str:
        return self._access(node)

    def _constant(self, node: t.ConstantValue) -> str:
        if type(node.value) in _LITERALS:
            return f"({node.value!r})" if type(node.value) is int else repr(node.value)
        return self.name("constant", node.value)

    def _apply(self, node: t.Apply) -> str:
        implementation = _known(node.signature)
        if not node.signature.is_strict:
            parts = [self.value(each) for each in node.arguments]
            return self._called(implementation, node.signature.name, parts)

        def called(parts: Sequence[str]) -> str:
            name = node.signature.name
            special = _by_constant(implementation, name, node.arguments)
            if special is not None:
                code = f"{self.name(*special)}({', '.join(parts[:-1])})"
            else:
                code = self._called(implementation, name, parts)
            self.places.setdefault(code, node.place)
            return code

        return self._strict(node.arguments, called)

    def _called(self, implementation: Implementation, name: str, parts: Sequence[str]) -> str:
        if implementation.template:
            return implementation.template.format(*parts)
        assert implementation.function is not None
        return f"{self.name(name, implementation.function)}({', '.join(parts)})"

    def _strict(self, arguments: Sequence[t.Typed], call: Callable[[Sequence[str]], str]) -> str:
        """A call that is NULL if one of its arguments is.

        As in Postgres, all arguments are evaluated, so that one that fails does so whether another
        is NULL or not; unless one is NULL in the text of the query.
        """
        if any(map(_is_null, arguments)):
            return "None"
        codes = [self.value(argument) for argument in arguments]
        if not any(argument.nullable for argument in arguments):
            return call(codes)
        tests, parts = [], []
        for argument, code in zip(arguments, codes, strict=True):
            if argument.nullable or _may_fail(argument):
                name = self.local()
                tests.append(f"(({name} := {code}) is None)")
                code = name
            parts.append(code)
        all_evaluated = any(map(_may_fail, arguments))
        return f"(None if {(' | ' if all_evaluated else ' or ').join(tests)} else {call(parts)})"

    def _convert(self, node: t.Convert) -> str:
        if not node.steps:
            return self.value(node.value)

        def converted(parts: Sequence[str]) -> str:
            (code,) = parts
            for pair in node.steps:
                code = self._step(pair, code, node)
            return code

        return self._strict((node.value,), converted)

    def _step(self, pair: tuple[str, str], code: str, node: t.Convert) -> str:
        source, target = pair
        if source == target:
            function = MODIFIERS[source.removeprefix("_")]
            modifiers = "".join(f", {each}" for each in node.type.modifier)
            if source.startswith("_"):
                name = self.name("modified", function)
                return _for_each(f"{name}(_i{modifiers})", code)
            return f"{self.name('modified', function)}({code}{modifiers})"
        if source.startswith("_") and target.startswith("_"):
            inner = self._step((source[1:], target[1:]), "_i", node)
            return _for_each(inner, code)
        implementation = cast_of(*pair)
        assert implementation is not None, pair
        return self._called(implementation, f"{source}_to_{target}", (code,))

    def _logic(self, node: t.LogicValue) -> str:
        if not node.nullable:
            return f"({f' {node.kind.lower()} '.join(map(self.value, node.operands))})"
        # AND: False if one is False, else None if one is NULL. OR: the same with True.
        deciding = node.kind == "OR"
        code = self.value(node.operands[-1])
        for operand in reversed(node.operands[:-1]):
            left, right = self.local(), self.local()
            first = self.value(operand)
            code = (
                f"({deciding} if ({left} := {first}) is {deciding} else "
                f"({deciding} if ({right} := {code}) is {deciding} else "
                f"(None if {left} is None or {right} is None else {not deciding})))"
            )
        return code

    def _not(self, node: t.NotValue) -> str:
        return self._strict((node.operand,), lambda parts: f"(not {parts[0]})")

    def _istest(self, node: t.IsTestValue) -> str:
        return f"({self.value(node.operand)} is {'not ' if node.negated else ''}{node.value})"

    def _distinct(self, node: t.DistinctValue) -> str:
        left, right = self.local(), self.local()
        equal = self._called(_known(node.equals), node.equals.name, (left, right))
        same = (
            f"(({left} := {self.value(node.left)}) is None) == "
            f"(({right} := {self.value(node.right)}) is None) and ({left} is None or {equal})"
        )
        return f"({same})" if node.negated else f"(not ({same}))"

    def _case(self, node: t.CaseValue) -> str:
        code = self.value(node.otherwise)
        for test, result in reversed(node.branches):
            code = f"({self.value(result)} if {self.truth(test)} else {code})"
        return code

    def _coalesce(self, node: t.Coalesce) -> str:
        code = self.value(node.operands[-1])
        for operand in reversed(node.operands[:-1]):
            if operand.nullable:
                name = self.local()
                code = f"({name} if ({name} := {self.value(operand)}) is not None else {code})"
            else:
                code = self.value(operand)
        return code

    def _nullif(self, node: t.NullIf) -> str:
        left, right = self.local(), self.local()
        equal = self._called(_known(node.equals), node.equals.name, (left, right))
        return (
            f"(None if ((({left} := {self.value(node.left)}) is not None) & "
            f"(({right} := {self.value(node.right)}) is not None)) and {equal} "
            f"else {left})"
        )

    def _extreme(self, node: t.Extreme) -> str:
        implementation = _known(node.better)
        code = self.value(node.operands[0])
        for operand in node.operands[1:]:
            best, other = self.local(), self.local()
            better = self._called(implementation, node.better.name, (other, best))
            code = (
                f"({other} if (({other} := {self.value(operand)}), ({best} := {code}))[0] "
                f"is not None and ({best} is None or {better}) else {best})"
            )
        return code

    # -- arrays -----------------------------------------------------------------------------------

    def _items(self, node: t.ItemsValue) -> str:
        return f"[{', '.join(map(self.value, node.items))}]"

    def _element(self, node: t.ElementValue) -> str:
        function = self.name("element", element)
        return self._strict(
            (node.array, node.index), lambda parts: f"{function}({', '.join(parts)})"
        )

    def _quantified(self, node: t.QuantifiedValue) -> str:
        function = self.name("quantified", quantified)
        assert node.item is not None
        value = self.local()
        former, self._access = self._access, lambda column: column.name
        try:
            item = self.value(node.item)
        finally:
            self._access = former
        test = self._called(_known(node.operator), node.operator.name, (value, "_other"))
        return (
            f"{function}({self.value(node.array)}, {node.is_all}, "
            f"({value} := {self.value(node.value)}), "
            f"lambda item: None if (_other := {item}) is None else {test})"
        )


def _for_each(code: str, array: str) -> str:
    """Python that applies `code` to each item ``_i``; the array's code may assign names, which a
    comprehension would not allow."""
    return f"[*map(lambda _i: None if _i is None else {code}, ({array}))]"


def _known(signature: Signature) -> Implementation:
    found = implementation_of(signature.keys)
    assert found is not None, signature
    return found


def _by_constant(
    implementation: Implementation, name: str, arguments: Sequence[t.Typed]
) -> tuple[str, Callable[..., Any]] | None:
    """A function of the arguments but the last one, which is written out, with a hint for its
    name."""
    last = arguments[-1] if len(arguments) > 1 else None
    if implementation.function not in BY_CONSTANT or not isinstance(last, t.ConstantValue):
        return None
    function = BY_CONSTANT[implementation.function](last.value)
    shown = last.value if isinstance(last.value, int) else "constant"
    return None if function is None else (f"{name}_{shown}", function)


def _is_null(node: t.Typed) -> bool:
    """Whether a value is NULL by the text of the query."""
    if isinstance(node, t.Convert):
        return _is_null(node.value)
    if isinstance(node, t.Apply):
        return node.signature.is_strict and any(map(_is_null, node.arguments))
    return isinstance(node, t.ConstantValue) and node.value is None


def _may_fail(node: t.Typed) -> bool:
    """Whether the evaluation of a value may fail."""
    return not isinstance(node, (t.ColumnValue, t.ConstantValue))
