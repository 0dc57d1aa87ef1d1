"""Each check returns its problems, in words; none is good."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from millwheel.core.distribution import DISTRIBUTION
from tests.support.packages import build, run_installed, write_zeitgeist
from tests.support.pasted_pages import Shell, paste, tutorial

PROGRAMS = Path(sys.executable).parent
"""Where the checkers of the extra `release` are."""
EVERYWHERE = (Path("/"), Path("/root"))
"""Directories that each machine has: a file may name them."""
LINT = (
    ("ruff", "format", "--check", "--quiet"),
    ("ruff", "check", "--quiet"),
    ("mypy",),
    ("lint-imports", "--no-logo"),
)


def run(*command: str | Path, directory: Path | None = None) -> list[str]:
    """Run a command; its output is the problem, if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env=os.environ | ({} if directory is None else {"PYTHONPATH": str(directory)}),
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return []
    output = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
    return [f"{Path(command[0]).name}: {line}" for line in output.splitlines()[-30:]]


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# -- the checkout ---------------------------------------------------------------------------------


def uncommitted(root: Path) -> list[str]:
    return [f"not committed: {line}" for line in git(root, "status", "--porcelain").splitlines()]


def version_of(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def changelog(root: Path) -> list[str]:
    """The newest part of the changelog is that of this version, and has a date."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    found = re.search(r"^## (\S+)(?: — (.*))?$", text, re.MULTILINE)
    version = version_of(root)
    if found is None or found[1] != version:
        newest = "no version" if found is None else found[1]
        return [f"pyproject.toml has version {version}, CHANGELOG.md begins with {newest}"]
    if found[2] is None or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", found[2]):
        return [f"CHANGELOG.md: version {version} is {found[2]!r}; write its date, as 2030-12-31"]
    return []


def tag(root: Path) -> list[str]:
    """The tag of this version is free, or is this commit."""
    name = f"v{version_of(root)}"
    if name not in git(root, "tag", "--list").splitlines():
        return []
    if git(root, "rev-parse", f"{name}^{{commit}}") == git(root, "rev-parse", "HEAD"):
        return []
    return [f"the tag {name} is another commit: raise the version, or release that commit"]


def lint(root: Path) -> list[str]:
    return [problem for words in LINT for problem in run(PROGRAMS / words[0], *words[1:],
            directory=root)]  # fmt: skip


def tests(root: Path) -> list[str]:
    return run(sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadgroup",
               directory=root)  # fmt: skip


# -- the packages ---------------------------------------------------------------------------------


def metadata(*packages: Path) -> list[str]:
    return run(PROGRAMS / "twine", "check", "--strict", *packages)


def wheel_contents(root: Path, wheel: Path) -> list[str]:
    config = root / "pyproject.toml"
    return run(PROGRAMS / "check-wheel-contents", "--config", config, wheel)


def members(package: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files in a wheel or an sdist; or of the file that it is."""
    if package.suffix == ".json":
        yield package.name, package.read_bytes()
        return
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            yield from ((name, archive.read(name)) for name in archive.namelist())
        return
    with tarfile.open(package) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            yield member.name, b"" if file is None else file.read()


def machine_paths(packages: Sequence[Path], directories: Sequence[Path]) -> list[str]:
    """Files that name a directory of this machine."""
    texts = [str(directory).encode() for directory in directories if directory not in EVERYWHERE]
    return [
        f"{package.name}: {name} names {text.decode()}"
        for package in packages
        for name, content in members(package)
        for text in texts
        if text in content or text.decode() in name
    ]


def wheel_of_sdist(wheel: Path, sdist: Path, work: Path) -> list[str]:
    """The sdist makes the same wheel as the checkout."""
    work.mkdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (source,) = work.iterdir()
    other = dict(members(build("wheel", source, work / "dist")))
    own = dict(members(wheel))
    return [
        f"{name}: differs between the wheel of the checkout and that of the sdist"
        for name in sorted(own.keys() | other.keys())
        if own.get(name) != other.get(name)
    ]


def environment(wheel: Path, target: Path) -> list[str]:
    """An environment with the wheel and the newest packages that it needs."""
    uv = PROGRAMS / "uv"
    return run(uv, "venv", "--quiet", "--python", sys.executable, target) or add(wheel, target)


def add(wheel: Path, target: Path, extra: str = "") -> list[str]:
    """Install the wheel from its directory, as from an index: no path of it is noted down."""
    name = f"{DISTRIBUTION}{extra}=={wheel.name.split('-')[1]}"
    python = target / "bin" / "python"
    install = ("pip", "install", "--quiet", "--python", python, "--find-links", wheel.parent)
    return run(PROGRAMS / "uv", *install, name)


def first_program(wheel: Path, target: Path, directory: Path) -> list[str]:
    """The first program of the README runs from the wheel alone."""
    problems = add(wheel, target, "[embedded]")
    if problems:
        return problems
    directory.mkdir()
    write_zeitgeist(directory)
    (packages,) = target.glob("lib/python*/site-packages")
    python = target / "bin" / "python"
    try:
        store = ("--store", "store")
        printed = run_installed(packages, directory, "run", "zeitgeist:pipeline", *store,
                                python=python)  # fmt: skip
        rows = run_installed(packages, directory, "sql", "TABLE trends", *store, "--format", "json",
                             python=python)  # fmt: skip
    except AssertionError as error:
        return str(error).splitlines()
    finally:
        run_installed(packages, directory, "stop", "store", python=python)
    problems = [] if "rows read           3\n" in printed else [f"it printed {printed!r}"]
    if json.loads(rows) != [{"query": "tea", "searches": 3}]:
        problems.append(f"its table has {rows}")
    return problems


def bill_of_materials(root: Path, target: Path, file: Path) -> list[str]:
    """Write the packages of an environment as CycloneDX; twice, to compare."""
    again = file.with_name("again.json")
    for output in (file, again):
        problems = run(
            PROGRAMS / "cyclonedx-py", "environment", target / "bin" / "python", "--pyproject",
            root / "pyproject.toml", "--mc-type", "library", "--output-reproducible", "-o", output,
        )  # fmt: skip
        if problems:
            return problems
    if file.read_bytes() != again.read_bytes():
        problems.append("two runs write different files")
    again.unlink()
    return problems + incomplete_bill(root, json.loads(file.read_text("utf-8")))


def incomplete_bill(root: Path, bill: dict[str, object]) -> list[str]:
    """Requirements of the project that a bill of materials lacks."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {_canonical(requirement) for requirement in project["dependencies"]}
    components = bill["components"]
    assert isinstance(components, list)
    listed = {_canonical(component["name"]) for component in components}
    missing = sorted(wanted - listed - ({"asyncinotify"} if sys.platform == "darwin" else set()))
    return [f"the bill of materials lacks {name}" for name in missing]


def _canonical(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def pages(clone: Path, target: Path, work: Path) -> list[str]:
    """Every block of the README and of the tutorial runs with the installed wheel, in an empty
    directory."""
    if problems := run(PROGRAMS / "uv", "pip", "install", "-q", "--python", target, "pytest"):
        return problems
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{target / 'bin'}{os.pathsep}{os.environ['PATH']}"
    problems = []
    for name, copied in (("readme", [clone / "README.md"]), ("tutorial", [*tutorial()])):
        directory = work / name / "empty"
        directory.mkdir(parents=True)
        try:
            with Shell(directory, environment) as shell:
                for page in copied:
                    paste(page, shell)
        except AssertionError as error:
            problems += [f"{name}:", *str(error).splitlines()]
    return problems
