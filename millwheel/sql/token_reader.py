"""Reads tokens from left to right."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from millwheel.errors import SqlError
from millwheel.sql.place import Place
from millwheel.sql.tokens import END, MARK, QUOTED, WORD, Token, tokens_of

T = TypeVar("T")

RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric both case cast check collate column
    constraint create current_catalog current_date current_role current_time current_timestamp
    current_user default deferrable desc distinct do else emit end except false fetch for
    foreign from grant group having in initially intersect into lateral leading limit
    localtime localtimestamp not null offset on only or order placing primary references
    returning select session_user some symmetric system_user table then to trailing true union
    unique user using variadic when where window with
    """.split()  # noqa: SIM905
)
"""Words that are no names unless they are in quotes."""

NO_ALIAS = RESERVED | frozenset(
    """
    cross full ilike inner is isnull join left like natural notnull outer over right similar
    filter within between asof retain allowed late
    """.split()  # noqa: SIM905
)


class Tokens:
    """The tokens of a text, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._all = tokens_of(text)
        self._next = 0

    def peek(self, ahead: int = 0) -> Token:
        return self._all[min(self._next + ahead, len(self._all) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self._next += 1
        return token

    @property
    def place(self) -> Place:
        return Place(self.text, self.peek().start)

    def is_word(self, *words: str) -> bool:
        """Whether these words come next."""
        return all(
            (token := self.peek(ahead)).kind == WORD and token.text == word
            for ahead, word in enumerate(words)
        )

    def is_mark(self, mark: str) -> bool:
        token = self.peek()
        return token.kind == MARK and token.text == mark

    def skip(self, *words: str) -> bool:
        """Pass over these words if they come next."""
        if not self.is_word(*words):
            return False
        self._next += len(words)
        return True

    def skip_mark(self, mark: str) -> bool:
        if not self.is_mark(mark):
            return False
        self._next += 1
        return True

    def need(self, *words: str) -> None:
        if not self.skip(*words):
            self.fail(f"{' '.join(words).upper()} is missing here")

    def need_mark(self, mark: str, why: str = "") -> None:
        if not self.skip_mark(mark):
            self.fail(f"{mark!r} is missing here{why}")

    def fail(self, reason: str, advice: str = "", *, place: Place | None = None) -> NoReturn:
        """Raises:
        SqlError: always; it shows the next token, or the given place.
        """
        if place is None:
            token = self.peek()
            found = "the end" if token.kind == END else self.text[token.start : token.stop]
            reason = f"{reason}: found {found if token.kind == END else repr(found)}"
        raise SqlError(reason, place or self.place, advice)

    def name(self, what: str) -> str:
        """A name that is no reserved word."""
        token = self.peek()
        if token.kind == QUOTED or (token.kind == WORD and token.text not in RESERVED):
            return self.take().text
        advice = ""
        if token.kind == WORD:
            advice = f'{token.text!r} is a word of SQL; as a name it needs quotes: "{token.text}"'
        self.fail(f"{what} is missing here", advice)

    def listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Items with commas between them."""
        items = [read()]
        while self.skip_mark(","):
            items.append(read())
        return tuple(items)
