"""Keys, slots, records, timers and times.

Inside the engine, time is an ``int`` of microseconds since 1970-01-01T00:00Z; user code sees an
aware UTC ``datetime``. `MIN_TIME` means "nothing is known yet", and `MAX_TIME` "the end of time":
after a low watermark of `MAX_TIME`, no more records will arrive.
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
    """Code of the caller, and the offset of the call in it; `repr` looks up the line."""

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
        advice = "; add it to a time" if isinstance(moment, timedelta) else ""
        raise TypeError(
            f"a timestamp must be an aware datetime, not {type(moment).__name__}{advice}"
        )
    if moment.tzinfo is None:
        raise ValueError(
            f"the timestamp {moment.isoformat()} has no time zone, so the instant it means is "
            "unknown; make it aware, for example with .replace(tzinfo=timezone.utc)"
        )
    difference = moment - EPOCH
    return (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def event_micros(moment: datetime) -> int:
    """Microseconds of a record's timestamp.

    `ValueError` if it is naive, or too close to an end of the calendar to have a time before or
    after it; ``0001-01-01`` and ``9999-12-31`` usually mean "not known".
    """
    micros = to_micros(moment)
    if not MIN_TIME <= micros < MAX_TIME:
        raise _outside(moment.isoformat())
    return micros


def checked_micros(micros: int) -> int:
    """`ValueError` if it is too close to an end of the calendar, or outside."""
    if not MIN_TIME <= micros < MAX_TIME:
        raise _outside(f"of {micros:,} µs since 1970")
    return micros


def _outside(shown: str) -> ValueError:
    return ValueError(
        f"the timestamp {shown} is outside the range of event time, from "
        f"{from_micros(MIN_TIME).date()} to {from_micros(MAX_TIME).date()}"
    )


def all_event_micros(moments: Sequence[datetime]) -> list[int]:
    if not _DATETIMES.issuperset(map(type, moments)):
        return list(map(event_micros, moments))
    since = map(sub, moments, repeat(EPOCH))
    found = [(s.days * 86_400 + s.seconds) * 1_000_000 + s.microseconds for s in since]
    if found and not (min(found) >= MIN_TIME and max(found) < MAX_TIME):
        list(map(event_micros, moments))  # raises
    return found


def clamp_time(micros: int) -> int:
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
    """Microseconds since the epoch."""
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
        """The time that the timer was set for, an aware UTC ``datetime``."""
        return from_micros(self.micros)


record_id: Callable[[int, int], bytes] = Struct(">QQ").pack
"""The 16-byte id of record `seq` of log `log`: unique for ever, the same in every resend."""

log_and_number: Callable[[bytes], tuple[int, int]] = Struct(">QQ").unpack

NAME_BYTES = 12
"""Length of the name at the beginning of the id of a weak production."""

RUN_BYTES = 2
"""Length of the mark of the producing worker, which follows the name. The rest is a digest of the
production."""


def is_derived(id_: bytes) -> bool:
    """Only the id of a weak production begins with a set bit."""
    return id_[:1] > b"\x7f"


def name_of(id_: bytes) -> bytes:
    """The name in the id of a weak production; otherwise the whole id."""
    return id_[:NAME_BYTES] if id_[:1] > b"\x7f" else id_


def run_of(id_: bytes) -> bytes:
    return id_[NAME_BYTES : NAME_BYTES + RUN_BYTES]


def digest_of(id_: bytes) -> bytes:
    return id_[NAME_BYTES + RUN_BYTES :]


def log_of_tree(token: int) -> int:
    """Stands for the log of the deliveries of a tree, in memory and on the wire."""
    return -token


class Delivery(Record[V], gc=False, eq=False):
    """A record on its way to one interval.

    Strong productions get `log`, `seq`, `stamp` and `id` when their commit is built; records of a
    replayable source when they are read. Weak productions get `id`, `origin` and `stamp` from their
    input record, and `log` and `seq` when they are sent.
    """

    key_text: bytes
    slot: int
    receiver: int
    hold: int
    """The time at which it holds the low watermark: max(timestamp, watermark published when
    sent)."""
    size: int
    encoded: bytes = b""
    """Empty for a row of a replayable source with an immutable type, which is not stored."""
    log: int = 0
    seq: int = 0
    stamp: int = 0
    """`produced_at`, the sender's logical clock in microseconds; for a replayable source the
    offset. The same in every resend; decides the record's bucket of seen ids."""
    id: bytes = b""
    bucket: int = 0
    named: bool = False
    """The user supplied the id; such an id is looked up in every live bucket."""
    origin: int = 0
    """The log of the replayable source that `stamp` is an offset of; 0: `stamp` is a time."""

    @property
    def in_tree(self) -> bool:
        """Whether it is in no log, but an edge of the tree of a weak computation's productions."""
        return self.log < 0

    @property
    def token(self) -> int:
        """The number of its tree; `seq` is the number of the edge."""
        return -self.log

    def join_tree(self, token: int, edge: int) -> None:
        """Become an edge of a tree."""
        self.log, self.seq = log_of_tree(token), edge


class Firing(msgspec.Struct, gc=False, eq=False):
    key: Key
    key_text: bytes
    slot: int
    timer: Timer
    hold: int
    watermark: int | None = None
    """Low watermark that user code sees; None: the present one."""
    aside: bool = False
    """The timer was not fired, and is set again as it is."""
