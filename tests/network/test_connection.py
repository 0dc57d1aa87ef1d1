"""One connection over a line that the test holds in its hand: deadlines, bounds, writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millwheel.core.clock import VirtualClock
from millwheel.runtime.network.connection import Connection, End
from millwheel.runtime.network.frames import (
    VERSION,
    Frame,
    Goodbye,
    Hello,
    Introduction,
    NotMine,
    Ping,
    Pong,
    Proof,
    Refuse,
    Splitter,
    Welcome,
    decode,
    encode,
)
from millwheel.runtime.network.handshake import Handshake, Identity, Secret
from millwheel.runtime.network.peer_ports import Limits

SECRET = Secret(b"sixteen bytes or more", "given")
MINE = Hello(VERSION, "", "", b"1" * 32)
LIMITS = Limits(frame_bytes=10_000, waiting_bytes=50_000)


class Hand(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.buffered = 0
        self.high: int | None = None
        self.ended = ""

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def frames(self) -> list[Frame]:
        """What was written, and forget it."""
        data, self.writes = b"".join(self.writes), []
        return [decode(body) for body in Splitter(1 << 20).feed(data)]


class Told:
    """An owner that keeps what it is told."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.frames: list[Frame] = []
        self.ups = 0
        self.drains = 0

    def opened(self, connection: Connection) -> None: ...
    def gone(self, connection: Connection) -> None: ...
    def drained(self, connection: Connection) -> None:
        self.drains += 1

    def greeted(self, connection: Connection) -> None:
        self.ups += 1

    def received(self, connection: Connection, frame: Frame) -> None:
        self.frames.append(frame)

    def ended(self, connection: Connection, end: End) -> None:
        self.ends.append(end)


class Bench:
    """A listening connection on a virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.told = Told()
        greeting = Handshake(Identity("p", "me", SECRET), b"1" * 32, expected=None)
        self.connection = Connection(self.told, greeting, self.clock, LIMITS)
        self.hand = Hand()
        self.connection.connection_made(self.hand)

    def say(self, *frames: Frame) -> None:
        self.connection.data_received(b"".join(encode(frame, 1 << 20) for frame in frames))

    def up(self) -> Bench:
        caller = Handshake(Identity("p", "you", SECRET), b"2" * 32, expected="me")
        mirror = Handshake(Identity("p", "me", SECRET), b"1" * 32, expected=None)
        (hello,) = caller.begin()
        mirror.receive(hello)
        (proof,) = caller.receive(MINE)
        proved, introduced = mirror.receive(proof)
        caller.receive(proved)
        self.say(hello, proof, *caller.receive(introduced))
        assert self.connection.up
        return self

    def pass_time(self, seconds: float) -> None:
        """As whoever owns connections does: a look every two seconds."""
        for _ in range(round(seconds / LIMITS.ping_seconds)):
            self.clock.advance(LIMITS.ping_seconds)
            self.connection.tend()

    def end(self) -> str:
        assert len(self.told.ends) <= 1, "it ended twice"
        return str(self.told.ends[0]) if self.told.ends else ""


async def test_what_is_sent_in_one_turn_is_one_write() -> None:
    bench = Bench().up()
    await asyncio.sleep(0)
    first, proof, introduction, last = bench.hand.frames()
    assert isinstance(introduction, Introduction)
    assert (first, last) == (MINE, Welcome())
    assert isinstance(proof, Proof)
    assert len(proof.digest) == 32
    sent = [NotMine(number, 0, 0) for number in range(100)]
    for frame in sent:
        bench.connection.send(frame)
    assert bench.hand.writes == []
    await asyncio.sleep(0)
    assert len(bench.hand.writes) == 1
    assert bench.hand.frames() == sent


async def test_a_stranger_who_says_nothing_is_hung_up_on() -> None:
    bench = Bench()
    bench.pass_time(4)
    assert not bench.end()
    bench.pass_time(2)
    assert bench.end() == "silent: no greeting within 5 seconds"
    assert bench.hand.ended == "aborted"


async def test_a_stranger_cannot_make_us_keep_a_long_frame() -> None:
    bench = Bench()
    bench.connection.data_received(b"\0\0\x10\x01")
    assert bench.end().startswith("garbage: a frame announces 4,097 bytes")
    assert isinstance(bench.hand.frames()[-1], Refuse)
    bench = Bench().up()
    bench.connection.data_received(b"\0\0\x10\x01")
    assert not bench.end()


@pytest.mark.parametrize("frame", [Hello(VERSION, "p", "you", b"2" * 32), Welcome(), Refuse("no")])
async def test_a_greeting_in_the_midst_of_talk_is_out_of_place(frame: Frame) -> None:
    bench = Bench().up()
    bench.say(NotMine(1, 1, 1), frame, NotMine(2, 2, 2))
    assert bench.end() == f"garbage: a frame {type(frame).__name__} after the greeting"
    assert bench.told.frames == [NotMine(1, 1, 1)]
    assert isinstance(bench.hand.frames()[-1], Goodbye)
    assert bench.hand.ended == "closed"


async def test_nothing_is_taken_after_a_goodbye() -> None:
    bench = Bench().up()
    bench.say(NotMine(1, 1, 1), Goodbye("closed: enough"), NotMine(2, 2, 2))
    assert bench.end() == "goodbye: closed: enough"
    assert bench.told.frames == [NotMine(1, 1, 1)]


async def test_garbage_between_frames_ends_it_there() -> None:
    bench = Bench().up()
    bench.say(NotMine(1, 1, 1))
    bench.connection.data_received(b"\0\0\0\3abc" + encode(NotMine(2, 2, 2), 100))
    bench.say(NotMine(3, 3, 3))
    assert bench.end().startswith("garbage: 3 bytes are no valid frame; they begin with b'abc'")
    assert bench.told.frames == [NotMine(1, 1, 1)]


async def test_who_is_silent_is_taken_for_dead_even_with_half_a_frame() -> None:
    bench = Bench().up()
    bench.pass_time(6)
    bench.connection.data_received(b"\0\0")  # any byte is a sign of life
    bench.pass_time(8)
    assert not bench.end()
    bench.pass_time(2)
    assert bench.end() == "silent: nothing was heard for 10.0 seconds"
    assert bench.hand.ended == "aborted"


async def test_who_talks_but_answers_no_ping_is_deaf() -> None:
    bench = Bench().up()
    for _ in range(10):
        bench.pass_time(6)
        bench.say(Ping())
    assert not bench.end()
    bench.say(Pong())
    for _ in range(10):
        bench.pass_time(6)
        bench.say(Ping())
    assert not bench.end()
    bench.pass_time(2)
    assert bench.end().startswith("deaf: no answer to a ping for 6")


async def test_a_ping_is_answered() -> None:
    bench = Bench().up()
    bench.say(Ping())
    await asyncio.sleep(0)
    assert bench.hand.frames()[-1] == Pong()


async def test_what_waits_to_be_written_counts_with_what_the_transport_holds() -> None:
    bench = Bench().up()
    await asyncio.sleep(0)
    bench.hand.buffered = 49_000
    for _ in range(100):
        bench.connection.send(NotMine(1, 1, 1))
    await asyncio.sleep(0)
    assert not bench.end()
    bench.hand.buffered = 50_000
    bench.connection.send(NotMine(1, 1, 1))
    assert bench.end() == "deaf: 50,009 bytes wait to be written to it"
    assert bench.hand.ended == "aborted"
    bench.connection.send(NotMine(1, 1, 1))
    await asyncio.sleep(0)
    assert len(bench.hand.frames()) == 4 + 100


async def test_it_is_full_while_much_waits_here_or_in_the_transport() -> None:
    bench = Bench().up()
    await asyncio.sleep(0)
    assert bench.hand.high == LIMITS.burst_bytes == 10_000
    while not bench.connection.full:
        bench.connection.send(NotMine(1, 1, 1))
    assert bench.told.drains == 0
    await asyncio.sleep(0)
    assert not bench.connection.full, "the transport took it"
    await asyncio.sleep(0)
    assert bench.told.drains == 1
    bench.connection.pause_writing()
    assert bench.connection.full
    bench.connection.send(NotMine(2, 2, 2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.hand.frames()[-1] == NotMine(2, 2, 2), "what is sent all the same goes"
    assert bench.told.drains == 1
    bench.connection.resume_writing()
    assert bench.told.drains == 1, "not within a call of the transport"
    await asyncio.sleep(0)
    assert bench.told.drains == 2
    assert not bench.connection.full


async def test_nobody_is_told_that_a_connection_is_drained_when_it_has_ended() -> None:
    bench = Bench().up()
    bench.connection.pause_writing()
    bench.connection.end("closed", "enough")
    bench.connection.resume_writing()
    await asyncio.sleep(0)
    assert bench.told.drains == 0


async def test_a_transport_that_asks_for_less_while_it_writes_loses_nothing() -> None:
    """TLS may tell within `write` that there is room again, and more is sent there and then."""
    bench = Bench().up()
    await asyncio.sleep(0)
    write = bench.hand.write

    def write_and_send(data: Any) -> None:
        bench.hand.write = write  # type: ignore[method-assign]
        write(data)
        bench.connection.send(NotMine(2, 2, 2))

    bench.hand.write = write_and_send  # type: ignore[method-assign]
    bench.connection.send(NotMine(1, 1, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.hand.frames()[-2:] == [NotMine(1, 1, 1), NotMine(2, 2, 2)]


async def test_last_words_that_nobody_takes_are_not_waited_for_long() -> None:
    bench = Bench().up()
    bench.connection.end("closed", "enough")
    assert bench.hand.ended == "closed"
    assert bench.hand.frames()[-1] == Goodbye("closed: enough")
    bench.pass_time(2)
    assert bench.hand.ended == "aborted"


async def test_a_long_reason_is_cut_so_that_it_can_be_heard() -> None:
    bench = Bench()
    bench.connection.end("refused", "ф" * 1900)
    (refusal,) = bench.hand.frames()
    assert isinstance(refusal, Refuse)
    assert len(encode(refusal, 4096)) <= 4096


async def test_what_is_made_after_it_was_given_up_is_closed_at_once() -> None:
    greeting = Handshake(Identity("p", "me", SECRET), b"1" * 32, expected="you")
    connection = Connection(Told(), greeting, VirtualClock(), LIMITS)
    connection.end("closed", "not needed")
    hand = Hand()
    connection.connection_made(hand)
    await asyncio.sleep(0)
    assert hand.ended == "aborted"
    assert hand.frames() == []


async def test_the_time_of_a_listeners_greeting_runs_from_accept_on() -> None:
    """Its TLS handshake is a part of it; a caller connects first, and has all of it then."""
    for expected, left in ((None, 1.0), ("you", 5.0)):
        clock, told = VirtualClock(), Told()
        greeting = Handshake(Identity("p", "me", SECRET), b"1" * 32, expected=expected)
        connection = Connection(told, greeting, clock, LIMITS, "127.0.0.1:9")
        assert connection.remote == "127.0.0.1:9"
        clock.advance(LIMITS.greeting_seconds - 1)
        connection.tend()
        connection.connection_made(Hand())
        clock.advance(left - 0.1)
        connection.tend()
        assert told.ends == []
        clock.advance(0.1)
        connection.tend()
        assert [end.kind for end in told.ends] == ["silent"]


async def test_one_that_is_abandoned_before_it_has_a_transport_is_told_of_once() -> None:
    told = Told()
    greeting = Handshake(Identity("p", "me", SECRET), b"1" * 32, expected=None)
    connection = Connection(told, greeting, VirtualClock(), LIMITS)
    connection.abandon("no TLS", "no certificate")
    connection.abandon("lost", "again")
    assert told.ends == [End("no TLS", "no certificate")]


async def test_what_a_peer_says_at_the_end_is_shortened_and_stays_on_one_line() -> None:
    for frame in (Goodbye("a\nb\x1b[2J" + "x" * 5000), Refuse("a\nb\x1b[2J" + "x" * 3000)):
        bench = Bench() if isinstance(frame, Refuse) else Bench().up()
        bench.say(frame)
        (end,) = bench.told.ends
        assert end.text.startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[2Jxxx")
        assert len(end.text) == 500
