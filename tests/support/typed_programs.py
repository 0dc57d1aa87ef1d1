"""Programs of texts and tests, checked by mypy as a user's are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.product import ROOT


def check_types(*programs: Path, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run mypy with the project's options on some files.

    Args:
        without: a code of errors that are no errors here. As an option of the command it would make
            mypy check the whole product again, of which it has the results with other options.
    """
    if without:
        for program in programs:
            text = program.read_text("utf-8").rstrip("\n")
            program.write_text(f'{text}\n\n# mypy: disable-error-code="{without}"\n', "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache",
         "--config-file", ROOT / "pyproject.toml", "--no-color-output", *programs],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
