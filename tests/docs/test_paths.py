"""Files and commands of `tests` that the documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    ROOT / ".ci" / "run",
)
PATH = re.compile(r"\btests/[\w/]+\.py\b")
COMMAND = re.compile(r"-m (tests(?:\.\w+)+)")


def test_every_named_file_exists() -> None:
    lost = [
        f"{document.relative_to(ROOT)}: {path}"
        for document in DOCUMENTS
        for path in PATH.findall(document.read_text())
        if not (ROOT / path).is_file()
    ]
    assert lost == []


def test_every_named_command_can_be_run() -> None:
    named = {
        (document, module)
        for document in DOCUMENTS
        for module in COMMAND.findall(document.read_text())
    }
    assert {module for _, module in named} >= {"tests.sim", "tests.campaign"}
    lost = []
    for document, module in sorted(named):
        place = ROOT.joinpath(*module.split("."))
        main = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
        if not main.is_file() or "__main__" not in main.name + main.read_text():
            lost.append(f"{document.relative_to(ROOT)}: python -m {module}")
    assert lost == []
