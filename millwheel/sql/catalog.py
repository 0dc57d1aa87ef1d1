"""Postgres' types, operators, functions and casts, and the rules by which it chooses among them.

The data are exported from a server (`tests/sql/export_catalog.py`); the rules are those of chapter
10 of Postgres' documentation, "Type Conversion".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from millwheel.sql.aggregate_forms import ENDS

FILE = Path(__file__).with_name("catalog.json")

STRING = "S"
POLYMORPHIC = frozenset(
    [
        "anyelement",
        "anyarray",
        "anynonarray",
        "anycompatible",
        "anycompatiblearray",
        "anycompatiblenonarray",
    ]
)
_ARRAYS = ("anyarray", "anycompatiblearray")


class TypeFacts(NamedTuple):
    category: str
    is_preferred: bool


@dataclass(frozen=True)
class Signature:
    """An operator or a function with certain types."""

    name: str
    """Of the function; an operator has one as well."""
    arguments: tuple[str, ...]
    result: str
    kind: str = "f"
    """``f``: a function or an operator; ``a``: an aggregate."""
    is_strict: bool = True
    """Whether NULL in an argument makes NULL."""
    volatility: str = "i"
    """``i``: immutable, ``s``: stable, ``v``: volatile."""
    is_variadic: bool = False
    defaults: int = 0
    """Number of the last arguments that may be left out."""
    returns_set: bool = False
    declared: tuple[str, ...] = ()
    """The types as Postgres declares them, if some of them are polymorphic or variadic."""
    code: str = ""
    """The fingerprint of a function of the user."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names under which an implementation may be registered, the most special one first."""
        if not self.declared:
            return (self.key,)
        return self.key, f"{self.name}({','.join(self.declared)})"

    @property
    def key(self) -> str:
        return f"{self.name}({','.join(self.arguments)})"


ADDED = tuple(Signature(name, ("anyelement",), "anyelement", "a", is_strict=False) for name in ENDS)
"""Aggregates that Postgres does not have."""


class CastRule(NamedTuple):
    context: str
    """``i``: wherever it helps, ``a``: in assignments, ``e``: where it is asked for."""
    method: str
    """``f``: by a function, ``b``: the value stays as it is, ``i``: by its text."""
    function: str | None


class Ambiguous(Exception):
    """Several candidates suit as well."""


class Catalog:
    def __init__(self, found: dict[str, list[list[Any]]]) -> None:
        self.types = {
            name: TypeFacts(category, preferred) for name, category, preferred, _ in found["types"]
        }
        self._operators: dict[tuple[str, int], list[Signature]] = {}
        for symbol, left, right, result, name, strict, volatility in found["operators"]:
            arguments = (right,) if left is None else (left, right)
            made = Signature(name, arguments, result, "f", strict, volatility)
            self._operators.setdefault((symbol, len(arguments)), []).append(made)
        self._functions: dict[str, list[Signature]] = {}
        for name, types, *rest in found["functions"]:
            made = Signature(name, tuple(types or ()), *rest)
            self._functions.setdefault(name, []).append(made)
        for made in ADDED:
            self._functions[made.name] = [made]
        self._casts = {
            (source, target): CastRule(context, method, function)
            for source, target, context, method, function in found["casts"]
        }

    # -- what there is ------------------------------------------------------------------------

    def add(self, signature: Signature) -> None:
        """Add a function of the user, or replace it."""
        self._functions[signature.name] = [signature]

    def has_function(self, name: str) -> bool:
        return name in self._functions

    def has_operator(self, symbol: str, operands: int) -> bool:
        return (symbol, operands) in self._operators

    @property
    def function_names(self) -> Iterable[str]:
        return self._functions

    def is_aggregate(self, name: str) -> bool:
        return any(each.kind == "a" for each in self._functions.get(name, ()))

    # -- coercions ----------------------------------------------------------------------------

    def cast(self, source: str, target: str) -> CastRule | None:
        return self._casts.get((source, target))

    def is_implicit(self, source: str, target: str) -> bool:
        """Whether a value of one type is taken where another is wanted, without being asked."""
        if source == target or target == "any" or source == "unknown":
            return True
        if target in POLYMORPHIC:
            is_array = source.startswith("_")
            if target in _ARRAYS:
                return is_array
            return not (is_array and target in ("anynonarray", "anycompatiblenonarray"))
        if source.startswith("_") and target.startswith("_"):
            return self.is_implicit(source[1:], target[1:])
        found = self._casts.get((source, target))
        return found is not None and found.context == "i"

    def category(self, kind: str) -> str:
        return self.types[kind].category

    def common_type(self, kinds: Sequence[str]) -> str | None:
        """The type that several expressions are converted to, as in `UNION` and `CASE`; None: they
        have none in common."""
        known = [kind for kind in kinds if kind != "unknown"]
        if not known:
            return "text"
        chosen = known[0]
        for kind in known[1:]:
            if kind == chosen:
                continue
            if self.category(kind) != self.category(chosen):
                return None
            if (
                not self.types[chosen].is_preferred
                and self.is_implicit(chosen, kind)
                and not self.is_implicit(kind, chosen)
            ):
                chosen = kind
        return chosen if all(self.is_implicit(kind, chosen) for kind in known) else None

    # -- operators and functions ----------------------------------------------------------------

    def operator(self, symbol: str, kinds: Sequence[str]) -> Signature | None:
        """The operator that Postgres chooses for operands of these types; None: there is none.

        Raises:
            Ambiguous: several suit as well.
        """
        candidates = self._operators.get((symbol, len(kinds)), [])
        wanted = list(kinds)
        if len(kinds) == 2:
            if wanted[0] == "unknown":
                wanted[0] = wanted[1]
            elif wanted[1] == "unknown":
                wanted[1] = wanted[0]
        for candidate in candidates:
            if candidate.arguments == tuple(wanted):
                return candidate
        return self._select(candidates, kinds)

    def function(self, name: str, kinds: Sequence[str]) -> Signature | None:
        """The function or aggregate that Postgres chooses for arguments of these types.

        Raises:
            Ambiguous: several suit as well.
        """
        candidates = []
        for each in self._functions.get(name, ()):
            arguments = each.arguments
            if each.is_variadic and len(kinds) >= len(arguments):
                last = arguments[-1]
                element = {"any": "any", "_text": "text"}.get(last, last.removeprefix("_"))
                more = len(kinds) - len(arguments) + 1
                arguments = (*arguments[:-1], *[element] * more)
            elif len(arguments) - each.defaults <= len(kinds) <= len(arguments):
                arguments = arguments[: len(kinds)]
            if len(arguments) == len(kinds):
                candidates.append((each, arguments))
        for each, arguments in candidates:
            if arguments == tuple(kinds):
                return _with(each, arguments)
        return self._select([_with(each, arguments) for each, arguments in candidates], kinds)

    def _select(self, candidates: Sequence[Signature], kinds: Sequence[str]) -> Signature | None:
        fitting = [each for each in candidates if self._take(kinds, each.arguments)]
        if len(fitting) > 1:
            fitting = self._best(fitting, kinds)
        if len(fitting) > 1:
            raise Ambiguous
        return fitting[0] if fitting else None

    def _best(self, candidates: list[Signature], kinds: Sequence[str]) -> list[Signature]:
        """Rules 4.a to 4.f of "Function Type Resolution"."""
        known = [place for place, kind in enumerate(kinds) if kind != "unknown"]
        candidates = _with_most(
            candidates, lambda types: sum(types[place] == kinds[place] for place in known)
        )
        if len(candidates) > 1:
            candidates = _with_most(
                candidates,
                lambda types: sum(
                    types[place] == kinds[place] or self._is_preferred(kinds[place], types[place])
                    for place in known
                ),
            )
        if len(candidates) == 1 or len(known) == len(kinds):
            return candidates
        unknown = [place for place in range(len(kinds)) if place not in known]
        narrowed = self._by_category(candidates, unknown)
        if len(narrowed) == 1:
            return narrowed
        candidates = narrowed or candidates
        same = {kinds[place] for place in known}
        if len(same) == 1:
            (kind,) = same
            fitting = [
                each for each in candidates if self._take([kind] * len(kinds), each.arguments)
            ]
            if len(fitting) == 1:
                return fitting
        return candidates

    def _take(self, kinds: Sequence[str], wanted: Sequence[str]) -> bool:
        """Whether arguments of these types are taken where others are wanted."""
        return (
            all(map(self.is_implicit, kinds, wanted))
            and _agree(kinds, wanted)
            and self._are_compatible(kinds, wanted)
        )

    def _are_compatible(self, kinds: Sequence[str], wanted: Sequence[str]) -> bool:
        """Whether arguments of the ``anycompatible…`` types have a common type."""
        elements = [
            kind.removeprefix("_") if want in _ARRAYS else kind
            for kind, want in zip(kinds, wanted, strict=True)
            if kind != "unknown" and want.startswith("anycompatible")
        ]
        return self.common_type(elements) is not None

    def _is_preferred(self, kind: str, wanted: str) -> bool:
        facts = self.types[wanted]
        return facts.is_preferred and facts.category == self.types[kind].category

    def _by_category(self, candidates: list[Signature], unknown: Sequence[int]) -> list[Signature]:
        """The candidates that take texts of unknown type at these places; empty: none is better."""
        wanted: dict[int, tuple[str, bool]] = {}
        for place in unknown:
            facts = [self.types[each.arguments[place]] for each in candidates]
            categories = {each.category for each in facts}
            if STRING in categories:
                category = STRING
            elif len(categories) == 1:
                (category,) = categories
            else:
                return []
            preferred = any(each.is_preferred for each in facts if each.category == category)
            wanted[place] = category, preferred
        return [
            each
            for each in candidates
            if all(
                self.types[each.arguments[place]].category == category
                and (self.types[each.arguments[place]].is_preferred or not preferred)
                for place, (category, preferred) in wanted.items()
            )
        ]


def _with(signature: Signature, arguments: tuple[str, ...]) -> Signature:
    if signature.arguments == arguments:
        return signature
    return replace(signature, arguments=arguments, defaults=0, declared=signature.arguments)


def _with_most(
    candidates: list[Signature], count: Callable[[tuple[str, ...]], int]
) -> list[Signature]:
    counts = [count(each.arguments) for each in candidates]
    return [each for each, n in zip(candidates, counts, strict=True) if n == max(counts)]


def _agree(kinds: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether arguments of the ``any…`` types (not ``anycompatible…``) have one type."""
    elements = set()
    for kind, want in zip(kinds, wanted, strict=True):
        if kind != "unknown" and want in ("anyelement", "anynonarray", "anyarray"):
            elements.add(kind.removeprefix("_") if want == "anyarray" else kind)
    return len(elements) <= 1


def resolved(signature: Signature, kinds: Sequence[str], catalog: Catalog) -> Signature | None:
    """A signature with real types in place of polymorphic ones; None: they cannot be known."""
    if not POLYMORPHIC & {*signature.arguments, signature.result}:
        return signature
    elements = [
        kind.removeprefix("_") if want in _ARRAYS else kind
        for kind, want in zip(kinds, signature.arguments, strict=True)
        if want in POLYMORPHIC and kind != "unknown"
    ]
    element = catalog.common_type(elements) if elements else None
    if element is None:
        return None

    def real(kind: str) -> str:
        if kind in _ARRAYS:
            return "_" + element
        return element if kind in POLYMORPHIC else kind

    return replace(
        signature,
        arguments=tuple(map(real, signature.arguments)),
        result=real(signature.result),
        declared=signature.declared or signature.arguments,
    )


@cache
def postgres() -> Catalog:
    """The catalog of the newest supported version."""
    return Catalog(json.loads(FILE.read_text()))
