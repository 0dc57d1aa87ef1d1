"""A group of processes below a limit of memory: version 1 of control groups, where it may be
written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.sites import Refused

ROOT = Path("/sys/fs/cgroup/memory")
FREE_BYTES = 48 << 20


@contextmanager
def memory_group() -> Iterator[Path]:
    """A group of its own, in which others can be made.

    Raises:
        Refused: not on this machine, or not for this account.
    """
    group = ROOT / f"campaign-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Refused(f"no control group for memory: {error}") from error
    try:
        yield group
    finally:
        for inner in group.iterdir():
            if inner.is_dir():
                with contextlib.suppress(OSError):
                    inner.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()


def limited(parent: Path, pid: int) -> Path:
    """A group with one process in it, which can take little more memory than it has."""
    group = parent / f"process-{pid}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(pid))
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + FREE_BYTES))
    return group


def was_oom(group: Path) -> bool:
    """Whether the kernel has killed a process of a group for want of memory."""
    told = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())
    return int(told.get("oom_kill", 0)) > 0


def remove(group: Path) -> None:
    """If nobody is in it any more."""
    with contextlib.suppress(OSError):
        group.rmdir()
