"""A project of a user's, in `tests/consumer`, has the right types for each strict checker, against
the package as it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.packages import install_alone
from tests.support.product import ROOT

PYRIGHT = Path(sys.executable).with_name("basedpyright")
"""Pyright as a package that brings its own Node; pyright's own fetches one from the network."""

WRONG = """
from millwheel import Pipeline
from parcels.model import ALARMS, PARCELS
from parcels.steps import Watch

def add(pipeline: Pipeline) -> None:
    pipeline.add(Watch(), ALARMS.by(lambda alarm: alarm.number))
    pipeline.add(Watch(), PARCELS.by(lambda parcel: parcel.weight))
"""


@pytest.fixture(scope="module")
def python(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, before the packages of this one."""
    home = tmp_path_factory.mktemp("consumer")
    target = install_alone(wheel_file, home / "target")
    venv.create(home / "environment")
    (packages,) = home.glob("environment/lib/python*/site-packages")
    (packages / "all.pth").write_text(f"{target}\n{sysconfig.get_path('purelib')}\n")
    return home / "environment" / "bin" / "python"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    without_caches = shutil.ignore_patterns("__pycache__", "__init__.py")
    copy = tmp_path / "project"
    shutil.copytree(ROOT / "tests" / "consumer", copy, ignore=without_caches)
    (copy / "parcels" / "__init__.py").touch()
    return copy


def check(command: Sequence[str | Path], project: Path) -> tuple[int, str]:
    """The exit code and the output of a command, which finds no checkout."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=project, env=alone, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def checkers(python: Path) -> dict[str, list[str | Path]]:
    return {
        "mypy": [sys.executable, "-m", "mypy", "--python-executable", python, "."],
        "pyright": [PYRIGHT, "--pythonpath", python],
    }


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_wrong_lines_are_errors_and_no_others(checker: str, python: Path, project: Path) -> None:
    if checker == "pyright" and not PYRIGHT.exists():
        pytest.skip("basedpyright, of the extra `release`, is not installed")
    (project / "wrong.py").write_text(WRONG)
    code, output = check(checkers(python)[checker], project)
    found = set(re.findall(r"(\w+\.py):(\d+):.*\berror\b", output))
    assert (code, found) == (1, {("wrong.py", "7"), ("wrong.py", "8")}), output


def test_its_tests_run_with_the_installed_package(python: Path, project: Path) -> None:
    where = "import millwheel; print(millwheel.__file__)"
    code, output = check([python, "-c", where], project)
    assert (code, "/target/millwheel/" in output) == (0, True), output
    code, output = check([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], project)
    assert (code, "2 passed" in output) == (0, True), output
