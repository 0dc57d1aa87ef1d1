"""``python -m tests.faults.parked [--records 60000] [--kills 20]``: keys are parked and mended, and
workers killed.

Two workers read a file that grows. Some records fail until they are mended, some of them twice;
their keys are parked, and retried by one filter again and again. In the end each account must have
had its records once and in order, and the windows downstream, for which the low watermark is held,
must have all of them, as if nothing had failed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import msgspec

from millwheel import Computation, Context, JsonLines, Park, Pipeline, Record, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Actor, Asking, LetterFilter
from millwheel.windows import Pane, Tumbling
from tests.faults.kill_flights import workplace
from tests.faults.service import Service

INPUT = Path(os.environ.get("PARKED_INPUT", "input"))
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
ME = Actor("the test", "because")
KEYS = 500
POISON = 199
"""Each so-many-th record fails at first."""
WINDOW = timedelta(minutes=5)
BATCH = 100


class Entry(msgspec.Struct):
    account: int
    number: int


class Passed(msgspec.Struct):
    number: int
    account: int
    place: int
    """It was the account's so-many-th."""


class Account(msgspec.Struct):
    place: int = 0


class WindowRow(msgspec.Struct):
    start: datetime
    records: int


ENTRIES = Stream("entries", Entry)
PASSED = Stream("passed", Passed)
PANES = Stream("panes", Pane[int])


class Check(Computation[Entry, Account]):
    """Refuses some numbers until the file `mended` names them, or a greater one."""

    writes = (PASSED,)

    async def process_record(self, record: Record[Entry], ctx: Context[Account]) -> None:
        entry = record.value
        if entry.number % POISON == 0 and entry.number > mended():
            raise ValueError(f"{entry.number} is poison")
        ctx.state.place += 1
        ctx.produce(PASSED, Passed(entry.number, entry.account, ctx.state.place))


def mended() -> int:
    try:
        return int((INPUT / "mended").read_text() or -1)
    except FileNotFoundError:
        return -1


def build() -> Pipeline:
    made = Pipeline("parked")
    made.inject(
        ENTRIES,
        JsonLines(INPUT / "entries.jsonl", follow=True),
        timestamp=lambda entry: BEGIN + timedelta(seconds=entry.number),
    )
    made.add(
        Check(),
        ENTRIES.by(lambda entry: entry.account),
        on_error=Park(hold_watermark=True, most_keys=KEYS),
    )
    made.add(Windowed(Tumbling(WINDOW), count, PANES), PASSED.by(lambda _: 0), name="windows")
    made.sink(PASSED, Table("passed", Passed, numbered=True))
    made.sink(PANES, Table("panes", WindowRow), row=lambda pane: WindowRow(pane.start, pane.value))
    return made


pipeline = build()


def append(directory: Path, numbers: range) -> None:
    with (directory / "entries.jsonl").open("ab") as file:
        for number in numbers:
            file.write(msgspec.json.encode(Entry(number * 7 % KEYS, number)) + b"\n")


def retry(service: Service) -> int:
    """Retry all that has failed by one filter."""
    with transaction(service.url()) as connection:
        asked = Asking(connection, "parked")
        matched = asked.match(LetterFilter(computation="check"))
        return asked.retry(ME, matched.ids)[1] if matched.ids else 0


def park(directory: Path, records: int, kills: int, say: Callable[[str], None]) -> None:
    """Run it, and compare.

    Raises:
        AssertionError: a record was not processed once and in order, a window lacks one, or a
            worker ended by itself.
    """
    random = Random(2)
    service = Service(directory, "tests.faults.parked:pipeline", "parked", "PARKED_INPUT")
    append(directory, range(BATCH))
    service.start()
    service.start()
    try:
        service.wait("SELECT count(*) FROM passed", lambda found: found > 0)
        began, written, retried, most = time.monotonic(), BATCH, 0, 0
        due = sorted(random.uniform(2.0, 3.0 * kills) for _ in range(kills))
        while written < records or due:
            if written < records:
                append(directory, range(written, min(written + 10 * BATCH, records)))
                written = min(written + 10 * BATCH, records)
            if random.random() < 0.3:
                (directory / "mended").write_text(str(random.randrange(written)))
                retried += retry(service)
            if due and time.monotonic() - began >= due[0]:
                due.pop(0)
                service.kill(random)
                ((keys, rows),) = service.read(
                    "SELECT count(*), coalesce(sum(waiting), 0)::bigint FROM parked_keys"
                ) or [(0, 0)]
                most = max(most, keys)
                say(
                    f"{time.monotonic() - began:5.0f} s: kill {service.kills}, {keys:,} keys are "
                    f"parked, {rows:,} wait"
                )
            time.sleep(0.5)
        (directory / "mended").write_text(str(records))
        while service.read("SELECT count(*) FROM dead_letter") != [(0,)]:
            retried += retry(service)
            time.sleep(1.0)
        service.wait("SELECT count(*) FROM passed", lambda found: found >= records)
        rows = service.read("SELECT number, account, place FROM passed")
        places = Counter[int]()
        wanted = []
        for number in range(records):
            places[number * 7 % KEYS] += 1
            wanted.append((number, number * 7 % KEYS, places[number * 7 % KEYS]))
        assert sorted(rows) == wanted, f"{len(set(wanted) - set(rows)):,} records are out of place"
        closed = (records - 1) // int(WINDOW.total_seconds())
        service.wait("SELECT count(*) FROM panes", lambda found: found >= closed)
        panes = service.read("SELECT records FROM panes ORDER BY start")
        assert panes[:closed] == [(int(WINDOW.total_seconds()),)] * closed
        say(
            f"{records:,} records of {KEYS} keys, {retried:,} retries, up to {most:,} keys parked "
            f"at a kill, {service.kills} kills: each once and in order, and {closed} windows "
            "downstream are whole"
        )
    finally:
        service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with workplace() as directory:
        park(directory, options.records, options.kills, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
