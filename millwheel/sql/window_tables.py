"""The windows of a query: TUMBLE, HOP and SESSION."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from millwheel.core.model import (
    EPOCH,
    ONE_MICROSECOND,
    all_event_micros,
    from_micros,
    to_micros,
)
from millwheel.errors import GraphError, SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.functions import ValueRefused
from millwheel.sql.generating import Generator
from millwheel.sql.place import Place
from millwheel.sql.resolving import Resolver
from millwheel.sql.scopes import WINDOW, Scope
from millwheel.windows import Assigner, LocalClock, Months, Session, Sliding, Tumbling

END = "end"
"""How a timestamp follows from the end of a window: it is a microsecond less."""

ROWS = Tumbling(timedelta(microseconds=1))


@dataclass(frozen=True)
class Window:
    """The windows of a query."""

    assigner: Assigner | Session
    time: str | None
    """The column with the event time; None: it is not checked."""
    place: Place

    @property
    def is_tumbling(self) -> bool:
        """Whether each record has one window, known from its time alone."""
        return isinstance(self.assigner, (Tumbling, Months))

    @property
    def is_of_rows(self) -> bool:
        """Whether it is a window of `window_of_rows`."""
        return self.assigner is ROWS

    @property
    def instants(self) -> dict[str, str]:
        """How the timestamp of a result follows from the window's columns."""
        found = {"window_end": END}
        if not isinstance(self.assigner, Session):
            found["window_start"] = f"start of {self.assigner!r}"
        return found

    def bucket(self, generator: Generator) -> str:
        """The Python for the part of time within which records can be added up before their windows
        are known, given the timestamp ``at``."""
        pieces = self.assigner
        if isinstance(pieces, Session) or self.is_of_rows:
            return "at"
        if isinstance(pieces, Sliding):
            pieces = pieces.slices
        if isinstance(pieces, Tumbling) and not pieces.is_local:
            return f"at - at % {pieces.size}"
        assert isinstance(pieces, (Tumbling, Months))
        return f"{generator.name('window', pieces.of)}(at).start"


def window_of_rows(time: str | None, place: Place) -> Window:
    """The windows of rows that are results of windows already: one for each timestamp."""
    return Window(ROWS, time, place)


def window_of(table: s.WindowTable, scope: Scope) -> Window:
    """The windows of a table in FROM.

    Raises:
        SqlError: they are not understood.
    """
    resolver = Resolver(scope, no_aggregates_in="FROM")
    time, *arguments = table.arguments
    at = resolver.value(time)
    if not isinstance(at, t.ColumnValue) or at.type.name != "timestamptz":
        raise SqlError(
            "the second argument is the column with the event time of the stream", time.place
        )
    count = 2 if table.kind == "hop" else 1
    lengths = [replace(resolver.value(each), place=each.place) for each in arguments[:count]]
    zone = _zone(arguments[count], resolver) if len(arguments) > count else None
    assigner = _assigner(table.kind, lengths, zone)
    return Window(assigner, at.name, table.place)


def _zone(argument: s.Expression, resolver: Resolver) -> str:
    value = resolver.value(argument)
    if not isinstance(value, t.ConstantValue) or not isinstance(value.value, str):
        raise SqlError(
            "the last argument is a time zone that is written out: 'Europe/Berlin'", argument.place
        )
    try:
        LocalClock(value.value)
    except GraphError as error:
        raise SqlError(str(error), argument.place) from error
    return value.value


def _assigner(kind: str, lengths: Sequence[t.Typed], zone: str | None) -> Assigner | Session:
    months = _months(lengths[-1])
    if kind == "tumble" and months:
        return Months(months, zone=zone or "UTC")
    if kind == "session":
        return Session(gap=_delta(microseconds(lengths[0])))
    if kind == "tumble":
        return Tumbling(_delta(microseconds(lengths[0])), zone=zone)
    slide, size = map(microseconds, lengths)
    if slide > size:
        raise SqlError(
            "HOP steps over records", lengths[0].place,
            "The second interval, the size, is at least the first, the step",
        )  # fmt: skip
    if size % slide:
        raise SqlError(
            f"windows of {_delta(size)} are not made of whole steps of {_delta(slide)}",
            lengths[1].place,
            f"Take a size of {_delta(size - size % slide + slide)}, say",
        )
    return Sliding(_delta(size), _delta(slide), zone=zone)


def _delta(micros: int) -> timedelta:
    return timedelta(microseconds=micros)


def _months(value: t.Typed) -> int:
    """The months of an interval that consists of nothing else; 0: it does not."""
    interval = value.value if isinstance(value, t.ConstantValue) else None
    if value.type.name != "interval" or interval is None or interval.days or interval.micros:
        return 0
    months: int = interval.months
    return max(months, 0)


def microseconds(value: t.Typed) -> int:
    """The length of an interval.

    Raises:
        SqlError: it is no constant, or not above zero, or has months.
    """
    if (
        not isinstance(value, t.ConstantValue)
        or value.type.name != "interval"
        or value.value is None
    ):
        raise SqlError("this is an interval that is written out: INTERVAL '1 minute'", value.place)
    interval = value.value
    if interval.months:
        raise SqlError(
            "months and years have no fixed length", value.place,
            "They are available as the size of TUMBLE; write days elsewhere",
        )  # fmt: skip
    micros: int = interval.days * 86_400_000_000 + interval.micros
    if micros <= 0:
        raise SqlError("a window's length is positive", value.place)
    return micros


def window_lines(
    window: Window | None, values: Sequence[t.Typed | None], generator: Generator
) -> list[str]:
    """The lines that compute the window of a record, if a value uses it."""
    used = {
        part.name
        for value in values
        if value is not None
        for part in t.walk(value)
        if isinstance(part, t.ColumnValue) and part.table == WINDOW
    }
    if not used or window is None:
        return []
    assert isinstance(window.assigner, (Tumbling, Months))
    instant = generator.name("instant", from_micros)
    lines = [f"window = {generator.name('windows', window.assigner.of)}(at)"]
    return lines + [
        f"{name} = {instant}(window.{name.removeprefix('window_')})" for name in sorted(used)
    ]


def check_times(values: list[datetime | None], times: Sequence[int], column: str) -> None:
    """Refuse a column that is not the event time of its stream.

    A stream of windows has the last microsecond of each window as event time, which is its
    ``window_end`` for this purpose.

    Raises:
        ValueRefused: a record has another time, or none.
    """
    if None not in values and all_event_micros(values) == times:  # type: ignore[arg-type]
        return
    for value, micros in zip(values, times, strict=True):
        check_time(value, micros, column)


def check_time(value: datetime | None, micros: int, column: str) -> None:
    """As `check_times`, of one record."""
    if value is None or to_micros(value) - micros not in (0, 1):
        raise ValueRefused(
            f"the windows are over column {column}, which is {value}, and the event time of the "
            f"record is {from_micros(micros)}: windows follow the event time that the stream was "
            "given (timestamp= of inject)"
        )


def check_lines(time: str | None, generator: Generator) -> list[str]:
    """The lines that check the times of a chunk; `time` is the column that has them."""
    if time is None:
        return []
    name = generator.name("check_times", check_times)
    return [f"{name}([record.{time} for record in values], times, {time!r})"]


def check_part_lines(time: str, generator: Generator) -> list[str]:
    """The lines that check the time of one record."""
    epoch = generator.name("epoch", EPOCH)
    microsecond = generator.name("microsecond", ONE_MICROSECOND)
    check = generator.name("check_time", check_time)
    return [
        f"if record.{time} is None or (record.{time} - {epoch}) // {microsecond} != at:",
        f"    {check}(record.{time}, at, {time!r})",
    ]
