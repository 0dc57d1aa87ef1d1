"""Access to the HTTP endpoints: nothing, bearer tokens, certificates of clients, or either of the
two.

The environment says which, since arguments are visible to all users of a machine:

* ``MILLWHEEL_HTTP_TOKENS``: tokens, separated by spaces, one of which a request must have.
* ``MILLWHEEL_HTTP_CERTIFICATE``: the endpoint's certificate, a PEM file. It speaks TLS then, and
  nothing else.
* ``MILLWHEEL_HTTP_KEY``: the certificate's key, a PEM file without a password.
* ``MILLWHEEL_HTTP_AUTHORITY``: a PEM file of the authorities that sign clients; a request must have
  such a certificate.

With tokens and an authority, either will do. Probes need neither: they answer in one word. Beyond
loopback an endpoint that would answer any request does not start.
"""

from __future__ import annotations

import hmac
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from millwheel.errors import UsageError
from millwheel.services.certificates import Certificate, first_to_expire
from millwheel.services.endpoint import Endpoint

TOKENS = "MILLWHEEL_HTTP_TOKENS"
CERTIFICATE = "MILLWHEEL_HTTP_CERTIFICATE"
KEY = "MILLWHEEL_HTTP_KEY"
AUTHORITY = "MILLWHEEL_HTTP_AUTHORITY"

OPEN_PATHS = ("/healthz", "/readyz")


def tokens_of(variable: str) -> tuple[str, ...]:
    """The tokens in an environment variable; `UsageError` if it is set to nothing, as by a missing
    secret."""
    text = os.environ.get(variable)
    if text is not None and not text.split():
        raise UsageError(
            f"the variable {variable} is set, and has no token in it: set one, or unset it"
        )
    return tuple((text or "").split())


def certificate_in_use() -> Certificate | None:
    """The endpoint's certificate, or its authority, whichever expires first."""
    certificate, authority = map(os.environ.get, (CERTIFICATE, AUTHORITY))
    if not certificate:
        return None
    return first_to_expire("http", Path(certificate), Path(authority) if authority else None)


@dataclass(frozen=True)
class Access:
    tokens: tuple[bytes, ...] = ()
    tls: ssl.SSLContext | None = None
    """None if requests come without TLS."""
    knows_clients: bool = False
    """A client's certificate is as good as a token."""

    @classmethod
    def from_environment(cls, address: Endpoint) -> Access:
        """`UsageError` if a file is missing or invalid, one variable needs another one, or any
        request from outside would be answered."""
        tokens = tuple(token.encode() for token in tokens_of(TOKENS))
        found = cls(tokens, *_tls())
        if not (found.tokens or found.knows_clients or address.is_loopback):
            raise UsageError(
                f"--http {address}: anybody who reaches this address could read metrics and "
                f"status. Set tokens in {TOKENS}, or an authority of clients in {AUTHORITY}, or "
                "listen on 127.0.0.1. /healthz and /readyz need neither"
            )
        return found

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def needs(self) -> str:
        """The way in, for a request that was not admitted."""
        ways = []
        if self.tokens:
            ways.append(f"the header Authorization: Bearer TOKEN, with a token of {TOKENS}")
        if self.knows_clients:
            ways.append(f"a client certificate of {AUTHORITY}")
        return f"this needs {' or '.join(ways)}"

    def admits(self, target: bytes, authorization: bytes, *, has_certificate: bool) -> bool:
        """`authorization` is the header."""
        if not (self.tokens or self.knows_clients):
            return True
        if target.partition(b"?")[0].decode("latin-1") in OPEN_PATHS:
            return True
        if self.knows_clients and has_certificate:
            return True
        scheme, _, sent = authorization.partition(b" ")
        found = [hmac.compare_digest(sent.strip(), token) for token in self.tokens]
        return scheme.lower() == b"bearer" and any(found)


def _tls() -> tuple[ssl.SSLContext | None, bool]:
    """The endpoint's certificate, and whether clients may show one in place of a token."""
    certificate, key, authority = map(os.environ.get, (CERTIFICATE, KEY, AUTHORITY))
    if not certificate or not key:
        if certificate or key or authority:
            raise UsageError(f"HTTP with TLS needs both {CERTIFICATE} and {KEY}")
        return None, False
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority or None)
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(
            f"TLS for HTTP cannot be set up with {CERTIFICATE}={certificate}, {KEY}={key}"
            f"{f' and {AUTHORITY}={authority}' if authority else ''}: {error}"
        ) from error
    if authority:
        context.verify_mode = ssl.CERT_OPTIONAL  # probes have none
    return context, bool(authority)
