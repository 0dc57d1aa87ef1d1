from __future__ import annotations

import socket
from dataclasses import dataclass

from millwheel.errors import UsageError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Endpoint:
    host: str = LOOPBACK
    port: int = 0
    """0: any free port."""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read ``HOST:PORT``, ``[HOST]:PORT``, ``:PORT`` or ``PORT``; without a host, loopback.

        `UsageError` for other forms.
        """
        host, _, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise UsageError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:9464")
        if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise UsageError(
                f"{text!r} is not of the form HOST:PORT, as in 127.0.0.1:9464; port 0 picks a free "
                "port"
            )
        return cls(host or LOOPBACK, int(port))

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or self.host == "::1" or self.host.startswith("127.")

    def listen(self, option: str, backlog: int) -> socket.socket:
        """`UsageError`, which names the option, if the address cannot be had."""
        try:
            found = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, place = found[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(place)
                listener.listen(backlog)
            except BaseException:
                listener.close()
                raise
            else:
                return listener
        except OSError as error:
            raise UsageError(
                f"cannot listen for HTTP on {self}: {error.strerror or error}. Give another "
                f"HOST:PORT with {option}; port 0 picks a free port"
            ) from error

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
