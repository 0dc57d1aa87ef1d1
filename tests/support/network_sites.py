"""What the network's tests share: places to test it at, and a handler that writes down what it
hears.

A site is a few workers on one virtual clock, with a way to cut and part the lines between two of
them: over the fake network, and over TCP, where a proxy stands before each worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import uvloop

from millwheel.core.clock import VirtualClock
from millwheel.runtime.network.frames import Frame
from millwheel.runtime.network.handshake import Identity, Secret
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.peer_ports import Admit, Limits, Link
from millwheel.services.tcp import Tcp
from millwheel.testing.fake_network import SECRET, FakeNetwork
from tests.support.proxy import Proxy

TURNS = 5000
"""Until something that must happen is given up."""

HOPS = 10
"""Turns of the loop in one of those over TCP. A system call on the loopback address is done when it
returns; but a frame leaves one socket for the proxy's, and that one's for another."""

SMALL = Limits(frame_bytes=100_000, waiting_bytes=400_000)


@dataclass
class Heard:
    """A handler that writes everything down."""

    events: list[tuple[str, str]] = field(default_factory=list)
    """("up" or "down", peer), in order."""
    frames: list[Frame] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    on_drained: Callable[[], None] | None = None
    links: dict[tuple[str, bool], Link] = field(default_factory=dict)
    """Those that are up, by peer and whether they are outgoing."""
    busy: bool = False
    """A test is within a call to a link: nothing may be told now."""
    refused: int = 0
    """How often an outgoing link was refused, by either side."""

    def link_up(self, link: Link) -> None:
        assert not self.busy
        assert link.up
        assert (link.peer, link.outgoing) not in self.links, "up twice"
        self.links[link.peer, link.outgoing] = link
        self.events.append(("up", link.peer))

    def link_down(self, link: Link, reason: str) -> None:
        assert not self.busy
        assert self.links.pop((link.peer, link.outgoing)) is link, "down without up"
        self.events.append(("down", link.peer))
        self.reasons.append(reason)

    def link_refused(self, link: Link) -> None:
        assert not self.busy
        assert link.outgoing
        self.refused += 1

    def link_drained(self, link: Link) -> None:
        assert not self.busy
        assert self.links[link.peer, link.outgoing] is link
        assert not link.full
        if self.on_drained is not None:
            self.on_drained()

    def received(self, link: Link, frame: Frame) -> None:
        assert not self.busy
        assert self.links[link.peer, link.outgoing] is link
        assert link.up
        self.frames.append(frame)


@dataclass
class Worker:
    """One worker's end of the network."""

    name: str
    links: Links
    heard: Heard

    def call(self, other: Worker, name: str | None = None) -> Link:
        """Have a link to another worker, perhaps under a wrong name."""
        return self.links.link(name or other.name, other.links.address)

    def send(self, link: Link, frame: Frame) -> None:
        """Send, and see that the handler is not called within."""
        self.heard.busy = True
        link.send(frame)
        self.heard.busy = False


class Site(ABC):
    """Where workers meet."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.workers: list[Worker] = []

    async def worker(
        self,
        name: str,
        *,
        pipeline: str = "p",
        secret: Secret = SECRET,
        limits: Limits | None = None,
        incarnation: str = "",
    ) -> Worker:
        """A worker that listens."""
        links = await self.medium(name, Identity(pipeline, name, secret), limits or Limits())
        worker = Worker(name, links, Heard())
        self.workers.append(worker)
        await links.start(worker.heard, incarnation)
        return worker

    async def until(self, true: Callable[[], object]) -> None:
        """Let things happen until something is so, while the clock stands still."""
        for _ in range(TURNS):
            if true():
                return
            await self.turn()
        raise AssertionError("it did not come to that")

    async def live(self, seconds: float, until: Callable[[], object] | None = None) -> None:
        """Let time pass, and things happen in it; until something is so, if that is given."""
        for _ in range(int(seconds / 0.25)):
            if until is not None and until():
                return
            self.clock.advance(0.25)
            for _ in range(4):
                await self.turn()
        assert until is None or until(), "it did not come to that"

    async def settle(self) -> None:
        """Let happen whatever can happen without time passing."""
        for _ in range(50):
            await self.turn()

    async def closing(self, work: Awaitable[None]) -> None:
        """Wait for something that may wait for the clock."""
        task = asyncio.ensure_future(work)
        await self.live(30, until=task.done)
        await task

    async def close(self) -> None:
        for worker in self.workers:
            await self.closing(worker.links.close())
            assert not worker.heard.links, "a link is up after the end"

    @abstractmethod
    async def medium(self, name: str, identity: Identity, limits: Limits) -> Links: ...
    @abstractmethod
    async def turn(self) -> None: ...
    @abstractmethod
    def cut(self, one: Worker, other: Worker) -> None: ...
    @abstractmethod
    def part(self, one: Worker, other: Worker) -> None: ...
    @abstractmethod
    def join(self, one: Worker, other: Worker) -> None: ...


class FakeNetworkSite(Site):
    def __init__(self) -> None:
        super().__init__()
        self.ether = FakeNetwork(self.clock)

    async def medium(self, name: str, identity: Identity, limits: Limits) -> Links:
        return Links(
            identity, self.ether.medium(name), clock=self.clock, limits=limits, random=Random(1)
        )

    async def turn(self) -> None:
        await asyncio.sleep(0)

    def cut(self, one: Worker, other: Worker) -> None:
        self.ether.cut(one.name, other.name)

    def part(self, one: Worker, other: Worker) -> None:
        self.ether.part(one.name, other.name)

    def join(self, one: Worker, other: Worker) -> None:
        self.ether.join(one.name, other.name)


class TcpSite(Site):
    def __init__(self) -> None:
        super().__init__()
        self.proxies: dict[str, Proxy] = {}
        self.addresses: dict[str, str] = {}

    async def medium(self, name: str, identity: Identity, limits: Limits) -> Links:
        if name not in self.proxies:  # a worker that comes again is reached where it was
            self.proxies[name] = Proxy("127.0.0.1:0")
            self.addresses[name] = await self.proxies[name].start()
        proxy = self.proxies[name]
        medium = Tcp(advertise=self.addresses[name])
        links = Links(identity, medium, clock=self.clock, limits=limits, random=Random(1))
        listen = medium.listen

        async def note_port(admit: Admit, greeting_seconds: float) -> str:
            address = await listen(admit, greeting_seconds)
            proxy.target = f"127.0.0.1:{medium.port}"
            return address

        medium.listen = note_port  # type: ignore[method-assign]
        return links

    async def turn(self) -> None:
        for _ in range(HOPS):
            await asyncio.sleep(0)

    def cut(self, one: Worker, other: Worker) -> None:
        for worker in (one, other):
            self.proxies[worker.name].cut()

    def part(self, one: Worker, other: Worker) -> None:
        for worker in (one, other):
            self.proxies[worker.name].stall()

    def join(self, one: Worker, other: Worker) -> None:
        for worker in (one, other):
            self.proxies[worker.name].resume()

    async def close(self) -> None:
        await super().close()
        for proxy in self.proxies.values():
            await proxy.close()


SITES: dict[str, tuple[type[Site], Callable[[], asyncio.AbstractEventLoop]]] = {
    "fake network": (FakeNetworkSite, asyncio.new_event_loop),
    "tcp": (TcpSite, asyncio.new_event_loop),
    "tcp-uvloop": (TcpSite, uvloop.new_event_loop),
}

Test = Callable[[Any], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fails if a task outlives the block, or the loop was told of an exception."""
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, told: troubles.append(told))
    yield
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()  # what was not closed warns now, and warnings are errors
    assert not troubles, troubles


def everywhere(test: Test) -> Any:
    """A test that runs at each site, on an event loop of its own."""

    @pytest.mark.parametrize("place", SITES)
    def run(place: str) -> None:
        site_type, loop_factory = SITES[place]

        async def main() -> None:
            async with nothing_left():
                site = site_type()
                try:
                    await test(site)
                finally:
                    await site.close()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    functools.update_wrapper(run, test)
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
