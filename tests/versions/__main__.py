"""Runs some tests on each version of Python and of Postgres, and prints which could not be had.

    make versions                       # ten minutes
    make versions ARGS="--python /opt/python3.14/bin/python3.14"
    make versions ARGS="--page docs/reference/versions.md"       # write down the result

On each Python, with the newest Postgres: the unit tests, the contract of the store, the migrations,
and workers that are killed. On each Postgres, with this Python: the same without the unit tests. A
Python gets an environment of its own with the pinned packages.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.product import ROOT
from tests.versions.finding import WITHOUT, Version, find_postgres, find_pythons
from tests.versions.page import Result, page

UNIT = ("tests/unit",)
WITH_A_SERVER = (
    "tests/store/test_contract.py",
    "tests/store/test_migrations.py",
    "tests/store/test_views.py",
    "tests/cli/test_processes.py::"
    "test_a_killed_worker_is_started_again_and_ctrl_c_ends_all_in_order",
)


class NoEnvironment(Exception):
    """The pinned packages cannot be installed; the text is the first line of the reason."""


@dataclass(frozen=True)
class Row:
    """One run: a Python, a Postgres, and the tests."""

    python: Version
    postgres: Version
    tests: tuple[str, ...]


def rows(pythons: Sequence[Version], servers: Sequence[Version]) -> list[Row]:
    """Each Python on the newest Postgres that there is, and each older Postgres on this Python."""
    newest = next((one for one in reversed(servers) if one.place), servers[-1])
    own = platform.python_version_tuple()[:2]
    here = Version(".".join(own), platform.python_version(), Path(sys.executable))
    return [
        *(Row(each, newest, UNIT + WITH_A_SERVER) for each in pythons),
        *(Row(here, each, WITH_A_SERVER) for each in servers if each is not newest),
    ]


def pins(without: Collection[str]) -> str:
    """The pinned packages but these."""
    blocks = re.split(r"\n(?=\w)", (ROOT / "requirements.lock").read_text("utf-8"))
    return "\n".join(block for block in blocks if block.partition("==")[0] not in without)


def environment(python: Version, work: Path) -> Path:
    """The Python of an environment with the pinned packages; this one's own is used as it is."""
    assert python.place is not None
    if python.exact == platform.python_version():
        return Path(sys.executable)
    uv = Path(sys.executable).with_name("uv")
    target = work / f"python-{python.number}"
    new = target / "bin" / "python"
    pinned = work / f"python-{python.number}.txt"
    pinned.write_text(pins(WITHOUT.get(python.number, ())))
    pip = ("pip", "install", "-q", "--python", new)
    steps: list[tuple[str | Path, ...]] = [
        ("venv", "-q", "--python", python.place, target),
        (*pip, "--require-hashes", "-r", pinned),
        (*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT),
    ]
    for step in steps:
        offline = os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
        done = subprocess.run([uv, *step], env=offline, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, flush=True)
            raise NoEnvironment(done.stderr.partition("\n")[0])
    return new


def run(row: Row, work: Path) -> Result:
    """Run the tests of a row; its output is printed if they fail."""
    missing = row.python.missing or row.postgres.missing
    if missing:
        return Result(row.python, row.postgres, "not run", missing)
    try:
        python = environment(row.python, work)
    except NoEnvironment as reason:
        return Result(row.python, row.postgres, "failed", f"no environment: {reason}")
    chosen = f"{row.postgres.number}:{row.postgres.place}"
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *row.tests],
        cwd=ROOT,
        env=os.environ | {"MILLWHEEL_TEST_POSTGRES": chosen, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    counted = re.findall(
        r"^(?=.*\b(?:passed|failed)\b)[\d\w ,]+(?= in )", done.stdout, re.MULTILINE
    )
    if done.returncode or not counted:
        print("\n".join(done.stdout.splitlines()[-60:]), done.stderr[-3000:], sep="\n")
        return Result(row.python, row.postgres, "failed", (counted or ["no test ran"])[-1])
    missing = ", ".join(WITHOUT.get(row.python.number, ()))
    note = f"{counted[-1]}; without {missing}, which has no wheel" if missing else counted[-1]
    return Result(row.python, row.postgres, "passed", note)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make versions", description=__doc__)
    parser.add_argument("--python", type=Path, action="append", default=[], metavar="PROGRAM")
    parser.add_argument("--page", type=Path, help="write the result to a page")
    given = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="millwheel-versions-") as directory:
        work = Path(directory)
        work.chmod(0o755)  # the servers run as another user
        for row in rows(find_pythons(given.python), find_postgres(work)):
            results.append(run(row, work))
            print(results[-1], flush=True)
    if given.page is not None:
        given.page.write_text(page(results), "utf-8")
    failed = [result for result in results if result.outcome == "failed"]
    if failed:
        sys.exit(f"{len(failed)} of {len(results)} runs failed")


if __name__ == "__main__":
    main()
