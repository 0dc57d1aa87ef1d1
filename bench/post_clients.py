"""Clients of ``POST /streams/payments``, for a process of their own: plain sockets, of which a
request takes some 20 us of CPU.

With asyncio a client takes as much as the server, and in the server's or the measuring process it
would be measured with them.
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass

from bench.processes import cpu_of, postgres_cpu

JSON, NDJSON = "application/json", "application/x-ndjson"


class Poster:
    """A connection that stays open: one request at a time, as a client with keep-alive."""

    def __init__(self, port: int, name: str, body: bytes, kind: str = JSON) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0
        self._before = (
            f"POST /streams/payments HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\nidempotency-key: {name}-"
        ).encode()
        self._after = b"\r\n\r\n" + body

    def send(self) -> None:
        self._number += 1
        self.socket.sendall(b"%b%d%b" % (self._before, self._number, self._after))

    def read(self) -> None:
        """Wait for the answer, and check it."""
        answer = self.socket.recv(65536)
        while not answer.endswith(b"}"):  # the end of the body
            more = self.socket.recv(65536)
            if not more:
                raise RuntimeError(answer.decode())
            answer += more
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())


@dataclass
class Posted:
    """What the clients have measured."""

    times: list[float]
    """Seconds of each request."""
    seconds: float
    """Of all of them."""
    cpu: dict[str, float]
    """CPU seconds of the clients, the worker and Postgres, meanwhile."""

    @property
    def per_second(self) -> float:
        return len(self.times) / self.seconds


async def posted(
    port: int,
    name: str,
    body: bytes,
    *,
    clients: int,
    requests: int,
    worker: int,
    url: str,
    kind: str = JSON,
) -> Posted:
    """Send some requests by some clients at once; `bench.apart` runs it.

    Each client sends its next request when it has the answer to the last one. `name` makes ids of
    requests; `worker` is the process that serves, and `url` its store's.
    """

    def cpu() -> dict[str, float]:
        return {"worker": cpu_of(worker), "postgres": postgres_cpu(url)}

    all_of_them = [Poster(port, f"{name}-{number}", body, kind) for number in range(clients)]
    for each in all_of_them:  # a connection's first request takes longer
        each.send()
        each.read()
    times: list[float] = []
    began: dict[int, float] = {}
    waiting = selectors.DefaultSelector()
    before = cpu()
    own, start = time.process_time(), time.perf_counter()
    for number, each in enumerate(all_of_them):
        waiting.register(each.socket, selectors.EVENT_READ, (number, each))
        began[number] = time.perf_counter()
        each.send()
    left = requests - clients
    while len(times) < requests:
        for key, _ in waiting.select():
            number, each = key.data
            each.read()
            now = time.perf_counter()
            times.append(now - began[number])
            if left > 0:
                left -= 1
                began[number] = now
                each.send()
    seconds, own = time.perf_counter() - start, time.process_time() - own
    spent = {name: after - before[name] for name, after in cpu().items()}
    found = Posted(times, seconds, {**spent, "clients": own})
    for each in all_of_them:
        each.socket.close()
    return found
