"""Commands that documents and examples show, as a reader types them into a shell."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 300.0
LAST_SECONDS = 30.0
"""Time for a command to end after Ctrl-C."""


def commands_of(module: Path) -> list[str]:
    """The commands in a module's docstring: lines of indented blocks, continued ones as one."""
    found = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    if "python -m" not in found and "millwheel " not in found:
        return []
    lines = re.sub(r"\\\n\s*", "", found).splitlines()
    return [line.strip() for line in lines if re.match(r" {4}\S", line)]


def environment() -> dict[str, str]:
    """An environment with `millwheel` and `python` of this checkout, and without a store."""
    found = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    found.pop("MILLWHEEL_STORE", None)
    return found


def run(command: str, directory: Path) -> str:
    """Standard output of a shell command; files take it, as a killed worker's server keeps them."""
    out, errors = directory.parent / "out", directory.parent / "errors"
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        code = subprocess.call(
            command, shell=True, cwd=directory, env=environment(), timeout=LONGEST_SECONDS,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        )  # fmt: skip
    killed_on_purpose = "kill -9 $!" in command
    assert code == 0 or killed_on_purpose, f"{command}: exit {code}\n{errors.read_text()}"
    return out.read_text("utf-8")


@contextmanager
def running(command: str, directory: Path, name: str) -> Iterator[Path]:
    """Run a command without an end in the background, and interrupt it; the file with its log."""
    log = directory.parent / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            f"exec {command}", shell=True, cwd=directory, env=environment(),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield log
        assert process.poll() is None, f"{command}: it has ended\n{log.read_text()}"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(LAST_SECONDS)
        finally:
            process.kill()
