"""Reads types, and literals that begin with one."""

from __future__ import annotations

from millwheel.sql import syntax as s
from millwheel.sql.place import Place
from millwheel.sql.token_reader import RESERVED, Tokens
from millwheel.sql.tokens import NUMBER, TEXT, WORD, Token

_LONG_TYPES = {
    ("double", "precision"): "float8",
    ("character", "varying"): "varchar",
    ("time", "with", "time", "zone"): "timetz",
    ("time", "without", "time", "zone"): "time",
    ("timestamp", "with", "time", "zone"): "timestamptz",
    ("timestamp", "without", "time", "zone"): "timestamp",
}
UNITS = ("year", "month", "day", "hour", "minute", "second")


class TypeParser:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def _is_typed_text(self) -> bool:
        """Whether a type's name comes next, and a text after it: ``date '2024-01-01'``."""
        ahead = 1
        for words in _LONG_TYPES:
            if self.tokens.is_word(*words):
                ahead = len(words)
        after = self.tokens.peek(ahead)
        return after.kind == TEXT and self.tokens.peek().text not in RESERVED

    def _typed_text(self, place: Place) -> s.Expression | None:
        tokens = self.tokens
        if tokens.peek().text == "interval":
            if tokens.peek(1).kind != TEXT:
                return None
            tokens.take()
            token = tokens.take()
            value = s.Text(Place(tokens.text, token.start), token.text + self._unit(token))
            return s.CastTo(place, value, s.TypeName("interval", place=place))
        to = self.type_name()
        token = tokens.take()
        return s.CastTo(place, s.Text(Place(tokens.text, token.start), token.text), to)

    def _unit(self, token: Token) -> str:
        """The unit after an interval's text, as in ``INTERVAL '5' MINUTE``."""
        tokens = self.tokens
        unit = tokens.peek().text.removesuffix("s") if tokens.peek().kind == WORD else ""
        if unit not in UNITS or tokens.peek().text not in (unit, unit + "s"):
            return ""
        tokens.take()
        if tokens.is_word("to") or not token.text.strip().lstrip("+-").isdigit():
            tokens.fail("this interval", f"Write its units inside: INTERVAL '1 {unit}'")
        return f" {unit}"

    def type_name(self) -> s.TypeName:
        """A type as it is written."""
        tokens, place = self.tokens, self.tokens.place
        for words, known in _LONG_TYPES.items():
            if tokens.is_word(*words):
                tokens.skip(*words)
                return s.TypeName(known, *self._type_details(), place=place)
        name = tokens.name("a type")
        if name in ("time", "timestamp") and tokens.is_mark("("):
            modifiers, _ = self._type_details()
            zoned = tokens.skip("with", "time", "zone")
            if not zoned:
                tokens.skip("without", "time", "zone")
            return s.TypeName(name + ("tz" if zoned else ""), modifiers, place=place)
        return s.TypeName(name, *self._type_details(), place=place)

    def _type_details(self) -> tuple[tuple[int, ...], bool]:
        tokens = self.tokens
        modifiers: tuple[int, ...] = ()
        if tokens.skip_mark("("):
            modifiers = tokens.listed(self._whole_number)
            tokens.need_mark(")")
        is_array = False
        while tokens.skip_mark("["):
            if is_array:
                tokens.fail("arrays have one dimension")
            tokens.need_mark("]")
            is_array = True
        return modifiers, is_array

    def _whole_number(self) -> int:
        sign = -1 if self.tokens.peek().text == "-" and self.tokens.take() else 1
        token = self.tokens.take()
        if token.kind != NUMBER or not token.text.isdigit():
            place = Place(self.tokens.text, token.start)
            self.tokens.fail("a whole number is missing here", place=place)
        return sign * int(token.text)
