"""The package of another project with the name `millwheel`, in one environment with this one.

Each of the two overwrites files of the other. Every command says so, in any order of installing,
and so does an import if this project's files are the newer ones. Otherwise the other project's
``__init__`` runs, and Python names its file.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from millwheel.core.distribution import DISTRIBUTION
from tests.support.packages import write_zeitgeist

NAMESAKE = "millwheel==0.1.2"
FILES = {
    "millwheel/__init__.py": '__version__ = "0.1.2"\n\nfrom .scheduler import Scheduler, Task\n',
    "millwheel/scheduler.py": "from .utils import now\n\n\nclass Scheduler: ...\nclass Task: ...\n",
    "millwheel/utils.py": "import time\n\n\ndef now():\n    return time.time()\n",
}
"""The layout of the other project's package; `make soak` compares it with the real one."""
BOTH = "the distribution 'millwheel' is another project"
LOST = "files of 'millwheel-engine' are missing"


def stand_in(directory: Path) -> Path:
    """A wheel with the layout of the other project's."""
    wheel = directory / "millwheel-0.1.2-py3-none-any.whl"
    info = "millwheel-0.1.2.dist-info"
    files = FILES | {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: millwheel\nVersion: 0.1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
            record += f"{name},sha256={digest.rstrip('=')},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


class Place:
    """An environment, into which packages are installed without those that they need: these are
    found in the environment of the tests."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "environment" / "bin"
        self._uv("venv", "--python", sys.executable, str(directory / "environment"))
        (packages,) = directory.glob("environment/lib/python*/site-packages")
        (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
        self._project = directory / "project"
        self._project.mkdir()
        write_zeitgeist(self._project)
        self._environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}

    def _uv(self, *words: str) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        done = subprocess.run([uv, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def install(self, what: str | Path, *options: str) -> None:
        python = str(self.bin / "python")
        self._uv("pip", "install", "--no-deps", "--python", python, *options, str(what))

    def uninstall(self, name: str) -> None:
        self._uv("pip", "uninstall", "--python", str(self.bin / "python"), name)

    def run(self, *words: str) -> tuple[int, str]:
        """The exit code and the error output of a program of the environment."""
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self._project,
            env=self._environment | {"PYTHONPATH": ""},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr.strip()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def check_commands(place: Place, reason: str) -> None:
    """Each way to start a command ends in one line that names the remedy."""
    for words in (("millwheel",), ("python", "-m", "millwheel")):
        code, text = place.run(*words, "graph", "zeitgeist:pipeline")
        assert (code, text.count("\n")) == (2, 0), text
        assert text.startswith(f"error: {reason}"), text
        assert f"pip install {DISTRIBUTION}" in text or "--force-reinstall" in text


def check_first_install(place: Place, namesake: Callable[[], None], wheel: Path) -> None:
    """The other project is there first, so that this one's files replace its own."""
    namesake()
    place.install(wheel)
    check_commands(place, BOTH)
    code, text = place.run("python", "-c", "from millwheel import Pipeline")
    assert code == 1
    last = text.splitlines()[-1]
    assert last.startswith(f"millwheel.errors.UsageError: {BOTH}"), text
    code, text = place.run("python", "-c", "import millwheel; millwheel.Pipeline")
    assert (code, BOTH in text) == (1, True), text


def check_second_install(place: Place, namesake: Callable[[], None], wheel: Path) -> None:
    """The other project comes later: its ``__init__`` is the package's."""
    place.install(wheel)
    namesake()
    check_commands(place, BOTH)
    code, text = place.run("python", "-c", "from millwheel import Pipeline")
    assert code == 1
    last = text.splitlines()[-1]
    assert last.startswith("ImportError: cannot import name 'Pipeline' from 'millwheel' (/"), text


def check_removal(place: Place, namesake: Callable[[], None], wheel: Path) -> None:
    """Removing the other project removes files that were this one's."""
    place.install(wheel)
    namesake()
    place.uninstall("millwheel")
    check_commands(place, LOST)
    place.install(wheel, "--force-reinstall")
    assert place.run("python", "-c", "from millwheel import Pipeline") == (0, "")


CASES = [check_first_install, check_second_install, check_removal]


@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_the_namesake_is_named(
    check: Callable[..., None], place: Place, wheel_file: Path, tmp_path: Path
) -> None:
    other = stand_in(tmp_path)
    check(place, lambda: place.install(other, "--offline"), wheel_file)


@pytest.mark.soak
@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_the_real_namesake_is_named(
    check: Callable[..., None], place: Place, wheel_file: Path
) -> None:
    check(place, lambda: place.install(NAMESAKE), wheel_file)


@pytest.mark.soak
def test_the_stand_in_has_the_files_of_the_namesake(place: Place) -> None:
    place.install(NAMESAKE)
    (packages,) = place.bin.parent.glob("lib/python*/site-packages")
    installed = {path.relative_to(packages).as_posix() for path in packages.glob("millwheel/*.py")}
    assert installed == FILES.keys()
    assert not (place.bin / "millwheel").exists(), "it has a command now"


def test_alone_there_is_nothing_to_say(place: Place, wheel_file: Path) -> None:
    place.install(wheel_file, "--offline")
    script = "import millwheel, sys; millwheel.Pipeline; print(millwheel.__file__, file=sys.stderr)"
    code, text = place.run("python", "-c", script)
    assert (code, str(place.bin.parent) in text) == (0, True), text
