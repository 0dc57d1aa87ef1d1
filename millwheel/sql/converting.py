"""Conversions of expressions to other types, asked for or not."""

from __future__ import annotations

from types import NoneType

from millwheel.core.suggestion import did_you_mean
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.catalog import Catalog
from millwheel.sql.functions import MODIFIERS, ValueRefused, cast_of
from millwheel.sql.place import Place, fail
from millwheel.sql.types import (
    ALIASES,
    TEXT,
    UNKNOWN,
    SqlType,
    shown,
)


class Converter:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def type_of(self, name: s.TypeName) -> SqlType:
        """Raises:
        SqlError: there is no such type, or it is not available.
        """
        base = ALIASES.get(name.name, name.name)
        place = name.place
        assert place is not None or self.is_type(base)
        if not self.is_type(base):
            advice = did_you_mean(name.name, [*ALIASES, *self.catalog.types])
            assert place is not None
            fail(place, f'type "{name.name}" is not available', advice)
        modifiers = name.modifiers
        if base == "bpchar" and name.name != "bpchar" and not modifiers:
            modifiers = (1,)
        if modifiers and base not in MODIFIERS:
            assert place is not None
            fail(place, f"type {shown(SqlType(base))} has no modifiers")
        kind = SqlType(base, modifiers)
        return SqlType("_" + base, modifiers) if name.is_array else kind

    def is_type(self, name: str) -> bool:
        base = ALIASES.get(name, name)
        known = self.catalog.types.get(base)
        return known is not None and known.category not in ("P", "X", "A") and base != "unknown"

    def explicit(self, value: t.Typed, to: SqlType, place: Place) -> t.Typed:
        return self.converted(value, to, place, "iae")

    def implicit(self, value: t.Typed, to: SqlType) -> t.Typed:
        """Convert without being asked."""
        return self.converted(value, to, value.place, "i")

    def assigned(self, value: t.Typed, to: SqlType) -> t.Typed:
        """Convert a value for a column of a table."""
        return self.converted(value, to, value.place, "ia")

    def converted(self, value: t.Typed, to: SqlType, place: Place, contexts: str) -> t.Typed:
        source, target = value.type.name, to.name
        if value.type == UNKNOWN:
            assert isinstance(value, t.ConstantValue)
            if value.value is None:
                return t.ConstantValue(to.plain, True, value.place, None)
            return self._modified(self.constant(value.value, to.plain, value.place), to, place)
        if source == target:
            return self._modified(value, to, place)
        steps = self._steps(source, target, contexts)
        if steps is None:
            fail(
                place,
                f"cannot cast type {shown(value.type)} to {shown(to)}"
                if "e" in contexts
                else f"this is {shown(value.type)}, and {shown(to)} is needed",
                "" if "e" in contexts else f"Cast it: ::{shown(to)}",
            )
        if not all(map(is_available, steps)):
            fail(
                place,
                f"the cast from {shown(value.type)} to {shown(to)} exists in Postgres and is not "
                "available here",
            )
        nullable = value.nullable or any(map(_may_be_null, steps))
        made = t.Convert(to.plain, nullable, place, value, steps)
        return self._modified(made, to, place)

    def _steps(self, source: str, target: str, contexts: str) -> tuple[tuple[str, str], ...] | None:
        """The casts that lead from one type to another; empty: the value stays as it is."""
        if source.startswith("_") and target.startswith("_"):
            inner = self._steps(source[1:], target[1:], contexts)
            return None if inner is None else ((source, target),) if inner else ()
        found = self.catalog.cast(source, target)
        if found is not None and found.context in contexts:
            if found.method == "b":
                return ()
            return ((source, target),)
        strings = ("text", "varchar", "bpchar")
        if "a" in contexts and target in strings:
            return ((source, "text"),)
        if "e" in contexts and source in strings:
            return (("text", target),)
        return None

    def _modified(self, value: t.Typed, to: SqlType, place: Place) -> t.Typed:
        if not to.modifier:
            return value
        function = MODIFIERS[to.name.removeprefix("_")]
        if isinstance(value, t.ConstantValue) and type(value.value) not in (NoneType, list):
            try:
                made = function(value.value, *to.modifier)
            except ValueRefused as error:
                fail(value.place, str(error))
            return t.ConstantValue(to, value.nullable, value.place, made)
        return t.Convert(to, value.nullable, place, value, ((to.name, to.name),))

    def constant(self, text: str, kind: SqlType, place: Place) -> t.Typed:
        """A text as a value of a type, by the type's input."""
        if kind == TEXT or kind.name in ("varchar", "bpchar"):
            return t.ConstantValue(kind, False, place, text)
        implementation = cast_of("text", kind.name)
        if implementation is None or implementation.function is None:
            fail(place, f"texts of type {shown(kind)} are not available here")
        try:
            value = implementation.function(text)
        except ValueRefused as error:
            fail(place, str(error))
        return t.ConstantValue(kind, False, place, value)


def is_available(pair: tuple[str, str]) -> bool:
    """Whether a cast is, or that of the elements of an array."""
    source, target = pair
    if source.startswith("_") and target.startswith("_"):
        return is_available((source[1:], target[1:]))
    return cast_of(source, target) is not None


def _may_be_null(pair: tuple[str, str]) -> bool:
    found = None if pair[0].startswith("_") else cast_of(*pair)
    return found is not None and bool(found.may_be_null)
