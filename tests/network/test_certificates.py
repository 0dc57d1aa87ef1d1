"""How long certificates are valid, and what is said about it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from millwheel.core.clock import VirtualClock
from millwheel.errors import UsageError
from millwheel.services.certificates import Certificate, CertificateWatch, first_to_expire
from tests.support.certificates import Authority

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is no openssl on this machine"
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def enddate(file: Path) -> datetime:
    """When OpenSSL says that a certificate expires."""
    told = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", file],
        capture_output=True,
        text=True,
        check=True,
    )
    when = told.stdout.strip().removeprefix("notAfter=")
    return datetime.strptime(when, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)


@needs_openssl
@pytest.mark.parametrize("days", [-1, 2, 365, 20_000])
def test_the_end_is_the_one_that_openssl_reads(tmp_path: Path, days: int) -> None:
    """Also in the years after 2049, which are written in another way."""
    file, _ = Authority(tmp_path, "ours").certificate("here", "IP:127.0.0.1", days)
    assert first_to_expire("workers", file, None) == Certificate("workers", file, enddate(file))


@needs_openssl
def test_the_first_of_a_chain_counts_and_the_last_of_several_authorities(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    short, long = (ours.certificate(f"{days}", "IP:127.0.0.1", days)[0] for days in (1, 30))
    both = tmp_path / "both.pem"
    both.write_text(f"what it is\n{long.read_text()}{short.read_text()}")
    assert first_to_expire("http", both, None).expires == enddate(short)
    assert first_to_expire("http", long, both).expires == enddate(long)
    assert first_to_expire("http", long, short) == ("http", short, enddate(short))


@pytest.mark.parametrize(
    "content",
    ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"],
)
def test_a_file_without_a_certificate_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.pem").write_text(content)
    with pytest.raises(UsageError, match=r"x\.pem"):
        first_to_expire("http", tmp_path / "x.pem", None)


async def test_the_log_warns_once_a_day_from_two_weeks_before_on() -> None:
    clock = VirtualClock(int(NOW.timestamp() * 1e6))
    watch = CertificateWatch(
        [Certificate("workers", Path("w.pem"), NOW + timedelta(days=16, hours=1))], clock
    )
    told: list[str] = []
    with capture_logs() as logs:
        task = asyncio.create_task(watch.run())
        for _ in range(19):
            for _ in range(5):
                await asyncio.sleep(0)
            told += [line["event"] for line in logs] or ["nothing"]
            lines = logs.copy()
            logs.clear()
            clock.advance(86_400)
        task.cancel()
    assert told == ["nothing"] * 3 + ["certificate_expires"] * 14 + ["certificate_expired"] * 2
    (last,) = lines
    assert (last["log_level"], last["file"], last["days_left"]) == ("error", "w.pem", -2.0)
    assert "restart the workers one after the other" in last["what_to_do"]


async def test_what_has_expired_is_named_at_the_start() -> None:
    clock = VirtualClock(int(NOW.timestamp() * 1e6))
    watch = CertificateWatch([Certificate("http", Path("h.pem"), NOW - timedelta(hours=1))], clock)
    with capture_logs() as logs:
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        task.cancel()
    assert [line["event"] for line in logs] == ["certificate_expired"]
