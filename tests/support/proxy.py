"""A proxy between two workers that knows where frames begin: it can harm them one by one.

::

    caller ──> proxy ──> listener        the listener advertises the proxy's address

In a test: `Proxy(target)` in its event loop. By itself: ``python -m tests.support.proxy HOST:PORT``
prints ``listening HOST:PORT`` and takes commands, a line each, answering ``ok`` or ``error ...``::

    weather drop=0.01 duplicate=0.01 overtake=0.01 delay=0.05 seed=7
    next Deliver copies=0 count=3     the next three such frames are lost
    stall caller                      read nothing more of what the caller writes
    resume
    cut                               break all connections
    shut | open                       hang up on whoever calls from now on, or do not

It does not know TLS: to it that would be one endless frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
from collections import deque
from random import Random
from typing import Any, Literal

from millwheel.errors import PeerError
from millwheel.runtime.network import frames
from millwheel.runtime.process.tasks import end
from millwheel.testing.fake_network import FAIR, Fate, Fates, Weather, fair

Side = Literal["caller", "listener"]
SIDES: tuple[Side, Side] = ("caller", "listener")
LONGEST = (1 << 32) - 1


class Proxy:
    """Carries the frames of all connections to one target, each to its fate."""

    def __init__(self, target: str, weather: Fates = fair) -> None:
        self.target = target
        self.weather = weather
        self.carried = 0
        """Frames written to either side."""
        self.shut = False
        """Hang up on whoever calls."""
        self._plans: deque[tuple[type[frames.Frame], Fate]] = deque()
        self._flowing = {side: asyncio.Event() for side in SIDES}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.resume()

    @property
    def connected(self) -> int:
        """Connections that are open now."""
        return sum(not writer.transport.is_closing() for writer in self._writers) // 2

    async def start(self, port: int = 0) -> str:
        """Listen on the loopback address; gives the address to call."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Break what is left, and listen no more."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await end(self._tasks)
        await asyncio.gather(
            *(writer.wait_closed() for writer in self._writers), return_exceptions=True
        )

    def next(self, kind: type[frames.Frame], fate: Fate, count: int = 1) -> None:
        """What becomes of the next frames of a kind; before the weather has its say."""
        self._plans += [(kind, fate)] * count

    def stall(self, *sides: Side) -> None:
        """Read and carry nothing more of what these sides write; their buffers fill up."""
        for side in sides or SIDES:
            self._flowing[side].clear()

    def resume(self) -> None:
        """Go on with everything."""
        for flowing in self._flowing.values():
            flowing.set()

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self.shut:
            writer.transport.abort()
        else:
            self._spawn(self._connect(reader, writer))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host, _, port = self.target.rpartition(":")
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(there_writer)
        self._spawn(self._carry("caller", reader, there_writer))
        self._spawn(self._carry("listener", there_reader, writer))

    async def _carry(
        self, side: Side, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read what one side writes; a second task writes it to the other when it is due."""
        queue = Queue()
        writing = asyncio.create_task(self._write(side, queue, writer))
        splitter = frames.Splitter(LONGEST)
        try:
            while True:
                await self._flowing[side].wait()
                data = await reader.read(1 << 16)
                if not data:
                    break
                for body in splitter.feed(data):
                    queue.put(body, self._fate(side, body))
            queue.end()
            await writing
        except (OSError, RuntimeError):  # the latter is uvloop's, of a reader that was cut
            writer.transport.abort()
        finally:
            await end([writing])

    async def _write(self, side: Side, queue: Queue, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while (body := await queue.take()) is not None:
                await self._flowing[side].wait()
                writer.write(len(body).to_bytes(frames.PREFIX_BYTES, "big") + body)
                self.carried += 1
                await writer.drain()
        writer.close()

    def _fate(self, side: Side, body: bytes) -> Fate:
        if self._plans:
            kind, fate = self._plans[0]
            with contextlib.suppress(PeerError):
                if isinstance(frames.decode(body), kind):
                    self._plans.popleft()
                    return fate
        return self.weather(side, SIDES[side == "caller"], body)


class Queue:
    """Frames on their way, in the order in which they are due."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, bytes | None]] = []
        self._count = 0
        self._last = 0.0
        self._changed = asyncio.Event()

    def put(self, body: bytes | None, fate: Fate) -> None:
        at = self._loop.time() + fate.delay
        if not fate.overtakes:
            at = self._last = max(self._last, at)
        for _ in range(fate.copies):
            self._count += 1
            heapq.heappush(self._due, (at, self._count, body))
        self._changed.set()

    def end(self) -> None:
        self.put(None, FAIR)

    async def take(self) -> bytes | None:
        """The next one when it is due; None: there will be no more."""
        while True:
            self._changed.clear()
            left = self._due[0][0] - self._loop.time() if self._due else None
            if left is not None and left <= 0:
                return heapq.heappop(self._due)[2]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()


def obey(proxy: Proxy, line: str) -> None:
    """Do what a line says."""
    verb, *words = line.split()
    options = dict(word.split("=") for word in words if "=" in word)
    names: list[Any] = [word for word in words if "=" not in word]
    seed, count = int(options.pop("seed", 0)), int(options.pop("count", 1))
    if verb == "weather":
        chances = {name: float(value) for name, value in options.items()}
        proxy.weather = Weather(Random(seed), **chances)
    elif verb == "next":
        fate = Fate(
            delay=float(options.get("delay", 0)),
            copies=int(options.get("copies", 1)),
            overtakes=options.get("overtakes") == "yes",
        )
        proxy.next(getattr(frames, names[0]), fate, count)
    elif verb == "stall":
        proxy.stall(*names)
    elif verb in ("resume", "cut"):
        getattr(proxy, verb)()
    elif verb in ("shut", "open"):
        proxy.shut = verb == "shut"
    else:
        raise ValueError(f"no such command: {verb}")


async def main(target: str) -> None:
    proxy = Proxy(target)
    print("listening", await proxy.start(), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            obey(proxy, line)
            print("ok", flush=True)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            print(f"error {error!r}", flush=True)
    await proxy.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
