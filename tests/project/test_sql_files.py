"""SQL stands in files: one statement each, in the folder of its subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import ROOT, TEMPLATES

PRODUCT = ("millwheel", "store", "computations", "timers")
"""Folders without inline SQL. Migrations are outside: each is a text of its own."""

STATEMENT = re.compile(
    r"\bSELECT\b[\s\S]+\bFROM\b|\bINSERT\s+INTO\b|\bDELETE\s+FROM\b|\bUPDATE\s+(?!SET)[\s\S]+\bSET\b|"
    r"\b(CREATE|ALTER|DROP|LOCK|TRUNCATE)\s+(TABLE|VIEW|INDEX|SCHEMA|ROLE|DATABASE|SEQUENCE)\b|"
    r"\bpg_[a-z_]+\(|"
    r"^\s*(SELECT|WITH|COPY|LISTEN|NOTIFY|SET|TABLE|CALL|GRANT|REVOKE|COMMENT ON)\s+[\w\"{(]"
)
"""A statement anywhere in a text, or a text that begins as one. BEGIN, COMMIT and ROLLBACK are
single words and no statements here, nor is the action of ON CONFLICT."""

CALL = re.compile(r"SELECT (SEND_ALL\(|\{\}\(%s, %s\)$)")
"""The client calls functions of the pipeline's schema, in a session of the user's: only their name
and parameters."""

EXAMPLE = "millwheel sql "
"""A command that a help page shows, for its reader to type."""

COMPILER = ROOT / "millwheel" / "sql"
"""It reads the SQL of users, and names its statements in messages; it sends none."""


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The string constants of a module that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_statement_stands_in_python(folder: str) -> None:
    """Lists of columns are composed there; all else is a file."""
    statements = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]!r}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_relative_to(COMPILER) and not path.is_relative_to(TEMPLATES)
        for line, text in _texts(path)
        if STATEMENT.search(text) and not CALL.match(text) and not text.startswith(EXAMPLE)
    ]
    assert statements == []


@pytest.mark.parametrize(
    "text", ["SELECT 1", "SET LOCAL timezone = 'UTC'", "\n  WITH x AS (VALUES (1)) TABLE x"]
)
def test_short_statements_count(text: str) -> None:
    assert STATEMENT.search(text)


def test_each_statement_has_its_file_and_each_file_its_statement() -> None:
    """One statement a file, each used; the text says why it is as it is."""
    folder = ROOT / "store" / "sql"
    rooms = ("following", "spark", "services/doctor")
    places = [ROOT / "store", *(ROOT / "millwheel" / room for room in rooms)]
    code = "".join(p.read_text("utf-8") for place in places for p in sorted(place.rglob("*.py")))
    paths = sorted(path for path in folder.rglob("*.sql") if path.parent.name != "views")
    assert len({path.stem for path in paths}) == len(paths), "a name stands in two folders"
    for path in paths:
        assert re.search(rf'"{path.stem}"', code), f"{path.name} is used by nobody"
        assert path.read_text("utf-8").startswith("-- "), f"{path.name} does not say what it does"


@pytest.mark.parametrize("room", ["spark", "following"])
def test_each_file_of_a_room_is_used(room: str) -> None:
    """Statements of rooms outside the store are named with or without their folder."""
    folder = ROOT / "millwheel" / room / "sql"
    texts = {text for path in folder.parent.rglob("*.py") for _, text in _texts(path)}
    used = {text.rsplit("/", 1)[-1] for text in texts}
    assert {path.stem for path in folder.rglob("*.sql")} - used == set()
