"""Reads statements: queries with a target, sources, tables."""

from __future__ import annotations

from millwheel.sql import syntax as s
from millwheel.sql.place import Place
from millwheel.sql.query_parsing import QueryParser
from millwheel.sql.token_reader import Tokens
from millwheel.sql.tokens import END, NUMBER, TEXT, WORD


class StatementParser(QueryParser):
    """Reads statements of a text, one after the other."""

    def statements(self) -> list[s.Statement]:
        """All statements.

        Raises:
            SqlError: one cannot be read.
        """
        found = []
        while self.tokens.skip_mark(";"):
            pass
        while self.tokens.peek().kind != END:
            found.append(self.statement())
            if self.tokens.peek().kind != END:
                self.tokens.need_mark(";", ", or the statement goes on with something unknown")
            while self.tokens.skip_mark(";"):
                pass
        return found

    def statement(self) -> s.Statement:
        """One statement."""
        tokens, place = self.tokens, self.tokens.place
        if tokens.skip("insert"):
            tokens.need("into")
            name = tokens.name("the stream or table after INSERT INTO")
            columns: tuple[str, ...] = ()
            if tokens.skip_mark("("):
                columns = tokens.listed(lambda: tokens.name("a column"))
                tokens.need_mark(")")
            return s.Insert(name, columns, self.query(), place)
        if tokens.skip("create"):
            return self._create(place)
        if tokens.is_word("select"):
            return s.Insert(None, (), self.query(), place)
        tokens.fail(
            "INSERT INTO ... SELECT is missing here",
            "A query says where its rows go: INSERT INTO stream SELECT ... FROM stream; CREATE "
            "SOURCE, STREAM and TABLE define what it uses",
        )

    def _create(self, place: Place) -> s.Statement:
        tokens = self.tokens
        if tokens.skip("stream"):
            name = tokens.name("the stream after CREATE STREAM")
            tokens.need("as")
            return s.Insert(name, (), self.query(), place)
        if tokens.skip("sink"):
            return self._sink(place)
        is_source = tokens.skip("source")
        if not is_source and not tokens.skip("table"):
            tokens.fail("SOURCE, STREAM, TABLE or SINK is missing here")
        name = tokens.name(f"the {'source' if is_source else 'table'} after CREATE")
        tokens.need_mark("(")
        columns: list[s.ColumnDefinition] = []
        keys: list[str] = []
        watermark = None
        while True:
            if is_source and tokens.skip("watermark", "for"):
                time = s.Name(tokens.place, None, tokens.name("a column"))
                tokens.need("as")
                watermark = time, self.expression()
            elif not is_source and tokens.skip("primary", "key"):
                tokens.need_mark("(")
                keys += tokens.listed(lambda: tokens.name("a column"))
                tokens.need_mark(")")
            else:
                column, is_key = self._definition()
                columns.append(column)
                keys += [column.name] if is_key else []
            if not tokens.skip_mark(","):
                break
        tokens.need_mark(")", ", to end the columns")
        if not is_source:
            return s.CreateTable(name, tuple(columns), tuple(keys), place)
        return s.CreateSource(name, tuple(columns), watermark, self._options(), place)

    def _sink(self, place: Place) -> s.CreateSink:
        tokens = self.tokens
        name = tokens.name("the sink after CREATE")
        tokens.need("from")
        begin = tokens.place
        stream = s.NamedStream(tokens.name("a stream after FROM"), None, begin)
        return s.CreateSink(name, stream, self._options(), place)

    def _definition(self) -> tuple[s.ColumnDefinition, bool]:
        """A column, and whether it is the primary key."""
        tokens, place = self.tokens, self.tokens.place
        name = tokens.name("a column")
        kind = self.type_name()
        is_required = is_key = False
        while True:
            if tokens.skip("not", "null"):
                is_required = True
            elif tokens.skip("primary", "key"):
                is_required = is_key = True
            elif not tokens.skip("null"):
                return s.ColumnDefinition(name, kind, is_required, place), is_key

    def _options(self) -> dict[str, tuple[str, Place]]:
        """``WITH (name = 'value', ...)``."""
        tokens = self.tokens
        tokens.need("with")
        tokens.need_mark("(")
        found: dict[str, tuple[str, Place]] = {}
        while True:
            place = tokens.place
            name = tokens.name("an option")
            if tokens.peek().text != "=":
                tokens.fail("'=' is missing here")
            tokens.take()
            token = tokens.take()
            if token.kind not in (TEXT, NUMBER, WORD):
                tokens.fail(f"the value of {name} is missing here", place=place)
            found[name] = token.text, place
            if not tokens.skip_mark(","):
                break
        tokens.need_mark(")", ", to end the options")
        return found


def parse(text: str) -> list[s.Statement]:
    """Read the statements of a text.

    Raises:
        SqlError: one cannot be read, or has something that is not available.
    """
    return StatementParser(Tokens(text)).statements()
