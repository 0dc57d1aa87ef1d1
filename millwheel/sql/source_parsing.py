"""Reads the tables of FROM: streams, windows over them, joins."""

from __future__ import annotations

from abc import abstractmethod

from millwheel.sql import syntax as s
from millwheel.sql.parsing import ExpressionParser
from millwheel.sql.place import Place
from millwheel.sql.token_reader import NO_ALIAS, Tokens
from millwheel.sql.tokens import MARK, QUOTED, WORD

WINDOWS = {"tumble": 2, "hop": 3, "session": 2}
"""Window functions, with the number of their arguments after the stream."""

_EXAMPLES = {
    "tumble": "TUMBLE(stream, time, INTERVAL '1 minute')",
    "hop": "HOP(stream, time, INTERVAL '10 seconds', INTERVAL '1 minute')",
    "session": "SESSION(stream, time, INTERVAL '10 minutes')",
}

_JOINS = (
    (("inner", "join"), "INNER"), (("join",), "INNER"), (("left", "outer", "join"), "LEFT"),
    (("left", "join"), "LEFT"), (("right", "outer", "join"), "RIGHT"),
    (("right", "join"), "RIGHT"), (("full", "outer", "join"), "FULL"),
    (("full", "join"), "FULL"), (("cross", "join"), "CROSS"),
)  # fmt: skip


class SourceParser(ExpressionParser):
    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens)
        self.named_queries: dict[str, s.Query] = {}
        """The queries of ``WITH`` that can be read here."""

    @abstractmethod
    def query(self) -> s.Query:
        """A query, maybe of several parts."""

    def alias(self) -> str | None:
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

    def bound(self) -> s.Bound:
        """A length of time, or ``UNBOUNDED``."""
        place = self.tokens.place
        if self.tokens.skip("unbounded"):
            return s.Bound(None, place)
        return s.Bound(self.expression(), place)

    def source(self) -> s.Source:
        tokens, place = self.tokens, self.tokens.place
        if tokens.skip_mark("("):
            query = self.query()
            tokens.need_mark(")")
            return s.Subquery(query, self.alias(), place)
        token, after = tokens.peek(), tokens.peek(1)
        if after.kind == MARK and after.text == "(":
            if token.text in WINDOWS:
                return self._window()
            tokens.fail(
                f"{token.text}(...) is not available in FROM",
                "Available are TUMBLE, HOP and SESSION, as in TUMBLE(stream, time, "
                "INTERVAL '1 minute'), and after a stream unnest(array)",
            )
        return self._stream_or_query(self._named_stream(place), place)

    def _stream_or_query(self, name: str, place: Place) -> s.Source:
        """A stream, or a query of ``WITH``."""
        if name in self.named_queries:
            return s.Subquery(self.named_queries[name], self.alias() or name, place)
        return s.NamedStream(name, self.alias(), place)

    def _named_stream(self, place: Place) -> str:
        tokens = self.tokens
        name = tokens.name("a stream after FROM")
        if tokens.is_mark("."):
            tokens.fail("streams have no schema", f"Write {name} alone, or an alias after AS")
        return name

    def _window(self) -> s.WindowTable:
        tokens, place = self.tokens, self.tokens.place
        kind = tokens.take().text
        tokens.need_mark("(")
        inner = self.source()
        arguments = []
        while tokens.skip_mark(","):
            arguments.append(self.expression())
        tokens.need_mark(")")
        if isinstance(inner, s.WindowTable):
            tokens.fail("a window over a window is not available", place=inner.place)
        if len(arguments) not in (WINDOWS[kind], WINDOWS[kind] + (kind != "session")):
            tokens.fail(
                f"{kind.upper()} takes {WINDOWS[kind] + 1} arguments", f"As in {_EXAMPLES[kind]}",
                place=place,
            )  # fmt: skip
        return s.WindowTable(kind, inner, tuple(arguments), self.alias(), place)

    # -- joins ----------------------------------------------------------------------------------

    def join(self) -> s.Join | None:
        """The next join, if there is one."""
        tokens, place = self.tokens, self.tokens.place
        if tokens.skip_mark(","):
            return self._joined("CROSS", place)
        for words, kind in _JOINS:
            if tokens.skip(*words):
                return self._joined(kind, place)
        if tokens.is_word("natural"):
            tokens.fail("NATURAL joins are not available", "Write the columns in ON")
        return None

    def _joined(self, kind: str, place: Place) -> s.Join:
        tokens, begin = self.tokens, self.tokens.place
        is_lateral = tokens.skip("lateral")
        as_of = None
        right: s.Source | s.Unnested
        if tokens.is_word("unnest") and tokens.peek(1).text == "(":
            right = self._unnested()
        elif is_lateral:
            tokens.fail("LATERAL is available with unnest(array)", place=begin)
        elif tokens.peek(1).text == "for" and tokens.peek(1).kind == WORD:
            name = self._named_stream(begin)
            tokens.need("for", "system_time", "as", "of")
            as_of = self.expression()
            right = self._stream_or_query(name, begin)
        else:
            right = self.source()
        on = None
        if kind != "CROSS":
            if tokens.is_word("using"):
                tokens.fail("USING is not available", "Write ON left.column = right.column")
            tokens.need("on")
            on = self.expression()
        retain = self.bound() if kind != "CROSS" and tokens.skip("retain") else None
        return s.Join(kind, right, on, as_of, retain, place)

    def _unnested(self) -> s.Unnested:
        tokens, place = self.tokens, self.tokens.place
        tokens.take()
        tokens.need_mark("(")
        array = self.expression()
        if tokens.is_mark(","):
            tokens.fail("unnest takes one array", "Write a join for each")
        tokens.need_mark(")")
        is_numbered = tokens.skip("with", "ordinality")
        alias = self.alias() or "unnest"
        item, number = alias, "ordinality"
        if tokens.skip_mark("("):
            given = tokens.listed(lambda: tokens.name("a column"))
            if len(given) > 1 + is_numbered:
                tokens.fail(f"unnest has {1 + is_numbered} columns, not {len(given)}", place=place)
            item, number = (*given, number)[:2]
            tokens.need_mark(")")
        return s.Unnested(array, alias, item, number if is_numbered else None, place)
