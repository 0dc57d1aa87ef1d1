"""Makes ``.venv`` ready: the pinned packages of requirements.lock, and millwheel itself.

Run through ``.ci/setup``, by ``make setup`` and everything that needs it. It returns at once when
nothing changed: ``READY``, written last, holds a checksum of what the environment was made from.
``UNFINISHED`` lies in an environment from before the first package goes in until the last one is:
one that still has it was interrupted, and is made anew. A ``.venv`` with neither file was made by
somebody else: it is filled, never deleted.

It uses nothing but the standard library, and pip as the machine has it configured.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements.lock"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / ".millwheel-ready"
UNFINISHED = VENV / ".millwheel-unfinished"

PIP = [str(PYTHON), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q"]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
IS_DEBIAN_ROOT = os.geteuid() == 0 and shutil.which("apt-get") is not None


def main() -> None:
    if READY.is_file() and READY.read_text() == made_from() and works():
        return
    with alone():
        if not (READY.is_file() and READY.read_text() == made_from() and works()):
            make_ready()


def make_ready() -> None:
    began = time.monotonic()
    ours = READY.exists() or UNFINISHED.exists()
    moved = READY.exists() and READY.read_text().splitlines()[:1] != made_from().splitlines()[:1]
    if ours and (UNFINISHED.exists() or moved or not works()):
        say("Removing a .venv that is half made, or from another place")
        shutil.rmtree(VENV)
    if VENV.exists() and not works():
        stop(f"{VENV} is not a virtual environment of Python 3.11 or later: remove it, try again.")
    if VENV.exists():
        if ours:
            UNFINISHED.touch()
    else:
        say(f"Making .venv with Python {VERSION} ({sys.executable})")
        VENV.mkdir()
        UNFINISHED.touch()
        make_environment()
    READY.unlink(missing_ok=True)
    install()
    say(which_java())
    unfinished = READY.with_suffix(".new")
    unfinished.write_text(made_from())
    unfinished.replace(READY)
    UNFINISHED.unlink(missing_ok=True)
    say(f".venv is ready ({time.monotonic() - began:.0f} s)")


def made_from() -> str:
    """What must not have changed: the place, which stands in the scripts, and the two files."""
    digest = hashlib.sha256(PINS.read_bytes() + b"\0" + (ROOT / "pyproject.toml").read_bytes())
    return f"{ROOT}\n{digest.hexdigest()}\n"


def works() -> bool:
    """Whether the environment's Python starts (its base may be gone), is new enough and has pip."""
    check = "import pip, sys; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)"
    try:
        return subprocess.run([PYTHON, "-I", "-c", check], capture_output=True).returncode == 0
    except OSError:
        return False


def make_environment() -> None:
    """A virtual environment with pip, by what this machine has; Debian keeps venv's half back."""
    if has("ensurepip"):
        run([sys.executable, "-m", "venv", str(VENV)])
    elif has("virtualenv"):
        run([sys.executable, "-m", "virtualenv", "-q", str(VENV)])
    elif virtualenv := shutil.which("virtualenv"):
        run([virtualenv, "-q", "-p", sys.executable, str(VENV)])
    elif has("venv") and has("pip"):
        run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
        run([sys.executable, "-m", "pip", "-q", "--python", str(PYTHON), "install", "pip"])
    elif IS_DEBIAN_ROOT:
        say(f"This Python cannot make virtual environments: installing python{VERSION}-venv")
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        run(["apt-get", "-qq", "update"], quiet=True)
        run(["apt-get", "-qq", "install", "-y", f"python{VERSION}-venv"], quiet=True)
        run([sys.executable, "-m", "venv", str(VENV)])
    else:
        shutil.rmtree(VENV)
        stop(
            f"{sys.executable} cannot make virtual environments. Install what it lacks, try again:\n"
            f"  sudo apt-get install python{VERSION}-venv"
        )


def install() -> None:
    """Pinned packages first, the build backend before all others: nothing unpinned builds them."""
    pins = PINS.read_text()
    count = len(re.findall(r"^\w", pins, re.MULTILINE))
    say(f"Installing {count} pinned packages: a minute or two, 1.3 GB on disk, most of it Spark")
    backend = re.search(r"^setuptools==(?:.*\\\n)*.*\n", pins, re.MULTILINE)
    assert backend is not None, "requirements.lock has no setuptools: run `make lock`"
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "backend.lock"
        first.write_text(backend[0])
        run([*PIP, "--require-hashes", "-r", str(first)])
    as_it_is = ["--no-build-isolation", "--use-pep517"]
    run([*PIP, *as_it_is, "--require-hashes", "-r", str(PINS)])
    run([*PIP, *as_it_is, "--no-deps", "-e", str(ROOT)], quiet=True)


def which_java() -> str:
    """What Spark will run on. None is no reason to stop: everything else works without."""
    find = "from millwheel.java import find_java; print(find_java())"
    answer = subprocess.run([PYTHON, "-I", "-c", find], capture_output=True, text=True)
    if answer.returncode != 0:
        return f"Spark will not run.\n{answer.stderr.strip().rpartition('UsageError: ')[2]}"
    return f"Spark will run on {answer.stdout.strip()}"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let `make test` and `make demo`, started together, not fill one .venv at once."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another setup of this checkout")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def run(command: list[str], *, quiet: bool = False) -> None:
    """``quiet``: what the command says is shown only if it fails."""
    finished = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PIP_USER": "0"},  # a machine-wide `user = true` fails inside a venv
    )
    if finished.returncode != 0:
        if quiet:
            print(finished.stdout, file=sys.stderr)
        stop(f"This failed, for the reason above:\n  {' '.join(command)}")


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def stop(text: str) -> NoReturn:
    print(f"setup: {text}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nsetup: interrupted; the next run starts over", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        stop(f"{error}")
