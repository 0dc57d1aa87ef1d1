"""How long certificates are valid, published before peers refuse them.

OpenSSL checks a certificate when a connection begins, so an expired one is noticed only when a
worker starts again or a network breaks; and then the holder sees only a closed connection.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from millwheel.core.clock import Clock
from millwheel.errors import UsageError
from millwheel.runtime.process.service import Service

WARN_DAYS = 14
"""Days before the end at which the log warns for the first time."""

AGAIN_SECONDS = 86_400.0
"""Pause between two warnings."""

PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
VERSION_TAG, UTC_TIME_TAG = 0xA0, 0x17


class Certificate(NamedTuple):
    """Shown by this process, or the authority that signed its peers'."""

    use: str
    """"workers" or "http"."""
    file: Path
    expires: datetime

    def __str__(self) -> str:
        return f"the certificate in {self.file}, which expires at {self.expires:%Y-%m-%d %H:%M} UTC"

    def seconds_left(self, now: float) -> float:
        """The time is in seconds since 1970; negative: the certificate has expired."""
        return self.expires.timestamp() - now


def first_to_expire(use: str, chain: Path, authority: Path | None) -> Certificate:
    """The certificate of a chain, or its authority, that expires first.

    All of a chain have to be valid, and one of the authorities in a file. `UsageError` if a file
    has no readable certificate.
    """
    found = [Certificate(use, chain, min(_ends(chain)))]
    if authority is not None:
        found.append(Certificate(use, authority, max(_ends(authority))))
    return min(found, key=lambda one: one.expires)


class CertificateWatch(Service):
    """Warns of certificates that expire soon: at the start, and once a day."""

    def __init__(self, certificates: Sequence[Certificate], clock: Clock) -> None:
        super().__init__(clock, AGAIN_SECONDS)
        self._certificates = certificates

    async def run(self) -> None:
        await self.run_once()
        await super().run()

    async def run_once(self) -> None:
        now = self._clock.now() / 1e6
        for one in self._certificates:
            days = one.seconds_left(now) / 86_400
            if days > WARN_DAYS:
                continue
            log = structlog.get_logger()
            (log.warning if days > 0 else log.error)(
                "certificate_expires" if days > 0 else "certificate_expired",
                file=str(one.file),
                use=one.use,
                expires=one.expires.isoformat(),
                days_left=round(days, 1),
                what_it_means=(
                    "from then on peers refuse each new connection with it; those that are open go "
                    "on, so nothing stops before a worker starts again or a network breaks"
                ),
                what_to_do=(
                    "renew it on all machines, then restart the workers one after the other, the "
                    "ones with an expired certificate first"
                ),
            )


def _ends(file: Path) -> list[datetime]:
    try:
        ends = [
            _end(ssl.PEM_cert_to_DER_cert(text)) for text in PEM.findall(file.read_text("latin-1"))
        ]
    except (OSError, ValueError, IndexError) as error:
        raise UsageError(f"the certificate {file} cannot be read: {error}") from error
    if not ends:
        raise UsageError(f"{file} has no certificate in it (-----BEGIN CERTIFICATE-----)")
    return ends


def _end(der: bytes) -> datetime:
    """The field ``notAfter`` of a certificate (RFC 5280, 4.1): the ssl module shows it of peers
    only."""
    _, certificate, _ = _element(der, 0)
    _, at, _ = _element(der, certificate)
    tag, _, after_version = _element(der, at)
    if tag == VERSION_TAG:
        at = after_version
    for _ in ("serial number", "algorithm", "issuer"):
        _, _, at = _element(der, at)
    _, validity, _ = _element(der, at)
    _, _, at = _element(der, validity)
    tag, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if tag == UTC_TIME_TAG:  # two digits of the year: 1950 to 2049
        text = ("20" if text < "5" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, begin and end of the content of the element at a position."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(der[at + 2 : begin], "big")
    return der[at], begin, begin + length
