"""The network as the engine sees it: links to other workers, which go up and down.

::

    link:  down ──link_up──> up ──link_down──> down ──link_up──> ...   outgoing, until it is closed
                             up ──link_down──> gone                    incoming

A *link* is one direction of delivery between two workers. The engine asks for an outgoing link,
which connects and reconnects by itself; an incoming link is another worker's outgoing one, and ends
with its connection. Both carry frames both ways. Every `link_up` is followed by one `link_down`.

While a link is up, frames arrive in the order in which they were sent, each at most once. Arrival
is not guaranteed: a link that went down may have lost any of the last frames, so their sender
repeats them after the next `link_up` if they still matter.

`send` never blocks; callers must stop while `link.full`, since more frames would only pile up here.
`link_drained` is called when the link has room again.

`Links` in `millwheel.runtime.network.links` implements this over TCP (`millwheel.services.tcp`)
and, in tests, over a fake medium (`millwheel.testing.fake_network`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from millwheel.errors import UsageError
from millwheel.runtime.network.frames import (
    GREETING_BYTES,
    PREFIX_BYTES,
    RECORD_OVERHEAD_BYTES,
    Frame,
)
from millwheel.settings import MEBIBYTE


class Link(Protocol):
    """One direction of delivery between this worker and another."""

    @property
    def peer(self) -> str:
        """The other worker's id."""
        ...

    @property
    def outgoing(self) -> bool:
        """Whether this worker asked for the link."""
        ...

    @property
    def up(self) -> bool:
        """Whether frames can be sent now."""
        ...

    @property
    def full(self) -> bool:
        """Whether callers should pause. `link_drained` will be called, unless the link goes
        down."""
        ...

    def send(self, frame: Frame) -> None:
        """Send a frame, or drop it if the link is down. Never waits, never raises."""
        ...

    def close(self) -> None:
        """Close the link after the frames sent so far. `link_down` is called soon, not in this
        call."""
        ...


class Handler(Protocol):
    """The user of the links.

    Its methods are called in the event loop, never within a call to a link. Only `received` may
    raise, and only `PeerError`.
    """

    def link_up(self, link: Link) -> None:
        """The link is up: frames can be sent both ways."""
        ...

    def link_down(self, link: Link, reason: str) -> None:
        """The link is down; the last frames that were sent may be lost."""
        ...

    def link_drained(self, link: Link) -> None:
        """The link was full and has room again."""
        ...

    def received(self, link: Link, frame: Frame) -> None:
        """A frame about records or watermarks (`Message`) arrived.

        Raises:
            PeerError: no worker sends such a frame; the connection is closed as garbage.
        """
        ...

    def link_refused(self, link: Link) -> None:
        """One of the two workers refused this outgoing link: one of them may know outdated
        facts."""
        ...


class Network(Protocol):
    """Makes the links of a worker."""

    @property
    def expired(self) -> str:
        """The certificate of this worker that has expired, in words: peers refuse it; empty: none
        has."""
        ...

    @property
    def address(self) -> str:
        """The address at which others reach this worker; known after `start`."""
        ...

    async def start(self, handler: Handler, incarnation: str = "") -> None:
        """Listen. Links come up only to workers that know the same `incarnation` of the database
        server.

        Raises:
            UsageError: listening at the address fails or is not allowed.
        """
        ...

    def hang_up(self) -> None:
        """Close all links, and refuse new ones until `begin_again`."""
        ...

    def begin_again(self, handler: Handler, incarnation: str) -> None:
        """Allow links again after `hang_up`, for another handler."""
        ...

    def link(self, worker: str, address: str) -> Link:
        """Make a link to a worker; it connects, and reconnects, until it is closed."""
        ...

    async def close(self) -> None:
        """Say goodbye, close all links and wait until they are closed."""
        ...


Make = Callable[[], asyncio.Protocol]


class Visitor(asyncio.Protocol):
    """An accepted connection.

    It counts as a stranger even before its transport is ready, since the other side can make a TLS
    handshake last arbitrarily long.
    """

    welcome = True
    """Whether there was room for the connection; without room there is no TLS handshake."""

    give_up: Callable[[], object] = staticmethod(lambda: None)
    """Set by the medium: ends the work on a transport that is not ready yet."""

    def abandon(self, kind: AbandonKind, text: str) -> None:
        """End a connection before its transport is ready, for this reason."""
        raise NotImplementedError


AbandonKind = Literal["lost", "refused", "no TLS"]

Admit = Callable[[str], Visitor]
"""Counts a connection at its accept, given the caller's address."""


class Medium(Protocol):
    """Makes and accepts connections."""

    @property
    def expired(self) -> str:
        """The certificate of this side that has expired, in words: peers refuse it; empty: none
        has."""
        ...

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        """Call `admit` for each incoming connection; returns the address at which others connect.

        Args:
            admit: called for each connection at its accept.
            greeting_seconds: a connection is abandoned if its transport is not ready this long
                after its accept.

        Raises:
            UsageError: listening at the address fails or is not allowed.
        """
        ...

    async def connect(self, make: Make, address: str) -> None:
        """Connect the protocol that `make` returns.

        Raises:
            OSError: no process answers at the address, or TLS fails.
        """
        ...

    async def hosts(self, address: str) -> frozenset[str]:
        """The machines at an address, as `admit` is told of them: without the port.

        Raises:
            OSError: the name is unknown, or the address is none.
        """
        ...

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        ...

    async def close(self) -> None:
        """Release the medium's resources, after all connections have ended."""
        ...


LONGEST_BURST_BYTES = 4 * MEBIBYTE
"""Maximum bytes in a transport: some milliseconds of a fast network. More makes nothing faster."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits and deadlines of all links of a worker. Sizes are in bytes, times in seconds."""

    frame_bytes: int = 64 * MEBIBYTE
    """Longest frame that is sent or accepted."""

    waiting_bytes: int = 128 * MEBIBYTE
    """Maximum bytes buffered per peer; beyond it the connection is closed."""

    greeting_seconds: float = 5.0
    """Deadline of an accepted connection, from accept to the end of its greeting, TLS included. A
    caller has this time to connect, and again for its greeting."""

    ping_seconds: float = 2.0
    """Interval at which each side sends a ping and checks deadlines."""

    silence_seconds: float = 10.0
    """Longest silence of a peer: after this time without a byte the link is closed. The owner of an
    interval does not depend on it: the store decides that, by the lock and the lease."""

    deaf_seconds: float = 60.0
    """Longest time a ping may stay unanswered while the peer sends other frames: it reads nothing.
    Answers wait behind up to `waiting_bytes` of other frames."""

    closing_seconds: float = 1.0
    """Longest time for the last frames of a closing connection to leave."""

    first_pause_seconds: float = 0.1
    """First pause before connecting again. It doubles with each failure, less a random part."""

    longest_pause_seconds: float = 5.0
    """Longest pause before connecting again."""

    strangers: int = 256
    """Maximum number of accepted connections in their TLS handshake or greeting at a time: so many
    from the machines of workers, and as many from others."""

    undisturbed_seconds: float = 0.2
    """A greeting is not given up for a newer one before this time."""

    def __post_init__(self) -> None:
        if not GREETING_BYTES <= self.frame_bytes <= self.waiting_bytes - PREFIX_BYTES < 1 << 32:
            raise UsageError(
                f"the limits of the network do not fit together: {GREETING_BYTES:,} <= frame_bytes "
                f"(is {self.frame_bytes:,}) < waiting_bytes (is {self.waiting_bytes:,}) < 2**32"
            )
        if not self.ping_seconds < self.silence_seconds <= self.deaf_seconds:
            raise UsageError(
                "the limits of the network do not fit together: ping_seconds (is "
                f"{self.ping_seconds}) < silence_seconds (is {self.silence_seconds}) <= "
                f"deaf_seconds (is {self.deaf_seconds})"
            )

    @property
    def burst_bytes(self) -> int:
        """Bytes waiting to be written to one peer at which the link is full.

        The transport may hold as many again, and one more frame may follow. Half of the room that
        `waiting_bytes` leaves besides one frame is for the small frames that are sent even over a
        full link.
        """
        return min(LONGEST_BURST_BYTES, (self.waiting_bytes - self.frame_bytes) // 4)

    def check(self, max_record_bytes: int) -> None:
        """Check that each record of a pipeline fits into a frame.

        Raises:
            UsageError: the longest record does not fit.
        """
        if max_record_bytes + RECORD_OVERHEAD_BYTES > self.frame_bytes:
            raise UsageError(
                f"max_record_bytes is {max_record_bytes:,}, and frame_bytes, the limit of a frame "
                f"between workers, is {self.frame_bytes:,}: frame_bytes must be larger by at "
                f"least {RECORD_OVERHEAD_BYTES:,}"
            )
