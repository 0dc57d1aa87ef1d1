"""A virtual environment for each peer, created from its pinned requirements when first needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE / ".venvs"


class NotInstalled(Exception):
    """A peer cannot be installed here; the message is that of pip."""


def python_of(name: str) -> Path:
    """Return the Python of a peer's environment, creating it if needed.

    Raises:
        NotInstalled: pip failed.
    """
    requirements = HERE / "requirements" / f"{name}.txt"
    directory = VENVS / name
    made_from = directory / "made-from"
    python = directory / "bin" / "python"
    if made_from.exists() and made_from.read_text() == requirements.read_text():
        return python
    print(f"  installing {name} into {directory}")
    shutil.rmtree(directory, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(directory)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--no-input", "-r", str(requirements)])
    made_from.write_text(requirements.read_text())
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled((done.stderr or done.stdout).strip()[-2000:])
