"""The page of refused combinations is the table that refuses them."""

from __future__ import annotations

from pathlib import Path

from millwheel.graph import conflicts

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_page_shows_the_table() -> None:
    """Fails with the lines that the page should have."""
    assert conflicts.page() in PAGE.read_text("utf-8")


def test_no_pair_stands_twice() -> None:
    pairs = [frozenset((option, other)) for option, other, _ in conflicts.CONFLICTS]
    assert len(set(pairs)) == len(pairs)
