"""Docstrings are plain English: words that make sentences hard to read are rare in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prose import Count, count, docstrings, python_files

MILLWHEEL = Path(__file__).parents[2] / "millwheel"

LIMITS = {"who": 1.0, "what": 4.0, "else": 0.6}
"""Words per 1,000 words of docstrings, over all checked parts together."""

CHECKED = [
    ".",
    "computations",
    "runtime/engine.py",
    "runtime/environment.py",
    "runtime/interval",
    "runtime/lane",
    "runtime/modes",
    "runtime/network",
    "runtime/ownership",
    "runtime/process",
    "runtime/restarts.py",
    "runtime/source",
    "runtime/upkeep",
    "testing/determinism.py",
    "timers",
]
"""Parts of `millwheel` that keep the limits: folders, files, and `.` for the modules on top."""


def files_of(part: str) -> list[Path]:
    """The Python files of a part."""
    if part == ".":
        return sorted(MILLWHEEL.glob("*.py"))
    return list(python_files(MILLWHEEL / part))


@pytest.fixture(scope="module")
def counted() -> Count:
    """The docstrings of all checked parts together."""
    return count(file for part in CHECKED for file in files_of(part))


@pytest.mark.parametrize("family", LIMITS)
def test_docstrings_of_the_checked_parts_keep_the_limit(family: str, counted: Count) -> None:
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
