"""What a user gets: the wheel and the sdist are whole, and the wheel works where it is unpacked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("store", "timers", "computations", "migrations")
DATA = (".py", ".sql", ".typed", ".mako")
LOCK = (ROOT / "requirements.lock").read_text()


def packaged() -> set[str]:
    """Every file a user must get, named as it is in the wheel."""
    names = {
        path.relative_to(ROOT).as_posix()
        for top in ("millwheel", *LINKED)
        for path in (ROOT / top).rglob("*")
        if path.suffix in DATA
    }
    return {name if name.startswith("millwheel/") else f"millwheel/{name}" for name in names}


def build(kind: str, source: Path, target: Path) -> Path:
    """What ``pip wheel`` and ``python -m build`` do, without their network."""
    script = f"import setuptools.build_meta as backend; backend.build_{kind}({str(target)!r})"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=source, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: a build leaves things behind, and must not find what an earlier one left."""
    copy = tmp_path_factory.mktemp("source") / "millwheel"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", source, tmp_path_factory.mktemp("wheel")))


def test_the_wheel_has_every_file_and_no_others(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == packaged()
    for sample in ("py.typed", "store/schema.py", "migrations/env.py", "timers/__init__.py"):
        assert f"millwheel/{sample}" in names
    assert any(re.fullmatch(r"millwheel/store/sql/\w+\.sql", name) for name in names)
    assert any(re.fullmatch(r"millwheel/migrations/versions/\w+\.py", name) for name in names)
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"millwheel"}


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "millwheel = millwheel.cli.main:main" in wheel.read(entry_points).decode()
    (licence,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    assert "License-Expression: Apache-2.0" in wheel.read(metadata).decode()


def test_the_sdist_builds_the_same_wheel(
    source: Path, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """It needs real files where the checkout has links, or whoever unpacks it gets nothing."""
    path = build("sdist", source, tmp_path)
    with tarfile.open(path) as sdist:
        assert all(member.isfile() or member.isdir() for member in sdist.getmembers())
    subprocess.run(["tar", "-xzf", path], cwd=tmp_path, check=True)
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    again = build("wheel", unpacked, tmp_path)
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(wheel.namelist())


def test_the_unpacked_wheel_works(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """From its own files alone: neither the checkout nor the editable install may answer."""
    wheel.extractall(tmp_path)
    look = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from importlib.resources import files\n"
        "import millwheel, millwheel.store.schema, millwheel.timers, millwheel.migrations\n"
        "print(millwheel.store.__file__)\n"
        "print(len(list((files('millwheel.store') / 'sql').iterdir())))\n"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", look, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    file, statements = result.stdout.splitlines()
    assert Path(file) == tmp_path / "millwheel" / "store" / "__init__.py"
    assert int(statements) == len(list((ROOT / "store" / "sql").iterdir()))


def locked() -> dict[str, list[str]]:
    """Package to its pinned versions: several, where a marker chooses by the Python version."""
    pins: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK, re.MULTILINE):
        pins.setdefault(canonicalize_name(name), []).append(version)
    return pins


def test_the_lock_has_what_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = locked()
    for requirement in map(Requirement, chain(project["dependencies"], *extras.values())):
        name = canonicalize_name(requirement.name)
        if name == "millwheel":
            assert requirement.extras <= extras.keys()
            continue
        assert name in pins, f"{name} is not in requirements.lock: run `make lock`"
        for version in pins[name]:
            assert requirement.specifier.contains(version), f"{name} {version}: run `make lock`"


def test_the_lock_has_hashes_and_markers_and_nothing_else() -> None:
    """An address of an index or a path of a machine would tie everybody to it."""
    for block in re.split(r"\n(?=\w)", re.sub(r"^\s*#.*\n", "", LOCK, flags=re.MULTILINE)):
        first, *hashes = (line.removesuffix(" \\").strip() for line in block.strip().splitlines())
        pin, _, marker = first.partition(" ; ")
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+", pin), first
        assert not marker or Marker(marker)
        assert hashes, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), first
