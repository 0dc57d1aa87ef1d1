"""Two machines on this one, and the cable between them: network namespaces, joined by a veth pair.

Processes of both see the same files (so Postgres, by its socket), and of the network nothing but
the cable:

====================  =======================================================================
`Cable.cut`           pulled out: the interface is down, and so is the route over it
`Cable.lose`          nothing of what one side sends comes to the other, and nobody tells it:
                      the packets go to a hardware address that nobody has. What comes back is
                      heard. It needs neither netem nor a firewall in the kernel
====================  =======================================================================

A namespace lives as long as a process in it: here one that reads from a pipe, and so ends with
whoever holds the other end. Nothing is left, be it that the tests are killed. Making one takes
rights (root in most containers) that not everybody has: `Refused` says what was not allowed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

INTERFACE = "cable"
NOBODY = "02:00:00:00:00:fe"
"""A hardware address, locally given, of neither side."""

PROGRAMS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""What it takes, and the packages of Debian that have it."""


class Refused(Exception):
    """This machine or this account may not have such things."""


class Machine:
    """A network of its own. Closed with the `ExitStack` it is made in."""

    def __init__(self, address: str, until: ExitStack) -> None:
        self.address = address
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo there; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        until.callback(holder.communicate)  # closes the pipe, and waits
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            raise Refused(f"no network namespace: {holder.stderr.read().decode().strip()}")
        self.namespace = f"/proc/{holder.pid}/ns/net"
        self.holder = holder.pid

    @property
    def entering(self) -> tuple[str, ...]:
        """The words before a command that runs it here; the process stays the same one."""
        return ("nsenter", f"--net={self.namespace}")

    def do(self, *words: str) -> None:
        """Run a command here to its end."""
        run(*self.entering, *words)


class Cable:
    """What joins two machines. It is there when it was made."""

    def __init__(self, one: Machine, other: Machine) -> None:
        self._ends = (one, other)
        run(
            "ip", "link", "add", INTERFACE, "netns", str(one.holder),
            "type", "veth", "peer", "name", INTERFACE, "netns", str(other.holder),
        )  # fmt: skip
        for end in self._ends:
            end.do("ip", "link", "set", "lo", "up")
            end.do("ip", "address", "add", f"{end.address}/24", "dev", INTERFACE)
            end.do("ip", "link", "set", INTERFACE, "up")

    def cut(self) -> None:
        """Pull it out, at the first one's end."""
        self._ends[0].do("ip", "link", "set", INTERFACE, "down")

    def mend(self) -> None:
        """Put it in again."""
        self._ends[0].do("ip", "link", "set", INTERFACE, "up")

    def lose(self, sender: Machine) -> None:
        """Lose what this one sends."""
        sender.do(
            "ip", "neighbour", "replace", self._other(sender).address, "lladdr", NOBODY,
            "dev", INTERFACE, "nud", "permanent",
        )  # fmt: skip

    def find(self, sender: Machine) -> None:
        """Lose it no more."""
        sender.do(
            "ip", "neighbour", "delete", self._other(sender).address, "dev", INTERFACE
        )  # fmt: skip

    def _other(self, end: Machine) -> Machine:
        one, other = self._ends
        return other if end is one else one


@contextmanager
def machines(*addresses: str) -> Iterator[tuple[Machine, Machine, Cable]]:
    """Two with these addresses of one network of 256, and their cable.

    Raises:
        Refused: not on this machine, or not for this account.
    """
    missing = [f"{name} ({of})" for name, of in PROGRAMS.items() if shutil.which(name) is None]
    if missing:
        raise Refused(f"not on this machine: {', '.join(missing)}")
    with ExitStack() as until:
        one, other = (Machine(address, until) for address in addresses)
        yield one, other, Cable(one, other)


def run(*words: str) -> None:
    """Run a command to its end.

    Raises:
        Refused: it says no.
    """
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{' '.join(words)}: {done.stderr.strip()}")
