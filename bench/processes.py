"""CPU and memory of this machine's processes, from /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psycopg

TICK = os.sysconf("SC_CLK_TCK")
LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_of(pid: int, *, with_children: bool = False) -> float:
    """Return the CPU seconds of a process, optionally with those of its ended children."""
    fields = _stat(pid)
    return sum(map(int, fields[11 : 15 if with_children else 13])) / TICK


def tree_cpu(root: int) -> float:
    """Return the CPU seconds of a process and of all its descendants, ended or not."""
    return sum(cpu_of(pid, with_children=True) for pid in _tree(root))


def tree_megabytes(root: int) -> float:
    """Return the resident memory of a process and its descendants, in MB."""
    pages = 0
    for pid in _tree(root):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE_BYTES / 1e6


def postgres_cpu(url: str) -> float:
    """Return the CPU seconds of all processes of a server on this machine, ended ones included."""
    with psycopg.connect(url) as connection:
        ((backend,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        parents = _parents()
        postmaster = parents[backend]
        children = [pid for pid, parent in parents.items() if parent == postmaster]
        return cpu_of(postmaster, with_children=True) + sum(map(cpu_of, children))


def listening(port: int) -> int | None:
    """Return the process of this machine that listens on a TCP port, if it can be found."""
    wanted = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                wanted.add(f"socket:[{fields[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in wanted:
                return int(link.parts[2])
    return None


def end_tree(root: int) -> None:
    """Kill a process and its descendants, parents first."""
    for pid in _tree(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def _parents() -> dict[int, int]:
    """Return the parent of every process."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {pid: int(fields[1]) for pid in numbers if (fields := _stat(pid))}


def _stat(pid: int) -> list[str]:
    """Return the fields after the name in /proc/PID/stat; empty if the process has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
