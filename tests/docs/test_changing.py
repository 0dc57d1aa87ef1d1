"""The page about changes is the table that a deploy goes by; each row is tried in
tests/runtime/test_changes.py."""

from __future__ import annotations

from pathlib import Path

from millwheel.store.port.change import Kind
from millwheel.store.rules.changes.kinds import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "changes.md"


class Gaps(dict[str, str]):
    """Fills each gap of a text with its name."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def row(kind: Kind) -> str:
    text = " ".join(kind.text.format_map(Gaps()).split()).replace("|", "\\|")
    return f"| {kind.change} | {kind.verdict.value} | {text} |"


def table(part: str) -> str:
    """The lines that the page should have."""
    lines = [f"## {part}", "", "| change | verdict | |", "|---|---|---|", *map(row, KINDS[part])]
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_tables() -> None:
    page = PAGE.read_text("utf-8")
    for part in KINDS:
        assert table(part) in page, table(part)
