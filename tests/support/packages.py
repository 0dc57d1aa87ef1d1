"""Builds the packages that users get, and runs the README's first program from them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.support.product import ROOT

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out")


def copy_source(target: Path) -> Path:
    """A copy of the checkout: a build leaves files behind, and must not find those of an earlier
    one."""
    shutil.copytree(ROOT, target, symlinks=True, ignore=LEFT_OUT)
    return target


def build(kind: str, source: Path, target: Path) -> Path:
    """Build as ``pip wheel`` and ``python -m build`` do, without their network."""
    script = f"import setuptools.build_meta as backend; backend.build_{kind}({str(target)!r})"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=source, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


def install_alone(what: Path, target: Path) -> Path:
    """Put a package into a directory, without the packages that it needs."""
    pip = "uv pip" if find_spec("uv") else "pip"
    command = [sys.executable, "-m", *pip.split(), "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(target), str(what)]
    if find_spec("uv"):
        command += ["--python", sys.executable, "--offline", "--no-cache"]
    result = subprocess.run(command, cwd=target.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return target


def write_zeitgeist(directory: Path) -> None:
    """The program of the README, and three lines of input."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (directory / "zeitgeist.py").write_text(
        "import millwheel, millwheel.store, pathlib, os\n"
        "for module in (millwheel, millwheel.store):\n    "
        "assert pathlib.Path(module.__file__).is_relative_to(os.environ['PYTHONPATH'])\n"
        f"{blocks[0]}"
    )
    line = '{"at": "2024-01-01T00:00:00Z", "query": "tea"}\n'
    (directory / "searches.jsonl").write_text(line * 3)


def run_installed(
    target: Path, directory: Path, *arguments: str, python: str | Path = sys.executable
) -> str:
    """Standard output of ``millwheel``, as installed in `target`."""
    result = subprocess.run(
        [python, "-m", "millwheel", *arguments],
        cwd=directory, env=os.environ | {"PYTHONPATH": str(target)}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout
