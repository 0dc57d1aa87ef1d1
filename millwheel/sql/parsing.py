"""Reads expressions, with the precedences of Postgres' grammar."""

from __future__ import annotations

from millwheel.sql import syntax as s
from millwheel.sql.operand_parsing import OperandParser
from millwheel.sql.precedences import (
    ADD,
    AND,
    AT,
    CAST,
    COLLATE,
    COMPARE,
    IS,
    LIKE,
    MULTIPLY,
    OR,
    OTHER,
    POWER,
    SUBSCRIPT,
)  # fmt: skip
from millwheel.sql.token_reader import Tokens
from millwheel.sql.tokens import END, MARK, OPERATOR, WORD

_COMPARISONS = ("<", ">", "=", "<=", ">=", "<>", "!=")
_ARITHMETIC = {"+": ADD, "-": ADD, "*": MULTIPLY, "/": MULTIPLY, "%": MULTIPLY, "^": POWER}
_MATCHES = {"like": ("~~", "!~~"), "ilike": ("~~*", "!~~*")}


class ExpressionParser(OperandParser):
    def expression(self, least: int = OR) -> s.Expression:
        """An expression with operators that bind at least as tightly as `least`."""
        left = self.prefix()
        ceiling = CAST
        while True:
            found = self._infix(left, least, ceiling)
            if found is None:
                return left
            left, ceiling = found

    # -- what follows an operand ------------------------------------------------------------

    def _infix(
        self, left: s.Expression, least: int, ceiling: int
    ) -> tuple[s.Expression, int] | None:
        """The operation that follows an operand, and the tightest that may follow it in turn; None:
        there is none that binds tightly enough."""
        tokens, token = self.tokens, self.tokens.peek()
        if token.kind == MARK:
            return self._mark(left, least)
        if token.kind == OPERATOR:
            return self._operator(left, least, ceiling)
        if token.kind != WORD:
            return None
        if token.text in ("or", "and"):
            return self._logic(left, least, OR if token.text == "or" else AND)
        if token.text in ("is", "isnull", "notnull") and least <= IS <= ceiling:
            made = self._is(left)
            return made, IS - 1 if isinstance(made, s.Distinct) else CAST
        if least <= LIKE <= ceiling:
            negated = tokens.peek(1) if token.text == "not" else None
            kind = token.text if negated is None else negated.text
            if kind in ("like", "ilike", "between", "in", "similar"):
                if negated is not None:
                    tokens.take()
                made = self._test(left, negated=negated is not None)
                return made, CAST if isinstance(made, s.InList) else LIKE - 1
        if token.text == "at" and least <= AT and tokens.is_word("at", "time", "zone"):
            tokens.skip("at", "time", "zone")
            zone = self.expression(AT + 1)
            return s.FunctionCall(left.place, "timezone", (zone, left)), AT
        if token.text == "collate" and least <= COLLATE:
            tokens.take()
            place = tokens.place
            collation = tokens.name("a collation")
            if collation not in ("C", "c", "POSIX"):
                advice = 'Texts have the order of COLLATE "C"'
                tokens.fail(f'collation "{collation}" is not available', advice, place=place)
            return left, COLLATE
        return None

    def _mark(self, left: s.Expression, least: int) -> tuple[s.Expression, int] | None:
        tokens = self.tokens
        if tokens.is_mark("::") and least <= CAST:
            tokens.take()
            return s.CastTo(left.place, left, self.type_name()), CAST
        if tokens.is_mark("[") and least <= SUBSCRIPT:
            tokens.take()
            index = self.expression()
            if tokens.is_mark(":"):
                tokens.fail("slices of arrays are not available")
            tokens.need_mark("]")
            return s.Element(left.place, left, index), CAST
        return None

    def _operator(
        self, left: s.Expression, least: int, ceiling: int
    ) -> tuple[s.Expression, int] | None:
        tokens, operator = self.tokens, self.tokens.peek().text
        is_comparison = operator in _COMPARISONS
        level = COMPARE if is_comparison else _ARITHMETIC.get(operator, OTHER)
        quantifier = tokens.peek(1)
        if quantifier.kind == WORD and quantifier.text in ("any", "some", "all"):
            level = OTHER
        if level > ceiling and is_comparison:
            tokens.fail("comparisons do not follow each other", "Use parentheses")
        if not least <= level <= ceiling:
            return None
        tokens.take()
        operator = "<>" if operator == "!=" else operator
        if (
            level == OTHER
            and tokens.is_word(quantifier.text)
            and quantifier.kind == WORD
            and (quantifier.text in ("any", "some", "all"))
        ):
            tokens.take()
            tokens.need_mark("(")
            array = self._no_query(self.expression)
            tokens.need_mark(")")
            is_all = quantifier.text == "all"
            return s.Quantified(left.place, left, operator, array, is_all), OTHER
        right = self.expression(level + 1)
        made = s.Operation(left.place, operator, (left, right))
        return made, level - 1 if is_comparison else level

    def _logic(self, left: s.Expression, least: int, level: int) -> tuple[s.Expression, int] | None:
        if level < least:
            return None
        word = "or" if level == OR else "and"
        operands = [left]
        while self.tokens.skip(word):
            operands.append(self.expression(level + 1))
        return s.Logic(left.place, word.upper(), tuple(operands)), level

    def _is(self, left: s.Expression) -> s.Expression:
        tokens = self.tokens
        if tokens.skip("isnull"):
            return s.IsTest(left.place, left, "NULL", negated=False)
        if tokens.skip("notnull"):
            return s.IsTest(left.place, left, "NULL", negated=True)
        tokens.need("is")
        negated = tokens.skip("not")
        if tokens.skip("distinct", "from"):
            return s.Distinct(left.place, left, self.expression(IS + 1), negated)
        for test in ("null", "true", "false", "unknown"):
            if tokens.skip(test):
                return s.IsTest(left.place, left, test.upper(), negated)
        tokens.fail("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM is missing here")

    def _test(self, left: s.Expression, *, negated: bool) -> s.Expression:
        tokens, place = self.tokens, left.place
        kind = tokens.take().text
        if kind == "between":
            return self._between(left, negated=negated)
        if kind == "in":
            tokens.need_mark("(")
            items = self._no_query(lambda: tokens.listed(self.expression))
            tokens.need_mark(")")
            return s.InList(place, left, items, negated)
        if kind == "similar":
            tokens.fail("SIMILAR TO is not available", "Use LIKE, or ~ with a regular expression")
        pattern = self.expression(LIKE + 1)
        if tokens.skip("escape"):
            escape = self.expression(LIKE + 1)
            pattern = s.FunctionCall(pattern.place, "like_escape", (pattern, escape))
        return s.Operation(place, _MATCHES[kind][negated], (left, pattern))

    def _between(self, left: s.Expression, *, negated: bool) -> s.Expression:
        tokens, place = self.tokens, left.place
        symmetric = tokens.skip("symmetric")
        if not symmetric:
            tokens.skip("asymmetric")
        low = self.expression(OTHER)
        tokens.need("and")
        high = self.expression(LIKE + 1)

        def within(low: s.Expression, high: s.Expression) -> s.Expression:
            left_test = s.Operation(place, "<" if negated else ">=", (left, low))
            right_test = s.Operation(place, ">" if negated else "<=", (left, high))
            return s.Logic(place, "OR" if negated else "AND", (left_test, right_test))

        if not symmetric:
            return within(low, high)
        both = within(low, high), within(high, low)
        return s.Logic(place, "AND" if negated else "OR", both)


def parse_expression(text: str) -> s.Expression:
    """Read a text that is one expression.

    Raises:
        SqlError: it is none, or has something that is not available.
    """
    tokens = Tokens(text)
    found = ExpressionParser(tokens).expression()
    if tokens.peek().kind != END:
        tokens.fail("an operator is missing here")
    return found
