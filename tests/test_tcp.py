"""Links over real sockets: who may listen and call, certificates, strangers, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from millwheel.errors import UsageError
from millwheel.runtime.frames import Deliver, NotMine, Refuse, decode
from millwheel.runtime.greeting import Identity, Secret
from millwheel.runtime.links import Links
from millwheel.runtime.network import Limits, Link
from millwheel.services import tcp
from millwheel.services.tcp import Tcp, Tls
from tests.network_contract import Heard, nothing_left

SECRET = Secret(b"sixteen bytes or more", "given")
QUICK = Limits(first_pause_seconds=0.01, longest_pause_seconds=0.02)


SOME_ATTEMPTS_SECONDS = 0.3
"""In which a call is tried again some ten times."""


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 (there is nothing to wait for but this)
            await asyncio.sleep(0.001)


class World:
    """Workers over TCP, each closed at the end."""

    def __init__(self) -> None:
        self.all: list[Links] = []

    async def worker(
        self,
        name: str,
        *,
        tls: Tls | None = None,
        secret: Secret = SECRET,
        limits: Limits = QUICK,
        **options: Any,
    ) -> tuple[Links, Heard]:
        links = Links(Identity("p", name, secret), Tcp(tls=tls, **options), limits=limits)
        self.all.append(links)
        heard = Heard()
        await links.start(heard)
        return links, heard


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with nothing_left():
        world = World()
        yield world
        for links in world.all:
            await links.close()


# -- certificates -----------------------------------------------------------------------


class Authority:
    """Signs certificates with the openssl of this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}",
        )  # fmt: skip

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def certificate(self, name: str, subject: str) -> tuple[Path, Path]:
        """A certificate and its key, for a host."""
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
        )  # fmt: skip
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={subject}\n")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{self.name}.pem", "-days", "2",
            "-CAkey", f"{self.name}.key", "-CAcreateserial", "-out", f"{name}.pem",
            "-extfile", f"{name}.ext",
        )  # fmt: skip
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tls]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on this machine to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    trusted = folder / "ours.pem"
    here = ours.certificate("here", "IP:127.0.0.1,DNS:localhost")
    elsewhere = ours.certificate("elsewhere", "DNS:elsewhere.example")
    strange = theirs.certificate("strange", "IP:127.0.0.1")
    return {
        "here": Tls(*here, trusted),
        "one way": Tls(*here, trusted, mutual=False),
        "elsewhere": Tls(*elsewhere, trusted),
        "elsewhere, any host": Tls(*elsewhere, trusted, check_host=False),
        "here, any host": Tls(*here, trusted, check_host=False),
        "strange": Tls(*strange, trusted),
    }


async def meet(
    world: World, caller: dict[str, Any], listener: dict[str, Any], refused: str | None = None
) -> tuple[Link, Heard, Heard, list[Any]]:
    """One calls the other until they have met, or until it was refused for a reason with this text
    and had time enough for some attempts; gives the warnings too."""
    with capture_logs() as logs:
        two, two_heard = await world.worker("two", **listener)
        one, one_heard = await world.worker("one", **caller)
        link = one.link("two", two.address)
        if refused is None:
            await until(lambda: link.up and two_heard.links)
        else:
            await until(lambda: any(refused in line["reason"] for line in warnings_of(logs)))
            await asyncio.sleep(SOME_ATTEMPTS_SECONDS)
    return link, one_heard, two_heard, warnings_of(logs)


def warnings_of(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["log_level"] == "warning"]


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize(
    ("caller", "listener"),
    [
        (None, None),
        ("here", "here"),
        ("one way", "one way"),
        ("elsewhere", "here"),  # a caller's host is not looked at
        ("here, any host", "elsewhere"),
    ],
)
async def test_those_who_trust_each_other_meet(
    world: World,
    certificates: dict[str, Tls],
    secret: bytes | None,
    caller: str | None,
    listener: str | None,
) -> None:
    link, one, two, warnings = await meet(
        world,
        {"tls": certificates[caller] if caller else None, "secret": secret},
        {"tls": certificates[listener] if listener else None, "secret": secret},
    )
    assert link.up
    big = Deliver(
        1, 1, 1, 1, 1, 0, [(1, "s", b"1", 0, 0, 0, 0, 0, b"", False, b"x" * 300_000, 1, 0)]
    )
    link.send(big)
    link.send(NotMine(1, 1, 1))
    two.links["one", False].send(NotMine(2, 2, 2))
    await until(lambda: len(two.frames) == 2 and one.frames)
    assert two.frames == [big, NotMine(1, 1, 1)]
    assert warnings == []


@pytest.mark.parametrize(
    ("caller", "listener", "reason"),
    [
        ("here", "elsewhere", "certificate"),
        ("here", "strange", "certificate"),
        ("strange", "here", ""),
        ("here", None, ""),
        (None, "here", ""),
    ],
)
async def test_those_who_do_not_trust_each_other_do_not(
    world: World,
    certificates: dict[str, Tls],
    caller: str | None,
    listener: str | None,
    reason: str,
) -> None:
    link, one, two, warnings = await meet(
        world,
        {"tls": certificates[caller] if caller else None},
        {"tls": certificates[listener] if listener else None},
        refused=reason,
    )
    assert not link.up
    assert one.events == two.events == []
    assert len(warnings) <= 4, warnings


def test_certificates_on_the_other_event_loop(certificates: dict[str, Tls]) -> None:
    async def main() -> None:
        async with nothing_left():
            for caller, refused in (("here", None), ("strange", "")):
                world = World()
                one = {"tls": certificates[caller]}
                link, *_ = await meet(world, one, {"tls": certificates["here"]}, refused)
                assert link.up == (refused is None)
                for links in world.all:
                    await links.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_tls_one_way_needs_a_secret_to_leave_the_machine(
    world: World, certificates: dict[str, Tls]
) -> None:
    with pytest.raises(UsageError, match="reached by strangers"):
        await world.worker("one", tls=certificates["one way"], host="0.0.0.0")
    links, _ = await world.worker(
        "one",
        tls=certificates["one way"],
        secret=SECRET,
        host="0.0.0.0",
        advertise="worker.example",
    )
    assert links.address.startswith("worker.example:")


@pytest.mark.parametrize(
    "wrong",
    [
        {"certificate": Path("/nowhere.pem")},
        {"authority": Path("/nowhere.pem")},
        {"key": Path(__file__)},
        {"authority": None, "check_host": False},
    ],
)
def test_files_that_are_no_certificates(
    certificates: dict[str, Tls], wrong: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="TLS"):
        dataclasses.replace(certificates["here"], **wrong).contexts()


# -- addresses --------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "worker.example"])
async def test_without_a_secret_or_certificates_only_the_machine_itself_is_listened_to(
    world: World, host: str
) -> None:
    with pytest.raises(UsageError, match="reached by strangers"):
        await world.worker("one", host=host)


async def test_without_a_secret_nobody_else_is_called(world: World) -> None:
    with capture_logs() as logs:
        one, _ = await world.worker("one")
        one.link("two", "192.0.2.1:80")
        one.link("three", "nonsense")
        await until(lambda: len(logs) >= 2)
        await asyncio.sleep(0.1)
    assert len(logs) == 2
    assert "only with a shared secret" in logs[0]["reason"]
    assert "'nonsense'" in logs[1]["reason"] or "another machine" in logs[1]["reason"]


async def test_an_address_that_nobody_could_call_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="advertise"):
        await world.worker("one", host="0.0.0.0", secret=SECRET)
    links, _ = await world.worker("one", host="0.0.0.0", secret=SECRET, advertise="h.example:99")
    assert links.address == "h.example:99"


async def test_a_port_that_is_taken(world: World) -> None:
    one, _ = await world.worker("one")
    port = int(one.address.rpartition(":")[2])
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1, port {port}"):
        await world.worker("two", port=port)


async def test_version_six_of_ip(world: World) -> None:
    try:
        two, _ = await world.worker("two", host="::1")
    except UsageError:
        pytest.skip("there is no IPv6 on this machine")
    assert two.address.startswith("[::1]:")
    one, _ = await world.worker("one")
    link = one.link("two", two.address)
    await until(lambda: link.up)


async def test_small_frames_do_not_wait_for_others(world: World) -> None:
    link, _, two, _ = await meet(world, {}, {})
    for end in (link, two.links["one", False]):
        transport = end.connection._transport  # type: ignore[attr-defined]
        connected = transport.get_extra_info("socket")
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# -- strangers --------------------------------------------------------------------------


async def call(links: Links) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = links.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("bytes_", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "said to be 1,195,725,856 bytes long"),
        (b"\0\0\0\4\xc1\xc1\xc1\xc1", "4 bytes that are no frame"),
        (b"\0\0\0\0", "0 bytes that are no frame"),
    ],
)
async def test_a_stranger_is_told_why_and_logged_once(
    world: World, bytes_: bytes, reason: str
) -> None:
    one, heard = await world.worker("one")
    with capture_logs() as logs:
        for _ in range(5):
            reader, writer = await call(one)
            writer.write(bytes_)
            answer = await reader.read()
            refusal = decode(answer[4:])
            assert isinstance(refusal, Refuse)
            assert reason in refusal.reason
            await hang_up(writer)
    assert len(logs) == 1
    assert logs[0]["address"].startswith("127.0.0.1:")
    assert reason in logs[0]["reason"]
    assert heard.events == []


async def test_strangers_who_say_nothing_are_few_and_hung_up_on(world: World) -> None:
    limits = Limits(greeting_seconds=0.1, ping_seconds=0.02, strangers=5)
    one, _ = await world.worker("one", limits=limits)
    connections = [await call(one) for _ in range(8)]
    async with asyncio.timeout(60):
        answers = [await reader.read() for reader, _ in connections]
    refused = [answer for answer in answers if b"too many strangers" in answer]
    assert len(refused) == 3
    assert one._connections == {}
    await hang_up(*(writer for _, writer in connections))


async def test_a_listener_ends_while_a_stranger_shakes_no_hands(
    world: World, certificates: dict[str, Tls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "HANDSHAKE_SECONDS", 0.2)
    one, _ = await world.worker("one", tls=certificates["here"])
    reader, writer = await call(one)
    await asyncio.sleep(0.01)
    await one.close()
    world.all.remove(one)
    with contextlib.suppress(OSError):
        async with asyncio.timeout(60):
            await reader.read()
    await hang_up(writer)


async def test_who_reads_slowly_gets_everything_in_the_end(world: World) -> None:
    """The transport stops writing when the socket is full, and goes on; nothing is lost."""
    link, _, two, _ = await meet(world, {}, {})
    incoming = two.links["one", False]
    transport = incoming.connection._transport  # type: ignore[attr-defined]
    frame = Deliver(
        1, 1, 1, 1, 1, 0, [(1, "s", b"1", 0, 0, 0, 0, 0, b"", False, b"x" * 50_000, 1, 0)]
    )
    for number in range(400):
        if number % 20 == 0:
            transport.pause_reading()
            await asyncio.sleep(0.002)
        link.send(frame)
        link.send(NotMine(number, 0, 0))
        if number % 20 == 10:
            transport.resume_reading()
    transport.resume_reading()
    await until(lambda: len(two.frames) == 800)
    assert two.frames[1::2] == [NotMine(number, 0, 0) for number in range(400)]
    assert link.up
