"""Tests share code by modules of `tests.support`, never by importing each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT = re.compile(
    r"^.*\b(?:from|import)\s+tests(?:\.\w+)*(?:\.test_\w+|\s+import\s.*\btest_\w+).*$", re.MULTILINE
)
"""Also in a string: a test may run such a line in a process of its own."""


def test_no_file_imports_a_test() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("tests", "bench", "examples", "millwheel")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in IMPORT.findall(path.read_text())
    ]
    assert found == [], "move what is shared into a module of tests/support"


def test_imports_of_tests_are_recognised() -> None:
    module = "tests.runtime"
    for line in (f"from {module}.test_weak import chain", f"from {module} import test_weak"):
        assert IMPORT.findall(f"import os\n{line}\n") == [line]
    for line in ("from tests.support.worlds import World", "from tests import visits"):
        assert not IMPORT.findall(line)
