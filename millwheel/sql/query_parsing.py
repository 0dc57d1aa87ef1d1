"""Reads queries."""

from __future__ import annotations

from typing import Any

from millwheel.sql import syntax as s
from millwheel.sql.place import Place
from millwheel.sql.source_parsing import SourceParser
from millwheel.sql.tokens import OPERATOR, WORD

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


class QueryParser(SourceParser):
    # -- queries --------------------------------------------------------------------------------

    def query(self) -> s.Query:
        """A query, maybe of several parts."""
        tokens, place = self.tokens, self.tokens.place
        outer = dict(self.named_queries)
        if tokens.skip("with"):
            if tokens.is_word("recursive"):
                tokens.fail("WITH RECURSIVE is not available")
            tokens.listed(self._named_query)
        try:
            return self._parts(place)
        finally:
            self.named_queries = outer

    def _named_query(self) -> None:
        """A query of ``WITH``."""
        tokens, place = self.tokens, self.tokens.place
        name = tokens.name("a name after WITH")
        if name in self.named_queries:
            tokens.fail(f'WITH query name "{name}" specified more than once', place=place)
        tokens.need("as")
        tokens.need_mark("(")
        self.named_queries[name] = self.query()
        tokens.need_mark(")")

    def _parts(self, place: Place) -> s.Query:
        tokens = self.tokens
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
        distinct_on: tuple[s.Expression, ...] = ()
        if distinct and tokens.skip("on"):
            tokens.need_mark("(")
            distinct_on = tokens.listed(self.expression)
            tokens.need_mark(")")
        tokens.skip("all")
        columns = tokens.listed(self._column)
        source, joins = None, []
        if tokens.skip("from"):
            source = self.source()
            while (join := self.join()) is not None:
                joins.append(join)
        where = self.expression() if tokens.skip("where") else None
        group: tuple[s.Expression, ...] = ()
        if tokens.skip("group", "by"):
            group = tokens.listed(self._grouping)
        having = self.expression() if tokens.skip("having") else None
        order = self.order() if distinct_on and tokens.is_word("order") else ()
        return s.Select(
            columns, source, tuple(joins), where, group, having, distinct, distinct_on, order,
            self._emit(), place,
        )  # fmt: skip

    def _emit(self) -> s.Emit:
        """The clauses at the end of a query, in any order."""
        tokens = self.tokens
        found: dict[str, Any] = {}
        places: dict[str, Place] = {}
        readers = {
            "emit": ("on_update", self._on_update), "retain": ("retain", self.bound),
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

    def _lateness(self) -> s.Bound:
        self.tokens.need("lateness")
        return self.bound()

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
        return s.ResultColumn(value, self.alias())
