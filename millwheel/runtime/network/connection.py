"""One connection between two workers, from its first byte to its last.

::

    greeting ──everything fits──> up ──┬── closed here, Goodbye came ──────────> ended
        │                              ├── invalid, too long or misplaced frame > ended
        │                              ├── silent, deaf, or the line broke ────> ended
        └── refused, silent, broken ──────────────────────────────────────────> ended

An asyncio protocol without a task, over any transport. Frames sent in one turn of the event loop
leave as one write.

Each side sends a `Ping` every few seconds, so silence means that the peer vanished. A peer that
sends but does not read leaves a ping unanswered, or bytes pile up for it. Deadlines are checked
only in `tend`, which the owner calls periodically.
"""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple, Protocol, cast

from millwheel.core.clock import Clock
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
from millwheel.runtime.network.peer_ports import Limits, Visitor

EndKind = Literal[
    "closed",  # by this side, on purpose
    "goodbye",  # by the other side, on purpose
    "refused",  # in the greeting, by one of the two
    "garbage",  # an invalid frame, or one that is not allowed in this state
    "silent",  # no byte arrived for too long
    "deaf",  # the peer does not read
    "too long",  # this side tried to send a frame above the limit
    "lost",  # the line broke
    "unreachable",  # connecting failed
    "no TLS",  # the caller's TLS handshake failed
]

ANNOUNCED: frozenset[EndKind] = frozenset(("closed", "refused", "garbage", "too long"))
"""Close reasons that are sent to the peer."""

REASON_CHARACTERS = 500


class End(NamedTuple):
    kind: EndKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Owner(Protocol):
    def opened(self, connection: Connection) -> None: ...

    def greeted(self, connection: Connection) -> None: ...

    def received(self, connection: Connection, frame: Frame) -> None:
        """A `PeerError` ends the connection as garbage."""

    def ended(self, connection: Connection, end: End) -> None:
        """May be called within `Connection.send`."""

    def drained(self, connection: Connection) -> None: ...

    def gone(self, connection: Connection) -> None:
        """The transport is closed, or never became ready; may be called twice."""


class Connection(Visitor):
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
        self._since = self._received_at = clock.monotonic()
        self._pinged_at: float | None = None
        """Send time of the oldest unanswered ping."""
        self.up = False
        self.end_reason: End | None = None
        self.remote = remote

    @property
    def peer(self) -> str:
        return self._greeting.peer

    @property
    def full(self) -> bool:
        """Callers should pause while this is true."""
        return self._transport_full or self._outbox_bytes >= self._limits.burst_bytes

    @property
    def age(self) -> float:
        """Seconds since it was accepted or connected or, later, since it ended."""
        return self._clock.monotonic() - self._since

    def send(self, frame: Frame) -> None:
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
        else:
            self.give_up()
        self._owner.ended(self, self.end_reason)

    def tend(self) -> None:
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
        if self._transport is not None:
            self._transport.abort()

    def abandon(self, kind: EndKind = "lost", text: str = "it was never made") -> None:
        """End a connection without a transport, or that lost it without `connection_lost`: uvloop
        closes a transport that way if connecting was cancelled."""
        self.end(kind, text)
        self.abort()
        self.connection_lost(None)
        self._owner.gone(self)

    # -- called by the transport --------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received_at = self._clock.monotonic()
        if self._greeting.role == "caller":  # a listener's deadline counts from accept
            self._since = self._received_at
        self.remote = shown(transport.get_extra_info("peername"))
        self._transport.set_write_buffer_limits(high=self._limits.burst_bytes)
        self._owner.opened(self)
        if self.end_reason is not None:  # ended while connecting
            self.abort()
        for frame in self._greeting.begin():
            self.send(frame)

    def pause_writing(self) -> None:
        self._transport_full = True

    def resume_writing(self) -> None:
        self._transport_full = False
        asyncio.get_running_loop().call_soon(self._report_drained)  # a write may be in progress

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
        reason = str(exc) or type(exc).__name__ if exc else "the other side closed it"
        if not self.up and self._greeting.role == "caller":
            reason += " in the greeting; its log says why (stranger_refused)"
        self.end("lost", reason)
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
    short = reason[:REASON_CHARACTERS]
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in short
    )


def shown(peername: object) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername)
