"""Links over real sockets: who may listen and call, certificates, strangers, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from millwheel.errors import UsageError
from millwheel.runtime.network.frames import Deliver, NotMine, Refuse, decode
from millwheel.runtime.network.handshake import Identity, Secret
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.peer_ports import Limits, Link
from millwheel.services.tcp import Tcp, Tls
from tests.support.certificates import Authority
from tests.support.network_sites import Heard, nothing_left
from tests.support.peers import call, hang_up, until

SECRET = Secret(b"sixteen bytes or more", "given")
WRONG = Secret(b"another sixteen bytes", "given")
QUICK = Limits(first_pause_seconds=0.01, longest_pause_seconds=0.02)


SOME_ATTEMPTS_SECONDS = 0.3
"""In which a call is tried again some ten times."""


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
        "expired": Tls(*ours.certificate("expired", "IP:127.0.0.1", days=-1), trusted),
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
    caller: str | None,
    listener: str | None,
) -> None:
    link, one, two, warnings = await meet(
        world,
        {"tls": certificates[caller] if caller else None},
        {"tls": certificates[listener] if listener else None},
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


@pytest.mark.parametrize("tls", [None, "one way", "here"])
async def test_there_always_is_a_secret_so_any_address_may_be_listened_on(
    world: World, certificates: dict[str, Tls], tls: str | None
) -> None:
    """TLS decides who can read and change what is sent, not who may connect."""
    links, heard = await world.worker(
        "one", tls=certificates[tls] if tls else None, host="0.0.0.0", advertise="127.0.0.1"
    )
    friend, _ = await world.worker("two", tls=certificates["here"] if tls else None)
    stranger, _ = await world.worker(
        "three", tls=certificates["here"] if tls else None, secret=WRONG
    )
    with capture_logs() as logs:
        refused = stranger.link("one", links.address)
        link = friend.link("one", links.address)
        await until(lambda: link.up and any("shared secret" in str(line) for line in logs))
    assert not refused.up
    assert heard.events == [("up", "two")]


async def test_an_address_that_is_none_is_told_once(world: World) -> None:
    with capture_logs() as logs:
        one, _ = await world.worker("one")
        one.link("three", "nonsense")
        await until(lambda: logs)
        await asyncio.sleep(SOME_ATTEMPTS_SECONDS)
    (line,) = logs
    assert line["kind"] == "unreachable"


async def test_an_address_that_nobody_could_call_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="advertise"):
        await world.worker("one", host="0.0.0.0", secret=SECRET)
    links, _ = await world.worker("one", host="0.0.0.0", secret=SECRET, advertise="h.example:99")
    assert links.address == "h.example:99"


async def test_a_port_that_is_taken(world: World) -> None:
    one, _ = await world.worker("one")
    port = int(one.address.rpartition(":")[2])
    with pytest.raises(UsageError, match=f"cannot listen for other workers on 127.0.0.1:{port}"):
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


@pytest.mark.parametrize(
    ("bytes_", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "announces 1,195,725,856 bytes"),
        (b"\0\0\0\4\xc1\xc1\xc1\xc1", "4 bytes are no valid frame"),
        (b"\0\0\0\0", "0 bytes are no valid frame"),
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
    refused = [answer for answer in answers if b"too many connections" in answer]
    assert len(refused) == 3
    assert one._connections == {}
    await hang_up(*(writer for _, writer in connections))


AGAIN_SECONDS = 0.2
"""After which a stranger that was hung up on connects again."""


async def keep_calling(links: Links, number: int, opened: list[int]) -> None:
    """Hold so many connections that say nothing, and connect again whenever one is closed."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await call(links)
                opened.append(1)
                try:
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(AGAIN_SECONDS)

    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(one())


@pytest.mark.parametrize("tls", [None, "here"])
async def test_strangers_who_come_again_and_again_keep_no_worker_out(
    world: World, tls: str | None, certificates: dict[str, Tls]
) -> None:
    """From the machine of the workers itself, and more than there are places."""
    chosen = None if tls is None else certificates[tls]
    limits = Limits(strangers=32, longest_pause_seconds=0.5, greeting_seconds=60.0)
    one, heard = await world.worker("one", limits=limits, tls=chosen)
    two, _ = await world.worker("two", limits=limits, tls=chosen)
    opened: list[int] = []
    attack = [asyncio.ensure_future(keep_calling(each, 50, opened)) for each in (one, two)]
    try:
        await until(lambda: len(opened) > 150)
        links = [one.link("two", two.address), two.link("one", one.address)]
        assert len(one._strangers(known=False)) >= 30
        await until(lambda: all(link.up for link in links))
        assert ("up", "two") in heard.events
    finally:
        for task in attack:
            task.cancel()
        await asyncio.gather(*attack, return_exceptions=True)


async def test_machines_of_workers_have_places_of_their_own(world: World) -> None:
    """Strangers of other machines are as many as they may be, and none of them makes room."""
    limits = Limits(strangers=5, undisturbed_seconds=60.0)
    one, heard = await world.worker("one", limits=limits)
    two, _ = await world.worker("two", limits=limits, host="127.0.0.2")
    elsewhere = [await call(one) for _ in range(8)]
    await until(lambda: len(one._strangers(known=False)) == 5)
    one.link("two", "127.0.0.2:9")  # the placement names it; a connection to it fails
    two._medium = From("127.0.0.2", two._medium)
    link = two.link("one", one.address)
    await until(lambda: link.up)
    assert ("up", "two") in heard.events
    assert len(one._strangers(known=False)) == 5
    await hang_up(*(writer for _, writer in elsewhere))


class From:
    """A medium that calls from an address of this machine."""

    def __init__(self, host: str, medium: Any) -> None:
        self._host = host
        self._medium = medium

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium, name)

    async def connect(self, make: Any, address: str) -> None:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        await loop.create_connection(make, host, int(port), local_addr=(self._host, 0))


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on(loop: str, test: Coroutine[Any, Any, None]) -> None:
    """Run a test on one of the two event loops."""

    async def main() -> None:
        async with nothing_left():
            await test

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_handshakes_that_are_not_finished_count_as_strangers(
    loop: str, certificates: dict[str, Tls]
) -> None:
    """The rest are closed at once, all are closed in time, and a worker gets in after that."""

    async def main() -> None:
        world = World()
        limits = Limits(greeting_seconds=1.0, ping_seconds=0.05, strangers=5)
        one, heard = await world.worker("one", tls=certificates["here"], limits=limits)
        connections = [await call(one) for _ in range(40)]
        for _, writer in connections[::2]:
            writer.write(b"\x16\x03\x01")  # the handshake begins, and does not go on
        closed = [asyncio.ensure_future(reader.read()) for reader, _ in connections]
        await until(lambda: sum(task.done() for task in closed) >= 35)
        assert len(one._connections) == 5
        two, _ = await world.worker("two", tls=certificates["here"])
        link = two.link("one", one.address)
        assert not link.up
        await until(lambda: link.up)
        await until(lambda: all(task.done() for task in closed))
        assert heard.events == [("up", "two")]
        # A caller sees the end of a connection before the worker has forgotten it.
        await until(lambda: len(one._connections) == 1)
        await asyncio.gather(*closed, return_exceptions=True)
        await hang_up(*(writer for _, writer in connections))
        for links in world.all:
            await links.close()

    on(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_time_of_a_greeting_runs_from_accept_on_with_tls(
    loop: str, certificates: dict[str, Tls]
) -> None:
    """A stranger who shakes hands and then says nothing has no more time than any other."""

    async def main() -> None:
        world = World()
        limits = Limits(greeting_seconds=0.5, ping_seconds=0.05)
        one, _ = await world.worker("one", tls=certificates["here"], limits=limits)
        _, calling = certificates["here"].contexts()
        host, _, port = one.address.rpartition(":")
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection(host, int(port), ssl=calling)
            with contextlib.suppress(OSError):
                await reader.read()
            await hang_up(writer)
            await until(lambda: not one._connections)
        assert [line["kind"] for line in logs] == ["silent"]
        for links in world.all:
            await links.close()

    on(loop, main())


async def test_a_refused_certificate_is_logged_where_it_was_refused(
    world: World, certificates: dict[str, Tls]
) -> None:
    *_, warnings = await meet(
        world, {"tls": certificates["strange"]}, {"tls": certificates["here"]}, refused=""
    )
    told = [line for line in warnings if line["event"] == "stranger_refused"]
    assert [line["kind"] for line in told] == ["no TLS"]
    assert told[0]["address"].startswith("127.0.0.1:")


async def test_who_has_an_expired_certificate_is_told_so_in_its_own_log(
    world: World, certificates: dict[str, Tls]
) -> None:
    link, _, _, warnings = await meet(
        world, {"tls": certificates["expired"]}, {"tls": certificates["here"]}, refused=""
    )
    assert not link.up
    (mine,) = [line for line in warnings if line["event"] == "link_down"]
    assert (
        f"expired.pem, which expires at {datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
        in (mine["certificate"])
    )
    two, one = world.all
    assert one.expired
    assert not two.expired


@pytest.mark.parametrize("loop", LOOPS)
def test_a_listener_ends_while_a_stranger_shakes_no_hands(
    loop: str, certificates: dict[str, Tls]
) -> None:
    async def main() -> None:
        world = World()
        one, _ = await world.worker("one", tls=certificates["here"])
        reader, writer = await call(one)
        await until(lambda: one._connections)
        await one.close()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(60):
                await reader.read()
        await hang_up(writer)

    on(loop, main())


SCARCE = """
import asyncio, os, resource, socket, sys
import structlog, uvloop
from millwheel.runtime.process.load import resident_bytes
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.handshake import Identity
from millwheel.services.tcp import SPARE_DESCRIPTORS, Tcp
from millwheel.testing.fake_network import SECRET
from tests.support.network_sites import Heard

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    links = Links(Identity("p", "one", SECRET), Tcp())
    await links.start(Heard())
    print(links.address, flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():  # asked to show what it still can
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(SPARE_DESCRIPTORS - 1)]
        for file in opened:
            os.close(file)
        assert resident_bytes() > 0
        print(len(links._connections), flush=True)
    await links.close()

runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[1] == "uvloop" else None)
with runner:
    runner.run(main())
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_strangers_never_take_the_last_file_descriptors(loop: str) -> None:
    """A process with 64 of them, and 200 strangers at its port: what else it does goes on."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCARCE, loop],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask() -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("how many?\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    host, _, port = process.stdout.readline().rpartition(":")
    strangers: list[socket.socket] = []
    try:
        for _ in range(10):
            for _ in range(20):
                stranger = socket.socket()
                stranger.setblocking(False)  # most only get into the system's queue
                with contextlib.suppress(BlockingIOError):
                    stranger.connect((host, int(port)))
                strangers.append(stranger)
            assert ask() < 64
        while strangers:
            strangers.pop().close()
        with socket.create_connection((host, int(port)), timeout=60) as late:
            late.sendall(b"\0\0\0\4\xc1\xc1\xc1\xc1")
            assert b"no valid frame" in late.recv(1000), "it accepts again"
        _, errors = process.communicate(timeout=60)
    finally:
        for stranger in strangers:
            stranger.close()
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert errors.count("accept_paused") == 1, "it says why, and once"


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
