"""A fake network: connections within one event loop, on any clock, with injected faults.

::

    network = FakeNetwork(clock, weather=Weather(Random(7), drop=0.01, duplicate=0.01, delay=0.2))
    one = Links(Identity("p", "one", SECRET), network.medium("one"), clock=clock)
    two = Links(Identity("p", "two", SECRET), network.medium("two"), clock=clock)

Only the transport is fake: `millwheel.runtime.network.links` with its handshake, frames, pings and
flow control is the production code. The transport carries whole frames, each with a `Fate`.
Connections between two workers can be *cut*, which both sides notice, or *parted*: then frames are
held back and neither side notices, until the two are *joined* again. With a `VirtualClock` and a
seed, runs are reproducible: simultaneous events happen in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from millwheel.core.clock import Clock
from millwheel.runtime.network.frames import PREFIX_BYTES, Splitter
from millwheel.runtime.network.handshake import Secret
from millwheel.runtime.network.peer_ports import Admit, Make

SECRET = Secret(b"what workers on the network know", "given")


@dataclass(frozen=True)
class Fate:
    delay: float = 0.0
    """Delay in seconds. Later frames wait for this one, unless they overtake."""
    copies: int = 1
    """Number of times it is delivered; 0: it is lost."""
    overtakes: bool = False
    """Whether it is delivered after its own delay, regardless of frames sent before."""


FAIR = Fate()

Fates = Callable[[str, str, bytes], Fate]
"""Returns the fate of a frame, given the names of sender and receiver, and its body."""


@dataclass
class Weather:
    """Random faults with the given probabilities, and uniform delays of up to `delay` seconds."""

    random: Random
    drop: float = 0.0
    duplicate: float = 0.0
    overtake: float = 0.0
    delay: float = 0.0

    def __call__(self, sender: str, receiver: str, body: bytes) -> Fate:
        chance = self.random.random
        return Fate(
            delay=self.delay * chance(),
            copies=0 if chance() < self.drop else 2 if chance() < self.duplicate else 1,
            overtakes=chance() < self.overtake,
        )


def fair(sender: str, receiver: str, body: bytes) -> Fate:
    return FAIR


class FakeNetwork:
    """Carries frames between workers. `weather` may be changed at any time."""

    def __init__(self, clock: Clock, weather: Fates = fair) -> None:
        self.clock = clock
        self.weather = weather
        self._listeners: dict[str, Admit] = {}
        self._lines: set[FakeTransport] = set()
        self._parted: set[frozenset[str]] = set()
        self._joined = asyncio.Event()
        self._due: list[tuple[float, int, FakeTransport, bytes | None]] = []
        self._count = 0
        self._soon = False
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = 0.0

    def medium(self, name: str) -> FakeMedium:
        return FakeMedium(self, name)

    def cut(self, one: str, other: str) -> None:
        """Break the connections between two workers; both sides notice immediately."""
        for line in sorted(self._lines, key=lambda line: line.number):
            if {line.source, line.target} == {one, other}:
                line.broken(ConnectionResetError("the connection was cut"))

    def part(self, one: str, other: str) -> None:
        """Hold back all frames between two workers, without either side noticing."""
        self._parted.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        """Deliver frames between two workers again, those held back first."""
        self._parted.discard(frozenset((one, other)))
        for line in sorted(self._lines, key=lambda line: line.number):
            if not self.is_parted(line.source, line.target):
                for item in line.held:
                    heapq.heappush(self._due, item)
                line.held.clear()
        self._joined.set()
        self._joined = asyncio.Event()
        self._schedule()

    def is_parted(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._parted

    def lose(self, name: str, *, silently: bool = False) -> None:
        """Remove a worker: it no longer listens, and its connections break.

        Args:
            silently: the other sides do not notice, as after a power failure.
        """
        self.deafen(name)
        for line in sorted(self._lines, key=lambda line: line.number):
            if name in (line.source, line.target) and not silently:
                line.broken(ConnectionResetError("the other side is gone"))

    # -- for media and transports -------------------------------------------------

    def listen(self, name: str, admit: Admit) -> None:
        self._listeners[name] = admit

    def deafen(self, name: str) -> None:
        self._listeners.pop(name, None)

    async def connect(self, caller: str, name: str, make: Make) -> None:
        while self.is_parted(caller, name):
            await self._joined.wait()
        await asyncio.sleep(0)
        if name not in self._listeners:
            raise ConnectionRefusedError(f"no worker listens at {name!r}")
        calling, listening = make(), self._listeners[name](caller)
        there, back = FakeTransport(self, caller, name), FakeTransport(self, name, caller)
        there.back, back.back = back, there
        there.start(calling)
        back.start(listening)

    def number(self) -> int:
        self._count += 1
        return self._count

    def open(self, line: FakeTransport) -> None:
        self._lines.add(line)

    def shut(self, line: FakeTransport) -> None:
        self._lines.discard(line)

    def put(self, at: float, line: FakeTransport, body: bytes | None) -> None:
        """Schedule a frame, or the end of a connection (None), for a time."""
        heapq.heappush(self._due, (at, self.number(), line, body))
        self._schedule()

    def _schedule(self) -> None:
        if not self._due or self._soon:
            return
        at = self._due[0][0]
        if at <= self.clock.monotonic():
            self._soon = True
            asyncio.get_running_loop().call_soon(self._carry)
        elif self._alarm is None or self._alarm.done() or at < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = at
            self._alarm = asyncio.create_task(self._carry_later(at - self.clock.monotonic()))

    async def _carry_later(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self._alarm = None
        self._carry()

    def _carry(self) -> None:
        """Deliver everything due, but not the frames sent during this call."""
        self._soon = False
        now, last = self.clock.monotonic() + 1e-9, self._count
        try:
            while self._due and self._due[0][0] <= now and self._due[0][1] <= last:
                item = heapq.heappop(self._due)
                line = item[2]
                if self.is_parted(line.source, line.target):
                    line.held.append(item)
                else:
                    line.arrived(item[3])
        finally:
            self._schedule()


class FakeMedium:
    def __init__(self, network: FakeNetwork, name: str) -> None:
        self._network = network
        self._name = name

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        self._network.listen(self._name, admit)
        return self._name

    async def connect(self, make: Make, address: str) -> None:
        await self._network.connect(self._name, address, make)

    @property
    def expired(self) -> str:
        return ""

    async def hosts(self, address: str) -> frozenset[str]:
        return frozenset()

    def stop_listening(self) -> None:
        self._network.deafen(self._name)

    async def close(self) -> None:
        pass


class FakeTransport(asyncio.Transport):
    """One end of a connection: its writes are delivered to the protocol of the other end."""

    back: FakeTransport

    def __init__(self, network: FakeNetwork, source: str, target: str) -> None:
        super().__init__()
        self.number = network.number()
        self.source = source
        self.target = target
        self.held: list[tuple[float, int, FakeTransport, bytes | None]] = []
        self._network = network
        self._protocol: asyncio.Protocol | None = None
        """This end's protocol; None after its `connection_lost`."""
        self._splitter = Splitter((1 << 32) - 1)
        self._waiting = 0
        self._high = self._low = 0
        self._paused = False
        self._last = 0.0
        self._closing = False
        self._aborted = False

    def start(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._network.open(self)
        protocol.connection_made(self)

    # -- called by the protocol of this end ---------------------------------------

    def write(self, data: Any) -> None:
        if self._closing:
            return
        network = self._network
        for body in self._splitter.feed(data):
            fate = network.weather(self.source, self.target, body)
            at = network.clock.monotonic() + fate.delay
            if not fate.overtakes:
                at = self._last = max(self._last, at)
            for _ in range(fate.copies):
                self._waiting += PREFIX_BYTES + len(body)
                network.put(at, self, body)
        if self._waiting > self._high and not self._paused and self._protocol is not None:
            self._paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._last = max(self._last, self._network.clock.monotonic())
            self._network.put(self._last, self, None)

    def abort(self) -> None:
        if self._protocol is not None:
            self._aborted = True
            self.close()
            asyncio.get_running_loop().call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Bytes not delivered to the other end, of which a real network hides a part."""
        return self._waiting

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.target if name == "peername" else default

    # -- called by the network ----------------------------------------------------

    def arrived(self, body: bytes | None) -> None:
        """Deliver a frame written by this end to the other end, or (None) this end's close."""
        if body is None:
            self._lose(None)
            self.back.closed_there()
            return
        self._waiting -= PREFIX_BYTES + len(body)
        if self._paused and self._waiting <= self._low and self._protocol is not None:
            self._paused = False
            self._protocol.resume_writing()
        protocol = self.back._protocol
        if protocol is None:
            self.broken(ConnectionResetError("the other end is closed"))
        elif not (self._aborted or self.back._closing):
            protocol.data_received(len(body).to_bytes(PREFIX_BYTES, "big") + body)

    def closed_there(self) -> None:
        self._closing = True
        self._lose(None)

    def broken(self, error: Exception) -> None:
        """Report the loss of the connection to this end's protocol soon; frames in transit are
        lost."""
        self._closing = True
        asyncio.get_running_loop().call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            self._network.shut(self)
            protocol.connection_lost(error)
