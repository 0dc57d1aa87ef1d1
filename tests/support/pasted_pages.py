"""Pages whose blocks are run as a reader copies and pastes them, in order.

=============  ============================================================================
block          what happens
=============  ============================================================================
``python``     Its first line may be ``# name.py``: then it is written to that file. Others run in
               the names of the page.
``py``         A fragment. It must compile.
``console``    Each line that begins with ``$`` is typed into one shell. The lines below it are its
               standard output; ``...`` stands for what varies, as in a doctest. Progress and log
               go to standard error, which is not compared.
``sql``        Its first line may be ``-- name.sql``: then it is written to that file.
others         Nothing: pictures, and files that are shown.
=============  ============================================================================
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.product import ROOT
from tests.support.typed_commands import environment as of_checkout

LONGEST_SECONDS = 120.0
FILE = re.compile(r"(?:#|--) ([\w/-]+\.\w+)\n")


class Block(NamedTuple):
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that the first line names."""
        first = FILE.match(self.text)
        return first[1] if first else None


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def typed(block: str) -> list[tuple[str, str]]:
    """Each command of a console block, with the output that the page shows."""
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert "".join(f"$ {command}\n{output}" for command, output in found) == block, block
    return found


class Shell:
    """One shell in a directory, as a reader has it open; jobs in the background stay its own."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is by default that of this checkout."""
        self.directory = directory
        self._out, self._errors = directory.parent / "out", directory.parent / "errors"
        self._number = 0
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self._shell = subprocess.Popen(
                ["bash", "--norc"], cwd=directory, env=environment or of_checkout(),
                stdin=subprocess.PIPE, stdout=out, stderr=errors, start_new_session=True, text=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the shell; a job that it has left running is an error of the page."""
        jobs = "" if error else self.printed("sleep 0.1; jobs -r")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)  # with the jobs in the background
        self._shell.communicate()
        assert jobs == "", f"still running at the end of the page: {jobs}"

    def printed(self, command: str) -> str:
        """Standard output of a command. `AssertionError` if it fails or takes too long."""
        self._number += 1
        end = f"--- end of command {self._number}:"
        before = self._out.stat().st_size
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"eval {shlex.quote(command)} </dev/null\necho '{end}' $?\n")
        self._shell.stdin.flush()
        deadline = time.monotonic() + LONGEST_SECONDS
        while True:
            text = self._out.read_bytes()[before:].decode("utf-8")
            output, ended, code = text.partition(end)
            if ended and code.endswith("\n"):
                break
            assert time.monotonic() < deadline, f"$ {command}\n{text}\n{self._errors.read_text()}"
            time.sleep(0.02)
        killed_on_purpose = "kill -9" in command
        assert int(code) == 0 or killed_on_purpose, f"$ {command}\n{self._errors.read_text()}"
        return output

    def check(self, command: str, shown: str) -> None:
        """Run a command, and compare its output with the one that the page shows."""
        printed = self.printed(command)
        assert doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS), (
            f"$ {command}\n{printed}\ninstead of\n{shown}\n{self._errors.read_text()}"
        )


def tutorial() -> Iterator[Path]:
    """The pages of `start`, in the order of their list."""
    folder = ROOT / "docs" / "start"
    for listed in re.findall(
        r"```\{toctree\}\n(.*?)```", (folder / "index.md").read_text("utf-8"), re.S
    ):
        for line in listed.splitlines():
            if line and not line.startswith(":"):
                yield folder / f"{line}.md"


def paste(page: Path, shell: Shell) -> list[str]:
    """Copy a page into a directory and its shell, as a reader does who has installed millwheel.

    Returns:
        The ``pip`` commands, which are not run.
    """
    installs = []
    for block in blocks(page):
        if block.file is not None:
            path = shell.directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")
        elif block.language == "console":
            for command, shown in typed(block.text):
                if command.startswith("pip "):
                    installs.append(command)
                else:
                    shell.check(command, shown)
        else:
            assert block.language not in ("python", "sql"), f"{page}: a block names no file"
    return installs
