"""Connections between workers over TCP, with TLS or without.

Who may connect is decided twice: here, by certificates, if there are some, and in the greeting, by
the shared secret, if there is one. With neither nobody could tell a worker from a stranger, so a
worker listens on the loopback address only, and calls nobody elsewhere:

===========================  ==================================================================
a secret, no TLS             others prove that they know it; what follows can be read and changed
                             by whoever sits on the way
TLS, ``mutual``              who has no certificate of the `authority` is hung up on
TLS, not ``mutual``          nobody can listen in; a secret must say who is who
neither                      the loopback address only
===========================  ==================================================================
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from millwheel.errors import UsageError
from millwheel.runtime.network import Make

HANDSHAKE_SECONDS = 5.0
"""For the handshake of TLS."""

FAREWELL_SECONDS = 1.0
"""For the end of TLS: a peer that does not answer is not waited for."""

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
    """A `millwheel.runtime.network.Medium`.

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
        self._mutual = tls is not None and tls.mutual
        self._server: asyncio.Server | None = None

    def check(self, *, proven: bool) -> None:
        """Before anything is started: whether it may listen there, and could be called.

        Args:
            proven: whether a secret says who is who.

        Raises:
            UsageError: it may not, or it could not.
        """
        if not (proven or self._mutual or is_loopback(self._host)):
            raise UsageError(
                f"a worker that listens on {self._host!r} can be reached by strangers: give all "
                "workers a shared secret or certificates (mutual TLS), or listen on 127.0.0.1"
            )
        if self._host in ANYWHERE and self._advertise is None:
            raise UsageError(
                f"{self._host!r} is no address that others could call: say at which host they "
                "reach this worker (advertise)"
            )
        if self._advertise is not None:
            _parts(self._advertise)

    async def listen(self, make: Make, *, proven: bool) -> str:
        """Listen at the host and port.

        Raises:
            UsageError: it cannot, or must not, listen there.
        """
        self.check(proven=proven)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                make,
                None if self._host in ("", "*") else self._host,
                self._port,
                ssl=self._listening,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._listening else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS if self._listening else None,
            )
        except (OSError, OverflowError, UnicodeError) as error:
            raise UsageError(
                f"the worker cannot listen on {self._host}, port {self._port}: {error}"
            ) from error
        port = self._server.sockets[0].getsockname()[1]
        if self._advertise is None:
            return _address(self._host, port)
        host, told = _parts(self._advertise)
        return _address(host, told or port)

    async def connect(self, make: Make, address: str, *, proven: bool) -> None:
        """Connect what `make` gives.

        Raises:
            OSError: nobody answers there, or the two do not trust each other.
        """
        try:
            host, port = _parts(address)
        except UsageError as error:
            raise OSError(str(error)) from error
        if not (proven or self._mutual or is_loopback(host)):
            raise OSError(
                "a worker on another machine is called only with a shared secret or with "
                "certificates (mutual TLS)"
            )
        try:
            await asyncio.get_running_loop().create_connection(
                make,
                host,
                port,
                ssl=self._calling,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._calling else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS if self._calling else None,
            )
        except UnicodeError as error:
            raise OSError(f"{address!r} is no address") from error

    def deafen(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Wait until nothing is left of the listener."""
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
