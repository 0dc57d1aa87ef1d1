"""Reads queries."""

from __future__ import annotations

from typing import Any

from millwheel.sql import syntax as s
from millwheel.sql.parsing import ExpressionParser
from millwheel.sql.place import Place
from millwheel.sql.token_reader import NO_ALIAS
from millwheel.sql.tokens import MARK, OPERATOR, QUOTED, WORD

WINDOWS = {"tumble": 2, "hop": 3, "session": 2}
"""Window functions, with the number of their arguments after the stream."""

_LATER = {
    "limit": "A stream has no end, so no first rows; keep some with a key and a condition",
    "offset": "A stream has no end, so no first rows",
    "fetch": "A stream has no end, so no first rows; keep some with a key and a condition",
    "order": "A stream has no end, so it cannot be sorted; order the rows where they are read",
    "window": "Write the window in OVER (...)",
    "intersect": "Use a join",
    "except": "Use a join, or a condition",
    "for": "Rows of streams are not locked",
}


class QueryParser(ExpressionParser):
    # -- queries --------------------------------------------------------------------------------

    def query(self) -> s.Query:
        """A query, maybe of several parts."""
        tokens, place = self.tokens, self.tokens.place
        if tokens.is_word("with"):
            tokens.fail("WITH is not available", "Give each part a stream of its own")
        parts = [self._select()]
        while tokens.is_word("union"):
            tokens.take()
            if not tokens.skip("all"):
                tokens.fail(
                    "UNION removes rows that were there before", "Write UNION ALL", place=place
                )
            parts.append(self._select())
        token = tokens.peek()
        if token.kind == WORD and token.text in _LATER:
            tokens.fail(f"{token.text.upper()} is not available", _LATER[token.text])
        return parts[0] if len(parts) == 1 else s.Union(tuple(parts), place)

    def _select(self) -> s.Select:
        tokens, place = self.tokens, self.tokens.place
        if tokens.is_mark("("):
            tokens.take()
            found = self._select()
            tokens.need_mark(")")
            return found
        tokens.need("select")
        distinct = tokens.skip("distinct")
        if distinct and tokens.is_word("on"):
            tokens.fail("DISTINCT ON is not available yet")
        tokens.skip("all")
        columns = tokens.listed(self._column)
        source, joins = None, []
        if tokens.skip("from"):
            source = self._source()
            while (join := self._join()) is not None:
                joins.append(join)
        where = self.expression() if tokens.skip("where") else None
        group: tuple[s.Expression, ...] = ()
        if tokens.skip("group", "by"):
            group = tokens.listed(self._grouping)
        having = self.expression() if tokens.skip("having") else None
        return s.Select(
            columns, source, tuple(joins), where, group, having, distinct, self._emit(), place
        )

    def _emit(self) -> s.Emit:
        """The clauses at the end of a query, in any order."""
        tokens = self.tokens
        found: dict[str, Any] = {}
        places: dict[str, Place] = {}
        readers = {
            "emit": ("on_update", self._on_update), "retain": ("retain", self._bound),
            "allowed": ("lateness", self._lateness), "late": ("late_into", self._late_into),
        }  # fmt: skip
        while (token := tokens.peek()).kind == WORD and token.text in readers:
            if token.text in places:
                tokens.fail(f"{token.text.upper()} is there twice")
            places[token.text] = tokens.place
            tokens.take()
            name, read = readers[token.text]
            found[name] = read()
        return s.Emit(**found, places=places)

    def _on_update(self) -> bool:
        if self.tokens.skip("on", "update"):
            return True
        if self.tokens.skip("on", "window", "close"):
            return False
        self.tokens.fail("ON UPDATE or ON WINDOW CLOSE is missing here")

    def _bound(self) -> s.Bound:
        place = self.tokens.place
        if self.tokens.skip("unbounded"):
            return s.Bound(None, place)
        return s.Bound(self.expression(), place)

    def _lateness(self) -> s.Bound:
        self.tokens.need("lateness")
        return self._bound()

    def _late_into(self) -> str:
        self.tokens.need("into")
        return self.tokens.name("the stream after LATE INTO")

    def _grouping(self) -> s.Expression:
        for words in (("grouping", "sets"), ("rollup",), ("cube",)):
            if self.tokens.is_word(*words):
                self.tokens.fail(
                    f"{' '.join(words).upper()} is not available", "Write a query for each grouping"
                )
        return self.expression()

    def _column(self) -> s.ResultColumn | s.Star:
        tokens, place = self.tokens, self.tokens.place
        if tokens.peek().kind == OPERATOR and tokens.peek().text == "*":
            tokens.take()
            return s.Star(place, None)
        value = self.expression()
        if isinstance(value, s.Star):
            return value
        return s.ResultColumn(value, self._alias())

    def _alias(self) -> str | None:
        tokens = self.tokens
        if tokens.skip("as"):
            token = tokens.take()
            if token.kind not in (WORD, QUOTED):
                tokens.fail("a name is missing after AS")
            return token.text
        token = tokens.peek()
        if token.kind == QUOTED or (token.kind == WORD and token.text not in NO_ALIAS):
            return tokens.take().text
        return None

    # -- FROM -----------------------------------------------------------------------------------

    def _source(self) -> s.Source:
        tokens, place = self.tokens, self.tokens.place
        if tokens.skip("lateral"):
            tokens.fail("LATERAL is not available yet")
        if tokens.skip_mark("("):
            query = self.query()
            tokens.need_mark(")")
            return s.Subquery(query, self._alias(), place)
        token, after = tokens.peek(), tokens.peek(1)
        if after.kind == MARK and after.text == "(":
            if token.text in WINDOWS:
                return self._window()
            tokens.fail(
                f"{token.text}(...) is not available in FROM",
                "Available are TUMBLE, HOP and SESSION, as in TUMBLE(stream, time, "
                "INTERVAL '1 minute')",
            )
        name = tokens.name("a stream after FROM")
        if tokens.is_mark("."):
            tokens.fail("streams have no schema", f"Write {name} alone, or an alias after AS")
        return s.NamedStream(name, self._alias(), place)

    def _window(self) -> s.WindowTable:
        tokens, place = self.tokens, self.tokens.place
        kind = tokens.take().text
        tokens.need_mark("(")
        inner = self._source()
        arguments = []
        while tokens.skip_mark(","):
            arguments.append(self.expression())
        tokens.need_mark(")")
        if isinstance(inner, s.WindowTable):
            tokens.fail("a window over a window is not available", place=inner.place)
        wanted = WINDOWS[kind]
        if len(arguments) != wanted:
            examples = {
                "tumble": "TUMBLE(stream, time, INTERVAL '1 minute')",
                "hop": "HOP(stream, time, INTERVAL '10 seconds', INTERVAL '1 minute')",
                "session": "SESSION(stream, time, INTERVAL '10 minutes')",
            }
            tokens.fail(
                f"{kind.upper()} takes {wanted + 1} arguments", f"As in {examples[kind]}",
                place=place,
            )  # fmt: skip
        return s.WindowTable(kind, inner, tuple(arguments), self._alias(), place)

    def _join(self) -> s.Join | None:
        tokens, place = self.tokens, self.tokens.place
        if tokens.is_mark(","):
            tokens.fail("a list of streams in FROM is not available", "Write JOIN ... ON ...")
        for words, kind in (
            (("inner", "join"), "INNER"), (("join",), "INNER"), (("left", "outer", "join"), "LEFT"),
            (("left", "join"), "LEFT"), (("right", "outer", "join"), "RIGHT"),
            (("right", "join"), "RIGHT"), (("full", "outer", "join"), "FULL"),
            (("full", "join"), "FULL"), (("cross", "join"), "CROSS"),
        ):  # fmt: skip
            if tokens.skip(*words):
                right = self._source()
                on = self.expression() if tokens.skip("on") else None
                return s.Join(kind, right, on, None, place)
        if tokens.is_word("natural"):
            tokens.fail("NATURAL joins are not available", "Write the columns in ON")
        return None
