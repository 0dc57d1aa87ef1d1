"""Implementations of operators, functions and casts, by their signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class ValueRefused(ValueError):
    """Postgres would raise an error for these values: a division by zero, say."""


class Implementation(NamedTuple):
    function: Callable[..., Any] | None
    """Takes the values, of which none is None if the signature is strict."""
    template: str
    """In its place, an expression of Python with ``{0}``, ``{1}`` … for the values, each of which
    is used once; empty: the function is called."""
    may_be_null: bool | Literal["empty"]
    """Whether the result may be None although no argument is; ``empty``: if the last one is an
    empty text."""


FUNCTIONS: dict[str, Implementation] = {}
"""By `millwheel.sql.catalog.Signature.key`: ``int4pl(int4,int4)``."""

BY_CONSTANT: dict[Callable[..., Any], Callable[[Any], Callable[..., Any] | None]] = {}
"""For some functions of `FUNCTIONS`, a faster one for a last argument that is written out: it takes
the others. None: there is none for this argument."""

CASTS: dict[tuple[str, str], Implementation] = {}
"""By the names of the two types; from ``text`` it is the type's input, to ``text`` its output."""

DERIVED: list[Callable[[str, str], Implementation | None]] = []
"""Give casts that follow from others, as those of arrays do from those of their elements."""

REFUSED: set[str] = set()
"""Signatures with certain types for which the implementation of the polymorphic one is wrong."""

GIVEN_AS: dict[str, str] = {}
"""By the declared key of a signature, the form of its arguments of type ``any`` and of polymorphic
types are converted before the call: ``text``, `OUTPUT` (``_output`` for arrays), `AS_JSONB` or
`AS_ARGUMENT`."""

OUTPUT = "output"
"""In `CASTS`, in place of a second type: the text that `concat` and arrays show, where it is
another one than that of the cast to ``text``."""

AS_JSONB = "as_jsonb"
"""In `CASTS`, in place of a second type: the result of `to_jsonb`."""

AS_ARGUMENT = "json_argument"
"""In `CASTS`, in place of a second type: `to_jsonb`, and its text as an object's key."""

MODIFIERS: dict[str, Callable[..., Any]] = {}
"""For each type that has modifiers, a function of a value and the modifiers."""


def implementation_of(keys: Iterable[str]) -> Implementation | None:
    """The implementation under the first of these keys that has one; None: there is none, or the
    key is one of `REFUSED`."""
    for key in keys:
        if key in REFUSED:
            return None
        if key in FUNCTIONS:
            return FUNCTIONS[key]
    return None


def cast_of(source: str, target: str) -> Implementation | None:
    """The implementation of a cast; None: there is none."""
    found = CASTS.get((source, target))
    if found is None and target == OUTPUT:
        return CASTS.get((source, OUTPUT)) or cast_of(source, "text")
    if found is None:
        found = next((made for derive in DERIVED if (made := derive(source, target))), None)
        if found is not None:
            CASTS[source, target] = found
    return found


def applied(implementation: Implementation) -> Callable[..., Any]:
    """The implementation as a function of one value."""
    if implementation.function is not None:
        return implementation.function
    source = "lambda value: " + implementation.template.format("value")
    function: Callable[..., Any] = eval(source)  # noqa: S307
    return function


def implements(*keys: str, may_be_null: bool | Literal["empty"] = False) -> Callable[[F], F]:
    """Register a function for these signatures."""

    def register(function: F) -> F:
        for key in keys:
            assert key not in FUNCTIONS, key
            FUNCTIONS[key] = Implementation(function, "", may_be_null)
        return function

    return register


def inline(template: str, *keys: str) -> None:
    """Register an expression of Python for these signatures."""
    for key in keys:
        assert key not in FUNCTIONS, key
        FUNCTIONS[key] = Implementation(None, template, may_be_null=False)


def casts(*pairs: tuple[str, str], may_be_null: bool = False) -> Callable[[F], F]:
    """Register a function for casts from one type to another."""

    def register(function: F) -> F:
        for pair in pairs:
            assert pair not in CASTS, pair
            CASTS[pair] = Implementation(function, "", may_be_null)
        return function

    return register


def inline_cast(template: str, *pairs: tuple[str, str]) -> None:
    for pair in pairs:
        assert pair not in CASTS, pair
        CASTS[pair] = Implementation(None, template, may_be_null=False)


def modifies(kind: str) -> Callable[[F], F]:
    """Register the function that applies a type's modifiers."""

    def register(function: F) -> F:
        MODIFIERS[kind] = function
        return function

    return register
