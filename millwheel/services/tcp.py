"""Connections between workers over TCP, with TLS or without.

Two things decide whether a peer is let in. In the greeting both sides prove that they know the
pipeline's secret; there always is one (`millwheel.runtime.network.handshake`), so a worker may listen on any
address. TLS adds what a secret cannot do:

=======================  ==========================  ============================================
                         who may connect             who can read or change what is sent
=======================  ==========================  ============================================
no TLS, loopback         who knows the secret        the machine's administrator
no TLS, other addresses  who knows the secret        everybody on the network path
TLS, not ``mutual``      who knows the secret        nobody
TLS, ``mutual``          who also has a certificate  nobody; strangers do not even get as far as
                         of the `authority`          the greeting
=======================  ==========================  ============================================

A connection counts as a stranger's from the moment when it is accepted (`Visitor`), before its TLS
handshake. And a listener accepts only while the process has `SPARE_DESCRIPTORS` file descriptors
left: otherwise it pauses, so that strangers never take the last ones from the rest of the worker.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from millwheel.errors import UsageError
from millwheel.runtime.network.connection import shown
from millwheel.runtime.network.links import TOO_MANY
from millwheel.runtime.network.ports import AbandonKind, Admit, Make, Visitor
from millwheel.runtime.process.tasks import end

HANDSHAKE_SECONDS = 5.0
"""For the TLS handshake of an outgoing connection."""

FAREWELL_SECONDS = 1.0
"""For the end of TLS: a peer that does not answer is not waited for."""

BACKLOG = 100
"""Connections that the system keeps until they are accepted, and that are accepted in one turn."""

SPARE_DESCRIPTORS = 16
"""File descriptors that a listener leaves to the rest of the process: to Postgres, sources, sinks."""

PAUSE_SECONDS = 0.5
"""How long a listener accepts nothing when file descriptors are scarce."""

QUIET_SECONDS = 60.0
"""A listener that pauses again within this time does not log it again."""

ANYWHERE = frozenset(("", "*", "0.0.0.0", "::"))  # noqa: S104 (they are refused, not bound to)
"""Hosts that one can listen on but not call."""


@dataclass(frozen=True)
class Tls:
    """Where the worker's certificate is, and whose certificates it trusts. All are PEM files."""

    certificate: Path
    key: Path
    authority: Path | None = None
    """Of the certificates of others; None: those the machine trusts."""
    mutual: bool = True
    """Whether callers need a certificate too."""
    check_host: bool = True
    """Whether a certificate must name the host that was called. Without it any certificate of the
    authority will do, which is right if it signs for nothing but these workers."""

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For listening, and for calling.

        Raises:
            UsageError: a file is missing, or is not what it should be.
        """
        if self.authority is None and not self.check_host:
            raise UsageError(
                "TLS that trusts every authority the machine trusts must check the host too: "
                "anybody has such a certificate"
            )
        try:
            listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.authority)
            calling = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.authority)
            for context in (listening, calling):
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(
                f"TLS cannot be set up with the certificate {self.certificate}, the key {self.key} "
                f"and the authority {self.authority or 'of the machine'}: {error}"
            ) from error
        if self.mutual:
            listening.verify_mode = ssl.CERT_REQUIRED
        calling.check_hostname = self.check_host
        return listening, calling


class Tcp:
    """A `millwheel.runtime.network.ports.Medium`.

    Args:
        host: what to listen on.
        port: 0: any that is free.
        advertise: host, or ``host:port``, at which others reach it, if not at `host` and `port`.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._advertise = advertise
        self._listening: ssl.SSLContext | None = None
        self._calling: ssl.SSLContext | None = None
        if tls is not None:
            self._listening, self._calling = tls.contexts()
        self._listener: Listener | None = None

    def check(self) -> None:
        """Before anything is started: whether it could be called.

        Raises:
            UsageError: it could not.
        """
        if self._host in ANYWHERE and self._advertise is None:
            raise UsageError(
                f"{self._host!r} is no address that others could call: say at which host they "
                "reach this worker (advertise)"
            )
        if self._advertise is not None:
            _parts(self._advertise)

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._listener is not None
        return self._listener.port

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        """Listen at the host and port.

        Raises:
            UsageError: it cannot, or must not, listen there.
        """
        self.check()
        try:
            sockets = await _bound(None if self._host in ("", "*") else self._host, self._port)
        except (OSError, OverflowError, UnicodeError) as error:
            raise UsageError(
                f"the worker cannot listen on {self._host}, port {self._port}: {error}"
            ) from error
        self._listener = Listener(sockets, admit, self._listening, greeting_seconds)
        if self._advertise is None:
            return _address(self._host, self.port)
        host, told = _parts(self._advertise)
        return _address(host, told or self.port)

    async def connect(self, make: Make, address: str) -> None:
        """Connect what `make` gives.

        Raises:
            OSError: nothing answers there, or the two do not trust each other.
        """
        try:
            host, port = _parts(address)
            await asyncio.get_running_loop().create_connection(
                make,
                host,
                port,
                ssl=self._calling,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._calling else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS if self._calling else None,
            )
        except UsageError as error:
            raise OSError(str(error)) from error
        except UnicodeError as error:
            raise OSError(f"{address!r} is no address") from error

    def deafen(self) -> None:
        """Accept no more connections, and abandon those whose TLS handshake goes on."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        """Wait until nothing is left of the listener."""
        if self._listener is not None:
            await self._listener.closed()


@dataclass(eq=False)
class Arrival:
    """An accepted connection until its transport is ready."""

    connected: socket.socket
    visitor: Visitor
    taken: bool = False
    """The event loop has the socket, and closes it."""


class Listener:
    """Accepts connections on some sockets, and counts each at once.

    Args:
        tls: None: plain TCP.
        seconds: for a TLS handshake.
    """

    def __init__(
        self, sockets: list[socket.socket], admit: Admit, tls: ssl.SSLContext | None, seconds: float
    ) -> None:
        self.port: int = sockets[0].getsockname()[1]
        self._sockets = sockets
        self._admit = admit
        self._tls = tls
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._pausing: asyncio.TimerHandle | None = None
        self._quiet_until = float("-inf")
        self._resume()

    def _resume(self) -> None:
        self._pausing = None
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _pause(self, reason: str) -> None:
        """Accept nothing for a while; callers wait in the system's queue."""
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
        self._pausing = self._loop.call_later(PAUSE_SECONDS, self._resume)
        if self._loop.time() >= self._quiet_until:
            structlog.get_logger().warning(
                "accepts_nothing",
                port=self.port,
                reason=reason,
                what_it_means="other workers cannot connect until file descriptors are free",
                what_to_do="raise the limit of open files (ulimit -n, LimitNOFILE), and look for "
                "strangers at the port",
            )
        self._quiet_until = self._loop.time() + QUIET_SECONDS

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            if not _has_spare_descriptors(listening.fileno()):
                self._pause(f"less than {SPARE_DESCRIPTORS} file descriptors are left")
                return
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # EMFILE, ENFILE, ENOBUFS, ENOMEM
                self._pause(str(error))
                return
            connected.setblocking(False)
            self._greet(Arrival(connected, self._admit(shown(address))))

    def _greet(self, arrival: Arrival) -> None:
        if self._tls is not None and not arrival.visitor.welcome:
            arrival.connected.close()
            arrival.visitor.abandon("refused", TOO_MANY)
            return
        task = self._loop.create_task(self._make_ready(arrival))
        self._arriving.add(task)
        task.add_done_callback(partial(self._arrived, arrival))

    async def _make_ready(self, arrival: Arrival) -> None:
        """Let the event loop take the socket; with TLS that ends with the handshake."""
        arrival.connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arrival.taken = True
        await self._loop.connect_accepted_socket(
            lambda: arrival.visitor,
            arrival.connected,
            ssl=self._tls,
            ssl_handshake_timeout=self._seconds if self._tls else None,
            ssl_shutdown_timeout=FAREWELL_SECONDS if self._tls else None,
        )

    def _arrived(self, arrival: Arrival, task: asyncio.Task[None]) -> None:
        self._arriving.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        if not arrival.taken:
            arrival.connected.close()
        kind: AbandonKind = "lost" if self._tls is None or error is None else "no TLS"
        text = "the worker stops" if error is None else str(error) or type(error).__name__
        arrival.visitor.abandon(kind, text)
        if error is not None and not isinstance(error, OSError):
            raise error

    def close(self) -> None:
        """Accept no more, and abandon what is not ready."""
        if self._pausing is not None:
            self._pausing.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets = []
        for task in self._arriving:
            task.cancel()

    async def closed(self) -> None:
        """Wait until nothing is left of it."""
        self.close()
        await end(self._arriving)


async def _bound(host: str | None, port: int) -> list[socket.socket]:
    """Listening sockets for all addresses of a host, or of this machine.

    Raises:
        OSError: one of them is taken, or there is none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listening = socket.socket(family, kind, protocol)
            except OSError as error:  # the system has no IPv6
                missing = error
                continue
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listening.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:  # of a family that is switched off
                    raise
                missing = error
                sockets.pop().close()
                continue
            listening.listen(BACKLOG)
            listening.setblocking(False)
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    if not sockets:
        raise missing or OSError("no address")
    return sockets


def _has_spare_descriptors(descriptor: int) -> bool:
    """Whether the process could open `SPARE_DESCRIPTORS` more files now."""
    taken: list[int] = []
    try:
        while len(taken) < SPARE_DESCRIPTORS:
            taken.append(os.dup(descriptor))
    except OSError:
        return False
    finally:
        for copy in taken:
            os.close(copy)
    return True


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parts(address: str) -> tuple[str, int]:
    """Host and port of an address; port 0 if it names none."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, "0"
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if (
        not bare
        or (":" in bare) > bracketed
        or not (port.isascii() and port.isdigit() and int(port) < 1 << 16)
    ):
        raise UsageError(
            f"{address!r} is no address: it is written host, host:port or, of IPv6, [::1]:7340"
        )
    return bare, int(port)


def _no_password() -> str:
    """A key with a password is refused; OpenSSL would ask for it on the terminal, and wait."""
    return ""
