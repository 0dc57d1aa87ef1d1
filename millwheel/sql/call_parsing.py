"""Reads columns and calls, also those with a syntax of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from millwheel.sql import syntax as s
from millwheel.sql.place import Place
from millwheel.sql.precedences import OR, OTHER
from millwheel.sql.tokens import MARK, OPERATOR, QUOTED, TEXT, WORD
from millwheel.sql.type_parsing import TypeParser

T = TypeVar("T")

CHOICES = ("coalesce", "nullif", "greatest", "least")


class CallParser(TypeParser):
    @abstractmethod
    def expression(self, least: int = OR) -> s.Expression:
        """An expression with operators that bind at least as tightly as `least`."""

    def _named(self) -> s.Expression:
        """A column, or a call."""
        tokens, place = self.tokens, self.tokens.place
        follows = tokens.peek(1)
        if follows.kind == MARK and follows.text == "(":
            return self._call()
        name = tokens.name("an expression")
        if not tokens.skip_mark("."):
            return s.Name(place, None, name)
        if tokens.peek().kind == OPERATOR and tokens.peek().text == "*":
            tokens.take()
            return s.Star(place, name)
        column = tokens.take()
        if column.kind not in (WORD, QUOTED):
            tokens.fail("a column is missing after '.'", place=place)
        if tokens.is_mark("."):
            tokens.fail("names have one table at most", "Streams have no schema")
        return s.Name(place, name, column.text)

    def _call(self) -> s.Expression:
        tokens, place = self.tokens, self.tokens.place
        function = tokens.take().text
        tokens.need_mark("(")
        arguments: tuple[s.Expression, ...] = ()
        star = distinct = False
        order: tuple[s.Order, ...] = ()
        if tokens.peek().kind == OPERATOR and tokens.peek().text == "*":
            tokens.take()
            star = True
        elif not tokens.is_mark(")"):
            distinct = tokens.skip("distinct")
            if not distinct:
                tokens.skip("all")
            arguments = self._no_query(lambda: tokens.listed(self._argument))
            if tokens.is_word("order"):
                order = self.order()
        tokens.need_mark(")", f", to end the arguments of {function}")
        within: tuple[s.Order, ...] = ()
        if tokens.skip("within"):
            tokens.need("group")
            tokens.need_mark("(")
            within = self.order()
            tokens.need_mark(")")
        kept = None
        if tokens.is_word("filter") and tokens.peek(1).text == "(":
            tokens.take()
            tokens.need_mark("(")
            tokens.need("where")
            kept = self.expression()
            tokens.need_mark(")")
        call = s.FunctionCall(place, function, arguments, star, distinct, order, kept, within)
        return self._over(call) if tokens.skip("over") else call

    def _argument(self) -> s.Expression:
        tokens = self.tokens
        if tokens.peek(1).kind == MARK and tokens.peek(1).text in ("=>", ":="):
            tokens.fail("arguments by name are not available", "Give them in their order")
        return self.expression()

    def _over(self, call: s.FunctionCall) -> s.Over:
        tokens = self.tokens
        tokens.need_mark("(")
        partition: tuple[s.Expression, ...] = ()
        if tokens.skip("partition", "by"):
            partition = tokens.listed(self.expression)
        order = self.order() if tokens.is_word("order") else ()
        if not tokens.is_mark(")"):
            tokens.fail("a window function has PARTITION BY and ORDER BY, and no frame")
        tokens.need_mark(")")
        return s.Over(call.place, call, partition, order)

    def order(self) -> tuple[s.Order, ...]:
        """``ORDER BY``."""
        self.tokens.need("order", "by")
        return self.tokens.listed(self._order)

    def _order(self) -> s.Order:
        tokens = self.tokens
        value = self.expression()
        descending = tokens.skip("desc")
        if not descending:
            tokens.skip("asc")
        nulls_first = descending
        if tokens.skip("nulls", "first"):
            nulls_first = True
        elif tokens.skip("nulls", "last"):
            nulls_first = False
        return s.Order(value, descending, nulls_first)

    def _no_query(self, read: Callable[[], T]) -> T:
        if self.tokens.is_word("select") or self.tokens.is_word("with"):
            self.tokens.fail(
                "a query inside of an expression is not available", "Write it as a join"
            )
        return read()

    # -- calls with a syntax of their own ----

    def special_call(self, word: str, place: Place) -> s.Expression | None:
        """A call with a syntax of its own."""
        tokens = self.tokens
        readers: dict[str, Callable[[Place], s.Expression]] = {
            "cast": self._cast,
            "extract": self._extract,
            "substring": self._substring,
            "position": self._position,
            "trim": self._trim,
            "overlay": self._overlay,
        }
        if word in CHOICES:
            tokens.take()
            tokens.need_mark("(")
            operands = self._no_query(lambda: tokens.listed(self.expression))
            tokens.need_mark(")")
            if word == "nullif" and len(operands) != 2:
                tokens.fail("NULLIF takes two arguments", place=place)
            return s.Choice(place, word.upper(), operands)
        if word not in readers:
            return None
        tokens.take()
        tokens.need_mark("(")
        made = readers[word](place)
        tokens.need_mark(")")
        return made

    def _cast(self, place: Place) -> s.Expression:
        value = self.expression()
        self.tokens.need("as")
        return s.CastTo(place, value, self.type_name())

    def _extract(self, place: Place) -> s.Expression:
        token = self.tokens.take()
        if token.kind not in (WORD, TEXT, QUOTED):
            self.tokens.fail("EXTRACT needs a field: EXTRACT(hour FROM ...)", place=place)
        self.tokens.need("from")
        field = s.Text(Place(self.tokens.text, token.start), token.text)
        return s.FunctionCall(place, "extract", (field, self.expression()))

    def _substring(self, place: Place) -> s.Expression:
        tokens = self.tokens
        value = self.expression()
        if tokens.is_word("similar"):
            tokens.fail("SUBSTRING ... SIMILAR is not available", "Use substring(text, pattern)")
        if tokens.skip_mark(","):
            return s.FunctionCall(place, "substring", (value, *tokens.listed(self.expression)))
        start = self.expression() if tokens.skip("from") else None
        length = self.expression() if tokens.skip("for") else None
        if start is None and tokens.skip("from"):
            start = self.expression()
        first = start or s.Number(place, "1")
        rest = () if length is None else (length,)
        return s.FunctionCall(place, "substring", (value, first, *rest))

    def _position(self, place: Place) -> s.Expression:
        part = self.expression(OTHER)
        self.tokens.need("in")
        return s.FunctionCall(place, "position", (self.expression(OTHER), part))

    def _trim(self, place: Place) -> s.Expression:
        tokens = self.tokens
        function = "btrim"
        for side, name in (("both", "btrim"), ("leading", "ltrim"), ("trailing", "rtrim")):
            if tokens.skip(side):
                function = name
        if tokens.skip("from"):
            return s.FunctionCall(place, function, tokens.listed(self.expression))
        first = self.expression()
        if tokens.skip("from"):
            return s.FunctionCall(place, function, (*tokens.listed(self.expression), first))
        rest = tokens.listed(self.expression) if tokens.skip_mark(",") else ()
        return s.FunctionCall(place, function, (first, *rest))

    def _overlay(self, place: Place) -> s.Expression:
        tokens = self.tokens
        value = self.expression()
        if tokens.skip_mark(","):
            return s.FunctionCall(place, "overlay", (value, *tokens.listed(self.expression)))
        tokens.need("placing")
        new = self.expression()
        tokens.need("from")
        start = self.expression()
        length = (self.expression(),) if tokens.skip("for") else ()
        return s.FunctionCall(place, "overlay", (value, new, start, *length))
