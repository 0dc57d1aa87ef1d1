"""A network without a network: connections within one event loop, on any clock, with bad weather.

::

    ether = Ether(clock, weather=Weather(Random(7), drop=0.01, duplicate=0.01, delay=0.2))
    one = Links(Identity("p", "one", SECRET), ether.medium("one"), clock=clock)
    two = Links(Identity("p", "two", SECRET), ether.medium("two"), clock=clock)

Everything above the bytes is the real thing: `millwheel.runtime.network.links` with its greetings,
frames, pings and pauses. What is made up is the line. It carries whole frames, each with a fate:
how late it comes, how often (0: never), and whether it may overtake. A line between two places
can be *cut*, so that both sides see it break, or *parted*: then nothing comes through and nobody is
told, until it is *joined* again and what was on its way goes on.

With a `VirtualClock` and a seed each run is like the one before: things that are due at the same
instant happen in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from millwheel.clock import Clock
from millwheel.runtime.network.frames import PREFIX_BYTES, Splitter
from millwheel.runtime.network.handshake import Secret
from millwheel.runtime.network.ports import Admit, Make

SECRET = Secret(b"what workers on the ether know", "given")
"""For workers to which nothing else is given."""


@dataclass(frozen=True)
class Fate:
    """What becomes of one frame on its way."""

    delay: float = 0.0
    """Seconds. What comes behind it waits for it, unless that overtakes."""
    copies: int = 1
    """How often it comes; 0: it is lost."""
    overtakes: bool = False
    """Whether it comes as its delay says, whatever was sent before."""


FAIR = Fate()

Fates = Callable[[str, str, bytes], Fate]
"""The fate of a frame's body from one place to another."""


@dataclass
class Weather:
    """Fates by chance, each with its probability; delays up to `delay` seconds."""

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
    """Every frame comes at once, and once."""
    return FAIR


class Ether:
    """What carries frames between places. `weather` may be changed at any time."""

    def __init__(self, clock: Clock, weather: Fates = fair) -> None:
        self.clock = clock
        self.weather = weather
        self._listeners: dict[str, Admit] = {}
        self._lines: set[Line] = set()
        self._parted: set[frozenset[str]] = set()
        self._joined = asyncio.Event()
        self._due: list[tuple[float, int, Line, bytes | None]] = []
        self._count = 0
        self._soon = False
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = 0.0

    def medium(self, name: str) -> Place:
        """A place with this name, for one worker."""
        return Place(self, name)

    def cut(self, one: str, other: str) -> None:
        """Break the connections between two places; both sides see it at once."""
        for line in sorted(self._lines, key=lambda line: line.number):
            if {line.source, line.target} == {one, other}:
                line.broken(ConnectionResetError("the line was cut"))

    def part(self, one: str, other: str) -> None:
        """Let nothing through between two places, and tell nobody."""
        self._parted.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        """Let it through again, what was on its way first."""
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
        """A place is gone: nobody listens there any more, and its connections break. `silently`:
        nobody is told of that, as when a machine has lost its power."""
        self.deafen(name)
        for line in sorted(self._lines, key=lambda line: line.number):
            if name in (line.source, line.target) and not silently:
                line.broken(ConnectionResetError("the other side is gone"))

    # -- for places and lines -----------------------------------------------------

    def listen(self, name: str, admit: Admit) -> None:
        self._listeners[name] = admit

    def deafen(self, name: str) -> None:
        self._listeners.pop(name, None)

    async def connect(self, caller: str, name: str, make: Make) -> None:
        while self.is_parted(caller, name):
            await self._joined.wait()
        await asyncio.sleep(0)
        if name not in self._listeners:
            raise ConnectionRefusedError(f"nobody listens at {name!r}")
        calling, listening = make(), self._listeners[name](caller)
        there, back = Line(self, caller, name), Line(self, name, caller)
        there.back, back.back = back, there
        there.start(calling)
        back.start(listening)

    def number(self) -> int:
        self._count += 1
        return self._count

    def open(self, line: Line) -> None:
        self._lines.add(line)

    def shut(self, line: Line) -> None:
        self._lines.discard(line)

    def put(self, at: float, line: Line, body: bytes | None) -> None:
        """Have a frame, or the end of a line, come at an instant."""
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
        """Everything that is due; what is sent meanwhile has its turn later."""
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


class Place:
    """A `millwheel.runtime.network.ports.Medium`: where one worker is."""

    def __init__(self, ether: Ether, name: str) -> None:
        self._ether = ether
        self._name = name

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        self._ether.listen(self._name, admit)
        return self._name

    async def connect(self, make: Make, address: str) -> None:
        await self._ether.connect(self._name, address, make)

    def deafen(self) -> None:
        self._ether.deafen(self._name)

    async def close(self) -> None:
        pass


class Line(asyncio.Transport):
    """One end of a connection: what it writes comes to the protocol of the other end."""

    back: Line

    def __init__(self, ether: Ether, source: str, target: str) -> None:
        super().__init__()
        self.number = ether.number()
        self.source = source
        self.target = target
        self.held: list[tuple[float, int, Line, bytes | None]] = []
        """What was due while the two places were parted."""
        self._ether = ether
        self._protocol: asyncio.Protocol | None = None
        """Of this end; None: it has heard that the connection is lost."""
        self._splitter = Splitter((1 << 32) - 1)
        self._waiting = 0
        self._high = self._low = 0
        self._paused = False
        """The protocol of this end was asked to write no more."""
        self._last = 0.0
        self._closing = False
        self._aborted = False
        """What was written and has not come never will."""

    def start(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._ether.open(self)
        protocol.connection_made(self)

    # -- for the protocol of this end ---------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing:
            return
        ether = self._ether
        for body in self._splitter.feed(data):
            fate = ether.weather(self.source, self.target, body)
            at = ether.clock.monotonic() + fate.delay
            if not fate.overtakes:
                at = self._last = max(self._last, at)
            for _ in range(fate.copies):
                self._waiting += PREFIX_BYTES + len(body)
                ether.put(at, self, body)
        if self._waiting > self._high and not self._paused and self._protocol is not None:
            self._paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._last = max(self._last, self._ether.clock.monotonic())
            self._ether.put(self._last, self, None)

    def abort(self) -> None:
        if self._protocol is not None:
            self._aborted = True
            self.close()
            asyncio.get_running_loop().call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        """What has not come to the other end. A real network hides a part of it."""
        return self._waiting

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.target if name == "peername" else default

    # -- for the ether ------------------------------------------------------------

    def arrived(self, body: bytes | None) -> None:
        """A frame that this end wrote is at the other end, or the news that it closed."""
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
            self.broken(ConnectionResetError("nobody is at the other end any more"))
        elif not (self._aborted or self.back._closing):
            protocol.data_received(len(body).to_bytes(PREFIX_BYTES, "big") + body)

    def closed_there(self) -> None:
        self._closing = True
        self._lose(None)

    def broken(self, error: Exception) -> None:
        """Both ends are told, soon; what was on its way is lost."""
        self._closing = True
        asyncio.get_running_loop().call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            self._ether.shut(self)
            protocol.connection_lost(error)
