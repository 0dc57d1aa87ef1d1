"""Docstrings are plain English: words that make sentences hard to read are rare in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prose import Count, count, docstrings, python_files

MILLWHEEL = Path(__file__).parents[2] / "millwheel"

LIMITS = {"who": 0.5, "what": 0.5, "else": 0.2}
"""Words per 1,000 words of docstrings of `millwheel`, store, timers and computations included."""


@pytest.fixture(scope="module")
def counted() -> Count:
    """The docstrings of all modules together."""
    return count(python_files(MILLWHEEL))


@pytest.mark.parametrize("family", LIMITS)
def test_docstrings_keep_the_limit(family: str, counted: Count) -> None:
    assert counted.rate(family) <= LIMITS[family], (
        f"{counted}; python -m tests.support.prose lists the files"
    )


def test_all_kinds_of_docstrings_are_counted() -> None:
    source = '''"""Module."""
class A:
    """Class."""
    x: int = 0
    """Who knows what else."""
    async def f(self) -> str:
        """Function, and so whoever's."""
        return "not who"  # nor who
'''
    total = Count()
    for text in docstrings(source):
        total.add(text)
    assert total.words == 10
    assert dict(total.hits) == {"who": 1, "what": 1, "else": 1}
