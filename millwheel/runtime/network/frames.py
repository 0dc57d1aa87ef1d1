"""What workers say to each other, as bytes: a length, then one frame in MessagePack.

::

    4 bytes, big endian: length of the body | body: [kind, field, field, ...]

A connection begins with the greeting (`millwheel.runtime.network.handshake`): ``Hello``, ``Proof``,
``Welcome``, or ``Refuse`` and the end. Then, in any order and as often as wanted:

=============  =========  =====================================================================
frame          goes       says
=============  =========  =====================================================================
`Deliver`      with it    records of one log for one receiving interval, after `previous`
`Ask`          with it    all through this number was sent: is it there?
`WatermarkReport`       with it    the low watermarks of some intervals, by slots (paper 7.2)
`Acknowledge`  against    these numbers of the log are durable at the receiver, or seen before
`NotMine`      against    the interval has another owner: look it up, begin anew
`Gap`          against    something is missing before what came: begin anew
`Progress`     against    it is, before this number all is durable, more is (not) taken
`TooNew`       against    the receiver's code cannot read it: keep it for one whose code can
`Loose`        with it    records that are in no log: nobody keeps them (decision 32)
`RootReport`   with it    what became of records that came so, to the worker who tracks their roots
`Ping`         both       are you there? The answer is `Pong`
`Goodbye`      both       the last frame of a connection, and why
=============  =========  =====================================================================

"With it" is the direction of delivery: from who opened the connection to who was called.

Every list has a longest length, every number a range, and a frame without records or values is at
most `CONTROL_BYTES` long. The decoder checks all three before it makes anything of the bytes: a
frame outside of them is no frame, and closes its connection. Whether a frame's sender may say what
it says is decided later, from what the store says (`millwheel.runtime.network.trust`, decision 41).

Nothing here promises anything: a frame may be lost with its connection, or come again over the
next one. Two things make that harmless. Records are durable at their sender until they are
acknowledged, and a stream of deliveries has an epoch and names the number before each frame, so
that a receiver takes neither a copy nor what stands behind a gap (decision 23). Of loose records
the roots are, and what is lost is made again from them.

Fields are told apart by their place. `Hello` and `Refuse` keep the fields they have for ever, so
that two versions can at least tell each other why they do not talk; `Hello` may get more at its end,
with defaults. Every other change of a frame raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Annotated, TypeAlias, cast

import msgspec

from millwheel.codec import MAX_KEY_BYTES
from millwheel.errors import PeerError
from millwheel.model import MAX_TIME, MIN_TIME, SLOTS

VERSION = 4
"""Of this protocol. Workers of different versions refuse each other."""

GREETING_BYTES = 4096
"""The longest frame that is taken from somebody who has not proved yet who he is."""

NONCE_BYTES = 32

RECORD_OVERHEAD_BYTES = 4096
"""A record's place in a frame besides its value: key, names, numbers. At the most."""

CONTROL_BYTES = 1 << 20
"""The longest body of a frame that carries no records."""

FRAME_RECORDS = 1000
"""Records in one frame, at the most."""

FRAME_RUNS = 10_000
"""Runs of numbers in one `Acknowledge`, at the most: 190 kB."""

FRAME_REPORTS = 10_000
"""Trees that one `RootReport` tells of, at the most: 200 kB."""

FRAME_INTERVALS = 10_000
"""Low watermarks in one `WatermarkReport`, at the most, percentile ones counted too: 640 kB."""

ID_BYTES = 16
"""An id is so long, or left out."""

LARGEST = (1 << 63) - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""An id that the store gave out, a place in a log, a count: no negative one, and none that Postgres
could not store."""

Before = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
"""A place in a log, or -1: before the first."""

Micros = Annotated[int, msgspec.Meta(ge=MIN_TIME, le=MAX_TIME)]
Slot = Annotated[int, msgspec.Meta(ge=0, lt=SLOTS)]
KeyText = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_KEY_BYTES)]
Id = Annotated[bytes, msgspec.Meta(max_length=ID_BYTES)]
TypeVersion = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]

RecordRow: TypeAlias = tuple[
    Number, str, KeyText, Slot, Micros, Micros, Number, Number, Id, bool, bytes, TypeVersion, Number
]
"""One record: (seq, stream, key as canonical JSON, slot, timestamp in microseconds, hold, stamp,
bytes of the value, id or b"" if it is that of log and seq, whether the user named it, the value
as JSON, version of the stream's type, the source among whose offsets the stamp is or 0)."""

Token = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]

LooseRow: TypeAlias = tuple[Token, RecordRow]
"""A record of a stretch: the token of its root, and in place of its number its edge."""

EdgeReport: TypeAlias = tuple[Token, Number]
"""(token, XOR of edges); 0: something of the tree is in good hands."""

Run: TypeAlias = tuple[Number, Number]
"""Numbers from the first to the last, both included."""

IntervalReport: TypeAlias = tuple[
    Number, Number, Number, Number, Number, Micros, bool, dict[float, Micros]
]
"""(interval, computation, first slot, slot behind the last, sequencer, low watermark, whether it is
a partition of a source that is idle, the percentile low watermarks). Times in microseconds."""

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The root of all frames."""


class Hello(Frame, frozen=True, array_like=True, gc=False, tag=1):
    """Who is there. The nonce is made up for this connection."""

    version: int
    pipeline: str
    worker: str
    nonce: Nonce
    secret: str = ""
    """Which secret this side goes by, of `millwheel.runtime.network.handshake.Origin`; never the secret."""
    incarnation: str = ""
    """Of the store's server, as this worker knows it (decision 40)."""


class Proof(Frame, frozen=True, array_like=True, gc=False, tag=2):
    """That the shared secret is known: an HMAC-SHA256."""

    digest: bytes


class Welcome(Frame, frozen=True, array_like=True, gc=False, tag=3):
    """The greeting is over, everything fits."""


class Refuse(Frame, frozen=True, array_like=True, gc=False, tag=4):
    """The greeting is over, and so is the connection."""

    reason: str


class Deliver(Frame, frozen=True, array_like=True, gc=False, tag=5):
    """Records of one log for one receiving interval, in the order of their numbers.

    `sequencer` is that of the log's interval, `epoch` counts the beginnings of this stream of
    deliveries, and `previous` is the last number of the frame before, -1 in an epoch's first.
    """

    log: Number
    sequencer: Number
    epoch: Number
    interval: Number
    """Who is to receive them."""
    receiver: Number
    """The computation of that interval."""
    previous: Before
    records: Annotated[list[RecordRow], msgspec.Meta(min_length=1, max_length=FRAME_RECORDS)]


class Acknowledge(Frame, frozen=True, array_like=True, gc=False, tag=6):
    """These numbers of the log need not be sent to this computation again."""

    log: Number
    receiver: Number
    seqs: Annotated[list[Run], msgspec.Meta(min_length=1, max_length=FRAME_RUNS)]
    """In ascending order, none of them empty, none overlapping another."""


class NotMine(Frame, frozen=True, array_like=True, gc=False, tag=7):
    """The interval is owned by somebody else: nothing of this epoch is taken."""

    log: Number
    epoch: Number
    interval: Number


class Gap(Frame, frozen=True, array_like=True, gc=False, tag=8):
    """What came does not follow what was taken: `expected` is the `previous` that would."""

    log: Number
    epoch: Number
    interval: Number
    expected: Before


class TooNew(Frame, frozen=True, array_like=True, gc=False, tag=13):
    """The interval's owner runs older code, which cannot read what came: nothing of this epoch is
    taken, and nothing more of it needs to be sent. Newer code will have the interval."""

    log: Number
    epoch: Number
    interval: Number


class Ask(Frame, frozen=True, array_like=True, gc=False, tag=14):
    """Everything of this epoch through number `last` was sent, and the oldest is not acknowledged
    yet. The answer is `Progress`, `Gap` or `NotMine`; none to who is no longer the sender."""

    log: Number
    sequencer: Number
    epoch: Number
    interval: Number
    last: Before


class Progress(Frame, frozen=True, array_like=True, gc=False, tag=15):
    """Everything that was asked about is here, and worked at. What was sent in this epoch and comes
    before number `done` is durable; nothing is said of what comes behind.

    If it `takes` no more, the interval is about to be given up: what was sent last may not be here,
    and nothing needs to be sent until somebody else has it.
    """

    log: Number
    epoch: Number
    interval: Number
    done: Number
    takes: bool


class WatermarkReport(Frame, frozen=True, array_like=True, gc=False, tag=9):
    """The stored low watermarks of some intervals of the sender."""

    intervals: Annotated[list[IntervalReport], msgspec.Meta(max_length=FRAME_INTERVALS)]


class Loose(Frame, frozen=True, array_like=True, gc=False, tag=16):
    """Records for a computation that are in no log, each for the interval that has its slot."""

    receiver: Number
    records: Annotated[list[LooseRow], msgspec.Meta(min_length=1, max_length=FRAME_RECORDS)]


class RootReport(Frame, frozen=True, array_like=True, gc=False, tag=17):
    """What was told of some trees; whose token it is not does not mind."""

    reports: Annotated[list[EdgeReport], msgspec.Meta(max_length=FRAME_REPORTS)]


class Ping(Frame, frozen=True, array_like=True, gc=False, tag=10):
    """Are you there?"""


class Pong(Frame, frozen=True, array_like=True, gc=False, tag=11):
    """I am, and I hear you."""


class Goodbye(Frame, frozen=True, array_like=True, gc=False, tag=12):
    """The connection ends on purpose."""

    reason: str


Message: TypeAlias = (
    Deliver | Ask | WatermarkReport | Acknowledge | NotMine | Gap | Progress | TooNew | Loose | RootReport
)  # fmt: skip
"""What workers say to each other once they have greeted; the rest is between two connections."""

_Any = Message | Hello | Proof | Welcome | Refuse | Ping | Pong | Goodbye

_LENGTH = Struct(">I")
PREFIX_BYTES = _LENGTH.size
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(_Any)

_WITH_RECORDS = frozenset(
    bytes((0x90 | 1 + len(kind.__struct_fields__), cast(int, kind.__struct_config__.tag)))
    for kind in (Deliver, Loose)
)
"""How the bodies of frames begin that may be longer than `CONTROL_BYTES`: the length of the array,
and the kind."""


def encode(frame: Frame, limit: int) -> bytearray:
    """The frame with its length before it.

    Raises:
        PeerError: its body is longer than `limit`; nobody would take it.
    """
    data = bytearray(PREFIX_BYTES)
    _encoder.encode_into(frame, data, PREFIX_BYTES)
    length = len(data) - PREFIX_BYTES
    if length > limit:
        raise PeerError(
            f"a frame {named(frame)} of {length:,} bytes, more than the {limit:,} allowed"
        )
    _LENGTH.pack_into(data, 0, length)
    return data


def decode(body: bytes) -> Frame:
    """The frame in a body, without its length.

    Raises:
        PeerError: it is none, or longer than its kind may be.
    """
    if len(body) > CONTROL_BYTES and body[:2] not in _WITH_RECORDS:
        raise PeerError(
            f"a frame without records of {len(body):,} bytes, more than the {CONTROL_BYTES:,} "
            f"allowed; it begins with {body[:16]!r}"
        )
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(
            f"{len(body):,} bytes that are no frame, beginning with {body[:16]!r}: {error}"
        ) from error


def named(frame: Frame) -> str:
    """What kind of frame it is, for messages."""
    return type(frame).__name__


class Splitter:
    """Cuts what comes over a connection into the bodies of frames."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The longest body that is taken; may be changed between two frames."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are whole now.

        Raises:
            PeerError: one would be too long. It is refused by its length, unread.
        """
        rest = self._rest
        rest += data
        begin = 0
        try:
            while len(rest) - begin >= PREFIX_BYTES:
                (length,) = _LENGTH.unpack_from(rest, begin)
                if length > self.limit:
                    raise PeerError(
                        f"a frame said to be {length:,} bytes long, more than the "
                        f"{self.limit:,} allowed here; it begins with {bytes(rest[begin : begin + 16])!r}"
                    )
                end = begin + PREFIX_BYTES + length
                if len(rest) < end:
                    return
                with memoryview(rest) as view:
                    body = bytes(view[begin + PREFIX_BYTES : end])
                begin = end
                yield body
        finally:
            del rest[:begin]
