"""The page of refused combinations is the table that refuses them."""

from __future__ import annotations

from pathlib import Path

from millwheel.graph.conflicts import CONFLICTS, WORDS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def code(option: str) -> str:
    return f"`{option}`" if "=" in option else option


def table() -> str:
    """The lines that the page should have."""
    lines = ["| option | not with | because it |", "|---|---|---|"]
    for option, other, why in CONFLICTS:
        words = why.format(
            option=option, other=other, other_words=WORDS.get(other, other),
            spread="a stream", keyed="another by a key",
        )  # fmt: skip
        lines.append(f"| {code(option)} | {code(other)} | {words} |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_table() -> None:
    assert table() in PAGE.read_text("utf-8")


def test_no_pair_stands_twice() -> None:
    pairs = [frozenset((option, other)) for option, other, _ in CONFLICTS]
    assert len(set(pairs)) == len(pairs)
