"""Every block of the README runs as it stands, in order, in an empty directory.

``pip install`` is not run: the test checks that it asks for the checkout and for extras that exist.
`tests/project/test_packaging.py` installs the package.
"""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.pasted_pages import Shell, paste

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def check_installation(command: str) -> None:
    """It asks for the checkout, with extras that exist."""
    pip, install, wanted = shlex.split(command)
    assert (pip, install, wanted[:1]) == ("pip", "install", ".")
    requirement = Requirement(PROJECT["name"] + wanted[1:])
    assert requirement.extras <= PROJECT["optional-dependencies"].keys()


def test_every_block_runs_as_it_stands_and_prints_what_is_shown(reachable_path: Path) -> None:
    directory = reachable_path / "empty"
    directory.mkdir()
    with Shell(directory) as shell:
        installs = paste(README, shell)
    for command in installs:
        check_installation(command)
    assert installs
    assert (directory / "store").is_dir()


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 120  # of 100 characters
