"""Every block of the README runs as it stands, in order, in an empty directory.

=============  ============================================================================
block          what the test does
=============  ============================================================================
``python``     Writes it to the file that its first line names. A file of tests is run by pytest.
``console``    Runs each line that begins with ``$`` in a shell. The lines below it are its
               standard output; ``...`` stands for what varies, as in a doctest. Progress and log
               go to standard error, which is not compared.
``text``       Nothing: it is the picture.
=============  ============================================================================

``pip install`` is not run: the test checks that it asks for the checkout and for extras that exist.
`tests/project/test_packaging.py` installs the package.
"""

from __future__ import annotations

import doctest
import re
import shlex
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.typed_commands import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def blocks() -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block, with the output that the README shows."""
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert "".join(f"$ {command}\n{output}" for command, output in found) == block
    return found


def check_installation(command: str) -> None:
    """It asks for the checkout, with extras that exist."""
    pip, install, wanted = shlex.split(command)
    assert (pip, install, wanted[:1]) == ("pip", "install", ".")
    requirement = Requirement(PROJECT["name"] + wanted[1:])
    assert requirement.extras <= PROJECT["optional-dependencies"].keys()


def test_every_block_runs_as_it_stands_and_prints_what_is_shown(tmp_path: Path) -> None:
    directory = tmp_path / "empty"
    directory.mkdir()
    ran = 0
    for language, text in blocks():
        match language:
            case "python":
                first = re.match(r"# (\w+\.py)\n", text)
                assert first is not None, f"the first line names no file: {text}"
                (directory / first[1]).write_text(text)
                if first[1].startswith("test_"):
                    run(f"python -m pytest -q {first[1]}", directory)
            case "console":
                for command, shown in commands(text):
                    if command.startswith("pip "):
                        check_installation(command)
                        continue
                    printed = run(command, directory)
                    checker = doctest.OutputChecker()
                    assert checker.check_output(shown, printed, doctest.ELLIPSIS), (
                        f"$ {command}\n{printed}\ninstead of\n{shown}"
                    )
            case _:
                assert language == "text"
                continue
        ran += 1
    assert ran >= 4
    for store in ("counted", "killed"):
        assert (directory / store).is_dir()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 167  # of 100 characters
