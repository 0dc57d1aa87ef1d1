"""The frames that workers exchange: a length, then one frame in MessagePack.

::

    4 bytes, big endian: length of the body | body: [kind, field, field, ...]

A connection begins with the greeting (`millwheel.runtime.network.handshake`): `Hello`, `Proof`,
`Introduction` and `Welcome`, or `Refuse`, which ends it. Then, in any order and number:

=================  ====  ===========================================================================
frame              goes  says
=================  ====  ===========================================================================
`Deliver`          →     records of one log for one receiving interval, after number `previous`
`DeliverChunk`     →     the same for a chunk, in columns
`Ask`              →     all records up to this number were sent: did they arrive?
`Report`           →     the stored low watermarks of some intervals, by slots (paper 7.2)
`Acknowledge`      ←     these numbers of the log are durable at the receiver, or duplicates
`NotMine`          ←     the interval has another owner: look it up and restart the stream
`Gap`              ←     records before this frame are missing: restart the stream
`Progress`         ←     they arrived; all before this number are durable; (no) more are accepted
`TooNew`           ←     the receiver's code cannot read the records: keep them for newer code
`Loose`            →     records in no log, which their sender does not keep (decision 32)
`RootReport`       →     XOR reports about loose records, to the worker that tracks their roots
`Ping`             ↔     asks for a sign of life; the answer is `Pong`
`Goodbye`          ↔     the last frame of a connection, with the reason
=================  ====  ===========================================================================

``→`` goes from the caller of the connection to its listener, as deliveries do; ``←`` goes back.

Lists, numbers, and frames without records have limits, which are checked before any object is
built; a frame beyond one closes its connection. Whether the sender is entitled to the content is
decided later (`millwheel.runtime.network.trust`, decision 41).

A frame may be lost with its connection, or arrive again over the next one. Both are harmless:
senders keep un-ACKed records, a stream's epoch and numbers reveal duplicates and gaps (decision
23), and lost loose records are produced again from their roots.

Fields are identified by position. `Hello` and `Refuse` keep their present fields for ever, so that
any two versions can say why they refuse; `Hello` may gain fields with defaults at its end. Every
other change raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Annotated, TypeAlias, TypeVar, cast

import msgspec

from millwheel.core.codec import MAX_KEY_BYTES
from millwheel.core.model import MAX_TIME, MIN_TIME, SLOTS
from millwheel.errors import PeerError

T = TypeVar("T")

VERSION = 7

GREETING_BYTES = 4096
"""Longest frame accepted from a peer before its proof."""

NONCE_BYTES = 32

RECORD_OVERHEAD_BYTES = 4096
"""Maximum size of a record in a frame without its value: key, names, numbers."""

CONTROL_BYTES = 1 << 20

FRAME_RECORDS = 1000
"""Maximum number of records in one frame."""

FRAME_RUNS = 10_000
"""Maximum number of runs in one `Acknowledge`: 190 kB."""

FRAME_REPORTS = 10_000
"""Maximum number of trees in one `RootReport`: 200 kB."""

FRAME_INTERVALS = 10_000
"""Maximum number of low watermarks in one `Report`: 640 kB."""

ID_BYTES = 16
"""An empty id means that log and number give it."""

LARGEST = (1 << 63) - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""An id from the store, a position in a log, or a count; within Postgres' bigint."""

Before = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
"""A position in a log; -1 is before the first."""

Micros = Annotated[int, msgspec.Meta(ge=MIN_TIME, le=MAX_TIME)]
Slot = Annotated[int, msgspec.Meta(ge=0, lt=SLOTS)]
KeyText = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_KEY_BYTES)]
Id = Annotated[bytes, msgspec.Meta(max_length=ID_BYTES)]
Name = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
TypeVersion = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]

RecordRow: TypeAlias = tuple[
    Number,
    str,
    KeyText,
    Slot,
    Micros,
    Micros,
    Number,
    Number,
    Id,
    bool,
    bytes,
    TypeVersion,
    Number,
]
"""(seq, stream, key as canonical JSON, slot, timestamp in microseconds, hold, stamp, size of the
value in bytes, id or b"" if log and seq give it, whether the id is user-supplied, the value as
JSON, version of the stream's type, the source that the stamp is an offset of, or 0)."""

Token = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]

LooseRow: TypeAlias = tuple[Token, RecordRow]
"""The token of the root, and a row with the record's edge in place of its number."""

EdgeReport: TypeAlias = tuple[Token, Number]
"""(token, XOR of edges). 0 is a sign of life: some worker holds a record of the tree."""

Run: TypeAlias = tuple[Number, Number]
"""First and last number, both included."""

IntervalReport: TypeAlias = tuple[Number, Number, Number, Number, Number, Micros, bool]
"""(interval, computation, first slot, one past the last slot, sequencer, low watermark in
microseconds, whether it is an idle partition of a source)."""

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


Column: TypeAlias = Annotated[list[T], msgspec.Meta(max_length=FRAME_RECORDS)]


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class."""


class Hello(Frame, frozen=True, array_like=True, gc=False, tag=1):
    """Begins a greeting; says nothing about its sender, because any process may ask for it."""

    version: int
    pipeline: str
    """Always empty, like `worker`: see `Introduction`. Up to version 4 these named the sender."""
    worker: str
    nonce: Nonce


class Proof(Frame, frozen=True, array_like=True, gc=False, tag=2):
    """Proves knowledge of the secret by an HMAC-SHA256."""

    digest: bytes


class Introduction(Frame, frozen=True, array_like=True, gc=False, tag=18):
    pipeline: str
    worker: str
    incarnation: str
    """The incarnation of the database server that this worker knows (decision 40)."""
    digest: bytes
    """HMAC-SHA256 over the other fields, for this connection only."""


class Welcome(Frame, frozen=True, array_like=True, gc=False, tag=3):
    """The connection is up."""


class Refuse(Frame, frozen=True, array_like=True, gc=False, tag=4):
    reason: str


class Delivering(Frame, frozen=True, array_like=True, gc=False):
    """Base class: records of one log for one receiving interval, in the order of their numbers.

    `epoch` counts the starts of this stream; `previous` is the last number of the previous frame,
    -1 in an epoch's first frame.
    """

    log: Number
    sequencer: Number
    epoch: Number
    interval: Number
    receiver: Number
    """The computation of the receiving interval."""
    previous: Before


class Deliver(Delivering, frozen=True, array_like=True, gc=False, tag=5):
    records: Annotated[list[RecordRow], msgspec.Meta(min_length=1, max_length=FRAME_RECORDS)]


class WireChunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records of one stream. The columns have one length."""

    stream: str
    version: TypeVersion
    """Of the stream's type."""
    of_source: bool
    """Whether the log is a replayable source's, and the records its rows."""
    stamp: Number
    """0 for rows of a source: each one's number is its stamp."""
    numbers: Annotated[list[Number], msgspec.Meta(min_length=1, max_length=FRAME_RECORDS)]
    names: Column[Name]
    """User-supplied ids; empty: log and numbers give the ids."""
    key_texts: Column[KeyText]
    slots: Column[Slot]
    micros: Column[Micros]
    holds: Column[Micros]
    values: Column[bytes]
    """The values as JSON."""


class DeliverChunk(Delivering, frozen=True, array_like=True, gc=False, tag=19):
    chunk: WireChunk


class Acknowledge(Frame, frozen=True, array_like=True, gc=False, tag=6):
    log: Number
    receiver: Number
    seqs: Annotated[list[Run], msgspec.Meta(min_length=1, max_length=FRAME_RUNS)]


class NotMine(Frame, frozen=True, array_like=True, gc=False, tag=7):
    log: Number
    epoch: Number
    interval: Number


class Gap(Frame, frozen=True, array_like=True, gc=False, tag=8):
    """`expected` is the `previous` that would follow the last accepted frame."""

    log: Number
    epoch: Number
    interval: Number
    expected: Before


class TooNew(Frame, frozen=True, array_like=True, gc=False, tag=13):
    """Keep the records for an owner with newer code; this one accepts none of the epoch."""

    log: Number
    epoch: Number
    interval: Number


class Ask(Frame, frozen=True, array_like=True, gc=False, tag=14):
    """Answered by `Progress`, `Gap` or `NotMine`, but not by a former owner of the log."""

    log: Number
    sequencer: Number
    epoch: Number
    interval: Number
    last: Before


class Progress(Frame, frozen=True, array_like=True, gc=False, tag=15):
    """Records before number `done` are durable.

    If `takes` is false, the interval is being drained: the last records may not have arrived, and
    the sender can pause until another worker owns the interval.
    """

    log: Number
    epoch: Number
    interval: Number
    done: Number
    takes: bool


class Report(Frame, frozen=True, array_like=True, gc=False, tag=9):
    intervals: Annotated[list[IntervalReport], msgspec.Meta(max_length=FRAME_INTERVALS)]


class Loose(Frame, frozen=True, array_like=True, gc=False, tag=16):
    """A record's slot determines its interval."""

    receiver: Number
    records: Annotated[list[LooseRow], msgspec.Meta(min_length=1, max_length=FRAME_RECORDS)]


class RootReport(Frame, frozen=True, array_like=True, gc=False, tag=17):
    """Receivers ignore unknown tokens."""

    reports: Annotated[list[EdgeReport], msgspec.Meta(max_length=FRAME_REPORTS)]


class Ping(Frame, frozen=True, array_like=True, gc=False, tag=10):
    """Asks for a sign of life."""


class Pong(Frame, frozen=True, array_like=True, gc=False, tag=11):
    """Answers a `Ping`."""


class Goodbye(Frame, frozen=True, array_like=True, gc=False, tag=12):
    reason: str


Message: TypeAlias = (
    Deliver | DeliverChunk | Ask | Report | Acknowledge | NotMine | Gap | Progress | TooNew | Loose
    | RootReport
)  # fmt: skip

_Any = Message | Hello | Proof | Introduction | Welcome | Refuse | Ping | Pong | Goodbye

_LENGTH = Struct(">I")
PREFIX_BYTES = _LENGTH.size
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(_Any)

_WITH_RECORDS = frozenset(
    bytes((0x90 | 1 + len(kind.__struct_fields__), cast(int, kind.__struct_config__.tag)))
    for kind in (Deliver, DeliverChunk, Loose)
)
"""The first two bytes (array length, kind) of bodies that may be longer than `CONTROL_BYTES`."""


def encode(frame: Frame, limit: int) -> bytearray:
    """`PeerError` if the body is longer than `limit`."""
    data = bytearray(PREFIX_BYTES)
    _encoder.encode_into(frame, data, PREFIX_BYTES)
    length = len(data) - PREFIX_BYTES
    if length > limit:
        raise PeerError(f"a frame {named(frame)} of {length:,} bytes, above the limit of {limit:,}")
    _LENGTH.pack_into(data, 0, length)
    return data


def decode(body: bytes) -> Frame:
    """`PeerError` if the body is no valid frame, or too long for its kind."""
    if len(body) > CONTROL_BYTES and body[:2] not in _WITH_RECORDS:
        raise PeerError(
            f"a frame without records of {len(body):,} bytes, above the limit of "
            f"{CONTROL_BYTES:,}; it begins with {body[:16]!r}"
        )
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(
            f"{len(body):,} bytes are no valid frame; they begin with {body[:16]!r}: {error}"
        ) from error


def named(frame: Frame) -> str:
    return type(frame).__name__


class Splitter:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The complete bodies; `PeerError` if one is longer than the limit."""
        rest = self._rest
        rest += data
        begin = 0
        try:
            while len(rest) - begin >= PREFIX_BYTES:
                (length,) = _LENGTH.unpack_from(rest, begin)
                if length > self.limit:
                    raise PeerError(
                        f"a frame announces {length:,} bytes, above the limit of {self.limit:,} "
                        f"here; it begins with {bytes(rest[begin : begin + 16])!r}"
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
