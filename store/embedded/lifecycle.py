"""Start, adoption and stop of an embedded Postgres: durable, one per store directory, a daemon.

The server outlives the process that started it, also after ``kill -9`` or Ctrl-C, and the next
process on the directory adopts it. All functions hold ``server.lock`` of the store directory while
they work, so that any number of processes may start at once and get one server. ``server.alive``
shows whether a server lives (see ``server_files``), and ``postmaster.pid`` its state::

    alive   pid file             start does
    no      missing, or stale    initdb if there is no data yet; start; Postgres does crash recovery
    yes     ready, and answers   adopt: starts no process, looks for no program
    yes     starting, stopping   wait SETTLE_SECONDS; then adopt, start, or StoreUnavailable
    yes     stale                orphans of a killed postmaster: wait for their end, as above

An interrupted first start leaves either no data directory (initdb works in ``data.new-*``, which is
renamed when complete), or a complete one without the database, which the next start adds. Then the
record is marked as ``ready``; from there on missing data is an error, never a reason to make a new
store.

Safety: no TCP. The socket is in a directory of mode 0700 of the server's account, which protects
``trust`` authentication. ``fsync``, ``synchronous_commit`` and ``full_page_writes`` are on the
command line, so that no file can turn them off (connections of workers raise the
``synchronous_commit`` of their role or database, see `millwheel.store.postgres.incarnation`). Sizes
are in ``postgresql.conf``, for the owner to change.

``stop_if_unused`` does not see a process that has the URL but is not connected yet: if the first
connection is refused, call ``start`` again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psycopg
from psycopg import sql

from millwheel.errors import EmbeddedServerError, StoreUnavailable
from millwheel.store.embedded import server_files
from millwheel.store.embedded.account import Account, server_account
from millwheel.store.embedded.binaries import Binaries, find_binaries
from millwheel.store.embedded.server_files import POLL_SECONDS, Postmaster, Site
from millwheel.store.postgres.statements import composed, text_of

SUPERUSER = "millwheel"
DATABASE = "millwheel"
MAINTENANCE_DATABASE = "postgres"

START_SECONDS = 120  # crash recovery replays up to max_wal_size: seconds, on any disk in use
SETTLE_SECONDS = 60.0  # wait for a server that is starting, stopping or ending after a kill
STOP_SECONDS = 60.0  # fast mode: roll back, write a checkpoint
LINGER_SECONDS = 0.5  # the backend of a closed connection may be listed this long
CONNECT_SECONDS = 5

LOG_TAIL_LINES = 15
LOG_FILES_KEPT = 8
LOG_FILE_MEGABYTES = 4
SCARCE_BYTES = 64 * 1024 * 1024  # a new store needs 40 MB, each WAL segment 16 MB

# Settings that this module relies on, and that make commits durable: on the command line.
_FIXED_SETTINGS = {
    "listen_addresses": "",
    "port": str(server_files.PORT),
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "server-%Y%m%d-%H%M%S.log",
    "log_truncate_on_rotation": "off",
    "log_rotation_age": "0",
    "log_rotation_size": f"{LOG_FILE_MEGABYTES}MB",
}

# Defaults of a new store; the owner may edit them or use ALTER SYSTEM.
_INITIAL_SETTINGS = """
# Written by millwheel when it made this store.
shared_buffers = '128MB'
max_connections = 100
max_wal_size = '1GB'
wal_compression = on          # pglz: every build has it, lz4 only some
autovacuum = on
jit = off                     # compiling costs more than these short statements
timezone = 'UTC'
log_timezone = 'UTC'
log_min_messages = warning
log_line_prefix = '%m [%p] %q%u@%d '
"""

State = Literal["absent", "stopped", "starting", "ready", "stopping"]


@dataclass(frozen=True)
class EmbeddedServer:
    """A running server.

    ``url`` is a libpq URL without a password. ``adopted``: the server was running already.
    """

    url: str
    directory: Path
    major_version: int
    pid: int
    data_directory: Path
    adopted: bool


@dataclass(frozen=True)
class ServerStatus:
    """The state of a server according to its files. ``absent``: no store in the directory.

    ``pid`` and ``url`` are None unless the server runs, ``url`` also while there is no socket yet;
    ``major_version`` and ``data_directory`` are None unless there is data.
    """

    directory: Path
    state: State
    pid: int | None = None
    url: str | None = None
    major_version: int | None = None
    data_directory: Path | None = None

    @property
    def running(self) -> bool:
        return self.state in ("starting", "ready", "stopping")


# ------------------------------------------------------------------------------- functions


def start(directory: Path, *, binaries: Path | None = None) -> EmbeddedServer:
    """Start the server of a store directory, or adopt it if it runs.

    A missing directory is made; it must be new, empty, or a store. Takes about 0.7 s the first
    time, 0.15 s later, 0.02 s to adopt. ``binaries`` is the only directory of Postgres programs to
    use; without it they are searched (see the module ``binaries``).

    Raises:
        EmbeddedServerError: it cannot be started, and another attempt would not help; the
            message names the cause, and ends with the last lines of the server's log.
        StoreUnavailable: another process is starting or stopping it, or it is recovering,
            for longer than the wait. Try again.
    """
    with _system_errors("start", directory) as store:
        server_files.prepare(store)
        with server_files.locked(store):
            site = server_files.find_site(store) or server_files.choose_site(store)
            postmaster = _settle(site)
            adopted = postmaster is not None
            if postmaster is None:
                _bring_up(site, binaries)
                postmaster = _settle(site)
                if postmaster is None:
                    raise EmbeddedServerError(
                        f"the server of {store} started and ended at once.{_last_words(site)}"
                    )
            if not site.ready:
                _ensure_database(postmaster)
                site = server_files.mark_ready(site)
                _leave_earlier(site)
            _trim_log(site)
            return EmbeddedServer(
                url=_url(postmaster),
                directory=store,
                major_version=_major_version(site),
                pid=postmaster.pid,
                data_directory=site.data,
                adopted=adopted,
            )


def stop(directory: Path) -> bool:
    """Stop the server: it rolls open transactions back and disconnects clients.

    Returns whether a server was running; all its processes have ended on return.

    Raises:
        EmbeddedServerError: this user may not stop it.
        StoreUnavailable: it has not ended within ``STOP_SECONDS``; its shutdown continues.
    """
    with _existing("stop", directory) as site:
        return site is not None and _stop(site)


def stop_if_unused(directory: Path) -> bool:
    """Stop the server unless a client is connected to one of its databases; returns whether it was
    stopped.

    Close your own connections first. Not if it does not answer. Raises as ``stop``.
    """
    with _existing("stop", directory) as site:
        if site is None or not _alive(site):
            return False
        postmaster = server_files.read_postmaster(site)
        if postmaster is None or _used(postmaster):
            return False
        return _stop(site)


def remove(directory: Path) -> bool:
    """Stop the server and delete its data, and the store directory if it is empty then; False:
    there was no store.

    For tests and for a new start; deleting the directory alone leaves data outside it (see
    ``server_files``). Raises as ``stop``.
    """
    with _existing("remove", directory) as site:
        if site is None:
            return False
        _stop(site)
        server_files.erase(site)
        return True


def programs(directory: Path) -> Binaries:
    """The Postgres programs that a new store would run on; `EmbeddedServerError` if there are
    none."""
    with _system_errors("look at", directory):
        return find_binaries(server_account(os.geteuid(), decided=False))


def status(directory: Path) -> ServerStatus:
    """Starts, waits for and locks nothing.

    `EmbeddedServerError` if the store's record cannot be read or its data is missing.
    """
    with _system_errors("look at", directory) as store:
        site = server_files.find_site(store)
        if site is None or not site.data.exists():
            return ServerStatus(store, "absent")
        major = _major_version(site)
        postmaster = server_files.read_postmaster(site)
        if not _alive(site):
            return ServerStatus(store, "stopped", None, None, major, site.data)
        state: State = "starting"
        if postmaster is not None and postmaster.state in ("ready", "stopping"):
            state = "ready" if postmaster.state == "ready" else "stopping"
        return ServerStatus(
            store,
            state,
            postmaster.pid if postmaster else None,
            _url(postmaster) if postmaster and state == "ready" else None,
            major,
            site.data,
        )


# ------------------------------------------------------------------- finding a running server


def _alive(site: Site) -> bool:
    if site.held():
        return True
    postmaster = server_files.read_postmaster(site)
    # Started by hand, or on a file system where flocks are not inherited.
    return postmaster is not None and server_files.is_postmaster(postmaster, site)


def _settle(site: Site) -> Postmaster | None:
    """Wait until the server answers; None: there is certainly no server."""
    deadline = time.monotonic() + SETTLE_SECONDS
    problem = "it has not written postmaster.pid"
    while _alive(site):
        postmaster = server_files.read_postmaster(site)
        if postmaster is not None and postmaster.state == "ready":
            problem = _try_to_reach(postmaster)
            if not problem:
                return postmaster
        elif postmaster is not None:
            problem = f"it is {postmaster.state}"
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"a server process of {site.data} lives, but for {SETTLE_SECONDS:g} s no "
                f"connection could be made: {problem}. Try again if it is recovering or "
                f"shutting down; otherwise stop it (`millwheel stop {site.store}`, or in the "
                f"container that runs it).{_last_words(site)}"
            )
        time.sleep(POLL_SECONDS)
    return None


def _try_to_reach(postmaster: Postmaster) -> str:
    """Returns the problem, or ''."""
    try:
        with _connect(postmaster) as connection:
            row = connection.execute(text_of("data_directory")).fetchone()
    except psycopg.OperationalError as error:
        # The server runs. A command that works with it meets the same error, with a better message.
        return "" if "too many clients" in str(error) else str(error).strip()
    if row is None or os.path.realpath(row[0]) != str(postmaster.data):
        return f"{postmaster.socket_directory} leads to the server of {row}"
    return ""


def _connect(postmaster: Postmaster) -> psycopg.Connection[tuple[str]]:
    return psycopg.connect(
        _url(postmaster, MAINTENANCE_DATABASE),
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        application_name="millwheel embedded",
    )


def _url(postmaster: Postmaster, database: str = DATABASE) -> str:
    # With the port, because a PGPORT of the user would name another socket.
    host = quote(str(postmaster.socket_directory), safe="/")
    return f"postgresql://{SUPERUSER}@/{database}?host={host}&port={postmaster.port}"


def _major_version(site: Site) -> int:
    return int((site.data / "PG_VERSION").read_text())


# ------------------------------------------------------------------------------ start


def _bring_up(site: Site, only: Path | None) -> None:
    account = site.account()
    known = _major_version(site) if site.data.exists() else None
    binaries = find_binaries(account, major=known, only=only)
    if account.borrowed and not account.can_enter(site.base):
        raise EmbeddedServerError(
            f"Postgres does not run as root, and user {account.name}, which runs the server of "
            f"{site.store}, cannot enter {site.base} any more: give it the execute permission "
            "on that directory and those above it, or move the store to a place it can enter."
        )
    if known is None:
        _make_data(site, account, binaries)
    _launch(site, account, binaries)


def _make_data(site: Site, account: Account, binaries: Binaries) -> None:
    fresh = server_files.new_data_directory(site, account)
    try:
        _initdb(site, account, binaries, fresh)
        fresh.rename(site.data)
        server_files.sync_directory(site.base)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _initdb(site: Site, account: Account, binaries: Binaries, fresh: Path) -> None:
    # macOS has no C.UTF-8. Both sort by code point, so no index depends on the system.
    for locale in ("C",) if sys.platform == "darwin" else ("C.UTF-8", "C"):
        answer = account.run(
            [
                binaries.directory / "initdb",
                f"--pgdata={fresh}",
                f"--username={SUPERUSER}",
                "--auth-local=trust",
                "--auth-host=reject",
                "--encoding=UTF8",
                f"--locale={locale}",
                "--data-checksums",
                "--no-instructions",
            ]
        )
        if "invalid locale name" not in answer.stderr:
            break
    if answer.returncode == 0:
        # The account itself writes: root does not write in another user's directory.
        answer = account.run(
            ["/bin/sh", "-c", 'cat >> "$0/postgresql.conf"', fresh], text=_INITIAL_SETTINGS
        )
    if answer.returncode != 0:
        hint = ""
        if "could not look up effective user ID" in answer.stderr:
            hint = " initdb needs a user with an entry in /etc/passwd."
        raise EmbeddedServerError(
            f"initdb of Postgres {binaries.version} ({binaries.directory}) failed for "
            f"{site.store}, run by user {account.name}.{hint}{_disk_hint(site.base)}"
            f"\n{_indent(answer.stderr or answer.stdout)}"
        )


def _launch(site: Site, account: Account, binaries: Binaries) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while (alive := site.hold()) is None:  # a `status` of another process takes it for a moment
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"{site.base / server_files.ALIVE} is held; try again.")
        time.sleep(POLL_SECONDS)
    try:
        server_files.clear_stale_pid_file(site)
        sockets = server_files.make_socket_directory(site, account)
        settings = _FIXED_SETTINGS | {"unix_socket_directories": str(sockets)}
        options = " ".join(f"-c {name}={shlex.quote(value)}" for name, value in settings.items())
        answer = account.run(
            [
                binaries.directory / "pg_ctl",
                "start",
                "--wait",
                f"--timeout={START_SECONDS}",
                f"--log={sockets / 'start.log'}",
                f"--options={options}",
            ],
            # Not by --pgdata, which pg_ctl passes through a shell.
            variables={"PGDATA": str(site.data)},
            keep_open=[alive],
            seconds=START_SECONDS + 30,
        )
    finally:
        os.close(alive)
    if answer.returncode == 0:
        return
    if site.held():
        raise StoreUnavailable(
            f"the server of {site.store} is not ready after {START_SECONDS} s; most likely it "
            "still recovers from a crash. Try again."
            f"{_last_words(site, sockets)}"
        )
    raise EmbeddedServerError(
        f"Postgres {binaries.version} ({binaries.directory}) did not start on {site.data}, run "
        f"by user {account.name}.{_disk_hint(site.base)}"
        f"{_last_words(site, sockets) or _indent(answer.stderr or answer.stdout)}"
    )


def _ensure_database(postmaster: Postmaster) -> None:
    with contextlib.closing(_connect(postmaster)) as connection:
        known = connection.execute(text_of("find_database"), {"name": DATABASE}).fetchone()
        if known is None or not known[0]:
            # A killed starter's server process may finish the same statement meanwhile: the index
            # tells.
            exists = (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation)
            with contextlib.suppress(*exists):
                connection.execute(composed("create_database", database=sql.Identifier(DATABASE)))


def _leave_earlier(site: Site) -> None:
    """Stop a server that a deleted store directory of the same path has left; see server_files."""
    if not site.outside or not (earlier := server_files.earlier_sites(site)):
        return
    for other in earlier:
        postmaster = server_files.read_postmaster(other)
        if postmaster is not None and _alive(other) and not _used(postmaster):
            with contextlib.suppress(StoreUnavailable):
                _stop(other)
    server_files.warn_of_earlier(earlier)


# ------------------------------------------------------------------------------ stop


def _used(postmaster: Postmaster) -> bool:
    """Whether another client is connected, or the server does not answer."""
    deadline = time.monotonic() + LINGER_SECONDS
    try:
        with contextlib.closing(_connect(postmaster)) as connection:
            while True:
                row = connection.execute(text_of("other_clients")).fetchone()
                if row is None or not row[0]:
                    return False
                if time.monotonic() > deadline:
                    return True
                time.sleep(POLL_SECONDS)
    except psycopg.OperationalError:
        return True


def _stop(site: Site) -> bool:
    if not _alive(site):
        return False
    deadline = time.monotonic() + STOP_SECONDS
    signalled: Postmaster | None = None
    while _alive(site):
        postmaster = server_files.read_postmaster(site)
        if (
            postmaster is not None
            and signalled is None
            and server_files.is_postmaster(postmaster, site)
        ):
            with contextlib.suppress(ProcessLookupError):
                os.kill(postmaster.pid, signal.SIGINT)  # fast shutdown; pg_ctl does the same
            signalled = postmaster
        if time.monotonic() > deadline:
            state = "is still shutting down" if signalled else "has no postmaster that is seen here"
            raise StoreUnavailable(
                f"the server of {site.store} {state} after {STOP_SECONDS:g} s (it may run in "
                f"another container). Try again, or end it there.{_last_words(site)}"
            )
        time.sleep(POLL_SECONDS)
    if signalled is not None and signalled.socket_directory.name == site.socket_name:
        shutil.rmtree(signalled.socket_directory, ignore_errors=True)
    return True


# -------------------------------------------------------------------------- errors and logs


@contextlib.contextmanager
def _system_errors(verb: str, directory: Path) -> Iterator[Path]:
    """Errors of the system are raised with directory and cause."""
    store = Path(os.path.realpath(directory))
    try:
        yield store
    except PermissionError as error:
        raise EmbeddedServerError(
            f"cannot {verb} the embedded server in {store}: user id {os.geteuid()} has no "
            f"permission for {error.filename or 'a file of it'}. Run as the user the store "
            "belongs to, or give --store another directory."
        ) from error
    except OSError as error:
        raise EmbeddedServerError(
            f"cannot {verb} the embedded server in {store}: {error}.{_disk_hint(store)} Correct "
            "that, or give --store another directory."
        ) from error
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"the embedded server in {store} broke off while it was prepared: {error}."
            f"{_disk_hint(store)} Try again."
        ) from error


@contextlib.contextmanager
def _existing(verb: str, directory: Path) -> Iterator[Site | None]:
    """The locked site of a store directory; None if there is no store."""
    with _system_errors(verb, directory) as store:
        if not (store / server_files.RECORD).exists():
            yield None
            return
        with server_files.locked(store):
            yield server_files.find_site(store)


def _disk_hint(path: Path) -> str:
    while not path.exists():
        path = path.parent
    total, _, free = shutil.disk_usage(path)
    if free >= SCARCE_BYTES or total == 0:  # /proc and the like have no size
        return ""
    return (
        f" Only {free // 1024} kB are free on the disk of {path}: make room (a new store needs "
        "40 MB), then start again."
    )


def _last_words(site: Site, sockets: Path | None = None) -> str:
    """The server's log, and its output before it had a log, indented."""
    logs = _log_files(site)[-1:]
    if sockets is None and (postmaster := server_files.read_postmaster(site)) is not None:
        sockets = postmaster.socket_directory
    if sockets is not None:
        logs.append(sockets / "start.log")
    excerpts = ""
    for path in logs:
        with contextlib.suppress(OSError):
            if text := path.read_text(errors="replace").strip():
                excerpts += f"\n  {path}:\n{_indent(text)}"
    return excerpts


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-LOG_TAIL_LINES:])


def _log_files(site: Site) -> list[Path]:
    """Oldest first: their names are times."""
    return sorted((site.data / "log").glob("server-*.log"))


def _trim_log(site: Site) -> None:
    """Delete old log files: Postgres begins a new file when one is full, and deletes none."""
    for path in _log_files(site)[:-LOG_FILES_KEPT]:
        path.unlink(missing_ok=True)
