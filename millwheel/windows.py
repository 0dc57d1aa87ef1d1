"""Windows as pure data: the span of time that a record belongs to, and the panes of its results.

===============  ===============================================  ==========================
`Tumbling`       adjacent, of one size                            an hour, a local day
`Months`         adjacent, calendar months                        a month, a quarter
`Sliding`        of one size, a new one each `slide`              the last day, each hour
`Session`        a run of records without a pause of `gap`        one visit
`Count`          every n records of a key                         batches of 100
`Global`         all of time                                      a running total
===============  ===============================================  ==========================

Bounds are instants, ``[start, end)``, in microseconds since the epoch; with a time zone they follow
the *local clock* (see `Tumbling`). `zoneinfo` reads zones from the system; without
``/usr/share/zoneinfo``, ``pip install tzdata``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from millwheel.core.model import (
    EPOCH,
    MAX_TIME,
    MIN_TIME,
    ONE_MICROSECOND,
    clamp_time,
    from_micros,
    to_micros,
)
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import GraphError

__all__ = [
    "Assigner",
    "Count",
    "Early",
    "Global",
    "Months",
    "Pane",
    "PaneOrder",
    "Session",
    "Sliding",
    "Span",
    "Tumbling",
    "Zone",
    "instant",
    "micros_of",
]

R = TypeVar("R")

Zone = str | ZoneInfo
"""A name of the IANA database ("Europe/Berlin"), or a `ZoneInfo`."""

LAST_YEAR = 9999
LAST_INSTANT = MAX_TIME - 1
"""The last instant of a record or timer; at the end of time, after the input, every window
closes."""
LONGEST_SECONDS = 10**10
"""Maximum duration, about three hundred years; a longer one could leave the calendar."""


class Pane(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """One result of one window of one key: ``[start, end)``, UTC.

    ```python
    pane = Pane("ann", at(0), at(60), 390)
    assert pane.end - pane.start == timedelta(minutes=1)
    ```

    Attributes:
        number: 0 for the first pane of the window, then rising by one. Panes of count windows,
            which have no bounds of their own, are numbered per key.
        late: the pane amends the result with a record that arrived after the window had closed.
        final: no further pane of this window will follow.
        early: the pane was sent before the window closed, and is not complete.
        retracted: the window no longer exists: a record joined its session to another, or moved its
            start. Ignore its panes; the pane of the joined session replaces them.
    """

    key: str | int | tuple[str | int, ...]
    start: datetime
    end: datetime
    value: R
    number: int = 0
    late: bool = False
    final: bool = False
    early: bool = False
    retracted: bool = False


@dataclass(frozen=True)
class PaneOrder:
    """How the panes of a key follow one another, which shows the newer one of two.

    ```python
    first = Pane("ann", at(0), at(60), 300)
    amended = Pane("ann", at(0), at(60), 390, number=1, late=True)
    assert PaneOrder().place(first) < PaneOrder().place(amended)
    ```

    Attributes:
        by_number: panes are numbered per key; their windows have no bounds of their own (`Count`).
        amended_for: microseconds after its end for which a window may still send panes; None: for
            ever.
    """

    by_number: bool = False
    amended_for: int | None = None

    def place(self, pane: Pane[Any]) -> tuple[int, ...]:
        """The place of a pane among those of its key: the window decides before the pane's number.

        Of two windows with one end, the one that starts earlier is the newer one: a session that
        was joined to another, or one with a new start.
        """
        if self.by_number:
            return (pane.number,)
        return (to_micros(pane.end), -to_micros(pane.start), pane.number)

    def superseded_after(self, end: datetime, timestamp: int) -> int | None:
        """The instant after which no pane comes that is older than the newest one so far; None:
        there is none.

        An older pane may be on its way from a former owner of the interval. It holds the low
        watermark at its window's end or before, or at a promise that the newer pane's timestamp has
        reached.

        Args:
            end: the end of the newest pane's window.
            timestamp: the newest pane's timestamp.
        """
        if self.by_number or self.amended_for is None:
            return None
        return min(max(to_micros(end) - 1, timestamp) + self.amended_for, LAST_INSTANT)

    @staticmethod
    def of_all(orders: Sequence[PaneOrder]) -> PaneOrder:
        """The order that holds for panes of several computations; of none, their lateness is
        unknown."""
        amended = [order.amended_for for order in orders]
        known = [each for each in amended if each is not None]
        return PaneOrder(
            any(order.by_number for order in orders),
            max(known) if known and len(known) == len(amended) else None,
        )


class Span(msgspec.Struct, frozen=True, gc=False):
    """A window's bounds in microseconds since the epoch, ``[start, end)``.

    ```python
    minute = Span(0, 60_000_000)
    assert minute.last == 59_999_999
    ```
    """

    start: int
    end: int

    @property
    def last(self) -> int:
        """The last microsecond inside: the timestamp of the window's on-time pane."""
        return self.end - 1


@dataclass(frozen=True)
class Early:
    """Sends panes before their window closes: after a number of records, or a time.

    ```python
    from millwheel.computations import Windowed, total

    TOTALS = Stream("totals", Pane[int])
    spent = Windowed(
        Tumbling(days=1), total(cents), to=TOTALS, early=Early(records=1)
    )
    pipeline.add(spent, ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK, at=at(0))
        assert [(pane.value, pane.early) for pane in harness.produced(TOTALS)][-1] == (390, True)
    ```

    Attributes:
        records: new records of a window after which a pane is sent.
        seconds: wall time after the first record without a pane, after which a pane is sent. With
            `records` as well, the first of both decides.

    Raises:
        GraphError: both are None, or one is not above zero.
    """

    records: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.records is None and self.seconds is None:
            raise GraphError(
                "Early needs records=... or seconds=...; with neither it sends nothing"
            )
        if self.records is not None and (not isinstance(self.records, int) or self.records < 1):
            raise GraphError(
                f"Early(records=...) must be a whole number above zero, not {self.records}"
            )
        if self.seconds is not None and not (
            isinstance(self.seconds, (int, float)) and 0 < self.seconds <= LONGEST_SECONDS
        ):
            raise GraphError(
                f"Early(seconds=...) must be a number of seconds above zero, not {self.seconds}"
            )


class Assigner(Protocol):
    """Fixed windows of your own for `Windowed`; their bounds must not depend on the records.

    ```python
    class Seconds:
        def spans(self, micros: int) -> list[Span]:
            return [self.at(micros - micros % 1_000_000)]

        def at(self, start: int) -> Span:
            return Span(start, start + 1_000_000)

    assert Seconds().spans(2_500_000) == [Span(2_000_000, 3_000_000)]
    ```
    """

    def spans(self, micros: int) -> Sequence[Span]:
        """The windows that contain the instant `micros`, earliest first."""
        ...

    def at(self, start: int) -> Span:
        """The window that starts at `start`, the start of a window that `spans` has returned."""
        ...


class Tumbling:
    """Adjacent windows of one size.

    ```python
    day = Tumbling(days=1, zone="Europe/Berlin").of(micros_of(at(0)))
    assert instant(day.start) == datetime(2023, 12, 31, 23, tzinfo=UTC)
    ```

    With a zone, bounds follow the local clock: a day has 23 or 25 hours when the clock changes, and
    local hours nest into it. 01:00 to 02:00 takes two hours when the clock goes back, and does not
    exist when it jumps over it; of half-hour windows in an hour that occurs twice, the first takes
    30 minutes and the last 90.

    Args:
        size: the size of each window; or use `days`, `hours`, `minutes`, `seconds`.
        offset: shifts the bounds, which by default are at multiples of the size since the epoch.
        origin: instead of `offset`, an aware instant at which a window starts.
        zone: the zone with the clock that the bounds follow.

    Raises:
        GraphError: no size above zero, an `offset` as long as the size, a naive `origin`, an
            unknown zone.
    """

    def __init__(
        self,
        size: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        offset: timedelta = timedelta(0),
        origin: datetime | None = None,
        zone: Zone | None = None,
    ) -> None:
        try:
            whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        except (TypeError, ValueError, OverflowError) as error:
            raise GraphError(
                f"Tumbling cannot have this size: {error}; give one such as minutes=1"
            ) from error
        if size is not None:
            whole += _duration("Tumbling: size", size)
        self.size = whole // ONE_MICROSECOND
        if self.size <= 0:
            raise GraphError(
                f"Tumbling needs a size above zero, not {shown(whole)}; "
                "for example Tumbling(minutes=1)"
            )
        self._clock = None if zone is None else LocalClock(zone)
        moved = _offset("Tumbling", offset, whole) // ONE_MICROSECOND
        if origin is not None:
            if offset:
                raise GraphError("Tumbling takes an offset or an origin, not both")
            moved = _aware(origin, "Tumbling(origin=...)")
            if self._clock is not None:
                moved = self._clock.reading(moved)
        self.offset = moved % self.size
        self.is_local = self._clock is not None
        self._recent = Span(0, 0)

    def of(self, micros: int) -> Span:
        recent, clock = self._recent, self._clock
        if recent.start <= micros < recent.end:  # most records are in the window of the one before
            return recent
        if clock is None:
            start = micros - (micros - self.offset) % self.size
            self._recent = recent = Span(start, start + self.size)
            return recent
        reading = clock.reading(micros)
        bound = reading - (reading - self.offset) % self.size
        end = clock.first(bound + self.size)
        while end <= micros:  # the clock went back over a bound that it had already reached
            bound += self.size
            end = clock.first(bound + self.size)
        self._recent = Span(clock.first(bound), end)
        return self._recent

    def spans(self, micros: int) -> Sequence[Span]:
        return (self.of(micros),)

    def at(self, start: int) -> Span:
        return self.of(start)

    def __repr__(self) -> str:
        offset = f", offset={timedelta(microseconds=self.offset)}" if self.offset else ""
        zone = "" if self._clock is None else f", zone={self._clock.zone}"
        return f"Tumbling({timedelta(microseconds=self.size)}{offset}{zone})"


class Months:
    """Adjacent windows of one or several calendar months: ``Months(3)`` are quarters.

    ```python
    quarter = Months(3).of(micros_of(at(0)))
    assert instant(quarter.end) == datetime(2024, 4, 1, tzinfo=UTC)
    ```

    Args:
        number: number of months in a window, counted from January of year 1.
        zone: the zone of the calendar.

    Raises:
        GraphError: `number` is not a whole number above zero, or the zone is unknown.
    """

    def __init__(self, number: int = 1, *, zone: Zone = "UTC") -> None:
        if not isinstance(number, int) or number < 1:
            raise GraphError(f"Months needs a whole number above zero, not {number!r}")
        self._number = number
        self._clock = LocalClock(zone)
        self._recent = Span(0, 0)

    def of(self, micros: int) -> Span:
        if self._recent.start <= micros < self._recent.end:
            return self._recent
        local = EPOCH + timedelta(microseconds=self._clock.reading(micros))
        months = local.year * 12 + local.month - 13
        months -= months % self._number
        end = self._bound(months + self._number)
        while end <= micros:  # the clock went back over midnight of the first day
            months += self._number
            end = self._bound(months + self._number)
        self._recent = Span(self._bound(months), end)
        return self._recent

    def _bound(self, months: int) -> int:
        """The instant at which the local calendar reaches the month `months` after January of year
        1."""
        beyond = months - 12 * LAST_YEAR
        if beyond >= 0:  # after the end of the calendar, where no record can be
            return MAX_TIME + 1 + beyond
        local = datetime(months // 12 + 1, months % 12 + 1, 1, tzinfo=UTC)
        return self._clock.first(to_micros(local))

    def spans(self, micros: int) -> Sequence[Span]:
        return (self.of(micros),)

    def at(self, start: int) -> Span:
        return self.of(start)

    def __repr__(self) -> str:
        return f"Months({self._number}, zone={self._clock.zone})"


class Sliding:
    """Windows of one size, with a new one each `slide`; a record belongs to size / slide of them.

    ```python
    windows = Sliding(timedelta(minutes=10), timedelta(minutes=5)).spans(micros_of(at(0)))
    assert [instant(window.start) for window in windows] == [at(-300), at(0)]
    ```

    Args:
        size: the length of each window, a multiple of `slide`.
        slide: the time from the start of one window to the start of the next.
        offset, origin, zone: as for `Tumbling`; with a zone, seven days are seven local days.

    Raises:
        GraphError: a size or slide of zero or less, a slide that does not divide the size, an
            `offset` as long as the size, a naive `origin`, an unknown zone.
    """

    def __init__(
        self,
        size: timedelta,
        slide: timedelta,
        *,
        offset: timedelta = timedelta(0),
        origin: datetime | None = None,
        zone: Zone | None = None,
    ) -> None:
        _duration("Sliding: size", size)
        _duration("Sliding: slide", slide)
        if size <= timedelta(0) or slide <= timedelta(0):
            raise GraphError(
                "Sliding needs a size and a slide above zero, "
                f"not {shown(size)} and {shown(slide)}; for example "
                "Sliding(timedelta(minutes=10), timedelta(minutes=1))"
            )
        if size % slide:
            raise GraphError(
                f"a slide of {slide} does not divide the size of {size}: windows would not be "
                f"made of whole slices; take a size of {size // slide * slide + slide}, or a "
                "slide that divides"
            )
        moved = _offset("Sliding", offset, size) % slide
        self.slices = Tumbling(slide, offset=moved, origin=origin, zone=zone)
        """The slices that windows consist of, `number` consecutive ones each."""
        self.number = size // slide
        self._recent: Span | None = None

    def ending(self, last: Span) -> Span:
        return Span(self._step(last, 1 - self.number).start, last.end)

    def at(self, start: int) -> Span:
        if self._recent is None or self._recent.start != start:
            end = self._step(self.slices.of(start), self.number - 1).end
            self._recent = Span(start, end)
        return self._recent

    def _step(self, piece: Span, by: int) -> Span:
        if not self.slices.is_local:
            move = by * self.slices.size
            return Span(piece.start + move, piece.end + move)
        for _ in range(abs(by)):
            piece = self.slices.of(piece.end if by > 0 else piece.start - 1)
        return piece

    def spans(self, micros: int) -> Sequence[Span]:
        """The windows that hold the instant `micros`, earliest first."""
        windows = []
        last = self.slices.of(micros)
        for _ in range(self.number):
            windows.append(self.ending(last))
            last = self._step(last, 1)
        return windows

    def __repr__(self) -> str:
        return f"Sliding({self.number} x {self.slices})"


class Session:
    """A window for each run of records of a key without a pause of `gap`.

    ```python
    visits = Session(timedelta(minutes=30))
    spans = [visits.of(micros_of(at(60 * minute))) for minute in (0, 20, 90)]
    assert [instant(span.end) for span in visits.merge(spans)] == [at(3000), at(7200)]
    ```

    A record at t opens ``[t, t + gap)``. Windows that overlap become one, in whatever order their
    records arrive. Two records exactly `gap` apart are two sessions.

    Raises:
        GraphError: a gap of zero or less.
    """

    def __init__(self, gap: timedelta) -> None:
        self.gap = _duration("Session: gap", gap) // ONE_MICROSECOND
        if self.gap <= 0:
            raise GraphError(
                f"Session needs a gap above zero, not {shown(gap)}: without one, each record would "
                "be its own session; for example Session(timedelta(minutes=30))"
            )

    def of(self, micros: int) -> Span:
        """The session of a single record."""
        return Span(micros, micros + self.gap)

    def merge(self, spans: Sequence[Span]) -> list[Span]:
        """The sessions of these spans, with overlapping ones joined, earliest first."""
        merged: list[Span] = []
        for span in sorted(spans, key=lambda span: span.start):
            if merged and span.start < merged[-1].end:
                merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
            else:
                merged.append(span)
        return merged

    def __repr__(self) -> str:
        return f"Session(gap={timedelta(microseconds=self.gap)})"


class Count:
    """A window for each `number` records of a key, in the order in which they arrive.

    ```python
    from millwheel.computations import Windowed, collect

    PAIRS = Stream("pairs", Pane[list[Order]])
    pipeline.add(Windowed(Count(2), collect(Order), to=PAIRS), ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK, TEA)
        assert [pane.value for pane in harness.produced(PAIRS)] == [[TEA, MILK]]
    ```

    Its pane spans from the least timestamp of its records to the greatest plus one microsecond.
    Fewer than `number` records left at the end of the input make no pane.

    Raises:
        GraphError: `number` is not a whole number above zero.
    """

    def __init__(self, number: int) -> None:
        if not isinstance(number, int) or number < 1:
            raise GraphError(f"Count needs a whole number of records above zero, not {number!r}")
        self.number = number

    def __repr__(self) -> str:
        return f"Count({self.number})"


class Global:
    """One window for all of time, which closes when the input ends. It needs an `Early`.

    ```python
    from millwheel.computations import Windowed, total

    TOTALS = Stream("totals", Pane[int])
    spent = Windowed(
        Global(), total(cents), to=TOTALS, early=Early(seconds=5)
    )
    pipeline.add(spent, ORDERS.by(customer))
    ```
    """

    _span = Span(MIN_TIME, MAX_TIME)

    def spans(self, micros: int) -> Sequence[Span]:
        return (self._span,)

    def at(self, start: int) -> Span:
        return self._span

    def __repr__(self) -> str:
        return "Global()"


class LocalClock:
    """Converts between instants and the readings of a zone's wall clock.

    A *reading* is the time shown by the clock, as if it were UTC: microseconds since
    1970-01-01T00:00 on that clock. Readings jump forward and back with daylight saving; instants do
    not.
    """

    def __init__(self, zone: Zone) -> None:
        if not isinstance(zone, (str, ZoneInfo)):
            raise GraphError(
                f"there is no time zone {zone!r}: give a name like 'Europe/Berlin' or 'UTC', or "
                "a zoneinfo.ZoneInfo"
            )
        try:
            self.zone = zone if isinstance(zone, ZoneInfo) else ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            message = (
                f"there is no time zone {zone!r} ({error.args[0]}). Give a name like "
                "'Europe/Berlin'; on a system without a time zone database, pip install tzdata"
            )
            zones = available_timezones()
            raise GraphError(with_suggestion(message, str(zone), zones)) from error
        self._least, self._greatest = self.reading(MIN_TIME), self.reading(MAX_TIME)

    def reading(self, micros: int) -> int:
        """The reading at the instant `micros`; outside the calendar, the offset of its end
        applies."""
        inside = clamp_time(micros)
        local = from_micros(inside).astimezone(self.zone)
        return to_micros(local.replace(tzinfo=UTC)) + micros - inside

    def first(self, reading: int) -> int:
        """The first instant at which the clock shows `reading`, or has jumped over it."""
        if reading <= self._least:
            return MIN_TIME + reading - self._least
        if reading >= self._greatest:
            return MAX_TIME + reading - self._greatest
        local = (EPOCH + timedelta(microseconds=reading)).replace(tzinfo=self.zone)
        found = to_micros(local)  # fold=0: the first of two instants with this reading
        if self.reading(found) == reading:
            return found
        # The clock jumps over this reading. The jump is between the instants that the offsets
        # before and after it would give; the clock shows less than the reading before it and more
        # after it.
        low, high = to_micros(local.replace(fold=1)), found
        while high - low > 1:
            middle = (low + high) // 2
            if self.reading(middle) < reading:
                low = middle
            else:
                high = middle
        return high


def instant(micros: int) -> datetime:
    """The aware UTC ``datetime`` of a window's bound, limited to the range of event time.

    ```python
    assert instant(Span(0, 60_000_000).end) == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    ```
    """
    return from_micros(clamp_time(micros))


micros_of = to_micros
"""Microseconds since the epoch of an aware ``datetime``, the unit of spans.

Raises ValueError if it is naive.
"""


def length(what: str, duration: timedelta) -> int:
    """A duration in microseconds.

    Raises:
        GraphError: it is not a timedelta above zero.
    """
    if not isinstance(duration, timedelta) or duration < ONE_MICROSECOND:
        raise GraphError(
            f"{what} must be a timedelta above zero, for example timedelta(minutes=10), "
            f"not {shown(duration)}"
        )
    return duration // ONE_MICROSECOND


def _duration(what: str, duration: timedelta) -> timedelta:
    if not isinstance(duration, timedelta):
        raise GraphError(
            f"{what} must be a timedelta, for example timedelta(minutes=1), not {duration!r}"
        )
    return duration


def _offset(what: str, offset: timedelta, size: timedelta) -> timedelta:
    if abs(_duration(f"{what}: offset", offset)) >= size:
        raise GraphError(
            f"{what}: an offset of {shown(offset)} is not below the size of {size}. Windows repeat "
            f"after that: an offset of {offset % size} would mean the same. Is the size too "
            "small?"
        )
    return offset


def rule_of(windows: object) -> str:
    """The text by which a deploy compares windows: all that their bounds depend on, if their class
    has a representation of its own, else its name."""
    kind = type(windows)
    return kind.__qualname__ if kind.__repr__ is object.__repr__ else repr(windows)


_LENGTH = r"((?:\d+ days?, )?\d+:\d\d:\d\d(?:\.\d+)?)"
_FIXED = re.compile(rf"(?:Sliding\((\d+) x )?Tumbling\({_LENGTH}(.*)\)+", re.DOTALL)
_MONTHS = re.compile(r"Months\((\d+), zone=.*\)", re.DOTALL)
_MONTH_DAYS = (28, 31)
_CLOCK_CHANGE = timedelta(hours=2)
"""More than a change of a zone's clock adds to a window, or takes from it."""


class WindowLengths(NamedTuple):
    """Bounds of the length of a step's windows, in microseconds."""

    least: int
    most: int


def lengths_of(rule: str) -> WindowLengths | None:
    """The lengths of windows by their rule (`rule_of`); None: their records decide them, or code
    of a user's own."""
    if found := _FIXED.fullmatch(rule):
        number, size, options = found.groups()
        length = duration_of(size) * int(number or 1)
        change = _CLOCK_CHANGE if ", zone=" in options else timedelta(0)
        least, most = max(length - change, timedelta(0)), length + change
    elif found := _MONTHS.fullmatch(rule):
        shortest, longest = (int(found[1]) * timedelta(days=days) for days in _MONTH_DAYS)
        least, most = shortest - _CLOCK_CHANGE, longest + _CLOCK_CHANGE
    else:
        return None
    return WindowLengths(least // ONE_MICROSECOND, most // ONE_MICROSECOND)


def duration_of(text: str) -> timedelta:
    """The duration that ``str`` has made a text of."""
    days, comma, clock = text.rpartition(", ")
    hours, minutes, seconds = clock.split(":")
    whole, _, fraction = seconds.partition(".")
    return timedelta(
        days=int(days.split()[0]) if comma else 0,
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(whole),
        microseconds=int(fraction.ljust(6, "0")),
    )


def shown(duration: object) -> str:
    """A duration for display: ``-0:00:01``, not ``-1 day, 23:59:59``, for minus one second."""
    if not isinstance(duration, timedelta):
        return repr(duration)
    return str(duration) if duration >= timedelta(0) else f"-{-duration}"


def _aware(moment: datetime, what: str) -> int:
    try:
        return to_micros(moment)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{what}: {error}") from error
