"""A worker's HTTP endpoint, asked over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import structlog

from millwheel.errors import UsageError
from millwheel.services import http, http_channel, http_server
from millwheel.services.endpoint import Endpoint
from millwheel.services.http import HttpService
from millwheel.services.ingesting import IngestOptions
from millwheel.services.metrics import exposition
from millwheel.services.store_endpoint import StoreEndpoint
from millwheel.services.worker_figures import Figures, Tally
from tests.support.certificates import Authority
from tests.support.endpoints import fetch, samples
from tests.support.figures import NOW, some_figures

PROBE_SECONDS = 10.0
"""What a probe may take on a machine that is busy with other tests."""


class Wheel:
    """A worker that says what it is told to say."""

    def __init__(self) -> None:
        self.told = some_figures()
        self.reason: str | None = None
        self.blocked_by: str | None = None
        self.wait = 0.0
        self.failure: Exception | None = None
        self.threads: set[threading.Thread] = set()
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    def figures(self) -> Figures:
        self.threads.add(threading.current_thread())
        if self.failure is not None:
            raise self.failure
        return self.told

    async def why_not_ready(self) -> str | None:
        self.asked.set()
        await self.gate.wait()
        await asyncio.sleep(self.wait)
        return self.reason


@pytest.fixture
def wheel() -> Wheel:
    return Wheel()


@pytest.fixture
async def service(wheel: Wheel) -> AsyncIterator[HttpService]:
    async with HttpService(wheel, Endpoint()) as service:
        yield service


async def get(
    service: HttpService, path: str, *, tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str, Message]:
    return await asyncio.to_thread(fetch, service.url + path, tls, **headers)


async def test_it_is_alive_and_ready(service: HttpService) -> None:
    assert (await get(service, "/healthz"))[:2] == (200, "ok\n")
    assert (await get(service, "/readyz"))[:2] == (200, "ready\n")
    assert service.address.host == "127.0.0.1"
    assert service.address.port > 0


async def test_why_it_is_not_ready_is_told(service: HttpService, wheel: Wheel) -> None:
    wheel.reason = "the lease ran out"
    assert (await get(service, "/readyz"))[:2] == (503, "not ready: the lease ran out\n")
    assert (await get(service, "/healthz"))[0] == 200


async def test_a_store_that_does_not_answer_is_not_waited_for(
    service: HttpService, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS", 0.5)
    wheel.wait = 60
    status, text, _ = await get(service, "/readyz")
    assert (status, "does the store answer?" in text) == (503, True)


async def test_a_loop_that_is_held_up_is_told_meanwhile(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS", 0.05)
    found: list[tuple[int, str]] = []
    asked = threading.Event()

    def ask() -> None:
        found.append(fetch(service.url + "/healthz")[:2])
        asked.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert asked.wait(60)  # in the event loop's thread: nothing else runs in it meanwhile
    asking.join()
    ((status, text),) = found
    assert status == 503
    assert "the event loop has not answered" in text
    monkeypatch.undo()
    assert (await get(service, "/healthz"))[0] == 200


async def test_the_figures_are_taken_in_the_event_loop(service: HttpService, wheel: Wheel) -> None:
    for path in ("/metrics", "/status"):
        assert (await get(service, path))[0] == 200
    assert wheel.threads == {threading.current_thread()}


async def test_metrics(service: HttpService) -> None:
    status, text, headers = await get(service, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    found = samples(text)
    expected: dict[tuple[str, tuple[str, ...]], float] = {
        ("millwheel_worker_info", ("shop", "1.2.3", "w1")): 1,
        ("millwheel_records_processed_total", ("windows", "shop")): 1000,
        ("millwheel_records_processed_total", ("lines", "shop")): 0,
        ("millwheel_duplicates_dropped_total", ("windows", "shop")): 7,
        ("millwheel_bloom_maybes_total", ("windows", "shop")): 0,
        ("millwheel_dead_letters_total", ("windows", "shop")): 1,
        ("millwheel_bad_rows_total", ("lines", "shop")): 3,
        ("millwheel_late_total", ("windows", "dropped", "shop")): 4,
        ("millwheel_late_total", ("windows", "amended", "shop")): 5,
        ("millwheel_late_total", ("windows", "sent", "shop")): 0,
        ("millwheel_late_total", ("lines", "dropped", "shop")): 0,
        ("millwheel_user_total", ("windows", 'odd "name"\n', "shop")): 6,
        ("millwheel_backlog_records", ("windows", "shop")): 12,
        ("millwheel_unacked_records", ("lines", "shop")): 40,
        ("millwheel_pending_cap_rows", ("lines", "shop")): 64,
        ("millwheel_acknowledge_p95_seconds", ("lines", "shop")): 0.4,
        ("millwheel_bundle_open_seconds", ("windows", "shop")): 1.5,
        ("millwheel_intervals_owned", ("windows", "shop")): 2,
        ("millwheel_watermark_seconds", ("lines", "input", "shop")): float("inf"),
        ("millwheel_watermark_lag_seconds", ("lines", "input", "shop")): 0,
        ("millwheel_watermark_seconds", ("lines", "low", "shop")): NOW / 1e6 - 2.5,
        ("millwheel_watermark_lag_seconds", ("lines", "low", "shop")): 2.5,
        ("millwheel_watermark_lag_seconds", ("windows", "input", "shop")): 3,
        ("millwheel_lease_seconds_left", ("shop",)): 9.5,
        ("millwheel_fenced_total", ("shop",)): 2,
        ("millwheel_commits_total", ("shop",)): 4,
        ("millwheel_commit_duration_seconds_count", ("shop",)): 4,
        ("millwheel_commit_duration_seconds_sum", ("shop",)): 60.0215,
        ("millwheel_commit_duration_seconds_bucket", ("0.001", "shop")): 2,
        ("millwheel_commit_duration_seconds_bucket", ("0.01", "shop")): 2,
        ("millwheel_commit_duration_seconds_bucket", ("0.025", "shop")): 3,
        ("millwheel_commit_duration_seconds_bucket", ("10.0", "shop")): 3,
        ("millwheel_commit_duration_seconds_bucket", ("+Inf", "shop")): 4,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not any(labels == ("windows", "low", "shop") for _, labels in found)  # not known yet
    for metric in ("pending_cap_rows", "acknowledge_p95_seconds", "latency_target_seconds"):
        assert (f"millwheel_{metric}", ("windows", "shop")) not in found, "it is no injector"
    assert ("millwheel_latency_target_seconds", ("lines", "shop")) not in found, "it has none"
    assert ("millwheel_bundle_open_seconds", ("lines", "shop")) not in found, "it has no bundles"


async def test_metrics_in_the_form_that_is_asked_for(service: HttpService) -> None:
    _, text, headers = await get(service, "/metrics", Accept="application/openmetrics-text")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_an_interval_that_is_not_here_has_no_watermark() -> None:
    told = some_figures()
    gone = replace(told.computations[0], intervals=0)
    text, _ = exposition(replace(told, computations=(gone,)))
    assert not any(name.startswith("millwheel_watermark") for name, _ in samples(text.decode()))


async def test_status_is_json(service: HttpService) -> None:
    status, text, headers = await get(service, "/status?pretty")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    found = json.loads(text)
    assert found["commits"]["count"] == 4
    lines, windows = found["computations"]
    assert lines["input_watermark"] == "infinity"
    assert [lines[name] for name in ("unacked", "pending_cap", "acknowledge_seconds")] == [
        40,
        64,
        0.4,
    ]
    assert lines["latency_target_seconds"] is None
    assert windows["low_watermark"] == "-infinity"
    assert windows["input_watermark"] == "2023-11-14T22:13:17+00:00"
    assert windows["counters"]["late_amended"] == 5


async def test_other_paths_and_methods(service: HttpService) -> None:
    status, text, _ = await get(service, "/")
    assert status == 404
    assert "/readyz" in text

    def ask(method: str) -> str:
        place = (service.address.host, service.address.port)
        with socket.create_connection(place, timeout=60) as connection:
            connection.sendall(f"{method} /healthz HTTP/1.0\r\n\r\n".encode())
            with connection.makefile() as answer:
                return answer.read()

    told = await asyncio.to_thread(ask, "HEAD")
    assert " 200 " in told
    assert "Content-Length: 3" in told
    assert told.endswith("\n\n")
    assert " 501 " in await asyncio.to_thread(ask, "POST")


async def test_a_bug_is_told_and_the_endpoint_goes_on(service: HttpService, wheel: Wheel) -> None:
    wheel.failure = LookupError("no such lane")
    with structlog.testing.capture_logs() as logged:
        status, text, _ = await get(service, "/metrics")
    assert (status, text) == (500, "this is a bug: LookupError: no such lane\n")
    assert [entry["event"] for entry in logged] == ["http_failed"]
    assert (await get(service, "/healthz"))[0] == 200


async def test_a_token_is_asked_for_if_there_are_any(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of probes, which learn nothing but whether it is well."""
    monkeypatch.setenv("MILLWHEEL_HTTP_TOKENS", "first second")

    async with HttpService(wheel, Endpoint()) as service:
        for path, token, expected in (
            ("/healthz", "", 200),
            ("/readyz?verbose", "", 200),
            ("/metrics", "", 401),
            ("/metrics", "Bearer first", 200),
            ("/status", "bearer second", 200),
            ("/status", "Bearer third", 401),
            ("/status", "Bearer", 401),
            ("/metrics", "Basic first", 401),
        ):
            status, _, answered = await get(service, path, Authorization=token)
            assert status == expected, (path, token)
            assert (answered["WWW-Authenticate"] == "Bearer") == (status == 401)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
async def test_it_does_not_answer_everybody(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The store's endpoint is guarded in the same way."""
    monkeypatch.delenv("MILLWHEEL_HTTP_TOKENS", raising=False)
    address = Endpoint(host, 0)
    with pytest.raises(UsageError, match="anybody who reaches this address could read"):
        HttpService(wheel, address)
    with pytest.raises(UsageError, match="anybody who reaches this address could read"):
        StoreEndpoint(list, address)
    monkeypatch.setenv("MILLWHEEL_HTTP_TOKENS", "one")
    HttpService(wheel, address)
    StoreEndpoint(list, address)


@pytest.mark.parametrize("text", ["", "  "])
async def test_a_variable_without_a_token_is_a_mistake(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A secret was to come there, and did not."""
    monkeypatch.setenv("MILLWHEEL_HTTP_TOKENS", text)
    monkeypatch.setenv("MILLWHEEL_INGEST_TOKENS", text)
    with pytest.raises(UsageError, match="MILLWHEEL_HTTP_TOKENS is set, and has no token"):
        HttpService(wheel, Endpoint())
    with pytest.raises(UsageError, match="MILLWHEEL_INGEST_TOKENS is set, and has no token"):
        IngestOptions.parse("127.0.0.1:0", None)


# -- TLS -----------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The authority of the endpoint's certificate, which the environment names."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on this machine to make certificates with")
    made = Authority(tmp_path, "authority")
    certificate, key = made.certificate("endpoint", "IP:127.0.0.1")
    monkeypatch.setenv("MILLWHEEL_HTTP_CERTIFICATE", str(certificate))
    monkeypatch.setenv("MILLWHEEL_HTTP_KEY", str(key))
    return made


def client(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.folder / f"{authority.name}.pem")
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


async def test_it_speaks_tls_and_nothing_without(wheel: Wheel, authority: Authority) -> None:
    async with HttpService(wheel, Endpoint()) as service:
        assert service.url.startswith("https://")
        status, text, _ = await get(service, "/metrics", tls=client(authority))
        assert status == 200
        assert len(text) > http_channel.CHUNK_BYTES, "several records of TLS"
        with connected(service) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
            assert b"HTTP" not in await asyncio.to_thread(plain.recv, 100)
        assert (await get(service, "/healthz", tls=client(authority)))[0] == 200


async def test_a_client_certificate_is_asked_for(
    wheel: Wheel, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not of probes; and a token is as good."""
    monkeypatch.setenv("MILLWHEEL_HTTP_AUTHORITY", str(tmp_path / "authority.pem"))
    monkeypatch.setenv("MILLWHEEL_HTTP_TOKENS", "open")
    known = client(authority, authority.certificate("prometheus", "DNS:prometheus"))
    stranger = Authority(tmp_path, "stranger")
    unknown = client(authority, stranger.certificate("mallory", "DNS:mallory"))

    async with HttpService(wheel, Endpoint()) as service:
        assert (await get(service, "/metrics", tls=known))[0] == 200
        assert (await get(service, "/healthz", tls=client(authority)))[0] == 200
        status, text, _ = await get(service, "/metrics", tls=client(authority))
        assert status == 401
        assert (
            text == "this needs the header Authorization: Bearer TOKEN, with a token of"
            " MILLWHEEL_HTTP_TOKENS or a client certificate of MILLWHEEL_HTTP_AUTHORITY\n"
        )
        found = await get(service, "/status", tls=client(authority), Authorization="Bearer open")
        assert found[0] == 200
        for path in ("/metrics", "/healthz"):
            with pytest.raises(OSError, match=r"(?i)unknown ca|reset|closed|EOF|broken pipe"):
                await get(service, path, tls=unknown)
        assert (await get(service, "/metrics", tls=known))[0] == 200


async def test_who_begins_tls_and_goes_silent_is_disconnected(
    wheel: Wheel, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "EXCHANGE_SECONDS", 0.2)
    async with HttpService(wheel, Endpoint()) as service:
        with connected(service) as idle:
            idle.sendall(b"\x16\x03\x01")
            assert await asyncio.to_thread(idle.recv, 1) == b""


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("KEY", "", "needs both MILLWHEEL_HTTP_CERTIFICATE and MILLWHEEL_HTTP_KEY"),
        (
            "CERTIFICATE",
            "nowhere.pem",
            "cannot be set up with MILLWHEEL_HTTP_CERTIFICATE=nowhere.pem",
        ),
        ("AUTHORITY", "nobody.pem", "and MILLWHEEL_HTTP_AUTHORITY=nobody.pem: .*No such file"),
    ],
)
async def test_wrong_files_are_a_clear_error(
    wheel: Wheel,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    text: str,
) -> None:
    monkeypatch.setenv(f"MILLWHEEL_HTTP_{name}", value)
    with pytest.raises(UsageError, match=text):
        HttpService(wheel, Endpoint())


async def test_it_listens_no_longer_once_it_is_stopped(wheel: Wheel) -> None:
    service = HttpService(wheel, Endpoint())
    with structlog.testing.capture_logs() as logged:
        await service.start()
    url = service.url
    assert logged[0] == {"event": "http_listening", "url": url, "log_level": "info"}
    await service.stop()
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(fetch, url + "/healthz")
    await service.stop()
    assert not any(thread.name == "http" for thread in threading.enumerate())


async def test_a_port_in_use_is_a_clear_error(service: HttpService, wheel: Wheel) -> None:
    address = service.address
    with pytest.raises(UsageError, match=f"cannot listen for HTTP on {address}: .*in use.*--http"):
        await HttpService(wheel, address).start()


async def test_a_host_that_is_not_there_is_a_clear_error(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLWHEEL_HTTP_TOKENS", "one")
    with pytest.raises(UsageError, match=r"cannot listen for HTTP on 192\.0\.2\.1:0"):
        await HttpService(wheel, Endpoint("192.0.2.1", 0)).start()


async def test_a_connection_that_asks_nothing_is_closed_in_time(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "EXCHANGE_SECONDS", 0.2)
    async with HttpService(wheel, Endpoint()) as service:
        with connected(service) as idle:
            assert await asyncio.to_thread(idle.recv, 1) == b""


async def test_a_byte_now_and_then_gains_no_time(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "EXCHANGE_SECONDS", 0.5)

    def drip(connection: socket.socket) -> int:
        """Bytes of a header until the server hangs up, ten times as often as it has patience."""
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ")
        connection.settimeout(0.05)
        for sent in range(10_000):
            with contextlib.suppress(TimeoutError):
                if connection.recv(1) == b"":
                    return sent
            connection.sendall(b"x")
        return 10_000

    async with HttpService(wheel, Endpoint()) as service:
        with connected(service) as slow:
            assert await asyncio.to_thread(drip, slow) < 1000


async def test_an_answer_that_is_not_read_is_given_up(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "EXCHANGE_SECONDS", 0.5)
    name = "x" * 20_000_000  # more than the system keeps for a connection
    wheel.told = replace(some_figures(), worker=name)
    async with HttpService(wheel, Endpoint()) as service:
        with connected(service) as deaf:
            deaf.sendall(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n")
            server = service._server
            assert server is not None
            await until(lambda: server._idle or server._answering)
            await until(lambda: not (server._idle or server._answering))
        assert (await get(service, "/healthz"))[0] == 200


@pytest.mark.soak
async def test_probes_are_answered_beside_a_thousand_slow_connections(
    service: HttpService,
) -> None:
    """Each sends a byte of a header now and then, and comes again when it is hung up on."""
    over = threading.Event()
    asked, hung_up = threading.Event(), Counter[str]()

    def slow(number: int) -> None:
        connections: list[socket.socket | None] = [None] * number
        while not over.is_set():
            for place, connection in enumerate(connections):
                try:
                    if connection is None:
                        connection = connections[place] = connected(service)
                        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ")
                    else:
                        connection.sendall(b"x")
                except OSError:
                    hung_up["often"] += 1
                    if connection is not None:
                        connection.close()
                    connections[place] = None
                if over.is_set():
                    break
            asked.set()
        for connection in connections:
            if connection is not None:
                connection.close()

    with files_allowed(4096):
        attacker = threading.Thread(target=slow, args=(1000,))
        attacker.start()
        try:
            assert await asyncio.to_thread(asked.wait, 60)
            for _ in range(30):
                began = time.monotonic()
                assert (await get(service, "/healthz"))[:2] == (200, "ok\n")
                assert (await get(service, "/readyz"))[:2] == (200, "ready\n")
                assert time.monotonic() - began < 2 * PROBE_SECONDS
                server = service._server
                assert server is not None
                assert len(server._idle) + len(server._answering) <= http_server.CONNECTIONS
        finally:
            over.set()
            await asyncio.to_thread(attacker.join)
    assert hung_up["often"] > 0


async def test_who_is_being_answered_is_not_closed_for_others(
    service: HttpService, wheel: Wheel
) -> None:
    """It is the oldest, but the store takes its time; those that only wait go first."""
    wheel.gate.clear()
    probe = asyncio.create_task(get(service, "/readyz"))
    await wheel.asked.wait()
    idle = [connected(service) for _ in range(2 * http_server.CONNECTIONS)]
    try:
        for connection in idle[: http_server.CONNECTIONS]:
            assert await asyncio.to_thread(connection.recv, 1) == b"", "the oldest are closed"
        wheel.gate.set()
        assert (await probe)[:2] == (200, "ready\n")
    finally:
        for connection in idle:
            connection.close()


async def test_out_of_file_descriptors(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle connection is closed for a probe; without one the probe waits until there is room."""
    monkeypatch.setattr(http_server, "EXCHANGE_SECONDS", 1000)
    with (
        structlog.testing.capture_logs() as logged,
        connected(service) as idle,
        contextlib.ExitStack() as opened,
    ):
        server = service._server
        assert server is not None
        await until(lambda: server._idle)
        probes = [opened.enter_context(socket.socket()) for _ in range(2)]
        for probe in probes:
            probe.settimeout(60)

        def answer(probe: socket.socket) -> bytes:
            return probe.recv(12)

        with files_allowed(200), contextlib.ExitStack() as filling:
            fill(filling, idle)
            probes[0].connect((service.address.host, service.address.port))
            probes[0].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert await asyncio.to_thread(answer, probes[0]) == b"HTTP/1.1 200"
            assert await asyncio.to_thread(idle.recv, 1) == b"", "it was closed for the probe"
            probes[0].close()
            await until(lambda: not (server._idle or server._answering))
            fill(filling, idle)
            probes[1].connect((service.address.host, service.address.port))
            probes[1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            await until(lambda: server._accept_failed)
        assert await asyncio.to_thread(answer, probes[1]) == b"HTTP/1.1 200"
        assert (await get(service, "/healthz"))[0] == 200
    failed = [entry for entry in logged if entry["event"] == "http_accept_failed"]
    assert [entry["error"] for entry in failed] == ["Too many open files"] * 2, "once each time"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: yyyyyyyyyyyyyyy\r\n" * 5000, 431),
        (b"GET /healthz HTTP/1.1\r\nHost: somebody.else\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),  # no Host at all
        (b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 501),
        (b"POST / HTTP/1.0\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 20_000_000, 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a greeting of TLS\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
    ],
)
async def test_odd_requests_get_an_answer(service: HttpService, sent: bytes, status: int) -> None:
    def ask() -> bytes:
        with connected(service) as connection:
            connection.sendall(sent)
            return connection.recv(12)

    assert await asyncio.to_thread(ask) == b"HTTP/1.1 %d" % status


async def test_one_connection_carries_one_request(service: HttpService) -> None:
    def ask() -> str:
        with connected(service) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
            with connection.makefile() as answer:
                return answer.read()

    told = await asyncio.to_thread(ask)
    assert told.count("HTTP/1.1") == 1
    assert "Connection: close" in told


def fill(filling: contextlib.ExitStack, file: socket.socket) -> None:
    """Use up the file descriptors of this process."""
    with contextlib.suppress(OSError):
        while True:
            filling.callback(os.close, os.dup(file.fileno()))


def connected(service: HttpService) -> socket.socket:
    return socket.create_connection((service.address.host, service.address.port), timeout=60)


@contextlib.contextmanager
def files_allowed(number: int) -> Iterator[None]:
    """Let this process have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        pytest.skip(f"needs {number} open files, and this system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def until(answers: Callable[[], Any]) -> None:
    """Wait until `answers` is true."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if await asyncio.to_thread(answers):
                return
        except OSError:
            pass
        await asyncio.sleep(0.01)
    pytest.fail("it did not come to be so")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", Endpoint("127.0.0.1", 9464)),
        (":9464", Endpoint("127.0.0.1", 9464)),
        ("0", Endpoint("127.0.0.1", 0)),
        ("0.0.0.0:80", Endpoint("0.0.0.0", 80)),
        ("[::1]:80", Endpoint("::1", 80)),
        ("worker-1.internal:80", Endpoint("worker-1.internal", 80)),
    ],
)
def test_addresses(text: str, address: Endpoint) -> None:
    assert Endpoint.parse(text) == address
    assert Endpoint.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:port", "host:65536", "::1:80", "h:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"HOST:PORT|brackets"):
        Endpoint.parse(text)


def test_counters_do_not_fall_when_an_interval_goes() -> None:
    tally = Tally()
    tally.claimed(1, {"processed": 100})
    tally.claimed(2, {})
    assert tally.counted([(1, "a", {"processed": 130}), (2, "b", {"processed": 5, "late": 1})]) == {
        "a": Counter(processed=30),
        "b": Counter(processed=5, late=1),
    }
    tally.released(1, "a", {"processed": 140})
    assert tally.counted([])["a"]["processed"] == 40
    tally.claimed(1, {"processed": 500})  # it comes back: others counted meanwhile
    assert tally.counted([(1, "a", {"processed": 501})])["a"]["processed"] == 41
