"""The operating-system account the embedded server runs under.

Postgres refuses to run as root. An ordinary user's server runs as that user. Root's
server runs under an account that already exists: the owner of the store directory when
that is not root, else ``postgres``, else ``nobody``. No account is ever made, and no
directory that somebody else made ever changes its permissions: what the account cannot
reach is put where it can (``server_files``, ``binaries``), never opened up.

Commands run with a short list of environment variables, because root's environment may
hold secrets and the server's is readable by everybody who shares its account, and
because a stray ``PGPORT`` or ``PGOPTIONS`` must not change what a store is.
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
COMMAND_SECONDS = 300.0  # initdb on a slow disk; everything else is far below
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")


@dataclass(frozen=True)
class Account:
    """Who runs the server. ``borrowed``: this process is root and steps down to it."""

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
        """Run a command as this account in a session of its own, out of reach of Ctrl-C.

        ``variables`` are added to the environment, ``text`` is its standard input,
        ``keep_open`` are file descriptors it inherits. Returns whatever the exit code.

        Raises:
            EmbeddedServerError: it took longer than ``seconds``, or this root may not
                become another user (some containers).
            OSError: the program is not there, or the account may not execute it.
        """
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # English messages, as some are recognised, and initdb's locale is given explicitly.
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
        """Whether this account may go into ``directory``, asked of the system itself.

        Mode bits would be a guess: access lists and security modules have a say too.
        """
        return self.run(["/bin/sh", "-c", 'cd -- "$0"', directory]).returncode == 0

    def make_directory(self, path: Path) -> None:
        """Make ``path`` (new, mode 0700) and give it to this account."""
        os.mkdir(path, 0o700)
        if self.borrowed:
            os.chown(path, self.uid, self.gid)


def server_account(owner: int, *, decided: bool) -> Account:
    """The account that runs the server of files owned by the user id ``owner``.

    ``decided``: the owner is the data directory's, so it is this account or none;
    otherwise it is the store directory's, and root may choose.

    Raises:
        EmbeddedServerError: the files belong to somebody else, or root finds no account.
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
    """The login name, or the number where the system knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def claim_directory(path: Path, *, mode: int) -> None:
    """Make sure that ``path`` is a directory of ours that nobody else can plant files in.

    Made with ``mode`` when missing; when it is there, it must be a real directory (no
    link) owned by this process's user, with no write permission for others. Sticky
    parents such as ``/tmp`` are fine: nobody else can rename what is ours in them.

    Raises:
        EmbeddedServerError: it is somebody else's, or open to others.
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
        f"{path} {problem}, so what is in it cannot be trusted: remove it, then start again."
    )
