"""Counts the words of docstrings that make sentences hard to read.

    python -m tests.support.prose millwheel            # one line a file, the worst first
    python -m tests.support.prose millwheel --show   # every hit, with its line; comments too

A docstring is the first string of a module, a class or a function, or a bare string below an
attribute. Symbolic links are followed, so that `millwheel` includes the store, the timers and the
computations.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

WORD = re.compile(r"[A-Za-z][A-Za-z'’]*")

FAMILIES = {
    "who": {"who", "whoever", "whose", "whom", "nobody", "somebody", "everybody", "anybody"},
    "what": {"what"},
    "else": {"else"},
}
"""The words of each family, in lower case."""

IDIOMS = re.compile(
    r"\b(?:mend(?:s|ed|ing)?|tells?|told|telling|hears?|heard|hearing|anew|meanwhile|in vain|be it"
    r"|lets? go|letting go|nobody|somebody|amid|in hand|go(?:es|ing)? on|gone on|went on)\b",
    re.IGNORECASE,
)
"""Words and phrases that this project has used in a meaning of its own: the family ``idiom``."""

CODE_SPAN = re.compile(r"`[^`\n]+`")

VARIABLE = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b")
"""Names of variables of the environment, and of constants."""

LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, a comment or another string of a file."""

    line: int
    kind: str
    words: list[str]


@dataclass(slots=True)
class Count:
    """How many words there are, and how many of them belong to each family."""

    words: int = 0
    hits: Counter[str] = field(default_factory=Counter)

    def add(self, text: Text) -> None:
        """Count the words of a text."""
        self.words += len(text.words)
        for family, members in FAMILIES.items():
            self.hits[family] += sum(word.lower() in members for word in text.words)
        self.hits["idiom"] += len(IDIOMS.findall(" ".join(text.words)))

    def rate(self, family: str) -> float:
        """Words of a family per 1,000 words."""
        return 1000 * self.hits[family] / self.words if self.words else 0.0

    def __str__(self) -> str:
        rates = "  ".join(f"{family} {self.rate(family):6.2f}" for family in (*FAMILIES, "idiom"))
        return f"{self.words:7,} words  {rates}"


def python_files(folder: Path) -> Iterator[Path]:
    """The Python files of a folder and of those in it, links included; or the one that is given."""
    if folder.is_file():
        yield folder
        return
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".py"))


@lru_cache(maxsize=1)  # the docstrings of a file and its lines of code are counted in turn
def _nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def words_of(text: str) -> list[str]:
    """The words of a text, without code and names."""
    return WORD.findall(VARIABLE.sub("", CODE_SPAN.sub("", text)))


def docstrings(source: str) -> Iterator[Text]:
    """The docstrings of a file (every bare string statement) without their blocks of code."""
    for node in _nodes(source):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield Text(node.lineno, "docstring", words_of(without_code(node.value.value)))


def messages(source: str) -> Iterator[Text]:
    """The strings in ``raise`` statements and log calls, without names of events (``a_name``)."""
    for node in ast.walk(ast.parse(source)):
        called = node.func if isinstance(node, ast.Call) else None
        if not (
            isinstance(node, ast.Raise)
            or (isinstance(called, ast.Attribute) and called.attr in LOG_METHODS)
        ):
            continue
        for part in ast.walk(node):
            if (
                isinstance(part, ast.Constant)
                and isinstance(part.value, str)
                and not ("_" in part.value and part.value.isidentifier())
            ):
                yield Text(part.lineno, "message", words_of(part.value))


def paragraphs(page: str) -> Iterator[Text]:
    """The text of a Markdown page, without its code, in blocks and in lines."""
    yield Text(1, "page", words_of(without_code(page)))


def without_code(text: str) -> str:
    """A text without its fenced blocks of code."""
    fenced = False
    kept: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            kept.append(line)
    return "\n".join(kept)


def count(files: Iterable[Path], texts: Callable[[str], Iterator[Text]] = docstrings) -> Count:
    """Count the docstrings (or other texts) of all these files together."""
    result = Count()
    for file in files:
        for text in texts(file.read_text("utf-8")):
            result.add(text)
    return result


def code_lines(source: str) -> int:
    """Lines that are neither blank, nor comments, nor docstrings."""
    prose: set[int] = set()
    for node in _nodes(source):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        number not in prose and line.strip() != "" and not line.lstrip().startswith("#")
        for number, line in enumerate(source.splitlines(), start=1)
    )


def _hits(source: str) -> Iterator[tuple[int, str, str]]:
    """Line number, family and text of each line with a hit, in comments and all strings."""
    strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in strings | {tokenize.COMMENT}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for number, line in enumerate(source.splitlines(), start=1):
        if number in lines:
            words = {word.lower() for word in WORD.findall(line)}
            for family, members in FAMILIES.items():
                if words & members:
                    yield number, family, line.strip()


def main(arguments: list[str]) -> None:
    """Print the counts of a folder, or with ``--show`` the lines that were counted."""
    show = "--show" in arguments
    folders = [Path(argument) for argument in arguments if argument != "--show"]
    files = [file for folder in folders or [Path("millwheel")] for file in python_files(folder)]
    if show:
        for file in files:
            for number, family, line in _hits(file.read_text("utf-8")):
                print(f"{file}:{number}: {family}: {line}")
        return
    counts = {file: count([file]) for file in files}
    for file, of_file in sorted(counts.items(), key=lambda each: -sum(each[1].hits.values())):
        print(f"{of_file}  {file}")
    print(f"{count(files)}  total")


if __name__ == "__main__":
    main(sys.argv[1:])
