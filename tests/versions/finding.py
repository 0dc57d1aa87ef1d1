"""Finds the versions: on the machine, in a package, or as a jar of Maven's."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from millwheel.store.embedded import binaries

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
WITHOUT = {"3.14": ("datasketches",)}
"""Packages of `requirements.lock` that have no wheel for a version: the extra `sketches`."""
JARS = {14: "14.20.0", 15: "15.15.0", 16: "16.11.0", 17: "17.7.0", 18: "18.1.0"}
"""The versions of Postgres, and of the jar with its programs."""
DEBIAN = Path("/usr/lib/postgresql")
ARTIFACT = "io.zonky.test.postgres:embedded-postgres-binaries"


@dataclass(frozen=True)
class Version:
    """A version that is wanted.

    Attributes:
        number: such as ``3.12`` or ``16``.
        exact: such as ``3.12.1``; empty if it was not found.
        place: Python's program, or the directory of Postgres' programs.
        missing: why there is none.
    """

    number: str
    exact: str = ""
    place: Path | None = None
    missing: str = ""


def find_pythons(given: Sequence[Path] = ()) -> list[Version]:
    """The wanted versions of Python; programs that are given come first."""
    return [_find_python(number, given) for number in PYTHONS]


def _find_python(number: str, given: Iterable[Path]) -> Version:
    for program in (*given, *_programs(number)):
        exact = _version_of(program)
        if exact.startswith(f"{number}."):
            return Version(number, exact, program)
    return Version(number, missing=f"no python{number} on the PATH, in pyenv, or given (--python)")


def _programs(number: str) -> Iterator[Path]:
    if found := shutil.which(f"python{number}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{number}.*/bin/python{number}"))


def _version_of(program: Path) -> str:
    """Empty if the program does not run: pyenv has programs that only say so."""
    script = "import platform; print(platform.python_version())"
    try:
        done = subprocess.run([program, "-I", "-c", script], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_postgres(work: Path) -> list[Version]:
    """The wanted versions of Postgres; what is fetched is put into `work`."""
    return [_find_postgres(number, work) for number in JARS]


def _find_postgres(number: int, work: Path) -> Version:
    places = [DEBIAN / str(number) / "bin", binaries.packaged_directory()]
    for place in (place for place in places if place is not None):
        exact = postgres_version(place)
        if exact.partition(".")[0] == str(number):
            return Version(str(number), exact, place)
    try:
        place = fetch_postgres(number, work)
    except Unavailable as reason:
        return Version(str(number), missing=str(reason))
    return Version(str(number), postgres_version(place), place)


def postgres_version(place: Path) -> str:
    """The exact version of the programs in a directory; empty if there are none."""
    if not all((place / program).is_file() for program in binaries.PROGRAMS):
        return ""
    shown = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True)
    return shown.stdout.partition(")")[2].split()[0] if shown.returncode == 0 else ""


class Unavailable(Exception):
    """A version cannot be had here; the text is the reason."""


def fetch_postgres(number: int, work: Path) -> Path:
    """Unpack the jar of a version, and return the directory of its programs."""
    jar = _copy_jar(f"{ARTIFACT}-{_machine()}:{JARS[number]}", work / "jars")
    target = work / f"postgres-{number}"
    with zipfile.ZipFile(jar) as archive:
        (packed,) = [name for name in archive.namelist() if name.endswith(".txz")]
        archive.extract(packed, work)
    with tarfile.open(work / packed) as archive_:
        archive_.extractall(target, filter="data")
    (work / packed).unlink()
    return target / "bin"


def _machine() -> str:
    """The part of the artifact's name for this system and processor."""
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system())
    processor = {"x86_64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}
    if system is None or platform.machine() not in processor:
        raise Unavailable(f"there are no programs for {platform.system()} {platform.machine()}")
    return f"{system}-{processor[platform.machine()]}"


def _copy_jar(artifact: str, target: Path) -> Path:
    if shutil.which("mvn") is None:
        raise Unavailable("neither on this machine nor in a package, and there is no mvn to get it")
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={target}"], capture_output=True, text=True, cwd=target.parent
    )
    name = "-".join(artifact.split(":")[1:]) + ".jar"
    if done.returncode or not (target / name).is_file():
        raise Unavailable(f"Maven could not copy {artifact}")
    return target / name
