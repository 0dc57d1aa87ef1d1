"""The operating-system account that the embedded server runs under.

Postgres refuses to run as root. The server of an ordinary user runs as that user; root's under an
existing account: the owner of the store directory if that is not root, then ``postgres``, then
``nobody``. No account is made, and no permissions of existing directories change: files that the
account cannot reach are put in a place that it can (``server_files``, ``binaries``).

Commands run with a short list of environment variables: root's may hold secrets, which every
process with the server's account could read, and a stray ``PGPORT`` or ``PGOPTIONS`` must not
change a store.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millwheel.errors import EmbeddedServerError

BORROWED_ACCOUNTS = ("postgres", "nobody")  # for root, in this order
COMMAND_SECONDS = 300.0  # initdb on a slow disk; all other commands take far less
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")


@dataclass(frozen=True)
class Account:
    """``borrowed``: this process is root and runs commands as that account."""

    name: str
    uid: int
    gid: int
    borrowed: bool

    def run(
        self,
        command: Sequence[str | Path],
        *,
        variables: Mapping[str, str] | None = None,
        text: str | None = None,
        keep_open: Sequence[int] = (),
        seconds: float = COMMAND_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this account in a session of its own, which Ctrl-C does not reach.

        ``variables`` are added to the environment, ``text`` is its standard input, ``keep_open``
        are file descriptors it inherits. Returns for any exit code.

        Raises:
            EmbeddedServerError: it took longer than ``seconds``, or this root may not
                become another user (some containers).
            OSError: the program does not exist, or the account may not execute it.
        """
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # English messages, because some are matched; initdb gets its locale explicitly.
        environment |= {"LC_ALL": "C"} | dict(variables or {})
        try:
            return subprocess.run(  # noqa: S603 - a list, no shell; paths come from our own search
                [os.fspath(part) for part in command],
                input="" if text is None else text,
                capture_output=True,
                text=True,
                errors="replace",
                cwd="/",  # never the caller's: the account may not enter it, and it must unmount
                env=environment,
                timeout=seconds,
                start_new_session=True,
                umask=0o077,
                pass_fds=keep_open,
                check=False,
                user=self.uid if self.borrowed else None,
                group=self.gid if self.borrowed else None,
                extra_groups=[] if self.borrowed else None,
            )
        except subprocess.TimeoutExpired:
            raise EmbeddedServerError(
                f"{command[0]} did not finish within {seconds:.0f} s; "
                "is the disk hanging? Nothing was changed that the next start cannot undo."
            ) from None
        except subprocess.SubprocessError as error:
            raise EmbeddedServerError(
                f"{command[0]} cannot be run as user {self.name}: {error}. Postgres does not "
                "run as root; run millwheel as an ordinary user, or give --store a "
                "postgresql:// URL."
            ) from error

    def can_enter(self, directory: Path) -> bool:
        """Whether this account may enter ``directory``, tried by a process of it: mode bits are not
        enough, since access lists and security modules count too."""
        return self.run(["/bin/sh", "-c", 'cd -- "$0"', directory]).returncode == 0

    def make_directory(self, path: Path) -> None:
        """Make a directory of this account, with mode 0700."""
        os.mkdir(path, 0o700)
        if self.borrowed:
            os.chown(path, self.uid, self.gid)


def server_account(owner: int, *, decided: bool) -> Account:
    """The account that runs the server of files owned by the user id ``owner``.

    ``decided``: the owner is that of the data directory, and no other account will do; otherwise it
    is the store directory's, and root may choose. `EmbeddedServerError` if the files belong to
    another user, or root finds no account.
    """
    me = os.geteuid()
    if me != 0:
        if decided and owner != me:
            raise EmbeddedServerError(
                f"the store's data belongs to user {account_name(owner)}, this process runs as "
                f"{account_name(me)}: run millwheel as {account_name(owner)} or as root, or give "
                "--store another directory."
            )
        return Account(account_name(me), me, os.getegid(), borrowed=False)
    if owner != 0:
        try:
            entry = pwd.getpwuid(owner)
        except KeyError:  # a volume of another machine's user; initdb would refuse the id
            pass
        else:
            return Account(entry.pw_name, owner, entry.pw_gid, borrowed=True)
        if decided:
            return Account(account_name(owner), owner, owner, borrowed=True)
    elif decided:
        raise EmbeddedServerError(
            "the store's data belongs to root, and Postgres does not run as root: "
            "`chown -R postgres` the data directory, or start with another store directory."
        )
    for name in BORROWED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, borrowed=True)
    raise EmbeddedServerError(
        "Postgres does not run as root, and this machine has neither a user "
        f"{' nor '.join(BORROWED_ACCOUNTS)} to run it: run millwheel as an ordinary user, "
        "or give --store a postgresql:// URL."
    )


def account_name(uid: int) -> str:
    """The number if the system knows no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def claim_directory(path: Path, *, mode: int) -> None:
    """Make sure that ``path`` is a directory of this user, in which no other user can plant files.

    A missing directory is made with ``mode``. An existing one must be a real directory (no link)
    owned by this process's user, without write permission for others. Sticky parents such as
    ``/tmp`` are fine: other users cannot rename the directory in them.

    Raises:
        EmbeddedServerError: it belongs to another user, or others may write in it.
        OSError: it cannot be made.
    """
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        pass
    else:
        path.chmod(mode)  # the umask may have taken bits away
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        problem = "is not a directory"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {account_name(found.st_uid)}"
    elif found.st_mode & 0o022:
        problem = f"may be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return
    raise EmbeddedServerError(
        f"{path} {problem}, so its contents cannot be trusted: remove it, then start again."
    )
