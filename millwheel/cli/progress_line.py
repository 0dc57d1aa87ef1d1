"""The progress of a run as one line that fits a terminal.

::

    zeitgeist ━━━━━━━━━━━━───── 79% · 259,245/s · lag 3.2 s · backlog 9,800 · 456,400 records · 0:02
    zeitgeist ━━━━━───── 79% · 259,245/s · backlog 9,800

On a narrow terminal parts are left out, the last of `parts_of` first, and then the bar.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rich.cells import cell_len

from millwheel.cli.printing import shortened
from millwheel.core.model import MAX_TIME, MIN_TIME, from_micros
from millwheel.core.quantities import count_of, duration
from millwheel.services.hosting import RunProgress

Style = Callable[[str, str], str]
"""Gives a text a style of `millwheel.cli.terminal.STYLES`, or returns it as it is."""

BAR_CELLS = range(8, 41)
"""Widths of a bar; without room for the least one there is none."""
LEAST_PARTS = 2
"""So many figures stay before the bar goes."""
NAME_CELLS = 24

FULL, EMPTY, BETWEEN = "━", "─", " · "

SMOOTHED = 8
"""Number of reports over which the shown rate is a mean."""

REPLAYED_SECONDS = 7 * 86_400.0
"""A longer lag is that of old input: its event time says more."""


class Speed(NamedTuple):
    per_second: float
    seconds_left: float | None
    """Until the input is read; None: it has no end, or does not advance."""


class RecentSpeed:
    """The speed over the last `SMOOTHED` reports: one alone is a quarter of a second."""

    def __init__(self) -> None:
        self._seen: deque[RunProgress] = deque(maxlen=SMOOTHED)

    def of(self, progress: RunProgress) -> Speed:
        self._seen.append(progress)
        first = self._seen[0]
        seconds = progress.seconds - first.seconds
        if seconds <= 0:
            return Speed(progress.per_second, None)
        per_second = (progress.processed - first.processed) / seconds
        if progress.share is None or first.share is None or progress.share <= first.share:
            return Speed(per_second, None)
        left = (1.0 - progress.share) * seconds / (progress.share - first.share)
        return Speed(per_second, left)


def progress_line(name: str, progress: RunProgress, speed: Speed, width: int, style: Style) -> str:
    """A line of less than `width` cells."""
    room, share = width - 1, progress.share
    name = shortened(name, NAME_CELLS)
    bar_cells = 0 if share is None else BAR_CELLS[0] + 1
    parts = [*([] if share is None else [f"{share:.0%}"]), *parts_of(progress, speed)]
    while len(parts) > LEAST_PARTS and cell_len(_joined(name, parts)) + bar_cells > room:
        parts.pop()
    text = _joined(name, parts)
    left = min(room - cell_len(text) - 1, BAR_CELLS[-1])
    if share is None or left < BAR_CELLS[0]:
        return shortened(text, room)
    return f"{style(name, 'heading')} {_bar(share, left, style)}{text[len(name) :]}"


def parts_of(progress: RunProgress, speed: Speed) -> list[str]:
    """The figures, the most important one first."""
    parts = [f"{speed.per_second:,.0f}/s"]
    lag = progress.lag_seconds
    if lag is not None and lag < REPLAYED_SECONDS:
        parts.append(f"lag {duration(lag)}")
    if speed.seconds_left is not None:
        parts.append(f"{duration(speed.seconds_left)} left")
    if progress.backlog is not None:
        parts.append(f"backlog {progress.backlog:,}")
    if progress.workers is not None:
        parts.append(count_of(progress.workers, "worker"))
    parts.append(f"{progress.processed:,} records")
    minutes, seconds = divmod(int(progress.seconds), 60)
    parts.append(f"{minutes}:{seconds:02}")
    if lag is not None:
        parts.append(f"event time {moment(progress.low_watermark)}")
    return parts


def _joined(name: str, parts: list[str]) -> str:
    return f"{name} {BETWEEN.join(parts)}"


def _bar(share: float, cells: int, style: Style) -> str:
    full = min(int(share * cells), cells)
    return style(FULL * full, "good") + style(EMPTY * (cells - full), "note")


def moment(micros: int) -> str:
    if micros >= MAX_TIME:
        return "end of time"
    if micros <= MIN_TIME:
        return "not known yet"
    return from_micros(micros).strftime("%Y-%m-%d %H:%M:%S")
