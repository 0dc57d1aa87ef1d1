"""The network as the engine sees it: links to other workers, which come and go.

::

    link:  down ──link_up──> up ──link_down──> down ──link_up──> ...   outgoing, until it is closed
                             up ──link_down──> gone                    incoming

A *link* is one direction of delivery between two workers. An outgoing one is asked for and then
connects by itself, again and again; an incoming one is somebody else's outgoing one, and ends with
its connection. Both carry frames both ways. Every `link_up` is followed by one `link_down`.

What is promised: while a link is up, frames come in the order in which they were sent, each at
most once. What is not: that they come. A link that went down may have lost any of the last ones,
so whoever sent something sends it again after the next `link_up`, if it still matters.

Sending never waits, so who has much to send must: while a link is `full` more of it would only pile
up here. When that has been written, `link_drained` is called.

`Links` in `millwheel.runtime.network.links` keeps to this over TCP (`millwheel.services.tcp`) and, in
tests, over nothing at all (`millwheel.testing.fake_network`).
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
        """Whether this worker asked for it."""
        ...

    @property
    def up(self) -> bool:
        """Whether frames can go now."""
        ...

    @property
    def full(self) -> bool:
        """Whether what can wait should: `link_drained` will be called, unless it goes down."""
        ...

    def send(self, frame: Frame) -> None:
        """Send a frame, or drop it if the link is down. Never waits, never raises."""
        ...

    def close(self) -> None:
        """Use it no more. What was sent still goes; `link_down` is called soon, not within."""
        ...


class Handler(Protocol):
    """What uses the links. Called in the event loop, never within a call to a link. Only `received`
    may raise, and nothing but `PeerError`."""

    def link_up(self, link: Link) -> None:
        """Frames can go, both ways."""
        ...

    def link_down(self, link: Link, reason: str) -> None:
        """They cannot any more; some that were sent may not have come."""
        ...

    def link_drained(self, link: Link) -> None:
        """It was full, and is not any more."""
        ...

    def received(self, link: Link, frame: Frame) -> None:
        """A frame came: one of those with something to say about records or watermarks.

        Raises:
            PeerError: no worker sends such a frame; the connection is closed as garbage.
        """
        ...

    def link_refused(self, link: Link) -> None:
        """The other worker refused this outgoing link, or was refused: one of them may be wrong."""
        ...


class Network(Protocol):
    """Where links come from."""

    @property
    def address(self) -> str:
        """Where others reach this worker; known once it has started."""
        ...

    async def start(self, handler: Handler, incarnation: str = "") -> None:
        """Listen. Links come up only to workers that know the same `incarnation` of the store.

        Raises:
            UsageError: it cannot, or must not, listen there.
        """
        ...

    def hang_up(self) -> None:
        """End all links, and refuse others until `begin_again`."""
        ...

    def begin_again(self, handler: Handler, incarnation: str) -> None:
        """Take links again, for another handler, after `hang_up`."""
        ...

    def link(self, worker: str, address: str) -> Link:
        """A link to a worker, which connects by itself until it is closed."""
        ...

    async def close(self) -> None:
        """Say goodbye, end all links and wait until they have ended."""
        ...


Make = Callable[[], asyncio.Protocol]


class Visitor(asyncio.Protocol):
    """An accepted connection. It counts as a stranger before its transport is ready, since a TLS
    handshake may take as long as the other side likes."""

    welcome = True
    """Whether there was room for it; if not, it is not worth a TLS handshake."""

    def abandon(self, kind: AbandonKind, text: str) -> None:
        """Its transport will never be ready, for this reason."""
        raise NotImplementedError


AbandonKind = Literal["lost", "refused", "no TLS"]

Admit = Callable[[str], Visitor]
"""Counts a connection as soon as it is accepted, given the address it comes from."""


class Medium(Protocol):
    """What connections are made of."""

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        """Call `admit` for each connection that comes; gives the address others reach it at.

        Args:
            greeting_seconds: when a connection's transport is not ready so long after it was
                accepted, it is abandoned.

        Raises:
            UsageError: it cannot, or must not, listen there.
        """
        ...

    async def connect(self, make: Make, address: str) -> None:
        """Connect what `make` gives.

        Raises:
            OSError: nothing answers there, or the two do not trust each other.
        """
        ...

    def stop_listening(self) -> None:
        """Accept no more connections."""
        ...

    async def close(self) -> None:
        """Release what is left; all connections have ended."""
        ...


LONGEST_BURST_BYTES = 4 * MEBIBYTE
"""Some milliseconds of a fast network; more in the transport makes nothing faster."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits and deadlines of all links of a worker. Sizes in bytes, times in seconds."""

    frame_bytes: int = 64 * MEBIBYTE
    """The longest frame that is sent or taken."""

    waiting_bytes: int = 128 * MEBIBYTE
    """Maximum bytes buffered per peer; beyond it the connection is closed."""

    greeting_seconds: float = 5.0
    """Deadline of an accepted connection, from accept to the end of its greeting, TLS included. A
    caller has as long to connect, and again for its greeting."""

    ping_seconds: float = 2.0
    """How often each side asks for a sign of life; deadlines are looked at as often."""

    silence_seconds: float = 10.0
    """After so long without a byte the other side is taken for dead: its machine may have gone
    without a word. Well below the lease, so that this is noticed first."""

    deaf_seconds: float = 60.0
    """How long one that talks may leave a ping without an answer: it hears nothing. Answers wait
    behind up to `waiting_bytes` of other frames."""

    closing_seconds: float = 1.0
    """How long the last words may take to leave."""

    first_pause_seconds: float = 0.1
    """Before connecting again; twice as long after each failure, less a random part."""

    longest_pause_seconds: float = 5.0

    strangers: int = 64
    """Accepted connections that may be in their TLS handshake or greeting at a time."""

    def __post_init__(self) -> None:
        if not GREETING_BYTES <= self.frame_bytes <= self.waiting_bytes - PREFIX_BYTES < 1 << 32:
            raise UsageError(
                f"the limits of the network do not fit together: {GREETING_BYTES:,} <= frame_bytes "
                f"(is {self.frame_bytes:,}) < waiting_bytes (is {self.waiting_bytes:,}) < 2**32"
            )
        if not self.ping_seconds < self.silence_seconds <= self.deaf_seconds:
            raise UsageError(
                f"the limits of the network do not fit together: ping_seconds (is "
                f"{self.ping_seconds}) < silence_seconds (is {self.silence_seconds}) <= "
                f"deaf_seconds (is {self.deaf_seconds})"
            )

    @property
    def burst_bytes(self) -> int:
        """What may wait to be written to one peer before the link is full. As much again may be in
        the transport, and one frame may come on top: half of what `waiting_bytes` leaves besides a
        frame is for what is sent all the same, which is small."""
        return min(LONGEST_BURST_BYTES, (self.waiting_bytes - self.frame_bytes) // 4)

    def check(self, max_record_bytes: int) -> None:
        """Whether each record of a pipeline fits into a frame.

        Raises:
            UsageError: it does not.
        """
        if max_record_bytes + RECORD_OVERHEAD_BYTES > self.frame_bytes:
            raise UsageError(
                f"a record may have {max_record_bytes:,} bytes (max_record_bytes), and a frame "
                f"between workers {self.frame_bytes:,} (frame_bytes): it must be at least "
                f"{RECORD_OVERHEAD_BYTES:,} more"
            )
