"""Keys, slots, records, timers and times.

Inside the engine, time is an ``int`` of microseconds since 1970-01-01T00:00Z; user code
sees an aware UTC ``datetime``. `MIN_TIME` means "nothing is known yet", and `MAX_TIME`
"the end of time": after a low watermark of `MAX_TIME`, no more records will arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from operator import sub
from struct import Struct
from types import CodeType
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

Key: TypeAlias = "str | int | tuple[str | int, ...]"
TimerKind: TypeAlias = Literal["watermark", "wall"]

SLOTS = 1 << 16
"""Number of slots that keys are hashed to; an interval is a range of slots."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_MICROSECOND = timedelta(microseconds=1)
MIN_TIME = (datetime(1, 1, 2, tzinfo=UTC) - EPOCH) // ONE_MICROSECOND
MAX_TIME = (datetime(9999, 12, 30, tzinfo=UTC) - EPOCH) // ONE_MICROSECOND

_DATETIMES = frozenset((datetime,))

V = TypeVar("V")


class Statement(str):
    """A user's SQL statement, and the place in user code that executed it."""

    __slots__ = ("caller",)

    caller: tuple[CodeType, int]
    """The calling function's code, and the offset of the call in it; `repr` looks up the line."""

    def __repr__(self) -> str:
        """The first 200 characters as a literal, with file and line."""
        code, offset = self.caller
        lines = (line for start, end, line in code.co_lines() if start <= offset < end)
        return f"{str(self)!r:.200} (ctx.execute at {code.co_filename}:{next(lines, None)})"


def to_micros(moment: datetime) -> int:
    """Microseconds since the epoch of an aware ``datetime``.

    ```python
    from millwheel.windows import micros_of

    assert micros_of(datetime(1970, 1, 1, 0, 1, tzinfo=UTC)) == 60_000_000
    ```

    Raises:
        TypeError: `moment` is not a ``datetime``.
        ValueError: `moment` has no time zone, so that its instant is unknown.
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
        ValueError: `moment` is naive, or too close to an end of the calendar to have a time before
            or after it; ``0001-01-01`` and ``9999-12-31`` usually mean "not known".
    """
    micros = to_micros(moment)
    if not MIN_TIME <= micros < MAX_TIME:
        raise _outside(moment.isoformat())
    return micros


def checked_micros(micros: int) -> int:
    """A record's timestamp that is in microseconds since the epoch.

    Raises:
        ValueError: it is too close to an end of the calendar, or outside.
    """
    if not MIN_TIME <= micros < MAX_TIME:
        raise _outside(f"of {micros:,} µs since 1970")
    return micros


def _outside(shown: str) -> ValueError:
    return ValueError(
        f"the timestamp {shown} is outside the range of event time, from "
        f"{from_micros(MIN_TIME).date()} to {from_micros(MAX_TIME).date()}"
    )


def all_event_micros(moments: Sequence[datetime]) -> list[int]:
    """`event_micros` of each moment.

    Raises:
        TypeError, ValueError: it refuses one of them.
    """
    if not _DATETIMES.issuperset(map(type, moments)):
        return list(map(event_micros, moments))
    since = map(sub, moments, repeat(EPOCH))
    found = [(s.days * 86_400 + s.seconds) * 1_000_000 + s.microseconds for s in since]
    if found and not (min(found) >= MIN_TIME and max(found) < MAX_TIME):
        list(map(event_micros, moments))  # raises
    return found


def clamp_time(micros: int) -> int:
    """`micros`, limited to the range from `MIN_TIME` to `MAX_TIME`."""
    return max(MIN_TIME, min(MAX_TIME, micros))


class Record(msgspec.Struct, Generic[V], gc=False, eq=False):
    """One record as a computation sees it: key, value, timestamp and the stream's name.

    ```python
    record = Record("ann", TEA, micros=1_704_067_200_000_000, stream="orders")
    assert record.timestamp == at(0)
    ```
    """

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
    """A due timer, the argument of `Computation.process_timer`.

    ```python
    timer = Timer(tag="pay", kind="watermark", micros=1_704_067_200_000_000)
    assert timer.at == at(0)
    ```
    """

    tag: str
    kind: TimerKind
    micros: int

    @property
    def at(self) -> datetime:
        """The instant for which the timer was set, an aware UTC ``datetime``."""
        return from_micros(self.micros)


record_id: Callable[[int, int], bytes] = Struct(">QQ").pack
"""The 16-byte id of record `seq` of log `log`: unique for ever, the same in every resend."""

log_and_number: Callable[[bytes], tuple[int, int]] = Struct(">QQ").unpack
"""The log and the sequence number in such an id."""

NAME_BYTES = 12
"""Length of the name with which the id of a weak production begins."""

RUN_BYTES = 2
"""Length of the mark of the producing worker, which follows the name. The rest of the id is a
digest of the production."""


def is_derived(id_: bytes) -> bool:
    """Whether an id belongs to a weak production; only such an id begins with a set bit."""
    return id_[:1] > b"\x7f"


def name_of(id_: bytes) -> bytes:
    """The part of an id that identifies the record: of a weak production its name, or the whole
    id."""
    return id_[:NAME_BYTES] if id_[:1] > b"\x7f" else id_


def run_of(id_: bytes) -> bytes:
    """The mark of the worker that made a weak production, from its id."""
    return id_[NAME_BYTES : NAME_BYTES + RUN_BYTES]


def digest_of(id_: bytes) -> bytes:
    """The digest of a weak production, from its id."""
    return id_[NAME_BYTES + RUN_BYTES :]


class Delivery(Record[V], gc=False, eq=False):
    """A record on its way to one interval, with the data that the engine needs to deliver it once.

    Strong productions get `log`, `seq`, `stamp` and `id` when their commit is built; records of a
    replayable source get them when they are read. Weak productions get `id`, `origin` and `stamp`
    from their input record, and `log` and `seq` when they are sent.
    """

    key_text: bytes
    slot: int
    receiver: int
    """Id of the computation that reads it."""
    hold: int
    """The time at which it holds the low watermark: max(timestamp, watermark published when
    sent)."""
    size: int
    """Size of its encoded value in bytes."""
    encoded: bytes = b""
    """The stored form of the value. Empty for a row of a replayable source with an immutable type:
    such a row is not stored."""
    log: int = 0
    seq: int = 0
    stamp: int = 0
    """`produced_at`, the sender's logical clock in microseconds; for a replayable source the
    offset. Every resend has the same stamp, which decides the record's bucket of seen ids."""
    id: bytes = b""
    bucket: int = 0
    """The receiver's bucket that keeps the id."""
    named: bool = False
    """Whether the user supplied the id; such an id is looked up in every live bucket."""
    origin: int = 0
    """The log of the replayable source that `stamp` is an offset of; 0: `stamp` is a time."""


class Firing(msgspec.Struct, gc=False, eq=False):
    """A due timer of one key."""

    key: Key
    key_text: bytes
    slot: int
    timer: Timer
    hold: int
    watermark: int | None = None
    """The low watermark that user code sees; None: the present one."""
    aside: bool = False
    """It was not fired, and is set again as it is."""
