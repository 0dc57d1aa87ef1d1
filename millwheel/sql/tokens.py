"""The words of a query, as Postgres' lexer cuts them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from millwheel.errors import SqlError
from millwheel.sql.place import Place

WORD, QUOTED, NUMBER, TEXT, OPERATOR, MARK, END = (
    "word", "quoted name", "number", "text", "operator", "mark", "end",
)  # fmt: skip

_SPACE = re.compile(r"(?:\s+|--[^\n]*)+")
_WORD = re.compile(r"[^\W\d]\w*(?:\$\w*)*")
_NUMBER = re.compile(r"(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DOLLARS = re.compile(r"\$(?:[^\W\d]\w*)?\$")
_OPERATOR = re.compile(r"[+\-*/<>=~!@#%^&|`?]+")
_MARKS = ("::", "=>", ":=", "(", ")", "[", "]", ",", ";", ".", ":")
_SPECIAL = set("~!@#%^&|`?")
"""An operator that ends with + or - has to contain one of these."""

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.S
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    """A word in lower case, the value of a text, or the token as it is written."""
    start: int
    stop: int


def tokens_of(text: str) -> list[Token]:
    """Cut a text into tokens; the last one is `END`.

    Raises:
        SqlError: a text, name or comment does not end, or a character means nothing.
    """
    found = list(_tokens(text))
    return [*found, Token(END, "the end", len(text), len(text))]


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        if match := _SPACE.match(text, at):
            at = match.end()
            continue
        if text.startswith("/*", at):
            at = _comment_end(text, at)
            continue
        token = _token(text, at)
        yield token
        at = token.stop


def _token(text: str, at: int) -> Token:
    here = text[at]
    if here == "'":
        return _quoted(text, at, at)
    if here in "eE" and text.startswith("'", at + 1):
        return _escaped(text, at)
    if here == '"':
        name, stop = _until(text, at, '"')
        if not name:
            raise SqlError("a name in quotes is empty", Place(text, at))
        return Token(QUOTED, name, at, stop)
    if match := _DOLLARS.match(text, at):
        stop = text.find(match.group(), match.end())
        if stop < 0:
            raise SqlError(f"the text that {match.group()} begins does not end", Place(text, at))
        return Token(TEXT, text[match.end() : stop], at, stop + len(match.group()))
    if (match := _NUMBER.match(text, at)) and (here != "." or match.end() > at + 1):
        if (after := _WORD.match(text, match.end())) is not None:
            raise SqlError(f"{match.group() + after.group()!r} is no number", Place(text, at))
        return Token(NUMBER, match.group().replace("_", ""), at, match.end())
    if match := _WORD.match(text, at):
        return Token(WORD, match.group().lower(), at, match.end())
    for mark in _MARKS:
        if text.startswith(mark, at):
            return Token(MARK, mark, at, at + len(mark))
    if match := _OPERATOR.match(text, at):
        operator = _operator(match.group())
        return Token(OPERATOR, operator, at, at + len(operator))
    advice = "Parameters ($1, :name) have no values here" if here == "$" else ""
    raise SqlError(f"{here!r} is not understood", Place(text, at), advice)


def _operator(text: str) -> str:
    """The longest operator at the head of `text`, which consists of its characters."""
    for comment in ("--", "/*"):
        if (cut := text.find(comment)) > 0:
            text = text[:cut]
    while len(text) > 1 and text[-1] in "+-" and not _SPECIAL & set(text):
        text = text[:-1]
    return text


def _comment_end(text: str, at: int) -> int:
    """Comments of this kind may contain others."""
    depth, here = 0, at
    while here < len(text):
        if text.startswith("/*", here):
            depth, here = depth + 1, here + 2
        elif text.startswith("*/", here):
            depth, here = depth - 1, here + 2
            if not depth:
                return here
        else:
            here += 1
    raise SqlError("a comment does not end", Place(text, at), "Close it with */")


def _until(text: str, at: int, quote: str) -> tuple[str, int]:
    """The text between quotes, of which a doubled one is part of it; and its end."""
    parts, here = [], at + 1
    while (stop := text.find(quote, here)) >= 0:
        parts.append(text[here:stop])
        if not text.startswith(quote, stop + 1):
            return quote.join(parts), stop + 1
        here = stop + 2
    raise SqlError(f"a {quote} has no partner", Place(text, at), f"Close it with {quote}")


def _quoted(text: str, at: int, start: int) -> Token:
    """A text; another one on a later line continues it."""
    value, stop = _until(text, at, "'")
    space = _SPACE.match(text, stop)
    if space and "\n" in space.group() and text.startswith("'", space.end()):
        rest = _quoted(text, space.end(), start)
        return Token(TEXT, value + rest.text, start, rest.stop)
    return Token(TEXT, value, start, stop)


def _escaped(text: str, at: int) -> Token:
    here = at + 2
    while here < len(text):
        if text[here] == "\\" or (text[here] == "'" and text.startswith("'", here + 1)):
            here += 2
        elif text[here] == "'":
            raw = text[at + 2 : here].replace("''", "'")
            return Token(TEXT, _ESCAPE.sub(_unescaped, raw), at, here + 1)
        else:
            here += 1
    raise SqlError("a ' has no partner", Place(text, at), "Close it with '")


def _unescaped(match: re.Match[str]) -> str:
    octal, short, four, eight, other = match.groups()
    if other is not None:
        return _ESCAPES.get(other, other)
    digits = short or four or eight
    return chr(int(octal, 8) if octal else int(digits, 16))
