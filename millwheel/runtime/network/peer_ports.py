"""The network as the engine sees it: links to other workers, which go up and down.

::

    link:  down ──link_up──> up ──link_down──> down ──link_up──> ...   outgoing, until it is closed
                             up ──link_down──> gone                    incoming

A *link* is one direction of delivery between two workers; frames go both ways. An outgoing link
reconnects by itself; an incoming link is another worker's outgoing one, and ends with its
connection.

While a link is up, frames arrive in order, each at most once. A link that went down may have lost
any of the last frames: their sender repeats them after the next `link_up`.

`send` never blocks; callers must stop while `link.full`, until `link_drained`.
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
    @property
    def peer(self) -> str: ...

    @property
    def outgoing(self) -> bool: ...

    @property
    def up(self) -> bool: ...

    @property
    def full(self) -> bool:
        """Whether callers should pause until `link_drained` or `link_down`."""
        ...

    def send(self, frame: Frame) -> None:
        """Drops the frame if the link is down. Never waits, never raises."""
        ...

    def close(self) -> None:
        """`link_down` is called soon, not in this call."""
        ...


class Handler(Protocol):
    """The user of the links.

    Its methods are called in the event loop, never within a call to a link.
    """

    def link_up(self, link: Link) -> None: ...

    def link_down(self, link: Link, reason: str) -> None: ...

    def link_drained(self, link: Link) -> None: ...

    def received(self, link: Link, frame: Frame) -> None:
        """A `PeerError`, the only error allowed, closes the connection as garbage."""
        ...

    def link_refused(self, link: Link) -> None:
        """One side refused this outgoing link: one of them may know outdated facts."""
        ...


class Network(Protocol):
    @property
    def expired(self) -> str:
        """This worker's expired certificate, in words, or empty."""
        ...

    @property
    def address(self) -> str:
        """Known after `start`."""
        ...

    async def start(self, handler: Handler, incarnation: str = "") -> None:
        """Links come up only to workers that know the same `incarnation` of the database server.

        `UsageError` if listening fails or is not allowed.
        """
        ...

    def hang_up(self) -> None:
        """Close all links, and refuse new ones until `begin_again`."""
        ...

    def begin_again(self, handler: Handler, incarnation: str) -> None: ...

    def link(self, worker: str, address: str) -> Link: ...

    async def close(self) -> None:
        """Say goodbye, and wait until all links are closed."""
        ...


Make = Callable[[], asyncio.Protocol]


class Visitor(asyncio.Protocol):
    """An accepted connection.

    A stranger even before its transport is ready: the other side can make a TLS handshake last
    arbitrarily long.
    """

    welcome = True
    """Whether there is room for the connection; otherwise there is no TLS handshake."""

    give_up: Callable[[], object] = staticmethod(lambda: None)
    """Set by the medium: ends the work on a transport that is not ready yet."""

    def abandon(self, kind: AbandonKind, text: str) -> None:
        """End a connection before its transport is ready."""
        raise NotImplementedError


AbandonKind = Literal["lost", "refused", "no TLS"]

Admit = Callable[[str], Visitor]
"""Counts a connection at its accept, given the caller's address."""


class Medium(Protocol):
    @property
    def expired(self) -> str: ...

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        """Returns the address at which others connect.

        A connection is abandoned if its transport is not ready `greeting_seconds` after its accept.
        `UsageError` if listening fails or is not allowed.
        """
        ...

    async def connect(self, make: Make, address: str) -> None:
        """`OSError` if no process answers, or TLS fails."""
        ...

    async def hosts(self, address: str) -> frozenset[str]:
        """The machines at an address, without the port, as `admit` receives them. `OSError` if the
        name is unknown."""
        ...

    def stop_listening(self) -> None: ...

    async def close(self) -> None: ...


LONGEST_BURST_BYTES = 4 * MEBIBYTE
"""Maximum bytes in a transport, some milliseconds of a fast network: more makes nothing faster."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits and deadlines of a worker's links, in bytes and seconds."""

    frame_bytes: int = 64 * MEBIBYTE

    waiting_bytes: int = 128 * MEBIBYTE
    """Maximum bytes buffered per peer; beyond it the connection is closed."""

    greeting_seconds: float = 5.0
    """Deadline of a greeting from the accept on, TLS included. A caller has this time to connect,
    and again for its greeting."""

    ping_seconds: float = 2.0

    silence_seconds: float = 10.0
    """The link is closed after this time without a byte. Ownership does not depend on it: the store
    decides that, by the lock and the lease."""

    deaf_seconds: float = 60.0
    """Longest time a ping may stay unanswered while the peer sends frames: it reads nothing.
    Answers wait behind up to `waiting_bytes` of other frames."""

    closing_seconds: float = 1.0

    first_pause_seconds: float = 0.1
    """First pause before connecting again; it doubles with each failure, less a random part."""

    longest_pause_seconds: float = 5.0

    strangers: int = 256
    """Accepted connections in their TLS handshake or greeting: this many from the machines of
    workers, and as many from others."""

    undisturbed_seconds: float = 0.2
    """Minimum time before a newer connection replaces one in its greeting."""

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
        """Bytes waiting for one peer at which the link is full.

        The transport may hold as many again, and one more frame may follow. Half of the remaining
        room is for small frames, which are sent even over a full link.
        """
        return min(LONGEST_BURST_BYTES, (self.waiting_bytes - self.frame_bytes) // 4)

    def check(self, max_record_bytes: int) -> None:
        """`UsageError` if the longest record does not fit into a frame."""
        if max_record_bytes + RECORD_OVERHEAD_BYTES > self.frame_bytes:
            raise UsageError(
                f"max_record_bytes is {max_record_bytes:,}, and frame_bytes, the limit of a frame "
                f"between workers, is {self.frame_bytes:,}: frame_bytes must be larger by at "
                f"least {RECORD_OVERHEAD_BYTES:,}"
            )
