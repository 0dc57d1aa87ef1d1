"""A pipeline for real worker processes, and what must come of it, computed without it.

Visits of some thousand users in four files. Every stage reads by another key, so that most records
cross from one worker to another:

==============  ==========================================================================
``step``        each visit with its number within its user: order, and effects exactly once
``minute``      visits per region and minute: windows, closed by the low watermark
``reminder``    a timer ten minutes after each visit: none lost, none twice
==============  ==========================================================================

Where the files are, and how slow it is to be, come by the environment. It is slow until there is a
file named ``hurry`` beside them. So does what is promised (`MODES`): where that is not the default,
two stages that only pass on stand before the first, each by another key, so that there is something
to be weak.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import psycopg
from psycopg import sql

from millwheel import (
    Computation,
    Context,
    JsonLines,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)
from millwheel.computations import Windowed, count
from millwheel.windows import Pane, Tumbling

PARTS = 4
REGIONS = 9
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
REMIND = timedelta(minutes=10)
LEASE_SECONDS = 3.0


class Visit(msgspec.Struct):
    """A row of the input."""

    at: datetime
    user: str


class Step(msgspec.Struct, frozen=True):
    """A row of `step`."""

    user: str
    number: int
    at: datetime
    region: int


class Minute(msgspec.Struct, frozen=True):
    """A row of `minute`."""

    region: int
    minute: datetime
    visits: int


class Reminder(msgspec.Struct, frozen=True):
    """A row of `reminder`."""

    user: str
    at: datetime


class Visits(msgspec.Struct):
    """The state of a user."""

    number: int = 0


VISITS, STEPS = Stream("visits", Visit), Stream("steps", Step)
MINUTES, REMINDERS = Stream("minutes", Pane[int]), Stream("reminders", Reminder)


@dataclass(frozen=True)
class Mode:
    """How the computations are added, and how the answer compares with that of a batch."""

    passing: dict[str, Any]
    """Switches of the stages that only pass on."""
    others: dict[str, Any]
    comes_to: Literal["the same", "at least", "at most"]


MODES = {
    "strong": Mode({}, {}, "the same"),
    "weak": Mode({"productions": "weak"}, {}, "the same"),
    "tree": Mode({"productions": "weak", "acknowledgement": "tree"}, {}, "the same"),
    "strong-at-least-once": Mode({"exactly_once": False}, {"exactly_once": False}, "at least"),
    "weak-at-least-once": Mode(
        {"productions": "weak", "exactly_once": False}, {"exactly_once": False}, "at least"
    ),
    "at-most-once": Mode({"delivery": "at_most_once"}, {"delivery": "at_most_once"}, "at most"),
}


class PassOn(Computation[Visit, None]):
    """Passes on."""

    def __init__(self, to: Stream[Visit]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Visit], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


class CountVisits(Computation[Visit, Visits]):
    """Numbers each user's visits; takes its time for some of them."""

    writes = (STEPS,)

    async def process_record(self, record: Record[Visit], ctx: Context[Visits]) -> None:
        ctx.state.number += 1
        visit = record.value
        await dawdle(visit)
        ctx.produce(STEPS, Step(visit.user, ctx.state.number, visit.at, region_of(visit.user)))


class Remind(Computation[Step, None]):
    """Sets a timer for each step."""

    writes = (REMINDERS,)

    async def process_record(self, record: Record[Step], ctx: Context[None]) -> None:
        ctx.set_timer(record.value.at + REMIND, tag=str(record.value.number))

    async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
        ctx.produce(REMINDERS, Reminder(str(ctx.key), timer.at))


async def dawdle(visit: Visit) -> None:
    """Every tenth visit takes its time."""
    pause = float(os.environ.get("VISITS_PAUSE", "0"))
    if pause and visit.at.second % 10 == 0 and not hurry(Path(os.environ["VISITS"])).exists():
        await asyncio.sleep(pause)


def hurry(directory: Path) -> Path:
    """Where to put a file that ends the pauses."""
    return directory / "hurry"


def minute_row(pane: Pane[int]) -> Minute:
    """A row of `minute`."""
    assert isinstance(pane.key, int)
    return Minute(pane.key, pane.start, pane.value)


def region_of(user: str) -> int:
    """Users belong to regions."""
    return int(user.removeprefix("user ")) % REGIONS


@dataclass(frozen=True)
class Code:
    """What another version of the code has otherwise (`tests.support.visits_later`)."""

    steps: Stream[Any] = STEPS
    count_visits: Computation[Visit, Any] = CountVisits()  # noqa: RUF009 (it keeps nothing)
    remind: Computation[Any, None] = Remind()  # noqa: RUF009
    step_row: Callable[[Any], Step] | None = None


def build(
    name: str, directory: Path, settings: Settings, code: Code = Code(), mode: Mode | None = None
) -> Pipeline:
    """The pipeline over the files of a directory."""
    made = Pipeline(name, settings=settings)
    files = [directory / f"visits-{part}.jsonl" for part in range(PARTS)]
    made.inject(
        VISITS, JsonLines(files), timestamp=lambda visit: visit.at, lateness=timedelta(seconds=2)
    )
    steps, visits = code.steps, VISITS
    others: dict[str, Any] = {}
    if mode is not None:
        others = mode.others
        once, twice = Stream("once", Visit), Stream("twice", Visit)
        made.add(PassOn(once), VISITS.by(second_of), name="pass_once", **mode.passing)
        made.add(
            PassOn(twice), once.by(lambda visit: visit.user), name="pass_twice", **mode.passing
        )
        visits = twice
    made.add(code.count_visits, visits.by(lambda visit: visit.user), **others)
    made.add(code.remind, steps.by(lambda step: step.user[::-1]), **others)
    windows = Windowed(Tumbling(minutes=1), count, to=MINUTES)
    made.add(windows, steps.by(lambda step: step.region), **others)
    made.sink(steps, Table("step", Step), row=code.step_row)
    made.sink(REMINDERS, Table("reminder", Reminder))
    made.sink(
        MINUTES,
        Table("minute", Minute, key=("region", "minute")),
        row=minute_row,
    )
    return made


def second_of(visit: Visit) -> int:
    """A key that has nothing to do with the user."""
    return visit.at.second


def pipeline(code: Code = Code()) -> Pipeline:
    """As the environment says."""
    settings = replace(
        Settings(),
        lease_seconds=float(os.environ.get("VISITS_LEASE", LEASE_SECONDS)),
        placement_seconds=0.2,
        placement_cooldown_seconds=5.0,
        max_unacked_records=int(os.environ.get("VISITS_UNACKED", "400")),
        bundle_records=200,
        chunk_records=50,
        bucket_seconds=20.0,
    )
    mode = os.environ.get("VISITS_MODE")
    return build(
        os.environ.get("VISITS_NAME", "visits"),
        Path(os.environ["VISITS"]),
        settings,
        code,
        MODES[mode] if mode else None,
    )


@dataclass(frozen=True)
class Answer:
    """What must be in the tables."""

    steps: Counter[tuple[str, int, datetime, int]]
    minutes: dict[tuple[int, datetime], int]
    reminders: Counter[tuple[str, datetime]]


def write(directory: Path, number: int, users: int = 4000, seed: int = 0) -> Answer:
    """Write the input, and tell what must come of it."""
    draw = Random(seed)
    rows: list[list[bytes]] = [[] for _ in range(PARTS)]
    steps: Counter[tuple[str, int, datetime, int]] = Counter()
    minutes: Counter[tuple[int, datetime]] = Counter()
    reminders: Counter[tuple[str, datetime]] = Counter()
    numbers: Counter[int] = Counter()
    for n in range(number):
        at = BEGIN + timedelta(milliseconds=100 * n)
        of = draw.randrange(users)
        user = f"user {of}"
        numbers[of] += 1
        rows[of % PARTS].append(msgspec.json.encode(Visit(at, user)))
        steps[user, numbers[of], at, region_of(user)] += 1
        minutes[region_of(user), at.replace(second=0, microsecond=0)] += 1
        reminders[user[::-1], at + REMIND] += 1
    for part, lines in enumerate(rows):
        (directory / f"visits-{part}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return Answer(steps, dict(minutes), reminders)


def read(url: str, name: str) -> Answer:
    """What is in the tables."""

    def rows(connection: psycopg.Connection[Any], text: str, table: str) -> list[Any]:
        return connection.execute(sql.SQL(text).format(sql.Identifier(name, table))).fetchall()

    with psycopg.connect(url) as connection:
        return Answer(
            Counter(rows(connection, 'SELECT "user", number, at, region FROM {}', "step")),
            {
                (region, minute): visits
                for region, minute, visits in rows(
                    connection, "SELECT region, minute, visits FROM {}", "minute"
                )
            },
            Counter(rows(connection, 'SELECT "user", at FROM {}', "reminder")),
        )


def differences(found: Answer, wanted: Answer) -> list[str]:
    """In words; empty: they are equal."""
    lines = []
    for what in ("steps", "minutes", "reminders"):
        have, want = getattr(found, what), getattr(wanted, what)
        if have == want:
            continue
        lost = [name for name in want if name not in have]
        new = [name for name in have if name not in want]
        other = [name for name in want if name in have and have[name] != want[name]]
        lines.append(
            f"{what}: {len(lost)} missing {lost[:3]}, {len(new)} too many {new[:3]}, {len(other)} "
            f"with another number {[(name, have[name], want[name]) for name in other[:3]]}"
        )
    return lines


def broken_promises(found: Answer, wanted: Answer, mode: Mode) -> list[str]:
    """In words, what is there too often, or too seldom, for what is promised; empty: nothing.

    The stages that only pass on read by another key, so that a user's visits may overtake each
    other, and have other numbers where some are lost or doubled: a step counts by its user and
    instant. That each number is there once is promised where the effects of each visit are.
    """
    pairs: list[tuple[str, Counter[Any], Counter[Any]]] = [
        ("steps", _instants(found.steps), _instants(wanted.steps)),
        ("minutes", Counter(found.minutes), Counter(wanted.minutes)),
        ("reminders", found.reminders, wanted.reminders),
    ]
    if mode.comes_to == "the same":
        pairs.append(("numbers", _numbers(found.steps), _numbers(wanted.steps)))
    lines = []
    for what, have, want in pairs:
        few = want - have if mode.comes_to != "at most" else None
        many = have - want if mode.comes_to != "at least" else None
        if few or many:
            lines.append(
                f"{what}: not {mode.comes_to} what it must be: "
                + ", ".join(
                    f"{wrong.total()} too {how} {wrong.most_common(3)}"
                    for how, wrong in (("few", few), ("many", many))
                    if wrong
                )
            )
    return lines


def _instants(steps: Counter[tuple[str, int, datetime, int]]) -> Counter[tuple[str, datetime]]:
    counted: Counter[tuple[str, datetime]] = Counter()
    for (user, _, at, _), times in steps.items():
        counted[user, at] += times
    return counted


def _numbers(steps: Counter[tuple[str, int, datetime, int]]) -> Counter[tuple[str, int, int]]:
    counted: Counter[tuple[str, int, int]] = Counter()
    for (user, number, _, region), times in steps.items():
        counted[user, number, region] += times
    return counted
