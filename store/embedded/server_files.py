"""The files of an embedded store, and the locks that say which processes use them.

::

    <store directory>/
        server.json     the record: format, id of the store, place of its data, whether it is ready
        server.lock     flock: held by a process that starts, adopts or stops the server
        server.alive    flock: held by the server's own processes as long as they live
        data/           Postgres's data directory, mode 0700, of the server's account
        data.new-*      an interrupted initdb; the next start removes it
    <run directory>/<hash>/       /run/millwheel (root), /tmp/millwheel-<uid> (others)
        .s.PGSQL.5432   the socket, behind a directory of mode 0700
        start.log       the server's output before it had a log

**Root with a store directory that its server's account cannot reach** (``/root/project``, a private
temporary directory): ``data/`` and ``server.alive`` are in ``/var/lib/millwheel/<store id>/``, as
the record says. The id is random: old data never comes back by itself in a directory that was
deleted and made again. Data of a missing directory is neither taken over nor deleted, because the
directory may have been moved, or not be mounted. Its server is stopped if it has no clients, and a
warning names the place. ``embedded.remove`` deletes both parts.

**The alive lock** shows whether a server runs, without a guess from process ids. The server
inherits the starter's open file, and the kernel releases the flock when the last process of that
server has ended, orphaned backends of a killed postmaster included, also in another container.
Where flock is not inherited (NFS), ``postmaster.pid`` and that process's command line decide.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from millwheel.errors import EmbeddedServerError, StoreUnavailable
from millwheel.store.embedded.account import Account, claim_directory, server_account

RECORD = "server.json"
LOCK = "server.lock"
ALIVE = "server.alive"
DATA = "data"
HALF_MADE = "data.new-"
ORIGIN = "origin"  # names the store directory, in a place outside it
FORMAT = 1

STATE_ROOT = Path("/var/lib/millwheel")
RUN_ROOT = Path("/run")
SHORT_ROOT = Path("/tmp").resolve()  # noqa: S108 - claim_directory guards what is made in it
SOCKET_PATH_BYTES = 103  # macOS's limit with its final zero; Linux has 107
PORT = 5432  # only a part of the socket's name

LOCK_SECONDS = 150.0  # longer than the longest start
POLL_SECONDS = 0.02

# Files that a directory may have before it becomes a store: those written before the record, and
# those that file systems and finders put everywhere.
_HARMLESS = frozenset({LOCK, ALIVE, RECORD + ".new", ".gitignore", "lost+found", ".DS_Store"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Site:
    """One store: its directory, its id, and the place of its data. All paths are real paths."""

    store: Path
    id: str
    outside: bool  # the data is in STATE_ROOT, not in the store directory
    ready: bool  # the data directory was complete once; if it is gone, that is a loss

    @property
    def base(self) -> Path:
        return STATE_ROOT / self.id if self.outside else self.store

    @property
    def data(self) -> Path:
        return self.base / DATA

    @property
    def socket_name(self) -> str:
        """Name of the run directory. It depends on the id, so that the server of a deleted store,
        which removes its socket by name when it ends, does not remove that of the next store."""
        return hashlib.sha256(f"{self.id}:{self.data}".encode()).hexdigest()[:16]

    def account(self) -> Account:
        try:
            found = os.lstat(self.data)
        except FileNotFoundError:
            return server_account(self.store.stat().st_uid, decided=False)
        if not stat.S_ISDIR(found.st_mode):
            raise EmbeddedServerError(
                f"{self.data} is not a directory (links are not followed either; the store "
                "directory itself may be one)."
            )
        return server_account(found.st_uid, decided=True)

    def hold(self) -> int | None:
        """Take the alive lock for a server about to start: an open file that the server inherits.

        Close it afterwards, never unlock it: the server keeps the lock. None: the lock is held.
        """
        fd = _open_shared(self.base / ALIVE, self.base)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def held(self) -> bool:
        """Whether a process of the server lives, by the alive lock only."""
        try:
            fd = os.open(self.base / ALIVE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


# ------------------------------------------------------------------ the store directory


def prepare(store: Path) -> None:
    """Make the store directory, or check that an existing one can be used.

    `EmbeddedServerError` if it is a file, or contains other files than a store's, or its path
    cannot be given to Postgres's tools.
    """
    if re.search(r'["$`\\\x00-\x1f]', str(store)):
        raise EmbeddedServerError(
            f"the store directory {str(store)!r} has a character in its path that Postgres's "
            'own tools give to a shell unquoted (one of " $ ` \\ or a control character): '
            "choose another path."
        )
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        # Of root's store, the server's account must be able to enter; `data` is closed.
        mode = 0o755 if os.geteuid() == 0 else 0o700
        store.mkdir(mode)
        store.chmod(mode)  # the umask may have taken bits away
    except (FileExistsError, NotADirectoryError):
        pass
    if not store.is_dir():
        raise EmbeddedServerError(
            f"{store} cannot be a store directory: it, or a part of its path, is a file."
        )
    names = os.listdir(store)
    if RECORD in names:  # looked for in the same list: another process may write it now
        return
    foreign = sorted(
        name for name in names if name not in _HARMLESS and not name.startswith(HALF_MADE)
    )
    if "PG_VERSION" in foreign:
        raise EmbeddedServerError(
            f"{store} is a Postgres data directory that millwheel did not make; nothing was "
            "touched. Start that server yourself and give --store its postgresql:// URL, or "
            "choose another directory."
        )
    if foreign:
        shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise EmbeddedServerError(
            f"{store} is not empty and holds no millwheel store (no {RECORD}; found {shown}); "
            "nothing was touched. Choose an empty or a new directory, e.g. "
            f"{store / '.millwheel'}."
        )


@contextlib.contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the lock under which a process starts, adopts or stops the server of ``store``.

    `StoreUnavailable` if another process held it for ``LOCK_SECONDS``.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    path = store / LOCK
    while True:
        fd = _open_shared(path, store)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # `remove` may have deleted the file during the wait: then the lock excludes no other
            # process.
            current = os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path))
        except BlockingIOError:
            current = False
        except BaseException:
            os.close(fd)
            raise
        if current:
            break
        os.close(fd)
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"another process has been starting or stopping the server of {store} for "
                f"{LOCK_SECONDS:g} s (it holds {path}); try again, or look for it with "
                f"`fuser {path}`."
            )
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        os.close(fd)


def find_site(store: Path) -> Site | None:
    """The recorded store, if there is one.

    `EmbeddedServerError` if the record cannot be read, or its data is missing.
    """
    path = store / RECORD
    try:
        written = json.loads(path.read_text())
        if written["format"] != FORMAT:
            raise EmbeddedServerError(
                f"{path} has format {written['format']!r}, this millwheel knows {FORMAT}: it "
                "was written by another version; install that one."
            )
        site = Site(store, written["id"], bool(written["outside"]), bool(written["ready"]))
        # Root may read another user's record, so it contains a name, never a path.
        genuine = re.fullmatch(r"[0-9a-f]{16}", site.id) is not None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        genuine = False
    if not genuine:
        raise EmbeddedServerError(
            f"{path} is not a record that millwheel wrote. It should read like "
            f'{{"format": {FORMAT}, "id": "0123456789abcdef", "outside": false, "ready": true}}; '
            "the data itself is not touched by it."
        )
    if site.ready and not (site.data / "PG_VERSION").exists():
        _explain_missing(site)
    if site.outside:
        _claim_origin(site)
    return site


def choose_site(store: Path) -> Site:
    """Choose the place of a new store's data, and record it before any data is made."""
    account = server_account(store.stat().st_uid, decided=False)
    site = Site(store, secrets.token_hex(8), outside=False, ready=False)
    if account.borrowed and not account.can_enter(store):
        site = _choose_outside(site)
    with contextlib.suppress(FileExistsError):
        fd = os.open(store / ".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with open(fd, "w") as ignore:
            ignore.write("*\n")
        _hand_over(store / ".gitignore", store)
    write_record(site)
    return site


def mark_ready(site: Site) -> Site:
    site = replace(site, ready=True)
    write_record(site)
    return site


def write_record(site: Site) -> None:
    """Durably and atomically."""
    fresh = site.store / (RECORD + ".new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with open(fd, "w") as file:
        written = {"format": FORMAT, "id": site.id, "outside": site.outside, "ready": site.ready}
        file.write(json.dumps(written) + "\n")
        file.flush()
        os.fsync(file.fileno())
    _hand_over(fresh, site.store)
    fresh.rename(site.store / RECORD)
    sync_directory(site.store)


def erase(site: Site) -> None:
    if site.outside:
        shutil.rmtree(site.base)
    else:
        if site.data.exists():
            shutil.rmtree(site.data)
        (site.base / ALIVE).unlink(missing_ok=True)
    clear_half_made(site.store)
    for root in _run_roots():
        shutil.rmtree(root / site.socket_name, ignore_errors=True)
    ignore = site.store / ".gitignore"
    if ignore.is_file() and ignore.read_text() == "*\n":
        ignore.unlink()
    (site.store / RECORD).unlink()  # the lock is still held, and goes last
    (site.store / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it has other files
        site.store.rmdir()


def clear_half_made(base: Path) -> None:
    """Remove the files of interrupted initdbs. One may still be ending, so errors are ignored."""
    for path in base.glob(HALF_MADE + "*"):
        shutil.rmtree(path, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Make renames in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_shared(path: Path, owner_of: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        _hand_over(fd, owner_of)
        return fd


def _hand_over(made: Path | int, directory: Path) -> None:
    if os.geteuid() == 0:
        owner = directory.stat()
        if isinstance(made, int):
            os.fchown(made, owner.st_uid, owner.st_gid)
        else:
            os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=False)


# ------------------------------------------------------- data outside the store directory


def _choose_outside(site: Site) -> Site:
    site = replace(site, outside=True)
    try:
        claim_directory(STATE_ROOT, mode=0o711)
        claim_directory(site.base, mode=0o711)
    except (OSError, EmbeddedServerError) as error:
        raise EmbeddedServerError(
            "Postgres does not run as root, the user that would run it cannot reach "
            f"{site.store}, and its data cannot be put elsewhere: {error}. Give --store a "
            "directory that all users may enter, e.g. /srv/millwheel."
        ) from error
    (site.base / ORIGIN).write_text(f"{site.store}\n")
    return site


def earlier_sites(site: Site) -> list[Site]:
    """Stores outside, other than ``site``, that were last used from the same store directory."""
    return [
        Site(site.store, base.name, outside=True, ready=True)
        for base in sorted(STATE_ROOT.iterdir())
        if base.name != site.id and _origin(base) == site.store
    ]


def warn_of_earlier(sites: list[Site]) -> None:
    _log.warning(
        "%s was deleted and made again; data of its predecessor is left in %s. Delete it if you do "
        "not need the old store any more.",
        sites[0].store,
        ", ".join(str(site.base) for site in sites),
    )


def _claim_origin(site: Site) -> None:
    """Accept a store directory that was moved, and refuse one that was copied without its data."""
    origin = _origin(site.base)
    if origin == site.store:
        return
    if origin is not None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads((origin / RECORD).read_text())["id"] == site.id:
                raise EmbeddedServerError(
                    f"{site.store} is a copy of {origin}, but the data is in {site.base} and "
                    f"was not copied. Use {origin}, or delete the copy and start again."
                )
    if os.geteuid() == 0:
        (site.base / ORIGIN).write_text(f"{site.store}\n")


def _origin(base: Path) -> Path | None:
    try:
        return Path((base / ORIGIN).read_text().rstrip("\n"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _explain_missing(site: Site) -> None:
    where = f"its data should be in {site.data}, and is not there"
    if site.data.exists():
        where = f"its data in {site.data} is damaged: there is no PG_VERSION in it"
    raise EmbeddedServerError(
        f"{site.store} holds a store, but {where}. Restore it from a backup (or mount it); if "
        f"the data was deleted on purpose, delete {site.store} too, then start again."
    )


# ------------------------------------------------------------------------- the run directory


def make_socket_directory(site: Site, account: Account) -> Path:
    """An empty directory of mode 0700, owned by the server's account, for its socket.

    Only called while no server of the site lives. `EmbeddedServerError` if no short path is safe to
    use.
    """
    mode = 0o711 if account.borrowed else 0o700  # the account passes through root's
    problems: list[str] = []
    for root in _run_roots():
        directory = root / site.socket_name
        if len(os.fsencode(directory / f".s.PGSQL.{PORT}")) > SOCKET_PATH_BYTES:
            problems.append(f"{directory} is too long for a socket's path")
            continue
        try:
            claim_directory(root, mode=mode)
            if directory.exists():
                shutil.rmtree(directory)
            account.make_directory(directory)
        except (OSError, EmbeddedServerError) as error:
            problems.append(str(error))
            continue
        return directory
    raise EmbeddedServerError("no place for the server's socket: " + "; ".join(problems))


def _run_roots() -> Iterator[Path]:
    me = os.geteuid()
    if me == 0 and RUN_ROOT.is_dir():
        yield RUN_ROOT / "millwheel"
    yield SHORT_ROOT / f"millwheel-{me}"
    # Second choice: it goes away at log-out, and the server may stay.
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "millwheel"


# ------------------------------------------------------------------------ the data directory


def new_data_directory(site: Site, account: Account) -> Path:
    clear_half_made(site.base)
    path = site.base / (HALF_MADE + secrets.token_hex(4))
    account.make_directory(path)
    return path


@dataclass(frozen=True)
class Postmaster:
    """The content of ``postmaster.pid``; the server may have ended long ago."""

    pid: int
    data: Path
    socket_directory: Path
    port: int
    state: str  # "starting", "ready", "stopping", "standby"


def read_postmaster(site: Site) -> Postmaster | None:
    """The content of ``postmaster.pid``; None if the file is missing or not complete yet."""
    try:
        lines = (site.data / "postmaster.pid").read_text(errors="replace").splitlines()
        pid, data, _, port, sockets, _, _, state = lines[:8]
        found = Postmaster(int(pid), Path(data), Path(sockets), int(port), state.strip())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    # A copied data directory comes with the pid file of the original's server.
    return found if os.path.realpath(found.data) == str(site.data) else None


def clear_stale_pid_file(site: Site) -> None:
    """Remove a ``postmaster.pid`` with a process id that belongs to an unrelated process now.

    Only called while no server of the site lives. Postgres takes any live process for a server, and
    refuses to start. The removal is safe: if a server that was started by other means lives, a
    second one still refuses to start because of its shared memory, which Postgres finds by the data
    directory's inode.
    """
    path = site.data / "postmaster.pid"
    try:
        pid = int(path.read_text(errors="replace").partition("\n")[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return
    except (PermissionError, ValueError):  # alive; or the disk was full, and it is empty
        pass
    path.unlink(missing_ok=True)


def is_postmaster(postmaster: Postmaster, site: Site) -> bool:
    """Whether the process with that id is the site's server, and not a later, unrelated one.

    The name of its run directory is on the command line of a server that ``start`` has started. A
    server that was started by hand is recognised by its working directory, if this process may see
    that (root without CAP_SYS_PTRACE, as in containers, may not).
    """
    process = Path(f"/proc/{postmaster.pid}")
    try:
        if process.parent.joinpath("self").exists():
            command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
        else:
            command = subprocess.run(  # noqa: S603 - macOS has no /proc
                ["/bin/ps", "-ww", "-p", str(postmaster.pid), "-o", "command="],
                capture_output=True,
                text=True,
                check=False,
            ).stdout
        if "postgres" not in command:
            return False
        return site.socket_name in command or os.path.samefile(process / "cwd", site.data)
    except (OSError, UnicodeDecodeError):  # gone, a zombie, or another user's
        return False
