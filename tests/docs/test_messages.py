"""Messages in the pages' tables of remedies are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests.support.prose import python_files

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/howto/connect").glob("*.md"))
HEADER = "| message | remedy |\n|---|---|\n"


def quoted(page: Path) -> Iterator[str]:
    for table in page.read_text("utf-8").split(HEADER)[1:]:
        for row in table.partition("\n\n")[0].splitlines():
            yield from re.findall(r"\*([^*]+)\*", row.split("|")[1])


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "…"


@lru_cache(maxsize=1)
def texts() -> str:
    """A line for each string of the product, with `…` for the values in it."""
    found: list[str] = []
    for file in python_files(ROOT / "millwheel"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(map(_text, node.values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in found)


def is_of_the_code(message: str) -> bool:
    """Whether one string has the parts of a message, in order; `…` is what varies."""
    parts = [re.escape(part.strip()) for part in message.split("…")]
    return re.search(".*".join(parts), texts()) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_quoted_message_is_one_of_the_code(page: Path) -> None:
    assert [message for message in quoted(page) if not is_of_the_code(message)] == []


def test_there_are_messages_to_compare() -> None:
    assert len([message for page in PAGES for message in quoted(page)]) > 40
    assert not is_of_the_code("there is no Kafka topic … on the moon")
