"""Two pipelines on two servers, joined by a numbered table: ``python -m tests.following.service
[--kills 50]``.

A process appends flights to a file. Two workers count them by airport and hour, on one server, and
write a pane of each hour to a numbered table, late ones too. Two workers of another pipeline, on
another server, follow that table, and add up the panes by airport and day. Workers on both sides
are killed, and intervals of the first pipeline are split and merged, which makes senders appear and
end. In the end the second pipeline must have each pane once, and equal plain arithmetic.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from examples.flights import SETTINGS, LoggedPane, build
from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.core.clock import SystemClock
from millwheel.errors import MillwheelError
from millwheel.following import NumberedTable
from millwheel.services.operating import Operator
from millwheel.state import MapState
from millwheel.store.postgres.store import PostgresStore
from millwheel.windows import Pane, Tumbling
from tests.spark.service import Feed
from tests.support.worker_processes import LEASE_SECONDS, Workers

MODULE = "tests.following.service"
STORE = "FOLLOWED_STORE"
FOLLOWED = "flights"
WAIT_SECONDS = 240.0


class AirportSum(msgspec.Struct):
    """A row: the panes of an airport, and the flights in the last pane of each hour."""

    origin: str
    panes: int
    flights: int


PANES = Stream("panes", LoggedPane)
SUMS = Stream("sums", AirportSum)
DAYS = Stream("days", Pane[int])


class Hours(msgspec.Struct):
    """The state of an airport."""

    panes: int = 0
    flights: int = 0
    last: MapState[str, tuple[int, int]] = msgspec.field(default_factory=MapState)
    """By hour, the number of the newest pane, and its flights."""


class DayRow(msgspec.Struct):
    """A row: the panes of an airport that begin on a day."""

    origin: str
    day: datetime
    panes: int


def settings() -> Settings:
    return Settings(
        bundle_records=SETTINGS.bundle_records,
        chunk_records=SETTINGS.chunk_records,
        lease_seconds=LEASE_SECONDS,
        placement_seconds=0.5,
    )


def first() -> Pipeline:
    """The flights of the example, over a file that grows."""
    return build(Path(os.environ["FLIGHTS"]) / "flights.jsonl", follow=True, settings=settings())


class AddUpHours(Computation[LoggedPane, Hours]):
    """Adds up the newest panes of an airport's hours."""

    writes = (SUMS,)

    async def process_record(self, record: Record[LoggedPane], ctx: Context[Hours]) -> None:
        pane, state = record.value, ctx.state
        hour = pane.hour.isoformat()
        number, flights = await state.last.get(hour) or (-1, 0)
        state.panes += 1
        if pane.number > number:
            state.last.put(hour, (pane.number, pane.flights))
            state.flights += pane.flights - flights
        ctx.produce(SUMS, AirportSum(pane.origin, state.panes, state.flights))


def second() -> Pipeline:
    """Follows the panes of the first one, on another server."""
    made = Pipeline("airports", settings=settings())
    source: NumberedTable[LoggedPane] = NumberedTable(
        os.environ[STORE], FOLLOWED, "pane_log", timestamp=lambda pane: pane.hour
    )
    made.inject(PANES, source)
    by_origin = PANES.by(lambda pane: pane.origin)
    made.add(AddUpHours(), by_origin)
    made.add(Windowed(Tumbling(days=1), count, to=DAYS, late="amend"), by_origin)
    made.sink(SUMS, Table("airport_sum", AirportSum, key=("origin",), producer_key=("origin",)))
    made.sink(
        DAYS,
        Table("airport_day", DayRow, key=("origin", "day"), producer_key=("origin",)),
        row=lambda pane: DayRow(str(pane.key), pane.start, pane.value),
    )
    return made


async def cut(workers: Workers, choice: random.Random) -> str | None:
    """Split or merge intervals of the step that writes the table; its name, if it was done."""
    ((step,),) = workers.query("SELECT id FROM SCHEMA.computation WHERE name = 'detect_delays'")
    store = await PostgresStore(workers.url, workers.name).open()
    try:
        placement = await store.read_placement()
        parts = [row for row in placement.intervals if row.computation == step]
        parts.sort(key=lambda row: row.slot_from)
        operator = Operator(store, SystemClock(), lambda _: None)
        if len(parts) > 2:
            await operator.merge(parts[0].id, parts[1].id, 8.0)
            return "merge"
        row = choice.choice(parts)
        await operator.split(row.id, (row.slot_from + row.slot_to) // 2, 8.0)
    except MillwheelError:
        return None  # its worker died meanwhile
    else:
        return "split"
    finally:
        await store.close()


def run(
    directory: Path,
    kills: int,
    *,
    seed: int,
    flights: int,
    rate: float,
    say: Callable[[str], None],
) -> list[str]:
    """Run the two pipelines; returns the differences.

    Args:
        kills: of workers, of both pipelines together.
        rate: flights appended in a second.
    """
    choice = random.Random(seed)
    places = [directory / "first", directory / "second"]
    for place in places:
        place.mkdir()
        place.chmod(0o755)
    environment = {"FLIGHTS": str(directory)}
    feed = Feed(directory / "flights.jsonl", flights, rate)
    one = Workers(places[0], "flights", f"{MODULE}:first", environment)
    two = Workers(places[1], "airports", f"{MODULE}:second", {STORE: one.url})
    cuts: dict[str, int] = defaultdict(int)
    try:
        for workers in (one, one):
            workers.start()
        feed.start()
        while not one.query("SELECT 1 FROM SCHEMA.pane_log LIMIT 1"):
            time.sleep(0.2)
        for workers in (two, two):
            workers.start()
        time.sleep(2.0)
        for number in range(1, kills + 1):
            time.sleep(choice.uniform(0.2, 2.5))
            side = choice.choice((one, two))
            side.replace(choice)
            if number % 4 == 0 and (done := asyncio.run(cut(one, choice))):
                cuts[done] += 1
            if number % 10 == 0:
                ((rows,),) = one.query("SELECT count(*) FROM SCHEMA.pane_log")
                say(f"{number} of {kills} kills; {rows} panes; {dict(cuts)}")
        feed.join()
        wrong = _wait(one, two, feed)
        ((senders, ended),) = one.query(
            "SELECT count(*), count(*) FILTER (WHERE ended) FROM SCHEMA.numbered_rows"
        )
        ((panes, amended),) = one.query(
            "SELECT count(*), count(*) FILTER (WHERE late) FROM SCHEMA.pane_log"
        )
        say(
            f"{flights} flights, {panes} panes, {amended} of them late, {senders} senders, {ended} "
            f"of them ended: {len(wrong)} differences"
        )
        return [*one.errors, *two.errors, *wrong]
    finally:
        two.end()
        one.end()


def _wait(one: Workers, two: Workers, feed: Feed) -> list[str]:
    """Wait until the second pipeline has all panes; returns the differences."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        wrong = _differences(one, two, feed)
        if not wrong:
            return []
        if time.monotonic() > deadline:
            return [*wrong[:10], two.tail()]
        time.sleep(0.5)


def _differences(one: Workers, two: Workers, feed: Feed) -> list[str]:
    panes = dict(one.query("SELECT origin, count(*) FROM SCHEMA.pane_log GROUP BY 1"))
    found = {
        origin: (count, flights)
        for origin, count, flights in two.query(
            "SELECT origin, panes, flights FROM SCHEMA.airport_sum"
        )
    }
    flights: dict[str, int] = defaultdict(int)
    for (origin, _), sums in feed.hours.items():
        flights[origin] += sums[0]
    expected = {origin: (panes.get(origin), count) for origin, count in flights.items()}
    wrong = [
        f"{origin}: {found.get(origin)} in place of {value}"
        for origin, value in expected.items()
        if found.get(origin) != value
    ]
    closed = (
        "SELECT origin, date_trunc('day', hour), count(*) FROM SCHEMA.pane_log GROUP BY 1, 2 ORDER "
        "BY 1, 2"
    )
    days = one.query(closed)
    got = two.query("SELECT origin, day, panes FROM SCHEMA.airport_day ORDER BY 1, 2")
    last = max((day for _, day, _ in days), default=None)
    if last is not None:
        days = [row for row in days if row[1] < last - timedelta(days=1)]
        got = [row for row in got if row[1] < last - timedelta(days=1)]
    wrong += [f"day {row}" for row in set(days) ^ set(got)]
    return wrong


def main() -> int:
    """Run it in a directory of its own."""
    parser = argparse.ArgumentParser(description="Two pipelines on two servers, under kills.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--flights", type=int, default=60_000)
    parser.add_argument("--rate", type=float, default=600.0, help="flights a second")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millwheel-following-"))
    directory.chmod(0o755)
    try:
        wrong = run(
            directory, given.kills, seed=given.seed, flights=given.flights, rate=given.rate,
            say=lambda text: print(text, flush=True),
        )  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(wrong) or "all as arithmetic says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
