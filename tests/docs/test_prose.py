"""Prose is plain English: words that make sentences hard to read are rare, in every room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.support.prose import (
    Count,
    code_lines,
    count,
    docstrings,
    messages,
    paragraphs,
    python_files,
)

ROOT = Path(__file__).parents[2]
MILLWHEEL = ROOT / "millwheel"

LIMITS = {"who": 0.5, "what": 0.5, "else": 0.2, "idiom": 0.2}
"""Words of each family per 1,000 words; or one word, in a short text."""

DOCSTRING_WORDS = 1.76
"""Words of docstrings per line of code of `millwheel`. It may only fall."""


def folders(parent: Path) -> Iterator[Path]:
    return (p for p in sorted(parent.iterdir()) if p.is_dir() and p.name != "__pycache__")


def places() -> Mapping[str, Callable[[], Count]]:
    """How the words of each room, of the pages, and of all messages and log texts are counted."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    decisions = [page for page in pages if page.is_relative_to(ROOT / "docs" / "decisions")]
    others = [page for page in pages if page not in decisions]
    rooms = [room for room in folders(MILLWHEEL) if room.name != "runtime"]
    found = {room.name: partial(count, python_files(room)) for room in rooms}
    for room in folders(MILLWHEEL / "runtime"):
        found[f"runtime/{room.name}"] = partial(count, python_files(room))
    found["runtime"] = partial(count, (MILLWHEEL / "runtime").glob("*.py"))
    found["millwheel"] = partial(count, MILLWHEEL.glob("*.py"))
    for name in ("examples", "bench"):
        found[name] = partial(count, python_files(ROOT / name))
    found["messages"] = partial(count, python_files(MILLWHEEL), messages)
    found["docs"] = partial(count, others, paragraphs)
    found["docs/decisions"] = partial(count, decisions, paragraphs)
    templates = (MILLWHEEL / "templates").rglob("*.md")
    found["pages of templates"] = partial(count, [*templates], paragraphs)
    for page in (*ROOT.glob("*.md"), ROOT / "bench" / "README.md"):
        found[page.relative_to(ROOT).as_posix()] = partial(count, [page], paragraphs)
    return found


@pytest.mark.parametrize("place", places())
def test_prose_keeps_the_limits(place: str) -> None:
    found = places()[place]()
    over = [name for name in LIMITS if found.rate(name) > LIMITS[name] and found.hits[name] > 1]
    assert over == [], f"{place}: {found}; python -m tests.support.prose lists the files"


def test_docstrings_are_short() -> None:
    words = lines = 0
    for file in python_files(MILLWHEEL):
        words += count([file]).words
        lines += code_lines(file.read_text("utf-8"))
    assert words / lines <= DOCSTRING_WORDS


def test_all_kinds_of_docstrings_are_counted() -> None:
    source = '''"""Module."""
class A:
    """Class."""
    x: int = 0
    """Who knows what else."""
    async def f(self) -> str:
        """Function, and so whoever's; it goes on."""
        return "not who"  # nor who
'''
    total = Count()
    for text in docstrings(source):
        total.add(text)
    assert total.words == 13
    assert dict(total.hits) == {"who": 1, "what": 1, "else": 1, "idiom": 1}
    assert code_lines(source) == 4


def test_the_code_of_examples_is_not_counted() -> None:
    source = '''class Window:
    """Two words.

    ```python
    who = nobody.tells("anything else")
    ```

    Two more.
    """

    size = 1
'''
    total = Count()
    for text in docstrings(source):
        total.add(text)
    assert (total.words, +total.hits) == (4, {})
    assert code_lines(source) == 2


def test_messages_are_strings_of_errors_and_logs() -> None:
    source = """
def f(log, x):
    log.warning("nobody is here", who=f"{x} and somebody")
    log.warning("lease_let_go")
    raise ValueError("mend " f"it, {x}" "!")
    return "told"
"""
    total = Count()
    for text in messages(source):
        total.add(text)
    assert total.hits["idiom"] == 3


def test_pages_are_counted_without_their_code() -> None:
    (text,) = paragraphs("Who is\n```\nwho was\n```\n* there `who.is`\n")
    assert text.words == ["Who", "is", "there"]
