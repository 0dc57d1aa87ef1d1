"""The diagrams in the docs are those of the code."""

from __future__ import annotations

from tests.docs.protocols import PAGE, page


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.docs.protocols"
