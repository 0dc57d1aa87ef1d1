"""The options of the events. They come from the environment, since a pipeline is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from examples.nexmark.model import ONE_MILLISECOND, from_milliseconds
from millwheel.errors import UsageError

BASE_TIME = datetime(2015, 7, 15, tzinfo=UTC)
STRIDE = 953
"""The step, a prime, with which the events of a group are emitted. It reaches each of them once,
unless the group's size is a multiple of it."""
LONGEST_DELAY = timedelta(seconds=3)
"""Maximum lateness of a late event."""
IN_ORDER_BLOCK = 50
"""Number of events between two watermarks if all are in order."""
MAX_GROUP = 1_000_000
"""Maximum size of a group; its events are held in memory."""
MAX_RATE = 2_000_000
"""Maximum events per second; above it, the time between two events would be rounded to 0 µs."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the events and of their order.

    Raises:
        UsageError: a value is out of its range.
    """

    events: int = 100_000
    """Number of events, of all generators and kinds together."""
    generators: int = 1
    """Number of parallel generators; each makes its share of the events, all from `base_time`
    on."""
    rate: int = 10_000
    """Number of events in a second of event time, of all generators together."""
    base_time: datetime = BASE_TIME
    """The time of the first event."""
    group: int = 1
    """Number of events that are shuffled together; 1: in order."""
    late: float = 0.0
    """The probability that an event arrives up to 3 s late."""
    lateness: timedelta | None = None
    """Time by which the watermark stays behind; None: as far as late events need it."""
    directory: Path | None = None
    """The directory with person.jsonl, auction.jsonl and bid.jsonl to read; None: make events."""

    def __post_init__(self) -> None:
        _require(self.events >= 0, "NEXMARK_EVENTS", self.events, "0 or more")
        _require(self.generators >= 1, "NEXMARK_GENERATORS", self.generators, "1 or more")
        _require(1 <= self.rate <= MAX_RATE, "NEXMARK_RATE", self.rate, f"1 to {MAX_RATE:,}")
        _require(1 <= self.group <= MAX_GROUP, "NEXMARK_GROUP", self.group, f"1 to {MAX_GROUP:,}")
        _require(
            self.group % STRIDE != 0,
            "NEXMARK_GROUP",
            self.group,
            f"no multiple of {STRIDE}: its events are taken in steps of {STRIDE}, "
            "which would take some twice and others never",
        )
        _require(0 <= self.late <= 1, "NEXMARK_LATE", self.late, "a probability, 0 to 1")
        _require(
            self.lateness is None or self.lateness >= timedelta(0),
            "NEXMARK_LATENESS",
            self.lateness,
            "0 seconds or more",
        )
        _require(
            self.base_time.tzinfo is not None,
            "NEXMARK_BASE_TIME",
            self.base_time.isoformat(),
            "an instant: give its time zone, as in 2015-07-15T00:00:00Z",
        )
        _require(
            self.delay_microseconds <= 60_000_000,
            "NEXMARK_GENERATORS",
            self.generators,
            "at most 60 times NEXMARK_RATE: a generator makes at least one event a minute",
        )

    @property
    def delay_microseconds(self) -> int:
        """Event time between two events of one generator."""
        return (1_000_000 + self.rate // 2) // self.rate * self.generators

    @property
    def block(self) -> int:
        """Number of events between two watermarks, which are shuffled together."""
        return self.group if self.group > 1 else IN_ORDER_BLOCK

    @property
    def allowed_lateness(self) -> timedelta:
        """How far behind the newest event another may be and still be on time.

        The default is 0, or 3 s if there are late events. Files have no watermarks of their own:
        for them the default also covers the disorder of events within one block of `write`.
        """
        if self.lateness is not None:
            return self.lateness
        needed = LONGEST_DELAY if self.late else timedelta(0)
        if self.directory is not None and (self.group > 1 or self.generators > 1):
            needed += self.block * timedelta(microseconds=self.delay_microseconds) + ONE_MILLISECOND
        return needed

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Options:
        """The options from the variables ``NEXMARK_...``, which the package's docstring lists.

        Raises:
            UsageError: a variable cannot be parsed, is out of its range, or is unknown.
        """
        given = {
            name: text.strip()
            for name, text in (os.environ if environment is None else environment).items()
            if name.startswith("NEXMARK_") and text.strip()
        }
        unknown = given.keys() - _READ.keys()
        if unknown:
            raise UsageError(
                f"there is no option {', '.join(sorted(unknown))}; the options are "
                f"{', '.join(_READ)}"
            )
        values: dict[str, Any] = {}
        for name, text in given.items():
            read, what = _READ[name]
            try:
                values[name.removeprefix("NEXMARK_").lower()] = read(text)
            except (ValueError, OverflowError) as error:
                raise UsageError(f"{name}={text} is not {what}") from error
        if "dir" in values:
            values["directory"] = values.pop("dir")
        return cls(**values)


def _require(holds: bool, name: str, value: object, what: str) -> None:
    if not holds:
        raise UsageError(f"{name} must be {what}; it is {value}")


def _moment(text: str) -> datetime:
    return from_milliseconds(int(text)) if text.isdigit() else datetime.fromisoformat(text)


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


_READ: dict[str, tuple[Callable[[str], object], str]] = {
    "NEXMARK_EVENTS": (_number, "a whole number"),
    "NEXMARK_GENERATORS": (_number, "a whole number"),
    "NEXMARK_RATE": (_number, "a whole number of events a second"),
    "NEXMARK_BASE_TIME": (_moment, "an ISO time or milliseconds since 1970"),
    "NEXMARK_GROUP": (_number, "a whole number"),
    "NEXMARK_LATE": (float, "a probability"),
    "NEXMARK_LATENESS": (_seconds, "a number of seconds"),
    "NEXMARK_DIR": (Path, "a directory"),
}
