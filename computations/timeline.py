"""Values held in order of time, with one timer per key that fires when the next value is due.

Joins, `Debounce`, `InOrder` and others keep records in a ``MapState`` until the low watermark has
passed them by some time. Its keys begin with the instant as text: a record reads only the span of
time that it needs, and SQL can read the map too. The one timer is set for the due time of the first
value, handles all values that are due, and is set for the next one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from millwheel import Context, MapState, Stream

V = TypeVar("V")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
FIRST = (datetime(1, 1, 2, tzinfo=UTC) - EPOCH) // MICROSECOND
LAST = (datetime(9999, 12, 29, tzinfo=UTC) - EPOCH) // MICROSECOND
"""The last instant; with `FIRST` it limits instants so that sums of them stay in the calendar."""

BATCH = 1000
"""Values per firing; the timer fires again for the rest, so that a commit stays small."""

INSTANTS = 8192
"""Instants whose texts are kept: bounds of windows and values held are met again."""

_BEHIND_ALL = "~"


class Waking(msgspec.Struct):
    added: int = 0
    """Number of values added, which distinguishes and orders values of one instant."""
    wakes_at: int | None = None


S = TypeVar("S", bound=Waking)


def waking_state(name: str, **collections: Any) -> Any:
    """A state type: `Waking`, and for each collection a map from instants to the given type."""
    return msgspec.defstruct(
        name,
        [
            (field, MapState[str, kind], msgspec.field(default_factory=MapState))  # type: ignore[valid-type]
            for field, kind in collections.items()
        ],
        bases=(Waking,),
    )


# -- instants ----------------------------------------------------------------------------------


def micros_of(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def moment_of(micros: int) -> datetime:
    """The instant, limited to the calendar."""
    return EPOCH + timedelta(microseconds=min(max(micros, FIRST), LAST))


@lru_cache(maxsize=INSTANTS)
def stamp(micros: int) -> str:
    """An instant as text that sorts by time: ``2024-01-01T00:00:05.000000``."""
    return moment_of(micros).isoformat(timespec="microseconds")[:26]


def instant_in(entry: str) -> int:
    """The instant at the beginning of an entry's key, in microseconds."""
    return _instant_of(entry[:26])


@lru_cache(maxsize=INSTANTS)
def _instant_of(text: str) -> int:
    return micros_of(datetime.fromisoformat(text).replace(tzinfo=UTC))


# -- values in order of time -------------------------------------------------------------------


def hold(ctx: Context[S], held: MapState[str, V], micros: int, value: V) -> None:
    """Hold a value, ordered after earlier values of the same instant."""
    held.put(f"{stamp(micros)}/{ctx.state.added:012d}", value)
    ctx.state.added += 1


async def between(
    held: MapState[str, V], first: int, last: int, *, limit: int | None = None
) -> list[tuple[str, int, V]]:
    """Values of the instants from `first` to `last`, both included: (entry, micros, value)."""
    until = _BEHIND_ALL if last >= LAST else stamp(last + 1)
    return [
        (entry, instant_in(entry), value)
        async for entry, value in held.range(stamp(first), until, limit=limit)
    ]


async def first_instant(held: MapState[str, Any], since: int = FIRST) -> int | None:
    found = await between(held, since, LAST, limit=1)
    return found[0][1] if found else None


# -- the timer ---------------------------------------------------------------------------------


def passed_by(ctx: Context[Any], delay: int = 0) -> int:
    """The last instant that the low watermark has passed by more than `delay`."""
    watermark = ctx.low_watermark_micros
    return LAST if watermark > LAST else watermark - delay - 1


def wake(ctx: Context[S], due: int) -> None:
    """Make sure that the timer fires when the low watermark has passed `due`, or before."""
    state = ctx.state
    if state.wakes_at is None or due < state.wakes_at:
        state.wakes_at = due
        ctx.set_timer(moment_of(due))


def wake_for_next(ctx: Context[S], *dues: int | None) -> None:
    """Set the timer, which has just fired, for the first of the remaining values."""
    ctx.state.wakes_at = None
    left = [due for due in dues if due is not None]
    if left:
        wake(ctx, min(left))
    else:
        ctx.state.added = 0  # no values are left, and an empty state takes no row


# -- streams -----------------------------------------------------------------------------------


def written(*streams: Stream[Any] | None) -> tuple[Stream[Any], ...]:
    return tuple({stream.name: stream for stream in streams if stream is not None}.values())
