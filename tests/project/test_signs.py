"""Numbers whose sign has a meaning are read in the class that has them, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("millwheel", "store", "computations", "timers")
KNOWN = ("millwheel/core/model.py", "store/port/requests.py")
SIGN = re.compile(r"\b(?:log|id|n)\b *(?:<=?|>=?) *0\b|-(?:\w+\.(?:log|id)|token)\b")
MODE = re.compile(r"type\([^)]*mode\) is")


def lines(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in KNOWN
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_signs_are_read_by_their_class() -> None:
    assert lines(SIGN) == []


def test_the_class_of_a_mode_is_not_asked() -> None:
    assert lines(MODE) == []


@pytest.mark.parametrize("line", ["if item.log < 0:", "if one.id < 0 and x", "token = -item.log"])
def test_signs_are_found(line: str) -> None:
    assert SIGN.search(line)
