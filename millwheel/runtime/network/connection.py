"""One connection between two workers, from its first byte to its last.

::

    greeting ──everything fits──> up ──┬── closed here, Goodbye came ──────────> ended
        │                              ├── no frame, too long, out of place ───> ended
        │                              ├── silent, deaf, or the line broke ────> ended
        └── refused, silent, broken ──────────────────────────────────────────> ended

`PeerConnection` is an asyncio protocol over any transport: bytes come in by `data_received` and are
taken in the same call; nothing here waits, and no task belongs to a connection. Frames sent in
one turn of the event loop leave as one write.

A peer that is gone without a word (a machine that lost its power, a cut cable) is noticed by its
silence: each side sends a `Ping` every few seconds whatever else it says. One that talks and does
not hear, because it reads nothing, is noticed by a ping without an answer, or by what piles up
for it. Whoever owns the connections calls `tend` every so often, which is when deadlines pass.
"""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple, Protocol, cast

from millwheel.clock import Clock
from millwheel.errors import PeerError
from millwheel.runtime.network.frames import (
    GREETING_BYTES,
    Frame,
    Goodbye,
    Message,
    Ping,
    Pong,
    Refuse,
    Splitter,
    decode,
    encode,
    named,
)
from millwheel.runtime.network.handshake import Handshake
from millwheel.runtime.network.ports import Limits, Visitor

EndKind = Literal[
    "closed",  # by this side, on purpose
    "goodbye",  # by the other side, on purpose
    "refused",  # in the greeting, by one of the two
    "garbage",  # no frame, or one out of place
    "silent",  # nothing was heard for too long
    "deaf",  # it does not take what is sent
    "too long",  # a frame of this side that nobody would take
    "lost",  # the line broke
    "unreachable",  # it never came to be
    "no TLS",  # the caller's TLS handshake failed
]

ANNOUNCED: frozenset[EndKind] = frozenset(("closed", "refused", "garbage", "too long"))
"""Close reasons that are sent to the peer."""

REASON_CHARACTERS = 500
"""Longest reason that is sent to a peer, or taken from one. It may quote what the peer said."""


class End(NamedTuple):
    """Why a connection ended."""

    kind: EndKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Owner(Protocol):
    """Hooks called on a connection's events."""

    def opened(self, connection: PeerConnection) -> None:
        """It has a transport; the greeting begins."""

    def greeted(self, connection: PeerConnection) -> None:
        """It is up."""

    def received(self, connection: PeerConnection, frame: Frame) -> None:
        """A frame with something to say.

        Raises:
            PeerError: no worker sends such a frame; the connection ends as garbage.
        """

    def ended(self, connection: PeerConnection, end: End) -> None:
        """It cannot be used any more. May be called within `PeerConnection.send`."""

    def drained(self, connection: PeerConnection) -> None:
        """It was full, and is not any more."""

    def gone(self, connection: PeerConnection) -> None:
        """Its transport is closed, or never was ready. May be called twice."""


class PeerConnection(Visitor):
    """One connection; use it only while `up`.

    Args:
        remote: the address it was accepted from.
    """

    def __init__(
        self,
        owner: Owner,
        greeting: Handshake,
        clock: Clock,
        limits: Limits,
        remote: str = "nowhere",
    ) -> None:
        self._owner = owner
        self._greeting = greeting
        self._clock = clock
        self._limits = limits
        self._splitter = Splitter(GREETING_BYTES)
        self._transport: asyncio.Transport | None = None
        self._outbox: list[bytearray] = []
        self._outbox_bytes = 0
        self._transport_full = False
        """The transport has enough to write."""
        self._since = self._received_at = clock.monotonic()
        self._pinged_at: float | None = None
        """When the oldest ping that was not answered left."""
        self.up = False
        self.end_reason: End | None = None
        self.remote = remote

    @property
    def peer(self) -> str:
        """The worker on the other side, once `up`."""
        return self._greeting.peer

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that more had better not come now."""
        return self._transport_full or self._outbox_bytes >= self._limits.burst_bytes

    def send(self, frame: Frame) -> None:
        """Write a frame with whatever else is sent in this turn of the event loop."""
        if self.end_reason is not None or self._transport is None:
            return
        try:
            data = encode(frame, self._limits.frame_bytes)
        except PeerError as error:
            self.end("too long", str(error))
            return
        self._put(data)
        waiting = self._outbox_bytes + self._transport.get_write_buffer_size()
        if waiting > self._limits.waiting_bytes:
            self.end("deaf", f"{waiting:,} bytes wait to be written to it")

    def end(self, kind: EndKind, text: str) -> None:
        """Use it no more; the other side is told why if it can hear it."""
        if self.end_reason is not None:
            return
        if kind in ANNOUNCED and self._transport is not None:
            reason = f"{kind}: {text}"[:REASON_CHARACTERS]
            last = (
                Goodbye(reason) if self.up or kind == "closed" else Refuse(text[:REASON_CHARACTERS])
            )
            self._put(encode(last, GREETING_BYTES))
        self.up = False
        self.end_reason = End(kind, text)
        self._since = self._clock.monotonic()
        if self._transport is not None:
            if kind in ANNOUNCED:
                self._flush()
                self._transport.close()
            else:
                self._outbox.clear()
                self._transport.abort()
        self._owner.ended(self, self.end_reason)

    def tend(self) -> None:
        """Look at the deadlines, and ask for a sign of life."""
        now = self._clock.monotonic()
        limits = self._limits
        if self._transport is None:
            return
        if self.end_reason is not None:
            if now - self._since >= limits.closing_seconds:
                self.abort()
        elif not self.up:
            if now - self._since >= limits.greeting_seconds:
                self.end("silent", f"no greeting within {limits.greeting_seconds:g} seconds")
        elif now - self._received_at >= limits.silence_seconds:
            self.end("silent", f"nothing was heard for {now - self._received_at:.1f} seconds")
        elif self._pinged_at is not None and now - self._pinged_at >= limits.deaf_seconds:
            self.end("deaf", f"no answer to a ping for {now - self._pinged_at:.1f} seconds")
        else:
            if self._pinged_at is None:
                self._pinged_at = now
            self.send(Ping())

    def abort(self) -> None:
        """Let go at once of what is left of it."""
        if self._transport is not None:
            self._transport.abort()

    def abandon(self, kind: EndKind = "lost", text: str = "it was never made") -> None:
        """End a connection that has no transport, or lost it untold: uvloop closes one whose making
        was cancelled without a call to `connection_lost`."""
        self.end(kind, text)
        self.abort()
        self.connection_lost(None)
        self._owner.gone(self)

    # -- called by the transport --------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received_at = self._clock.monotonic()
        if self._greeting.role == "caller":  # the time of a listener's greeting runs from accept on
            self._since = self._received_at
        self.remote = shown(transport.get_extra_info("peername"))
        self._transport.set_write_buffer_limits(high=self._limits.burst_bytes)
        self._owner.opened(self)
        if self.end_reason is not None:  # given up while it was being made
            self.abort()
        for frame in self._greeting.begin():
            self.send(frame)

    def pause_writing(self) -> None:
        self._transport_full = True

    def resume_writing(self) -> None:
        self._transport_full = False
        asyncio.get_running_loop().call_soon(self._report_drained)  # it may be writing just now

    def data_received(self, data: bytes) -> None:
        self._received_at = self._clock.monotonic()
        if self.end_reason is not None:
            return
        try:
            for body in self._splitter.feed(data):
                self._handle(decode(body))
                if self.end_reason is not None:
                    return
        except PeerError as error:
            self.end("garbage", str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("lost", str(exc) if exc else "the other side closed it")
        if self._transport is not None:
            self._transport = None
            self._owner.gone(self)

    # -- frames -------------------------------------------------------------------

    def _handle(self, frame: Frame) -> None:
        if not self.up:
            self._greet(frame)
        elif isinstance(frame, Message):
            self._owner.received(self, frame)
        elif isinstance(frame, Ping):
            self.send(Pong())
        elif isinstance(frame, Pong):
            self._pinged_at = None
        elif isinstance(frame, Goodbye):
            self.end("goodbye", _quoted(frame.reason))
        else:
            raise PeerError(f"a frame {named(frame)} after the greeting")

    def _greet(self, frame: Frame) -> None:
        if isinstance(frame, Refuse | Goodbye):
            kind: EndKind = "refused" if isinstance(frame, Refuse) else "goodbye"
            self.end(kind, _quoted(frame.reason))
            return
        try:
            answers = self._greeting.receive(frame)
        except PeerError as error:
            self.end("refused", str(error))
            return
        for answer in answers:
            self.send(answer)
        if self._greeting.done:
            self.up = True
            self._splitter.limit = self._limits.frame_bytes
            self._owner.greeted(self)

    def _put(self, data: bytearray) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(data)
        self._outbox_bytes += len(data)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        was_full = self.full
        self._outbox_bytes = 0
        if outbox and self._transport is not None:
            self._transport.write(b"".join(outbox))
        if was_full:
            asyncio.get_running_loop().call_soon(self._report_drained)

    def _report_drained(self) -> None:
        if self.up and not self.full:
            self._owner.drained(self)


def _quoted(reason: str) -> str:
    """A peer's reason as logs may have it: short, and on one line."""
    short = reason[:REASON_CHARACTERS]
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in short
    )


def shown(peername: object) -> str:
    """The address of the other side, for messages."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername)
