"""Packages for users: wheel, sdist and ``pip install .`` are whole, the same, and work."""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from millwheel.core.distribution import DISTRIBUTION
from tests.support.packages import install_alone, run_installed, write_zeitgeist
from tests.support.product import ROOT, TEMPLATES

LINKED = ("store", "timers", "computations", "migrations")
PAGES = ("", ".md", ".py", ".sh", ".yaml", ".service")
DATA = (".py", ".sql", ".typed", ".mako", ".json", ".html", ".css", ".js", ".svg")
LOCK = (ROOT / "requirements.lock").read_text()


def packaged() -> set[str]:
    """Every file a user must get, named as it is in the wheel."""
    names = {
        path.relative_to(ROOT).as_posix()
        for top in ("millwheel", *LINKED)
        for path in (ROOT / top).rglob("*")
        if path.suffix in DATA or is_in_template(path)
    }
    return {name if name.startswith("millwheel/") else f"millwheel/{name}" for name in names}


def is_in_template(path: Path) -> bool:
    """Whether `millwheel new` copies the file."""
    return path.is_relative_to(TEMPLATES) and path.is_file() and "__pycache__" not in path.parts


def test_the_wheel_has_every_file_and_no_others(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == packaged()
    for sample in (
        "py.typed",
        "store/postgres/schema.py",
        "migrations/env.py",
        "timers/__init__.py",
    ):
        assert f"millwheel/{sample}" in names
    assert any(re.fullmatch(r"millwheel/store/sql/\w+/\w+\.sql", name) for name in names)
    assert any(re.fullmatch(r"millwheel/migrations/versions/\w+\.py", name) for name in names)
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"millwheel"}


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "millwheel = millwheel.cli.main:main" in wheel.read(entry_points).decode()
    (licence,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    described = wheel.read(metadata).decode()
    assert "License-Expression: Apache-2.0" in described
    assert f"\nName: {DISTRIBUTION}\n" in described


def test_no_message_or_page_installs_the_other_project_of_that_name() -> None:
    """On the index, `millwheel` is a stranger's."""
    files = [ROOT / name for name in ("README.md", "pyproject.toml", "Makefile")]
    for folder in (".ci", "docs", "examples", "bench", "millwheel", *LINKED):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in PAGES]
    for path in files:
        if path.is_file() and ".venvs" not in path.parts:
            found = re.search(
                r"millwheel\[[a-z]|\binstall '?millwheel\b(?!-)", path.read_text("utf-8")
            )
            assert found is None, path


def test_the_sdist_is_whole_and_has_no_tests(sdist: Path) -> None:
    """It needs real files where the checkout has links: a link out of its folder unpacks to
    nothing."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        assert all(member.isfile() or member.isdir() for member in members)
        names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert packaged() <= names
    for folder in ("examples", "docs"):
        assert tracked(folder) <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert linked_from_the_readme() <= names | {"docs/decisions/"}
    assert not [name for name in names if name.startswith(("tests/", ".ci/", ".venv"))]
    assert not [name for name in names if "__pycache__" in name]


def tracked(folder: str) -> set[str]:
    """The files of a folder, without those that running leaves there."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts}


def linked_from_the_readme() -> set[str]:
    """Relative links. The project has no public address yet, so that none can be absolute."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text("utf-8"))
    return {link.partition("#")[0] for link in links if "://" not in link}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of an installed package but those that an import leaves."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in (folder / "millwheel").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(
    "kind",
    ["wheel", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("sdist", "folder"))],
)
def test_each_way_of_installing_gives_the_same_files_and_they_work(
    kind: str, source: Path, wheel: zipfile.ZipFile, wheel_file: Path, sdist: Path, tmp_path: Path
) -> None:
    """From its own files alone: neither the checkout nor the editable install may answer."""
    what = {"wheel": wheel_file, "sdist": sdist, "folder": source}[kind]
    target = install_alone(what, tmp_path / "target")
    assert contents(target) == {
        name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name
    }
    directory = tmp_path / "empty"
    directory.mkdir()
    write_zeitgeist(directory)
    printed = run_installed(target, directory, "run", "zeitgeist:pipeline", "--store", "store")
    assert "rows read           3\n" in printed
    rows = run_installed(
        target, directory, "sql", "TABLE trends", "--store", "store", "--format", "json"
    )
    assert json.loads(rows) == [{"query": "tea", "searches": 3}]


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
        if name == DISTRIBUTION:
            assert requirement.extras <= extras.keys()
            continue
        assert name in pins, f"{name} is not in requirements.lock: run `make lock`"
        for version in pins[name]:
            assert requirement.specifier.contains(version), f"{name} {version}: run `make lock`"


def test_the_lock_has_hashes_and_markers_and_nothing_else() -> None:
    """An address of an index or a path of a machine would tie each user to it."""
    for block in re.split(r"\n(?=\w)", re.sub(r"^\s*#.*\n", "", LOCK, flags=re.MULTILINE)):
        first, *hashes = (line.removesuffix(" \\").strip() for line in block.strip().splitlines())
        pin, _, marker = first.partition(" ; ")
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+", pin), first
        assert not marker or Marker(marker)
        assert hashes, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), first
