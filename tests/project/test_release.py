"""The checklist of a release sees what it is there for."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from millwheel.core.distribution import DISTRIBUTION
from tests.release import checks
from tests.release.__main__ import Checklist, check_release
from tests.support.product import ROOT

PROJECT = '[project]\nname = "millwheel-engine"\nversion = "1.2.0"\ndependencies = ["h11>=1"]\n'


def git(root: Path, *words: str) -> None:
    named = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
    subprocess.run(["git", *named, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 — 2030-01-31\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "Begin")
    return root


def test_a_repository_that_is_ready_has_no_problems(repository: Path) -> None:
    for check in (checks.uncommitted, checks.changelog, checks.tag):
        assert check(repository) == []


def test_changes_that_the_clone_would_not_have_are_named(repository: Path) -> None:
    (repository / "new.py").touch()
    (repository / "pyproject.toml").write_text(PROJECT + "\n")
    assert checks.uncommitted(repository) == [
        "not committed: M pyproject.toml",
        "not committed: ?? new.py",
    ]


@pytest.mark.parametrize(
    ("heading", "problem"),
    [
        ("## 1.1.0 — 2030-01-31", "has version 1.2.0, CHANGELOG.md begins with 1.1.0"),
        ("## 1.2.0 — unreleased", "is 'unreleased'; write its date"),
        ("## 1.2.0", "is None; write its date"),
        ("no heading", "begins with no version"),
    ],
)
def test_the_changelog_must_have_the_version_and_a_date(
    repository: Path, heading: str, problem: str
) -> None:
    (repository / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    (found,) = checks.changelog(repository)
    assert problem in found


def test_the_tag_may_be_this_commit_and_no_other(repository: Path) -> None:
    git(repository, "tag", "v1.2.0")
    assert checks.tag(repository) == []
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "Continue")
    (problem,) = checks.tag(repository)
    assert "v1.2.0 is another commit" in problem


# -- packages -------------------------------------------------------------------------------------


def test_the_packages_have_sound_metadata_and_contents(wheel_file: Path, sdist: Path) -> None:
    assert checks.metadata(wheel_file, sdist) == []
    assert checks.wheel_contents(ROOT, wheel_file) == []


def changed(wheel: Path, target: Path, name: str, content: str) -> Path:
    """A copy of a wheel with another file."""
    target.mkdir()
    copy = target / wheel.name
    digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=")
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(copy, "w") as made:
        for each in archive.namelist():
            kept = archive.read(each)
            if each.endswith("/RECORD"):
                kept += f"{name},sha256={digest.decode()},{len(content)}\n".encode()
            made.writestr(each, kept)
        made.writestr(name, content)
    return copy


def test_a_second_package_beside_millwheel_is_a_problem(wheel_file: Path, tmp_path: Path) -> None:
    other = changed(wheel_file, tmp_path / "other", "tests/__init__.py", "")
    assert checks.wheel_contents(ROOT, other)


def test_a_description_that_an_index_refuses_is_a_problem(sdist: Path, tmp_path: Path) -> None:
    broken = tmp_path / sdist.name
    with tarfile.open(sdist) as archive, tarfile.open(broken, "w:gz") as target:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            content = b"" if file is None else file.read()
            if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO"):
                head = content.partition(b"\n\n")[0].replace(b"text/markdown", b"text/x-rst")
                content = head + b"\n\nTitle\n==\n\n.. unknown::\n"
                member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    assert checks.metadata(broken)


def test_a_directory_of_this_machine_is_found_in_any_package(
    wheel_file: Path, sdist: Path, tmp_path: Path
) -> None:
    place = Path("/home/ann/millwheel")
    assert checks.machine_paths([wheel_file, sdist], [ROOT, place, Path("/root")]) == []
    other = changed(wheel_file, tmp_path / "other", "millwheel/built.py", f'AT = "{place}/x"')
    (problem,) = checks.machine_paths([other], [ROOT, place])
    assert problem == f"{other.name}: millwheel/built.py names {place}"
    packed = tmp_path / "packed.tar.gz"
    (tmp_path / "log").write_text(str(place))
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "log", "x/log")
    assert checks.machine_paths([packed], [place]) == [f"packed.tar.gz: x/log names {place}"]


@pytest.mark.soak
def test_the_sdist_makes_the_wheel(wheel_file: Path, sdist: Path, tmp_path: Path) -> None:
    assert checks.wheel_of_sdist(wheel_file, sdist, tmp_path / "one") == []
    other = changed(wheel_file, tmp_path / "other", "millwheel/more.py", "")
    problems = checks.wheel_of_sdist(other, sdist, tmp_path / "two")
    assert [problem.partition(":")[0].rpartition("/")[2] for problem in problems] == [
        "more.py",
        "RECORD",
    ]


@pytest.mark.soak
def test_the_bill_of_materials_is_whole_and_always_the_same(tmp_path: Path) -> None:
    """Of an environment with the metadata of all requirements, which is quicker than with them."""
    environment = tmp_path / "environment"
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    requirements = [Requirement(text) for text in distribution(DISTRIBUTION).requires or ()]
    for requirement in (one for one in requirements if one.marker is None):
        metadata = distribution(requirement.name).read_text("METADATA")
        version = distribution(requirement.name).version
        place = packages / f"{requirement.name.replace('-', '_')}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(str(metadata), "utf-8")
    bill = tmp_path / "bill.cdx.json"
    problems = checks.bill_of_materials(ROOT, environment, bill)
    assert problems == ["the bill of materials lacks asyncinotify"]  # it has a marker
    assert checks.machine_paths([bill], [tmp_path]) == []
    assert not bill.with_name("again.json").exists()


def test_a_bill_that_lacks_a_requirement_is_a_problem(repository: Path) -> None:
    bill: dict[str, object] = {"components": [{"name": "H11"}]}
    assert checks.incomplete_bill(repository, bill) == []
    bill["components"] = [{"name": "h12"}]
    assert checks.incomplete_bill(repository, bill) == ["the bill of materials lacks h11"]


# -- the list -------------------------------------------------------------------------------------


def test_the_list_shows_each_check_with_its_problems(capsys: pytest.CaptureFixture[str]) -> None:
    def break_down() -> list[str]:
        raise OSError("no space left")

    todo = Checklist()
    assert todo.add("one", list)
    assert not todo.add("two", lambda: ["wrong", "also wrong"])
    assert not todo.add("three", break_down)
    todo.leave_out("four", "not now")
    assert todo.failed == ["two", "three"]
    assert capsys.readouterr().out.splitlines() == [
        "ok        one",
        "failed    two",
        "            wrong",
        "            also wrong",
        "failed    three",
        "            OSError: no space left",
        "left out  four: not now",
    ]


@pytest.mark.soak
def test_a_release_of_this_checkout_is_ready(tmp_path: Path) -> None:
    """It installs the newest packages from the index. Only what is committed is checked."""
    root = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    changelog = root / "CHANGELOG.md"
    changelog.write_text(changelog.read_text("utf-8").replace("— unreleased", "— 2030-01-31", 1))
    git(root, "commit", "--quiet", "--all", "-m", "Date the changelog")
    (tmp_path / "work").mkdir()
    assert check_release(root, tmp_path / "work", tmp_path / "dist", with_tests=False) == []
    files = {file.name for file in (tmp_path / "dist").iterdir()}
    version = checks.version_of(root)
    assert files == {
        "SHA256SUMS",
        f"millwheel_engine-{version}-py3-none-any.whl",
        f"millwheel_engine-{version}.cdx.json",
        f"millwheel_engine-{version}.tar.gz",
    }
