"""Wrong programs are type errors: each marked line of a file, and no other line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARK = "# WRONG"


def test_every_wrong_line_is_an_error_and_no_other(tmp_path: Path) -> None:
    program = tmp_path / "wrong_programs.py"
    shutil.copy(HERE / "wrong_programs.py.txt", program)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache",
         "--config-file", ROOT / "pyproject.toml", "--no-color-output",
         "--disable-error-code", "unused-coroutine", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
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
    pages = {
        name: (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        for name in ("computations", "sources")
    }
    blocks = {
        name: re.findall(r"```python\n(.*?)```", page, re.DOTALL) for name, page in pages.items()
    }
    (own,) = (block for block in blocks["sources"] if "class OrderReader" in block)
    (tmp_path / "page.py").write_text("\n".join(blocks["computations"]))
    (tmp_path / "own_source.py").write_text(own)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache",
         "--config-file", ROOT / "pyproject.toml", "--no-color-output",
         tmp_path / "page.py", tmp_path / "own_source.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
