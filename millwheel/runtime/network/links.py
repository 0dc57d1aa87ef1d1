"""All links of one worker, over any medium: connects, keeps alive, closes.

::

    outgoing:  dial ──> greeting ──> up ──> down ──┐        one task per link
                 ^────────── pause ────────────────┘        pauses grow, with jitter
    incoming:  accepted ──> (TLS) ──> greeting ──> up ──> down   no task; the caller reconnects

There is at most one link to each worker and one from each. If a worker connects again, the newer
connection is used: the caller notices a broken line earlier.

An incoming connection is a *stranger* until its greeting ends. `Limits.strangers` bounds their
number, `Limits.greeting_seconds` the time, TLS included. Machines of workers have places of their
own, and a new connection replaces the oldest one, which has had time for a greeting: so silent
connections keep no worker out.

Repeated failures are logged once per *kind*: for a link until it was up again (garbage once per
peer and direction), for strangers of one machine until a greeting from it succeeds.
"""

from __future__ import annotations

import asyncio
import secrets
from random import Random

import structlog

from millwheel.core.backoff import Backoff
from millwheel.core.clock import Clock, SystemClock
from millwheel.errors import InvariantBroken
from millwheel.runtime.network.connection import Connection, End, EndKind
from millwheel.runtime.network.frames import NONCE_BYTES, Frame
from millwheel.runtime.network.handshake import ORIGINS, Handshake, Identity
from millwheel.runtime.network.peer_ports import Handler, Limits, Link, Medium
from millwheel.runtime.process.tasks import end, within

INTENDED: frozenset[EndKind] = frozenset(("closed", "goodbye"))
"""Kinds of endings that are logged without a warning."""

REMEMBERED_HOSTS = 256

TOO_MANY = "too many connections are in their greeting; connect again later"


class WorkerLink:
    def __init__(self, links: Links, peer: str, *, outgoing: bool) -> None:
        self._links = links
        self.peer = peer
        self.outgoing = outgoing
        self.connection: Connection | None = None
        self.reported_up = False
        self.failed: set[EndKind] = set()
        """Kinds of failures logged since the link was last up."""
        self.dialer: asyncio.Task[None] | None = None
        self.hosts: frozenset[str] = frozenset()

    @property
    def up(self) -> bool:
        return self.connection is not None and self.connection.up

    @property
    def full(self) -> bool:
        return self.connection is not None and self.connection.full

    def send(self, frame: Frame) -> None:
        connection = self.connection
        if connection is not None and connection.up:
            connection.send(frame)

    def close(self) -> None:
        self._links.forget(self)
        if self.connection is not None:
            self.connection.end("closed", "the link is not needed any more")


class Links:
    def __init__(
        self,
        identity: Identity,
        medium: Medium,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        random: Random | None = None,
    ) -> None:
        self._identity = identity
        self._medium = medium
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()
        self._random = random or Random()  # noqa: S311 (pauses are no secret)
        self._handler: Handler | None = None
        self._tending: asyncio.Task[None] | None = None
        self._connections: dict[Connection, None] = {}
        self._links: dict[Connection, WorkerLink] = {}
        self._outgoing: dict[str, WorkerLink] = {}
        self._incoming: dict[str, WorkerLink] = {}
        self._dialers: set[asyncio.Task[None]] = set()
        self._end_events: dict[Connection, asyncio.Event] = {}
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._logged_strangers: dict[str, set[EndKind]] = {}
        self._logged_garbage: set[tuple[str, bool]] = set()
        """Peers with logged garbage, and whether the link was outgoing."""
        self._closing = False
        self._restarting = False
        self._incarnation = ""
        self.address = ""
        self._log = structlog.get_logger().bind(
            pipeline=identity.pipeline, worker=identity.worker[:8]
        )

    # -- life ---------------------------------------------------------------------

    async def start(self, handler: Handler, incarnation: str = "") -> None:
        self._handler = handler
        self._incarnation = incarnation
        self.address = await self._medium.listen(self._admit, self._limits.greeting_seconds)
        self._tending = asyncio.create_task(self._tend())

    @property
    def expired(self) -> str:
        return self._medium.expired

    def hang_up(self) -> None:
        self._restarting = True
        for link in list(self._outgoing.values()):
            link.close()
        for connection in list(self._connections):
            connection.end("closed", "the worker starts over")

    def begin_again(self, handler: Handler, incarnation: str) -> None:
        for connection in list(self._connections):  # its greeting names the former incarnation
            connection.end("closed", "the worker starts over; connect again")
        self._handler = handler
        self._incarnation = incarnation
        self._restarting = False

    def link(self, worker: str, address: str) -> Link:
        if self._handler is None or self._closing:
            raise InvariantBroken(
                "a link was asked for before the network's start or after its close"
            )
        if worker in self._outgoing:
            raise InvariantBroken(f"a link to worker {worker!r} exists already")
        link = self._outgoing[worker] = WorkerLink(self, worker, outgoing=True)
        link.dialer = asyncio.create_task(self._keep_dialing(link, address))
        self._dialers.add(link.dialer)
        link.dialer.add_done_callback(self._dialers.discard)
        return link

    def forget(self, link: WorkerLink) -> None:
        if link.outgoing and self._outgoing.get(link.peer) is link:
            del self._outgoing[link.peer]
        if link.dialer is not None:
            link.dialer.cancel()

    async def close(self) -> None:
        self._closing = True
        self._medium.stop_listening()
        for connection in list(self._connections):
            connection.end("closed", "the worker stops")
        await end(self._dialers)
        try:
            await within(self._clock, self._limits.closing_seconds, self._all_gone.wait())
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._all_gone.wait()
        if self._tending is not None:
            await end([self._tending])
        await self._medium.close()

    async def _tend(self) -> None:
        while True:
            await self._clock.sleep(self._limits.ping_seconds)
            for connection in list(self._connections):
                connection.tend()

    # -- dialing ------------------------------------------------------------------

    async def _keep_dialing(self, link: WorkerLink, address: str) -> None:
        limits = self._limits
        first, longest = limits.first_pause_seconds, limits.longest_pause_seconds
        backoff = Backoff(self._clock, first=first, longest=longest)
        while True:
            began = self._clock.monotonic()
            failure = await self._dial(link, address)
            self._log_failure(link, address, failure)
            if self._clock.monotonic() - began >= longest:
                backoff.restart()  # the connection was useful
            await backoff.wait(self._random.uniform(0.5, 1.0))

    async def _dial(self, link: WorkerLink, address: str) -> End:
        """Returns when the connection has ended."""
        connection = self._connection(link.peer)
        link.connection = connection
        self._links[connection] = link
        ended = self._end_events[connection] = asyncio.Event()

        async def call() -> None:
            link.hosts = await self._medium.hosts(address)
            await self._medium.connect(lambda: connection, address)

        made = False
        try:
            await within(self._clock, self._limits.greeting_seconds, call())
            made = True
            await ended.wait()
        except OSError as error:  # includes TimeoutError and ssl.SSLError
            connection.end("unreachable", str(error) or type(error).__name__)
        finally:
            connection.end("closed", "the link is not needed any more")
            if not made:
                connection.abandon()
            del self._end_events[connection]
        assert connection.end_reason is not None
        return connection.end_reason

    def _connection(self, expected: str | None, remote: str = "nowhere") -> Connection:
        nonce = secrets.token_bytes(NONCE_BYTES)
        greeting = Handshake(
            self._identity, nonce, expected=expected, incarnation=self._incarnation
        )
        return Connection(self, greeting, self._clock, self._limits, remote)

    def _admit(self, remote: str) -> Connection:
        """The oldest stranger makes room if there are too many, unless it is very young too."""
        connection = self._connection(None, remote)
        strangers = self._strangers(known=self._is_known(remote))
        if len(strangers) >= self._limits.strangers:
            oldest = strangers[0]
            if oldest.age < self._limits.undisturbed_seconds:
                connection.welcome = False
            else:
                oldest.end("refused", TOO_MANY)
        self._connections[connection] = None
        self._all_gone.clear()
        return connection

    def _strangers(self, *, known: bool) -> list[Connection]:
        """Those from machines of workers or the others, the oldest first."""
        return [
            c
            for c in self._connections
            if not c.up
            and c.end_reason is None
            and c.welcome
            and c not in self._links
            and self._is_known(c.remote) == known
        ]

    def _is_known(self, remote: str) -> bool:
        host = host_of(remote)
        return any(host in link.hosts for link in self._outgoing.values()) or any(
            host == host_of(link.connection.remote)
            for link in self._incoming.values()
            if link.connection is not None
        )

    # -- events of connections (`Owner`) ------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        self._all_gone.clear()
        if self._closing:
            connection.end("closed", "the worker stops")
        elif self._restarting:
            connection.end("closed", "the worker starts over; connect again")
        elif not connection.welcome:
            connection.end("refused", TOO_MANY)

    def greeted(self, connection: Connection) -> None:
        link = self._links.get(connection)
        if link is None:
            before = self._incoming.get(connection.peer)
            if before is not None and before.connection is not None:
                before.connection.end("closed", "the same worker connected again")
                self._report_down(before, "the same worker connected again")
            link = WorkerLink(self, connection.peer, outgoing=False)
            link.connection = connection
            self._links[connection] = self._incoming[connection.peer] = link
            self._logged_strangers.pop(host_of(connection.remote), None)
        link.failed.clear()
        link.reported_up = True
        self._log.info("link_up", peer=link.peer, address=connection.remote, outgoing=link.outgoing)
        assert self._handler is not None
        self._handler.link_up(link)

    def received(self, connection: Connection, frame: Frame) -> None:
        assert self._handler is not None
        self._handler.received(self._links[connection], frame)

    def ended(self, connection: Connection, end: End) -> None:
        link = self._links.pop(connection, None)
        if link is None:
            self._log_stranger(connection, end)
            return
        # Later: the handler may be in a call to `send`.
        asyncio.get_running_loop().call_soon(self._report_down, link, str(end))
        if link.outgoing and end.kind == "refused":
            asyncio.get_running_loop().call_soon(self._report_refused, link)
        ended = self._end_events.get(connection)
        if ended is not None:
            ended.set()
        elif not link.outgoing:
            self._log_failure(link, connection.remote, end)
            if self._incoming.get(link.peer) is link:
                del self._incoming[link.peer]

    def drained(self, connection: Connection) -> None:
        assert self._handler is not None
        self._handler.link_drained(self._links[connection])

    def gone(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._all_gone.set()

    def _report_down(self, link: WorkerLink, reason: str) -> None:
        if link.reported_up:
            link.reported_up = False
            assert self._handler is not None
            self._handler.link_down(link, reason)

    def _report_refused(self, link: WorkerLink) -> None:
        assert self._handler is not None
        self._handler.link_refused(link)

    # -- logs ---------------------------------------------------------------------

    def _log_failure(self, link: WorkerLink, address: str, end: End) -> None:
        if end.kind in link.failed:
            return
        link.failed.add(end.kind)
        if end.kind == "garbage":
            if (link.peer, link.outgoing) in self._logged_garbage:
                return
            if len(self._logged_garbage) >= REMEMBERED_HOSTS:
                self._logged_garbage.clear()
            self._logged_garbage.add((link.peer, link.outgoing))
        log = self._log.info if end.kind in INTENDED else self._log.warning
        log(
            "link_down",
            peer=link.peer,
            address=address,
            outgoing=link.outgoing,
            kind=end.kind,
            reason=end.text,
            **own_secret(self._identity, end),
            **({"certificate": self.expired} if self.expired else {}),
        )

    def _log_stranger(self, connection: Connection, end: End) -> None:
        host = host_of(connection.remote)
        if end.kind in INTENDED or end.kind in self._logged_strangers.get(host, ()):
            return
        if host not in self._logged_strangers and len(self._logged_strangers) >= REMEMBERED_HOSTS:
            self._logged_strangers.clear()
        self._logged_strangers.setdefault(host, set()).add(end.kind)
        self._log.warning(
            "stranger_refused",
            address=connection.remote,
            kind=end.kind,
            reason=end.text,
            **own_secret(self._identity, end),
        )


def own_secret(identity: Identity, end: End) -> dict[str, str]:
    """The origin of this worker's secret, for its log of a refusal."""
    return {"secret": ORIGINS[identity.secret.origin]} if end.kind == "refused" else {}


def host_of(address: str) -> str:
    return address.rpartition(":")[0]
