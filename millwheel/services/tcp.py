"""Connections between workers over TCP, with TLS or without.

Both sides always prove that they know the pipeline's secret
(`millwheel.runtime.network.handshake`), so a worker may listen on any address. TLS adds protection
that a secret cannot give:

=======================  ==========================  ============================================
configuration            peers that can connect      parties that can read or change the traffic
=======================  ==========================  ============================================
no TLS, loopback         those with the secret       the machine's administrator
no TLS, other addresses  those with the secret       everyone on the network path
TLS, not ``mutual``      those with the secret       none
TLS, ``mutual``          those with the secret and   none; without a certificate a peer does not
                         a certificate of the        even reach the handshake of the wire
                         `authority`                 protocol
=======================  ==========================  ============================================

A connection counts as unauthenticated (`Visitor`) from the moment it is accepted, before its TLS
handshake. A listener pauses when few file descriptors are left, so that such connections never use
up those of the rest of the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from millwheel.errors import UsageError
from millwheel.runtime.network.connection import shown
from millwheel.runtime.network.links import TOO_MANY, host_of
from millwheel.runtime.network.peer_ports import AbandonKind, Admit, Make, Visitor
from millwheel.runtime.process.tasks import end
from millwheel.services.certificates import Certificate, first_to_expire

HANDSHAKE_SECONDS = 5.0
"""Time limit for the TLS handshake of an outgoing connection."""

FAREWELL_SECONDS = 1.0
"""Time limit for the TLS shutdown; a peer that does not answer is disconnected."""

BACKLOG = 100
"""Length of the system's accept queue, and most connections accepted in one turn."""

SPARE_DESCRIPTORS = 16
"""File descriptors that a listener leaves for the rest of the process: Postgres, sources, sinks."""

PAUSE_SECONDS = 0.5
"""Pause of a listener when file descriptors are scarce."""

QUIET_SECONDS = 60.0
"""A pause is not logged if the previous one was less than this ago."""

ANYWHERE = frozenset(("", "*", "0.0.0.0", "::"))  # noqa: S104 (they are refused, not bound to)
"""Hosts that mean all addresses: valid for listening, not for connecting."""


@dataclass(frozen=True)
class Tls:
    """The worker's certificate, and the authority that signs its peers'. All files are PEM.

    `UsageError` from its methods if a file is missing or invalid.
    """

    certificate: Path
    key: Path
    authority: Path | None = None
    """CA certificate that signed the peers' certificates; None: the CAs the system trusts."""
    mutual: bool = True
    """Connecting peers need a certificate too."""
    check_host: bool = True
    """A certificate must name the host connected to. False is safe if the authority signs only for
    these workers."""

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The contexts for listening and for connecting."""
        if self.authority is None and not self.check_host:
            raise UsageError(
                "TLS without an authority of its own trusts all CAs of the system, so it must "
                "check the host name too: anyone can get such a certificate"
            )
        try:
            listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.authority)
            calling = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.authority)
            for context in (listening, calling):
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except OSError as error:  # ssl.SSLError is one
            trusted = f"the authority {self.authority}" if self.authority else "the system's CAs"
            raise UsageError(
                f"TLS cannot be set up with the certificate {self.certificate}, the key {self.key} "
                f"and {trusted}: {error}"
            ) from error
        if self.mutual:
            listening.verify_mode = ssl.CERT_REQUIRED
        calling.check_hostname = self.check_host
        return listening, calling

    @property
    def first_to_expire(self) -> Certificate:
        """The certificate, of the worker's chain or its authority's, that expires first."""
        return first_to_expire("workers", self.certificate, self.authority)


class Tcp:
    """A `millwheel.runtime.network.peer_ports.Medium`.

    Args:
        host: host name or address to listen on.
        port: port to listen on; 0: any free port.
        advertise: host, or ``host:port``, that peers connect to; None: `host` and `port`.
        tls: None: plain TCP.
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
        self._certificate: Certificate | None = None
        if tls is not None:
            self._listening, self._calling = tls.contexts()
            self._certificate = tls.first_to_expire
        self._listener: Listener | None = None

    @property
    def expired(self) -> str:
        found = self._certificate
        if found is None or found.seconds_left(time.time()) > 0:  # OpenSSL too asks the machine
            return ""
        return f"this worker's own TLS has expired: {found}"

    def check(self) -> None:
        """`UsageError` if there is no address that peers can connect to."""
        if self._host in ANYWHERE and self._advertise is None:
            raise UsageError(
                f"{self._host!r} is not an address that peers can connect to: set the host at "
                "which they reach this worker (advertise)"
            )
        if self._advertise is not None:
            _parts(self._advertise)

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        self.check()
        try:
            sockets = await _bound(None if self._host in ("", "*") else self._host, self._port)
        except (OSError, OverflowError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise UsageError(
                "cannot listen for other workers on "
                f"{_address(self._host, self._port)}: {why or error}. Give another HOST:PORT with "
                "--listen; port 0 picks a free port"
            ) from error
        self._listener = Listener(sockets, admit, self._listening, greeting_seconds)
        if self._advertise is None:
            return _address(self._host, self.port)
        host, port = _parts(self._advertise)
        return _address(host, port or self.port)

    async def connect(self, make: Make, address: str) -> None:
        with _as_os_errors(address):
            host, port = _parts(address)
            await asyncio.get_running_loop().create_connection(
                make,
                host,
                port,
                ssl=self._calling,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._calling else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS if self._calling else None,
            )

    async def hosts(self, address: str) -> frozenset[str]:
        with _as_os_errors(address):
            host, port = _parts(address)
            if _is_number(host):  # no need to ask for it, in a thread
                return frozenset((host_of(_address(host, 0)),))
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        return frozenset(host_of(shown(place)) for *_, place in found)

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.closed()


@dataclass(eq=False)
class Arrival:
    connected: socket.socket
    visitor: Visitor
    taken: bool = False
    """The event loop owns the socket and will close it."""


class Listener:
    """Accepts connections on sockets, and reports each to `admit` immediately.

    Args:
        tls: None: plain TCP.
        seconds: time limit for a TLS handshake.
        callers: a name for all that connect, for messages.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        admit: Admit,
        tls: ssl.SSLContext | None,
        seconds: float,
        *,
        callers: str = "other workers",
    ) -> None:
        self.port: int = sockets[0].getsockname()[1]
        self._sockets = sockets
        self._admit = admit
        self._tls = tls
        self._seconds = seconds
        self._callers = callers
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
        """Stop accepting for `PAUSE_SECONDS`; new connections wait in the system's queue."""
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
        self._pausing = self._loop.call_later(PAUSE_SECONDS, self._resume)
        if self._loop.time() >= self._quiet_until:
            structlog.get_logger().warning(
                "accept_paused",
                port=self.port,
                reason=reason,
                what_it_means=f"{self._callers} cannot connect until file descriptors are free",
                what_to_do=(
                    "raise the limit of open files (ulimit -n, LimitNOFILE), and look for "
                    "unexpected connections to the port"
                ),
            )
        self._quiet_until = self._loop.time() + QUIET_SECONDS

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            if not _has_spare_descriptors(listening.fileno()):
                self._pause(f"fewer than {SPARE_DESCRIPTORS} file descriptors are left")
                return
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # EMFILE, ENFILE, ENOBUFS, ENOMEM
                self._pause(str(error))
                return
            connected.setblocking(False)
            self._begin(Arrival(connected, self._admit(shown(address))))

    def _begin(self, arrival: Arrival) -> None:
        if self._tls is not None and not arrival.visitor.welcome:
            arrival.connected.close()
            arrival.visitor.abandon("refused", TOO_MANY)
            return
        task = self._loop.create_task(self._make_ready(arrival))
        arrival.visitor.give_up = task.cancel
        self._arriving.add(task)
        task.add_done_callback(partial(self._arrived, arrival))

    async def _make_ready(self, arrival: Arrival) -> None:
        """Hand the socket to the event loop; with TLS, wait for the handshake."""
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
        text = "the worker is stopping" if error is None else str(error) or type(error).__name__
        arrival.visitor.abandon(kind, text)
        if error is not None and not isinstance(error, OSError):
            raise error

    def close(self) -> None:
        """Stop accepting, and abandon connections that are not ready."""
        if self._pausing is not None:
            self._pausing.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets = []
        for task in self._arriving:
            task.cancel()

    async def closed(self) -> None:
        self.close()
        await end(self._arriving)


async def _bound(host: str | None, port: int) -> list[socket.socket]:
    """Listening sockets for all addresses of a host; None: of this machine."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listening = socket.socket(family, kind, protocol)
            except OSError as error:  # the system does not support IPv6
                missing = error
                continue
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listening.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:  # the address family is disabled
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


@contextlib.contextmanager
def _as_os_errors(address: str) -> Iterator[None]:
    """Raise the errors of an address as those of a failed connection."""
    try:
        yield
    except UsageError as error:
        raise OSError(str(error)) from error
    except UnicodeError as error:
        raise OSError(f"{address!r} is not an address") from error


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parts(address: str) -> tuple[str, int]:
    """Host and port; port 0 if it has none."""
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
            f"{address!r} is not an address: write host, host:port or, for IPv6, [::1]:7340"
        )
    return bare, int(port)


def _no_password() -> str:
    """Make OpenSSL reject a key with a password instead of prompting for it on the terminal."""
    return ""
