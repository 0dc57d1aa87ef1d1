"""The windows of a query: TUMBLE, HOP and SESSION."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from millwheel.core.model import all_event_micros, from_micros, to_micros
from millwheel.errors import SqlError
from millwheel.sql import syntax as s
from millwheel.sql import typed as t
from millwheel.sql.functions import ValueRefused
from millwheel.sql.generating import Generator
from millwheel.sql.place import Place
from millwheel.sql.resolving import Resolver
from millwheel.sql.scopes import WINDOW, StreamScope
from millwheel.windows import Assigner, Session, Sliding, Tumbling


@dataclass(frozen=True)
class Window:
    """The windows of a query."""

    assigner: Assigner | Session
    bucket: str
    """The Python for the part of time within which records can be added up before their windows
    are known, given the timestamp ``at``."""
    time: str
    """The column with the event time."""
    place: Place


def window_of(table: s.WindowTable, scope: StreamScope) -> Window:
    resolver = Resolver(scope, no_aggregates_in="FROM")
    time, *sizes = table.arguments
    at = resolver.value(time)
    if not isinstance(at, t.ColumnValue) or at.type.name != "timestamptz":
        raise SqlError(
            "the second argument is the column with the event time of the stream", time.place
        )
    lengths = [microseconds(resolver.value(size)) for size in sizes]
    if table.kind == "session":
        return Window(Session(gap=_delta(lengths[0])), "at", at.name, table.place)
    if table.kind == "tumble":
        (size,) = lengths
        return Window(Tumbling(_delta(size)), f"at - at % {size}", at.name, table.place)
    slide, size = lengths
    if slide > size:
        raise SqlError(
            "HOP steps over records", sizes[0].place,
            "The second interval, the size, is at least the first, the step",
        )  # fmt: skip
    if size % slide:
        raise SqlError(
            f"windows of {_delta(size)} are not made of whole steps of {_delta(slide)}",
            sizes[1].place,
            f"Take a size of {_delta(size - size % slide + slide)}, say",
        )
    return Window(Sliding(_delta(size), _delta(slide)), f"at - at % {slide}", at.name, table.place)


def _delta(micros: int) -> timedelta:
    return timedelta(microseconds=micros)


def microseconds(value: t.Typed) -> int:
    if (
        not isinstance(value, t.ConstantValue)
        or value.type.name != "interval"
        or value.value is None
    ):
        raise SqlError("this is an interval that is written out: INTERVAL '1 minute'", value.place)
    interval = value.value
    if interval.months:
        raise SqlError("windows of months and years are not available yet", value.place)
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
    assert isinstance(window.assigner, Tumbling)
    instant = generator.name("instant", from_micros)
    size = window.bucket.rpartition(" ")[2]
    lines = [f"start = {window.bucket}"]
    if "window_start" in used:
        lines.append(f"window_start = {instant}(start)")
    if "window_end" in used:
        lines.append(f"window_end = {instant}(start + {size})")
    return lines


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
        if value is None or to_micros(value) - micros not in (0, 1):
            raise ValueRefused(
                f"the windows are over column {column}, which is {value}, and the event time of "
                f"the record is {from_micros(micros)}: windows follow the event time that the "
                "stream was given (timestamp= of inject)"
            )


def check_lines(window: Window, generator: Generator) -> list[str]:
    """The lines that check the times of a chunk."""
    name = generator.name("check_times", check_times)
    return [f"{name}([record.{window.time} for record in values], times, {window.time!r})"]
