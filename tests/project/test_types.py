"""Wrong programs are type errors: each marked line of a file, and no other line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.support.product import ROOT
from tests.support.typed_programs import check_types

HERE = Path(__file__).resolve().parent
MARK = "# WRONG"


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


def test_the_programs_of_the_pages_are_right(tmp_path: Path) -> None:
    """Copied as they stand into a project that checks its types."""
    howto = ROOT / "docs" / "howto"
    pages = [
        ROOT / "docs" / "computations.md",
        *howto.glob("connect/*.md"),
        *howto.glob("from/*.md"),
    ]
    programs = []
    for page in pages:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        if blocks:
            programs.append(tmp_path / f"{page.stem.replace('-', '_')}.py")
            programs[-1].write_text("\n".join(blocks))
    assert len(programs) > 10
    result = check_types(*programs)
    assert result.returncode == 0, result.stdout
