"""Wrong programs are type errors: each marked line of a file, and no other line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.support.pasted_pages import blocks
from tests.support.product import ROOT
from tests.support.typed_programs import check_types

HERE = Path(__file__).resolve().parent
MARK = "# WRONG"
PAGES = [
    page
    for folder in ("compute", "connect", "from")
    for page in sorted((ROOT / "docs" / "howto" / folder).glob("*.md"))
]


def test_every_wrong_line_is_an_error_and_no_other(tmp_path: Path) -> None:
    program = tmp_path / "wrong_programs.py"
    shutil.copy(HERE / "wrong_programs.py.txt", program)
    result = check_types(program, without="unused-coroutine")
    errors: dict[int, str] = {}
    for file, line, message in re.findall(r"^(.+?):(\d+): error: (.*)$", result.stdout, re.M):
        assert file.endswith(program.name), result.stdout
        errors.setdefault(int(line), message)
    lines = program.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith(MARK)}
    assert len(marked) > 60
    accepted = [f"{n}: {lines[n - 1].strip()}" for n in sorted(marked - errors.keys())]
    refused = [f"{n}: {errors[n]}" for n in sorted(errors.keys() - marked)]
    assert (accepted, refused) == ([], []), "mypy accepts wrong lines, or refuses right ones"


def programs_of(page: Path, directory: Path) -> Iterator[Path]:
    """The files of a page, and one with its other blocks, as a reader who continues a module has
    them."""
    found = [block for block in blocks(page) if block.language == "python"]
    texts = {block.file: block.text for block in found if block.file is not None}
    others = [block.text for block in found if block.file is None]
    if others:
        texts[f"page_{page.stem.replace('-', '_')}.py"] = "\n".join(others)
    for name, text in texts.items():
        program = directory / name
        assert not program.exists(), f"{page}: another page has a file {name}"
        program.write_text(text)
        yield program


def test_the_programs_of_the_pages_are_right(tmp_path: Path) -> None:
    """Copied as they stand into a project that checks its types."""
    programs = [program for page in PAGES for program in programs_of(page, tmp_path)]
    assert len(programs) > 20
    result = check_types(*programs, without="no-redef")
    assert result.returncode == 0, result.stdout
