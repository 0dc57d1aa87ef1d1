"""Regular expressions.

Postgres' are translated to Python's. Functions that need the extent of a match refuse an expression
of which Python may find another one (`millwheel.sql.functions.texts.regular_proof`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from millwheel.sql.functions.registry import ValueRefused, implements
from millwheel.sql.functions.texts import character_sets as sets
from millwheel.sql.functions.texts.regular_proof import branches_of, can_explode, has_same_extent
from millwheel.sql.functions.texts.regular_syntax import (
    END,
    LINE_END,
    LINE_START,
    NO_WORD_EDGE,
    START,
    WORD_EDGE,
    WORD_END,
    WORD_START,
    Alternatives,
    At,
    Group,
    LookAround,
    One,
    Parser,
    Reference,
    RegularNode,
    RegularOptions,
    Repeat,
    Sequence,
    refused,
)

_ASCII: sets.Ranges = ((0, 0x7F),)


class RegularExpression:
    """A compiled expression: one for texts in ASCII, where classes are short, one for others."""

    def __init__(self, pattern: str, options: RegularOptions) -> None:
        parser = Parser(pattern, options)
        self._pattern = pattern
        self._node = parser.parse()
        self.groups = parser.groups
        if can_explode(self._node):
            raise refused(f"{pattern!r}, with repetitions inside of repetitions,")

    def matches(self, text: str) -> bool:
        """Whether a part of the text matches."""
        compiled = self._for_ascii if text.isascii() else self._for_all
        return compiled.search(text) is not None

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        """The first match, with Postgres' extent.

        Raises:
            ValueRefused: the extent may be another one.
        """
        first, *others = self._ascii_branches if text.isascii() else self._branches
        best = first.search(text, start)
        for compiled in others:
            match = compiled.search(text, start)
            if match is not None and (best is None or _rank(match) < _rank(best)):
                best = match
        return best

    def all(self, text: str, start: int = 0) -> Iterator[re.Match[str]]:
        """All matches, of which none begins inside of another one."""
        while start <= len(text):
            match = self.search(text, start)
            if match is None:
                return
            yield match
            start = match.end() + (match.end() == match.start())

    @cached_property
    def _parts(self) -> list[RegularNode]:
        """Expressions with the longest first match of this one."""
        if has_same_extent(self._node):
            return [self._node]
        found = branches_of(self._node)
        if not found:
            raise refused(f"what {self._pattern!r} matches, rather than whether it does,")
        return found

    @cached_property
    def _for_ascii(self) -> re.Pattern[str]:
        return self._made(self._node, is_ascii=True)

    @cached_property
    def _for_all(self) -> re.Pattern[str]:
        return self._made(self._node, is_ascii=False)

    @cached_property
    def _ascii_branches(self) -> list[re.Pattern[str]]:
        return [self._made(part, is_ascii=True) for part in self._parts]

    @cached_property
    def _branches(self) -> list[re.Pattern[str]]:
        return [self._made(part, is_ascii=False) for part in self._parts]

    def _made(self, node: RegularNode, *, is_ascii: bool) -> re.Pattern[str]:
        try:
            return re.compile(_python(node, is_ascii), re.DOTALL)
        except (re.error, RecursionError, OverflowError):
            raise refused(repr(self._pattern)) from None


def _rank(match: re.Match[str]) -> tuple[int, int]:
    return match.start(), -match.end()


def _python(node: RegularNode, is_ascii: bool) -> str:
    """An expression of Python."""
    if isinstance(node, One):
        return _character(node.ranges, is_ascii)
    if isinstance(node, Sequence):
        return "".join(_python(part, is_ascii) for part in node.parts)
    if isinstance(node, Alternatives):
        return f"(?:{'|'.join(_python(branch, is_ascii) for branch in node.branches)})"
    if isinstance(node, Group):
        return f"({'' if node.number else '?:'}{_python(node.inner, is_ascii)})"
    if isinstance(node, Repeat):
        most = "" if node.most is None else node.most
        lazy = "?" if node.is_lazy else ""
        return f"(?:{_python(node.inner, is_ascii)}){{{node.least},{most}}}{lazy}"
    if isinstance(node, LookAround):
        sign = ("<" if node.is_behind else "") + ("!" if node.is_negative else "=")
        return f"(?{sign}{_python(node.inner, is_ascii)})"
    if isinstance(node, Reference):
        return f"(?:\\{node.number})"
    assert isinstance(node, At)
    return _place(node.where, is_ascii)


def _character(ranges: sets.Ranges, is_ascii: bool) -> str:
    if not is_ascii:
        return sets.written(ranges)
    found = sets.common(ranges, _ASCII)
    return "." if found == _ASCII else sets.written(found)


def _place(where: str, is_ascii: bool) -> str:
    simple = {START: r"\A", END: r"\Z", LINE_START: r"(?<![^\n])", LINE_END: r"(?![^\n])"}
    if where in simple:
        return simple[where]
    word = _character(sets.named("word"), is_ascii)
    start, end = f"(?<!{word})(?={word})", f"(?<={word})(?!{word})"
    return {
        WORD_START: start, WORD_END: end, WORD_EDGE: f"(?:{start}|{end})",
        NO_WORD_EDGE: f"(?!{start}|{end})",
    }[where]  # fmt: skip


@lru_cache(maxsize=1024)
def expression(pattern: str, letters: str = "") -> RegularExpression:
    """A pattern with options."""
    return RegularExpression(pattern, RegularOptions().with_letters(letters))


def _without_global(letters: str, function: str) -> str:
    if "g" in letters:
        raise ValueRefused(f'{function}() does not support the "global" option')
    return letters


# -- whether there is a match ---------------------------------------------------------------------


@implements("textregexeq(text,text)", "bpcharregexeq(bpchar,text)")
def matches(text: str, pattern: str) -> bool:
    return expression(pattern).matches(text)


@implements("textregexne(text,text)", "bpcharregexne(bpchar,text)")
def not_matches(text: str, pattern: str) -> bool:
    return not expression(pattern).matches(text)


@implements("texticregexeq(text,text)", "bpcharicregexeq(bpchar,text)")
def matches_any_case(text: str, pattern: str) -> bool:
    return expression(pattern, "i").matches(text)


@implements("texticregexne(text,text)", "bpcharicregexne(bpchar,text)")
def not_matches_any_case(text: str, pattern: str) -> bool:
    return not expression(pattern, "i").matches(text)


@implements("regexp_like(text,text)", "regexp_like(text,text,text)")
def regexp_like(text: str, pattern: str, letters: str = "") -> bool:
    return expression(pattern, _without_global(letters, "regexp_like")).matches(text)


# -- what matches ---------------------------------------------------------------------------------


@implements("substring(text,text)", may_be_null=True)
def substring(text: str, pattern: str) -> str | None:
    """The text that the first group matches, or all that matches."""
    found = expression(pattern)
    match = found.search(text)
    return None if match is None else match[1 if found.groups else 0]


@implements("regexp_match(text,text)", "regexp_match(text,text,text)", may_be_null=True)
def regexp_match(text: str, pattern: str, letters: str = "") -> list[str | None] | None:
    """The texts that the groups match, or all that matches."""
    found = expression(pattern, _without_global(letters, "regexp_match"))
    match = found.search(text)
    if match is None:
        return None
    return list(match.groups()) if found.groups else [match[0]]


def _start(start: int) -> int:
    if start <= 0:
        raise ValueRefused(f'invalid value for parameter "start": {start}')
    return start - 1


@implements(
    "regexp_count(text,text)", "regexp_count(text,text,int4)", "regexp_count(text,text,int4,text)"
)
def regexp_count(text: str, pattern: str, start: int = 1, letters: str = "") -> int:
    at = _start(start)
    found = expression(pattern, _without_global(letters, "regexp_count"))
    return sum(1 for _ in found.all(text, at))


_SUBSTR = ("text", "text", "int4", "int4", "text", "int4")


@implements(
    *(f"regexp_substr({','.join(_SUBSTR[:count])})" for count in range(2, 7)), may_be_null=True
)
def regexp_substr(
    text: str, pattern: str, start: int = 1, number: int = 1, letters: str = "", group: int = 0
) -> str | None:
    span = _nth(text, pattern, start, number, letters, group, "regexp_substr")
    return None if span is None else text[slice(*span)]


def _nth(
    text: str, pattern: str, start: int, number: int, letters: str, group: int, function: str
) -> tuple[int, int] | None:
    """Where a group of a match is; None: nowhere."""
    at = _start(start)
    for name, value, least in (("n", number, 1), ("subexpr", group, 0)):
        if value < least:
            raise ValueRefused(f'invalid value for parameter "{name}": {value}')
    found = expression(pattern, _without_global(letters, function))
    for place, match in enumerate(found.all(text, at), 1):
        if place == number:
            if not found.groups:
                # Then all that matches is the first group.
                return match.span() if group <= 1 else None
            span = match.span(group) if group <= found.groups else (-1, -1)
            return None if span == (-1, -1) else span
    return None


_INSTR = ("text", "text", "int4", "int4", "int4", "text", "int4")


@implements(*(f"regexp_instr({','.join(_INSTR[:count])})" for count in range(2, 8)))
def regexp_instr(
    text: str,
    pattern: str,
    start: int = 1,
    number: int = 1,
    end: int = 0,
    letters: str = "",
    group: int = 0,
) -> int:
    """Where a match begins, or where it ends; 0: nowhere."""
    _start(start)
    if number < 1:
        raise ValueRefused(f'invalid value for parameter "n": {number}')
    if end not in (0, 1):
        raise ValueRefused(f'invalid value for parameter "endoption": {end}')
    span = _nth(text, pattern, start, number, letters, group, "regexp_instr")
    return 0 if span is None else span[end] + 1


@implements("regexp_split_to_array(text,text)", "regexp_split_to_array(text,text,text)")
def regexp_split(text: str, pattern: str, letters: str = "") -> list[str]:
    """The texts between the matches; empty ones at the ends or after another match do not count."""
    found = expression(pattern, _without_global(letters, "regexp_split_to_array"))
    parts, last, end = [], 0, 0
    for match in found.all(text):
        if match.start() < len(text) and match.end() > end:
            parts.append(text[last : match.start()])
            last = match.end()
        end = match.end()
    return [*parts, text[last:]]


# -- replacement ----------------------------------------------------------------------------------

_REFERENCE = re.compile(r"\\(?:([1-9])|(&)|(\\))", re.ASCII)


@lru_cache(maxsize=256)
def _pieces(replacement: str) -> tuple[str | int, ...]:
    """Texts, and the numbers of groups."""
    pieces: list[str | int] = []
    at = 0
    for match in _REFERENCE.finditer(replacement):
        pieces.append(replacement[at : match.start()])
        number, everything, _ = match.groups()
        pieces.append(int(number) if number else 0 if everything else "\\")
        at = match.end()
    pieces.append(replacement[at:])
    return tuple(each for each in pieces if each != "")


@implements("regexp_replace(text,text,text)")
def replace_first(text: str, pattern: str, replacement: str) -> str:
    return _replaced(text, expression(pattern), replacement, 0, 1)


@implements("regexp_replace(text,text,text,text)")
def replace_with_options(text: str, pattern: str, replacement: str, letters: str) -> str:
    if letters[:1].isdigit() and letters[:1].isascii():
        raise ValueRefused(f'invalid regular expression option: "{letters[0]}"')
    number = 0 if "g" in letters else 1
    return _replaced(text, expression(pattern, letters.replace("g", "")), replacement, 0, number)


@implements("regexp_replace(text,text,text,int4)")
def replace_first_from(text: str, pattern: str, replacement: str, start: int) -> str:
    return _replaced(text, expression(pattern), replacement, _start(start), 1)


@implements(
    "regexp_replace(text,text,text,int4,int4)", "regexp_replace(text,text,text,int4,int4,text)"
)
def replace_nth(
    text: str, pattern: str, replacement: str, start: int, number: int, letters: str = ""
) -> str:
    at = _start(start)
    if number < 0:
        raise ValueRefused(f'invalid value for parameter "n": {number}')
    return _replaced(text, expression(pattern, letters.replace("g", "")), replacement, at, number)


def _replaced(
    text: str, found: RegularExpression, replacement: str, start: int, number: int
) -> str:
    """With a replacement for a match by its number, 0: for all."""
    pieces, parts, last = _pieces(replacement), [], 0
    for place, match in enumerate(found.all(text, start), 1):
        if number and place != number:
            continue
        parts.append(text[last : match.start()])
        parts.extend(_filled(pieces, match, found.groups))
        last = match.end()
        if number:
            break
    return "".join([*parts, text[last:]])


def _filled(pieces: tuple[str | int, ...], match: re.Match[str], groups: int) -> Iterator[str]:
    for piece in pieces:
        if isinstance(piece, str):
            yield piece
        elif piece <= groups:
            yield match[piece] or ""
