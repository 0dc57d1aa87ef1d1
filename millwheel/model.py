"""The nouns: keys, slots, records, timers, times.

Time inside the engine is an ``int`` of microseconds since 1970-01-01T00:00Z; at the
edge, where user code sees it, it is an aware UTC ``datetime``. `MIN_TIME` stands for
"nothing is known yet", `MAX_TIME` for "the end of time": a low watermark there says that
nothing more will come.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from struct import Struct
from types import CodeType
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

Key: TypeAlias = "str | int | tuple[str | int, ...]"
TimerKind: TypeAlias = Literal["watermark", "wall"]

SLOTS = 1 << 16
"""How many slots keys are hashed to; an interval is a range of slots."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_MICROSECOND = timedelta(microseconds=1)
MIN_TIME = (datetime(1, 1, 2, tzinfo=UTC) - EPOCH) // ONE_MICROSECOND
MAX_TIME = (datetime(9999, 12, 30, tzinfo=UTC) - EPOCH) // ONE_MICROSECOND

V = TypeVar("V")


class Statement(str):
    """SQL of the user's, and the place in user code that asked for it."""

    __slots__ = ("caller",)

    caller: tuple[CodeType, int]
    """A function's code, and the offset of the call in it: the line is looked up when it is shown."""

    def __repr__(self) -> str:
        """The first 200 characters as a literal, and file and line."""
        code, offset = self.caller
        lines = (line for start, end, line in code.co_lines() if start <= offset < end)
        return f"{str(self)!r:.200} (ctx.execute at {code.co_filename}:{next(lines, None)})"


def to_micros(moment: datetime) -> int:
    """Microseconds since the epoch of an aware ``datetime``.

    Raises:
        ValueError: `moment` has no time zone; which instant it means is unknown.
    """
    if not isinstance(moment, datetime):
        raise TypeError(f"a timestamp must be an aware datetime, not {type(moment).__name__}")
    if moment.tzinfo is None:
        raise ValueError(
            f"the timestamp {moment.isoformat()} has no time zone, so the instant it means is "
            "unknown; make it aware, for example with .replace(tzinfo=timezone.utc)"
        )
    difference = moment - EPOCH
    return (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds


def from_micros(micros: int) -> datetime:
    """The aware UTC ``datetime`` of microseconds since the epoch."""
    return EPOCH + timedelta(microseconds=micros)


def event_micros(moment: datetime) -> int:
    """Microseconds since the epoch of a record's timestamp.

    Raises:
        ValueError: `moment` is naive, or so near to the ends of the calendar that nothing can be
            before or after it; ``0001-01-01`` and ``9999-12-31`` mostly stand for "not known".
    """
    micros = to_micros(moment)
    if not MIN_TIME <= micros < MAX_TIME:
        raise ValueError(
            f"the timestamp {moment.isoformat()} is outside of time as it is kept here, from "
            f"{from_micros(MIN_TIME).date()} up to {from_micros(MAX_TIME).date()}"
        )
    return micros


def clamp_time(micros: int) -> int:
    """`micros`, kept between `MIN_TIME` and `MAX_TIME`."""
    return max(MIN_TIME, min(MAX_TIME, micros))


class Record(msgspec.Struct, Generic[V], gc=False, eq=False):
    """One record as a computation sees it: (key, value, timestamp) and its stream's name."""

    key: Key
    value: V
    micros: int
    """The timestamp in microseconds since the epoch."""
    stream: str

    @property
    def timestamp(self) -> datetime:
        """Event time, an aware UTC ``datetime``."""
        return from_micros(self.micros)


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A timer that is due: what `Computation.process_timer` is called with."""

    tag: str
    kind: TimerKind
    micros: int

    @property
    def at(self) -> datetime:
        """The instant it was set for, an aware UTC ``datetime``."""
        return from_micros(self.micros)


record_id: Callable[[int, int], bytes] = Struct(">QQ").pack
"""The 16-byte id of record `seq` of log `log`: unique for ever, the same in every resend."""

log_and_number: Callable[[bytes], tuple[int, int]] = Struct(">QQ").unpack
"""What such an id is made of."""

NAME_BYTES = 12
"""The id of a weak production begins with its name."""

RUN_BYTES = 2
"""Then comes a mark of the worker that made it. The rest is a digest of what it says."""


def is_derived(id_: bytes) -> bool:
    """Whether an id is that of a weak production: no other begins with a bit that is set."""
    return id_[:1] > b"\x7f"


def name_of(id_: bytes) -> bytes:
    """What tells records apart: of a weak production the name in its id, else all of the id."""
    return id_[:NAME_BYTES] if id_[:1] > b"\x7f" else id_


def run_of(id_: bytes) -> bytes:
    """Which worker made a weak production, by its id."""
    return id_[NAME_BYTES : NAME_BYTES + RUN_BYTES]


def digest_of(id_: bytes) -> bytes:
    """What a weak production says, by its id."""
    return id_[NAME_BYTES + RUN_BYTES :]


class Delivery(Record[V], gc=False, eq=False):
    """A record on its way to one interval, with what the engine must know to deliver it once.

    Strong productions get `log`, `seq`, `stamp` and `id` when their commit is put together;
    records of a replayable source get them when they are read. Weak productions get `id`,
    `origin` and `stamp` from the record they come of, and `log` and `seq` when they are sent.
    """

    key_text: bytes
    slot: int
    receiver: int
    """Id of the computation that reads it."""
    hold: int
    """What it counts for in the low watermark: max(timestamp, the watermark promised when sent)."""
    size: int
    """Bytes of its encoded value."""
    encoded: bytes = b""
    """The value as it is stored; empty for a row of a replayable source whose type cannot
    be changed by user code: it is stored nowhere."""
    log: int = 0
    seq: int = 0
    stamp: int = 0
    """`produced_at`, the sender's logical clock in microseconds; of a replayable source the offset.
    Every resend has the same, and it is the record's place in the buckets of seen ids."""
    id: bytes = b""
    bucket: int = 0
    """Where the receiver keeps the id."""
    named: bool = False
    """The id was supplied by the user: it is looked up in every live bucket."""
    origin: int = 0
    """The log of the replayable source among whose offsets `stamp` is; 0: it is a time."""


class Firing(msgspec.Struct, gc=False, eq=False):
    """A timer of one key that is due."""

    key: Key
    key_text: bytes
    slot: int
    timer: Timer
    hold: int
