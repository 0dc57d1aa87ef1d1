"""Reads Postgres' regular expressions, the advanced ones."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from millwheel.sql.functions.registry import ValueRefused
from millwheel.sql.functions.texts import character_sets as sets
from millwheel.sql.functions.texts.character_sets import Ranges

MOST_REPEATS = 255

START, END, LINE_START, LINE_END = "start", "end", "line start", "line end"
WORD_START, WORD_END, WORD_EDGE, NO_WORD_EDGE = "word start", "word end", "edge", "no edge"

_ESCAPES = {
    "a": "\a", "b": "\b", "B": "\\", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v",
}  # fmt: skip
_CLASSES = {"d": "digit", "s": "space", "w": "word"}
_CONSTRAINTS = {
    "A": START, "Z": END, "m": WORD_START, "M": WORD_END, "y": WORD_EDGE, "Y": NO_WORD_EDGE,
}  # fmt: skip
_REPEAT = re.compile(r"\{(\d+)(?:(,)(\d+)?)?\}", re.ASCII)
_OPTIONS = re.compile(r"\(\?([a-z]+)\)", re.ASCII)
_UNICODE = re.compile(r"u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})")


@dataclass(frozen=True)
class RegularNode:
    """A part of an expression."""


@dataclass(frozen=True)
class One(RegularNode):
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Sequence(RegularNode):
    parts: tuple[RegularNode, ...]


@dataclass(frozen=True)
class Alternatives(RegularNode):
    branches: tuple[RegularNode, ...]


@dataclass(frozen=True)
class Group(RegularNode):
    inner: RegularNode
    number: int
    """0: it is not captured."""


@dataclass(frozen=True)
class Repeat(RegularNode):
    inner: RegularNode
    least: int
    most: int | None
    is_lazy: bool


@dataclass(frozen=True)
class At(RegularNode):
    """A place in the text."""

    where: str


@dataclass(frozen=True)
class LookAround(RegularNode):
    inner: RegularNode
    is_behind: bool
    is_negative: bool


@dataclass(frozen=True)
class Reference(RegularNode):
    number: int


@dataclass(frozen=True)
class RegularOptions:
    ignore_case: bool = False
    by_lines: bool = False
    """Whether ``.`` and ``[^a]`` stop at the end of a line, and ``^`` and ``$`` match at it."""
    is_literal: bool = False

    def with_letters(self, letters: str) -> RegularOptions:
        """Raises:
        ValueRefused: a letter is no option, or not available.
        """
        changed = self
        for letter in letters:
            if letter in "ic":
                changed = replace(changed, ignore_case=letter == "i")
            elif letter in "nms":
                changed = replace(changed, by_lines=letter != "s")
            elif letter == "q":
                changed = replace(changed, is_literal=True)
            elif letter in "pwxeb":
                raise refused(f"the option {letter}")
            elif letter != "t":
                raise ValueRefused(f'invalid regular expression option: "{letter}"')
        return changed


def refused(what: str) -> ValueRefused:
    return ValueRefused(f"regular expression: {what} is not available here")


def invalid(reason: str) -> ValueRefused:
    return ValueRefused(f"invalid regular expression: {reason}")


class Parser:
    """Reads one expression; then `groups` is the number of groups that capture."""

    def __init__(self, text: str, options: RegularOptions) -> None:
        self._text = text
        self._at = 0
        self._options = options
        self.groups = 0
        self._closed: set[int] = set()
        self._looking = False
        """Inside of a lookahead or lookbehind, where nothing is captured."""

    def parse(self) -> RegularNode:
        if self._options.is_literal:
            return Sequence(tuple(self._one(sets.of(each)) for each in self._text))
        if self._text.startswith("***"):
            raise refused("***")
        if match := _OPTIONS.match(self._text):
            if set(match[1]) & set("qg"):
                raise refused(f"(?{match[1]})")
            self._options = self._options.with_letters(match[1])
            self._at = match.end()
        found = self._choice()
        if self._at < len(self._text):
            raise invalid("parentheses () not balanced")
        return found

    # -- structure ------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _choice(self) -> RegularNode:
        branches = [self._sequence()]
        while self._skip("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self) -> RegularNode:
        parts: list[RegularNode] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            parts.append(self._quantified())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self) -> RegularNode:
        if self._peek() in "*+?":
            raise invalid("quantifier operand invalid")
        if _REPEAT.match(self._text, self._at):
            raise invalid("quantifier operand invalid")
        atom = self._atom()
        found = self._quantifier()
        if found is None:
            return atom
        if isinstance(atom, At | LookAround):
            raise invalid("quantifier operand invalid")
        least, most = found
        if most == 0:
            raise refused("a repetition of 0 times")
        is_lazy = self._skip("?")
        if self._peek() in tuple("*+?") or _REPEAT.match(self._text, self._at):
            raise invalid("quantifier operand invalid")
        return Repeat(atom, least, most, is_lazy)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(symbol):
                return bounds
        match = _REPEAT.match(self._text, self._at)
        if match is None:
            if self._peek() == "{" and self._text[self._at + 1 : self._at + 2].isdigit():
                raise invalid("invalid repetition count(s)")
            return None
        self._at = match.end()
        least = int(match[1])
        most = int(match[3]) if match[3] else None if match[2] else least
        if least > MOST_REPEATS or (most is not None and not least <= most <= MOST_REPEATS):
            raise invalid("invalid repetition count(s)")
        return least, most

    # -- atoms ----------------------------------------------------------------------------------

    def _one(self, ranges: Ranges) -> One:
        return One(sets.any_case(ranges) if self._options.ignore_case else ranges)

    def _outside(self, ranges: Ranges) -> One:
        """One character that is not in the set."""
        if self._options.by_lines:
            ranges = sets.united((*ranges, (10, 10)))
        return One(sets.complement(ranges))

    def _atom(self) -> RegularNode:
        here = self._text[self._at]
        self._at += 1
        if here == "(":
            return self._parenthesis()
        if here == "[":
            return self._bracket()
        if here == ".":
            return self._outside(sets.NONE)
        if here == "^":
            return At(LINE_START if self._options.by_lines else START)
        if here == "$":
            return At(LINE_END if self._options.by_lines else END)
        if here == "\\":
            return self._escape()
        return self._one(sets.of(here))

    def _parenthesis(self) -> RegularNode:
        for opening, is_behind, is_negative in (
            ("?=", False, False), ("?!", False, True), ("?<=", True, False), ("?<!", True, True),
        ):  # fmt: skip
            if self._skip(opening):
                return self._look(is_behind, is_negative)
        number = 0
        if self._skip("?:"):
            pass
        elif self._peek() == "?":
            raise invalid("quantifier operand invalid")
        elif not self._looking:
            self.groups += 1
            number = self.groups
        inner = self._choice()
        self._close()
        self._closed.add(number)
        return Group(inner, number)

    def _look(self, is_behind: bool, is_negative: bool) -> RegularNode:
        before, self._looking = self._looking, True
        inner = self._choice()
        self._looking = before
        self._close()
        return LookAround(inner, is_behind, is_negative)

    def _close(self) -> None:
        if not self._skip(")"):
            raise invalid("parentheses () not balanced")

    def _escape(self) -> RegularNode:
        here = self._peek()
        if here in _CONSTRAINTS and here:
            self._at += 1
            return At(_CONSTRAINTS[here])
        if here.lower() in _CLASSES and here:
            self._at += 1
            ranges = sets.named(_CLASSES[here.lower()])
            return One(ranges if here.islower() else sets.complement(ranges))
        if here in tuple("123456789"):
            return self._reference()
        return self._one(sets.of(self._character()))

    def _reference(self) -> RegularNode:
        number = int(self._peek())
        self._at += 1
        if self._peek().isdigit():
            raise refused("a back-reference or an octal code of several digits")
        if self._options.ignore_case:
            raise refused("a back-reference without regard to case")
        if self._looking or number not in self._closed:
            raise invalid("invalid backreference number")
        return Reference(number)

    def _character(self) -> str:
        """The character that an escape stands for."""
        here = self._peek()
        if not here:
            raise invalid("invalid escape \\ sequence")
        if match := _UNICODE.match(self._text, self._at):
            code = int(match[1] or match[2], 16)
            if not 0 < code <= sets.LAST or 0xD800 <= code < 0xE000:
                raise invalid("invalid escape \\ sequence")
            self._at = match.end()
            return chr(code)
        if here in "xc" or here.isdigit() or not here.isascii():
            raise refused(f"the escape \\{here}")
        if here.isalpha() and here not in _ESCAPES:
            raise invalid("invalid escape \\ sequence")
        self._at += 1
        return _ESCAPES.get(here, here)

    # -- brackets -------------------------------------------------------------------------------

    def _bracket(self) -> RegularNode:
        if self._text.startswith("[:<:]]", self._at) or self._text.startswith("[:>:]]", self._at):
            raise refused("[[:<:]] or [[:>:]]")
        is_negative = self._skip("^")
        found: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            if self._at >= len(self._text):
                raise invalid("brackets [] not balanced")
            found.extend(self._item(is_first))
            is_first = False
        self._at += 1
        ranges = sets.united(found)
        if self._options.ignore_case:
            ranges = sets.any_case(ranges)
        return self._outside(ranges) if is_negative else One(ranges)

    def _item(self, is_first: bool) -> Ranges:
        if self._skip("[:"):
            return self._class()
        if self._text.startswith(("[.", "[="), self._at):
            raise refused("[. .] or [= =]")
        if self._peek() == "\\" and (letter := self._text[self._at + 1 : self._at + 2]):
            if letter in _CLASSES:
                self._at += 2
                return sets.named(_CLASSES[letter])
            if letter.lower() in _CLASSES:
                raise refused(f"\\{letter} inside of brackets")
        first = self._member(is_first)
        after = self._text[self._at + 1 : self._at + 2]
        if self._peek() != "-" or after == "]":
            return sets.of(first)
        self._at += 1
        if self._text.startswith(("[.", "[=", "[:"), self._at):
            raise refused("a class as the end of a range")
        last = self._member(is_first=False)
        if ord(last) < ord(first):
            raise invalid("invalid character range")
        if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
            raise invalid("invalid character range")
        return ((ord(first), ord(last)),)

    def _member(self, is_first: bool) -> str:
        here = self._peek()
        if not here:
            raise invalid("brackets [] not balanced")
        self._at += 1
        if here == "\\":
            if self._peek() in (*_CONSTRAINTS, *_CLASSES, *"123456789DSW"):
                raise invalid("invalid escape \\ sequence")
            return self._character()
        if here == "-" and not is_first and self._peek() != "]":
            raise refused("- in the middle of brackets")
        return here

    def _class(self) -> Ranges:
        end = self._text.find(":]", self._at)
        name = self._text[self._at : end]
        if end < 0 or name not in sets.CLASSES:
            raise invalid("invalid character class")
        self._at = end + 2
        if self._options.ignore_case and name in ("upper", "lower"):
            name = "alpha"
        return sets.named(name)
