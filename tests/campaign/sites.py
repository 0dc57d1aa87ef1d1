"""The Postgres of a run: an embedded one, one on a small disk of its own, or two of which one
follows.

What a site is told to do blocks; it is done in a thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import psycopg

from millwheel.store import embedded
from millwheel.store.embedded.account import server_account
from millwheel.store.embedded.binaries import find_binaries
from tests.faults.chaos import wait_for_end

USER = DATABASE = "millwheel"
PORT = 5432
DISK_MEGABYTES = 900
READY_SECONDS = 20.0
POLL_SECONDS = 0.05

SETTINGS = """
listen_addresses = ''
unix_socket_permissions = 0700
shared_buffers = '128MB'
max_wal_size = '1GB'
wal_keep_size = '256MB'
wal_compression = on
jit = off
timezone = 'UTC'
hot_standby = on
log_min_messages = warning
"""


class Refused(Exception):
    """This machine or this account may not have such a site."""


class Site(Protocol):
    """Where a run's store is."""

    url: str

    def crash(self) -> None:
        """End the server at once, without a checkpoint; it is down then."""

    def start(self) -> None:
        """Let it run again."""

    def postmaster(self) -> int | None:
        """The process that all others of the server belong to."""

    def remove(self) -> None:
        """Nothing of it is left."""

    def log(self) -> Path | None:
        """What the server said last is in this file."""


class Plain:
    """An embedded server in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "store"
        self.url = embedded.start(self.directory).url

    def postmaster(self) -> int | None:
        return embedded.status(self.directory).pid

    def crash(self) -> None:
        pid = self.postmaster()
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            wait_for_end(pid)

    def start(self) -> None:
        embedded.start(self.directory)

    def log(self) -> Path | None:
        data = embedded.status(self.directory).data_directory
        return None if data is None else newest(data / "log")

    def remove(self) -> None:
        embedded.remove(self.directory)


class SmallDisk(Plain):
    """An embedded server on a file system of its own, that can be filled."""

    def __init__(self, directory: Path) -> None:
        self._mount = directory / "store"
        self._mount.mkdir()
        options = f"size={DISK_MEGABYTES}m,mode=0755"
        do("mount", "-t", "tmpfs", "-o", options, "campaign", str(self._mount))
        try:
            super().__init__(directory)
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET max_wal_size = '128MB'")
                connection.execute("SELECT pg_reload_conf()")
        except BaseException:
            do("umount", "-l", str(self._mount))
            raise

    @property
    def _ballast(self) -> Path:
        return self._mount / "ballast"

    def fill(self) -> int:
        """Leave no room; gives how many bytes were taken."""
        taken = 0
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                taken += file.write(bytes(1 << 16))
        return taken

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def remove(self) -> None:
        self.free()
        with contextlib.suppress(OSError):
            super().remove()
        do("umount", "-l", str(self._mount))
        self._mount.rmdir()


class Replicated:
    """A primary, and a standby that has each commit before it is answered.

    Args:
        programs: the directory of Postgres' programs; None: as an embedded store finds them.
    """

    synchronous = True

    def __init__(self, directory: Path, programs: Path | None = None) -> None:
        self._account = server_account(os.geteuid(), decided=False)
        self._programs = programs or find_binaries(self._account).directory
        if not (self._programs / "pg_basebackup").exists():
            raise Refused(f"there is no pg_basebackup in {self._programs}")
        self._site = directory / "store"
        self._site.mkdir(mode=0o755)
        self._names = ("a", "b")
        self._primary = "a"
        self.url = (
            f"postgresql://{USER}@/{DATABASE}?host="
            + ",".join(quote(str(self._sockets(name)), safe="/") for name in self._names)
            + f"&port={PORT},{PORT}&target_session_attrs=read-write"
        )
        for name in self._names:
            self._account.make_directory(self._sockets(name))
        self._run(
            "initdb", f"--pgdata={self._data('a')}", f"--username={USER}", "--auth-local=trust",
            "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions", "--no-sync",
        )  # fmt: skip
        config = self._data("a") / "postgresql.conf"
        config.write_text(config.read_text() + SETTINGS)
        self._start("a")
        with self._connect("a", "postgres") as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}".encode())
        self._follow()

    def postmaster(self) -> int | None:
        """That of the primary."""
        with contextlib.suppress(OSError, ValueError):
            return int((self._data(self._primary) / "postmaster.pid").read_text().split()[0])
        return None

    def crash(self) -> None:
        pid = self.postmaster()
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            wait_for_end(pid)

    def start(self) -> None:
        try:
            self._start(self._primary)
        except Refused:  # it runs
            if self.postmaster() is None:
                raise

    def fail_over(self) -> None:
        """The primary's machine is gone, and the standby becomes the primary: if there is one,
        which may have ended when the primary crashed."""
        try:
            with self._connect(self._primary) as connection:
                self._wait(connection, self._followed)
        except (TimeoutError, psycopg.OperationalError):
            self.start()
            self.recover()
        pid = self.postmaster()
        if pid is not None:
            for process in [pid, *children(pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self._primary = self._other
        self._run("pg_ctl", "promote", "-w", "-D", str(self._data(self._primary)))

    def recover(self) -> None:
        """A new standby takes the place of the one that was lost."""
        with contextlib.suppress(Refused):
            self._run("pg_ctl", "stop", "-m", "immediate", "-D", str(self._data(self._other)))
        shutil.rmtree(self._data(self._other), ignore_errors=True)
        self._follow()

    def log(self) -> Path | None:
        return self._sockets(self._primary) / "server.log"

    def remove(self) -> None:
        for name in self._names:
            with contextlib.suppress(Refused):
                self._run("pg_ctl", "stop", "-m", "immediate", "-D", str(self._data(name)))
        shutil.rmtree(self._site, ignore_errors=True)

    @property
    def _followed(self) -> str:
        """What a standby is that may take the primary's place."""
        return "sync_state = 'sync'" if self.synchronous else "state = 'streaming'"

    @property
    def _other(self) -> str:
        return self._names[self._primary == self._names[0]]

    def _follow(self) -> None:
        """Make the standby; if it is synchronous, each commit waits for it from then on."""
        self._run(
            "pg_basebackup", "-h", str(self._sockets(self._primary)), "-p", str(PORT), "-U", USER,
            "-D", str(self._data(self._other)), "-R", "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip
        with contextlib.suppress(
            FileNotFoundError
        ):  # what ALTER SYSTEM said is not for the standby
            auto = self._data(self._other) / "postgresql.auto.conf"
            kept = [line for line in auto.read_text().splitlines() if "standby_names" not in line]
            auto.write_text("\n".join(kept) + "\n")
        self._start(self._other)
        with self._connect(self._primary) as connection:
            self._wait(connection, "state = 'streaming'")
            if not self.synchronous:
                return
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            self._wait(connection, "sync_state = 'sync'")

    def _wait(self, connection: psycopg.Connection[tuple[int]], what: str) -> None:
        until(
            lambda: connection.execute(
                f"SELECT 1 FROM pg_stat_replication WHERE {what}".encode()
            ).fetchone(),
            f"no standby with {what}",
        )

    def _connect(self, name: str, database: str = DATABASE) -> psycopg.Connection[tuple[int]]:
        return psycopg.connect(
            host=str(self._sockets(name)), port=PORT, user=USER, dbname=database, autocommit=True
        )

    def _start(self, name: str) -> None:
        self._run(
            "pg_ctl", "start", "-w", "-D", str(self._data(name)), "-l",
            str(self._sockets(name) / "server.log"),
            "-o", f"-p {PORT} -k {self._sockets(name)}",
        )  # fmt: skip

    @property
    def _variables(self) -> dict[str, str]:
        """Of the environment of its programs."""
        return {}

    def _data(self, name: str) -> Path:
        return self._sockets(name) / "data"

    def _sockets(self, name: str) -> Path:
        return self._site / name

    def _run(self, program: str, *words: str) -> None:
        # To a file: a server that a program starts keeps what it was given open.
        done = self._account.run(
            ["/bin/sh", "-c",
             'out=$(mktemp); "$@" >$out 2>&1; code=$?; cat $out; rm $out; exit $code',
             "sh", self._programs / program, *words],
            variables=self._variables,
        )  # fmt: skip
        if done.returncode:
            raise Refused(f"{program} {' '.join(words)}: {done.stdout}{done.stderr}")


class Lagging(Replicated):
    """A primary, and a standby that commits do not wait for: what a failover loses is the
    newest."""

    synchronous = False

    def hold_back(self) -> int:
        """Let nothing more come to the standby, as on a slow line; gives where that stands, in
        bytes."""
        with self._connect(self._primary) as connection:
            for (pid,) in connection.execute("SELECT pid FROM pg_stat_replication").fetchall():
                os.kill(pid, signal.SIGSTOP)
        return self.newest()

    def newest(self) -> int:
        """Where the primary's log of changes ends, in bytes."""
        with self._connect(self._primary) as connection:
            row = connection.execute(
                "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"
            ).fetchone()
        assert row is not None
        return int(row[0])


SHIM = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *ahead;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CAMPAIGN_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) ahead = found;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int answer = syscall(SYS_clock_gettime, clock, now);
    if (!answer && ahead && clock == CLOCK_REALTIME) now->tv_sec += *ahead;
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int answer = clock_gettime(CLOCK_REALTIME, &found);
    if (now) { now->tv_sec = found.tv_sec; now->tv_usec = found.tv_nsec / 1000; }
    return answer;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""
"""Adds to the clock as many seconds as a file says."""


class Stepping(Replicated):
    """A server whose clock can be set, by a library that is loaded before all others; no
    standby."""

    def __init__(self, directory: Path, programs: Path | None = None) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise Refused("there is no C compiler (cc) to make the library that moves the clock")
        self._library, self._clock = directory / "clock.so", directory / "clock"
        source = directory / "clock.c"
        source.write_text(SHIM)
        do(compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(source))
        self.set_clock(0)
        super().__init__(directory, programs)

    def set_clock(self, seconds: int) -> None:
        """Let the server's clock be so far ahead of the machine's, or behind it."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))
        self._clock.chmod(0o644)

    def _follow(self) -> None:
        """Nobody does."""

    @property
    def _variables(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CAMPAIGN_CLOCK": str(self._clock)}


SITES: dict[str, Callable[[Path], Site]] = {
    "plain": Plain,
    "small disk": SmallDisk,
    "replicated": Replicated,
    "lagging": Lagging,
    "stepping": Stepping,
}


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def newest(directory: Path) -> Path | None:
    """The file of a directory that was written last."""
    with contextlib.suppress(OSError):
        return max(directory.iterdir(), key=lambda path: path.stat().st_mtime, default=None)
    return None


def until(true: Callable[[], object], what: str) -> None:
    """Look again and again."""
    deadline = time.monotonic() + READY_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(POLL_SECONDS)


def do(*words: str) -> None:
    """Run a command to its end.

    Raises:
        Refused: it says no.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Refused(str(error)) from error
    if done.returncode:
        raise Refused(f"{' '.join(words)}: {done.stderr.strip()}")
