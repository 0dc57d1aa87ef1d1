"""Reads operands: literals, parentheses, columns, calls, CASE, arrays."""

from __future__ import annotations

from millwheel.sql import syntax as s
from millwheel.sql.call_parsing import CallParser
from millwheel.sql.place import Place
from millwheel.sql.precedences import NOT, OTHER, SIGN
from millwheel.sql.tokens import MARK, NUMBER, OPERATOR, QUOTED, TEXT, WORD

CLOCK = ("current_timestamp", "current_date", "localtimestamp", "current_time", "localtime")


class OperandParser(CallParser):
    def prefix(self) -> s.Expression:
        tokens, token, place = self.tokens, self.tokens.peek(), self.tokens.place
        if token.kind == OPERATOR:
            tokens.take()
            level = SIGN if token.text in "+-" else OTHER
            operand = self.expression(level if level == SIGN else OTHER + 1)
            return _signed(place, token.text, operand)
        if tokens.skip("not"):
            return s.Not(place, self.expression(NOT))
        return self._operand()

    def _operand(self) -> s.Expression:
        tokens, token, place = self.tokens, self.tokens.peek(), self.tokens.place
        if token.kind == NUMBER:
            return s.Number(place, tokens.take().text)
        if token.kind == TEXT:
            return s.Text(place, tokens.take().text)
        if tokens.skip_mark("("):
            inner = self._no_query(self.expression)
            if tokens.is_mark(","):
                tokens.fail("rows in parentheses are not available", "Compare column by column")
            tokens.need_mark(")")
            return inner
        if token.kind == WORD and (special := self._special(token.text, place)) is not None:
            return special
        if token.kind in (WORD, QUOTED):
            return self._named()
        tokens.fail("an expression is missing here")

    def _special(self, word: str, place: Place) -> s.Expression | None:
        """An operand that begins with a word of SQL; None: the word is a name."""
        tokens = self.tokens
        if word in ("true", "false"):
            tokens.take()
            return s.Truth(place, word == "true")
        if word == "null":
            tokens.take()
            return s.Null(place)
        if word == "case":
            return self._case()
        if word in CLOCK:
            tokens.take()
            return s.FunctionCall(place, word, ())
        if word == "array" and tokens.peek(1).text in ("[", "("):
            return self._array()
        if word in ("exists", "select", "row") and (word == "select" or tokens.peek(1).text == "("):
            tokens.fail(f"{word.upper()} is not available inside of an expression")
        if tokens.peek(1).text == "(" and tokens.peek(1).kind == MARK:
            return self.special_call(word, place)
        if word == "interval" or self._is_typed_text():
            return self._typed_text(place)
        return None

    def _case(self) -> s.Expression:
        tokens, place = self.tokens, self.tokens.place
        tokens.need("case")
        subject = None if tokens.is_word("when") else self.expression()
        branches = []
        while tokens.skip("when"):
            test = self.expression()
            tokens.need("then")
            branches.append((test, self.expression()))
        if not branches:
            tokens.fail("WHEN is missing here")
        otherwise = self.expression() if tokens.skip("else") else None
        tokens.need("end")
        return s.Case(place, subject, tuple(branches), otherwise)

    def _array(self) -> s.Expression:
        tokens, place = self.tokens, self.tokens.place
        tokens.need("array")
        if tokens.is_mark("("):
            tokens.fail("ARRAY over a query is not available")
        tokens.need_mark("[")
        items = () if tokens.is_mark("]") else tokens.listed(self.expression)
        tokens.need_mark("]")
        return s.Items(place, items)


def _signed(place: Place, operator: str, operand: s.Expression) -> s.Expression:
    """Negative literals are numbers, as in Postgres' grammar."""
    if operator == "-" and isinstance(operand, s.Number):
        text = operand.text
        return s.Number(place, text[1:] if text.startswith("-") else "-" + text)
    return s.Operation(place, operator, (operand,))
