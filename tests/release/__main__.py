"""Builds what a release uploads, in a clean clone, and checks it; writes it to `dist/`.

    make release-check               # a few minutes; ARGS="--tests" runs the tests as well

The clone has what is committed. The environment in which the wheel is tried has the newest packages
that it allows, from the index. Nothing is uploaded, and no tag is made.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from millwheel.core.distribution import DISTRIBUTION
from tests.release import checks
from tests.support.packages import build
from tests.support.product import ROOT

STEM = DISTRIBUTION.replace("-", "_")


class Checklist:
    """Prints each check with its problems as it ends."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def add(self, name: str, check: Callable[[], list[str]]) -> bool:
        """Run a check; a check that fails in another way than by problems has failed, too."""
        try:
            problems = check()
        except (AssertionError, OSError, ValueError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        print(f"{'failed' if problems else 'ok':8}  {name}", flush=True)
        for problem in problems:
            print(f"            {problem}", flush=True)
        if problems:
            self.failed.append(name)
        return not problems

    def leave_out(self, name: str, reason: str) -> None:
        print(f"{'left out':8}  {name}: {reason}", flush=True)


def check_release(root: Path, work: Path, dist: Path, *, with_tests: bool) -> list[str]:
    """Run the checklist; returns the names of the checks that have failed."""
    todo = Checklist()
    todo.add("everything is committed", lambda: checks.uncommitted(root))
    clone = work / "clone"
    checks.git(root, "clone", "--quiet", "--no-hardlinks", str(root), str(clone))
    version = checks.version_of(clone)
    todo.add("the changelog has the version and its date", lambda: checks.changelog(clone))
    todo.add(f"the tag v{version} is free", lambda: checks.tag(root))
    todo.add("lint", lambda: checks.lint(clone))
    if with_tests:
        todo.add("tests", lambda: checks.tests(clone))
    else:
        todo.leave_out("tests", 'ARGS="--tests" runs them')
    _check_packages(todo, clone, work, dist, [root, clone, work, Path.home()])
    return todo.failed


def _check_packages(
    todo: Checklist, clone: Path, work: Path, dist: Path, directories: list[Path]
) -> None:
    source = work / "source"
    shutil.copytree(clone, source, symlinks=True)  # a build leaves files behind
    built = work / "dist"
    wheel, sdist = build("wheel", source, built), build("sdist", source, built)
    todo.add("twine check --strict", lambda: checks.metadata(wheel, sdist))
    todo.add("check-wheel-contents", lambda: checks.wheel_contents(clone, wheel))
    todo.add(
        "the sdist makes the same wheel",
        lambda: checks.wheel_of_sdist(wheel, sdist, work / "unpacked"),
    )
    todo.add(
        "no package names a directory of this machine",
        lambda: checks.machine_paths([wheel, sdist], directories),
    )
    target = work / "environment"
    bill = built / f"{STEM}-{checks.version_of(clone)}.cdx.json"
    if todo.add(
        "the wheel is installed into an empty environment",
        lambda: checks.environment(wheel, target),
    ):
        todo.add(
            "the bill of materials is whole",
            lambda: (
                checks.bill_of_materials(clone, target, bill)
                or checks.machine_paths([bill], directories)
            ),
        )
        todo.add(
            "the first program of the README runs",
            lambda: checks.first_program(wheel, target, work / "program"),
        )
        todo.add(
            "the README and the tutorial run as copied and pasted",
            lambda: checks.pages(clone, target, work / "pages"),
        )
    else:
        todo.leave_out(
            "bill of materials, first program, README and tutorial", "there is no environment"
        )
    _write(built, dist)


def _write(built: Path, dist: Path) -> None:
    """Put the packages into `dist`, with their checksums, in place of earlier ones."""
    dist.mkdir(exist_ok=True)
    for earlier in (*dist.glob(f"{STEM}-*"), *dist.glob("SHA256SUMS")):
        earlier.unlink()
    files = sorted(built.iterdir())
    for file in files:
        shutil.copy(file, dist)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (dist / "SHA256SUMS").write_text("".join(sums))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.add_argument("--tests", action="store_true", help="run the tests in the clone as well")
    with_tests: bool = parser.parse_args().tests
    dist = ROOT / "dist"
    with tempfile.TemporaryDirectory(prefix="millwheel-release-") as work:
        failed = check_release(ROOT, Path(work), dist, with_tests=with_tests)
    print(f"\nwritten to {dist}: {', '.join(sorted(file.name for file in dist.iterdir()))}")
    if failed:
        sys.exit(f"not ready: {', '.join(failed)}")
    print("ready: make the tag, and upload these files")


if __name__ == "__main__":
    main()
