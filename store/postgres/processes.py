"""The identity of a worker's process: machine, process id and start time.

A process id means something only on one machine, in one boot and one process namespace, and the
system reuses it.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path


def process_identity() -> tuple[str, int, str]:
    """Host (see `host_identity`), process id and start of this process."""
    return host_identity(), os.getpid(), process_started(os.getpid()) or ""


def host_identity() -> str:
    """Machine, boot and process namespace."""
    parts = [platform.node()]
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            parts.append(Path(path).read_text().strip())
        except OSError:
            parts.append("-")
    try:
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        parts.append("-")
    return " ".join(parts)


def process_started(pid: int) -> str | None:
    """Start of a process of this machine, as a text to compare; None if there is no such process,
    or if it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def is_dead(host: str, pid: int, pid_started: str) -> bool:
    """Whether a process ran on this machine and is known to have ended."""
    return host == host_identity() and process_started(pid) != pid_started
