"""``python -m tests.faults.mended [--letters 100000] [--edits 10000] [--kills 20]``: what failed is
mended under load.

Two workers read a file that grows. Half of the records fail at first and become dead letters. Then
all of them are retried by one filter, and thousands of states are edited, while the file grows on
and workers are killed and started again. In the end each record must have had its effect once, and
each edit its effect once.
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

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Actor, Asking, LetterFilter
from tests.faults.kill_flights import workplace
from tests.faults.service import Service

INPUT = Path(os.environ.get("MENDED_INPUT", "input"))
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
ME = Actor("the test", "because")
BATCH = 500


class Entry(msgspec.Struct):
    account: int
    number: int


class Booked(msgspec.Struct):
    number: int
    account: int
    place: int
    """It was the account's so-many-th."""


class Account(msgspec.Struct):
    total: int = 0
    booked: int = 0
    edits: int = 0


ENTRIES = Stream("entries", Entry)
BOOKED = Stream("booked", Booked)


class Book(Computation[Entry, Account]):
    """Refuses odd numbers until the file `mended` is there."""

    writes = (BOOKED,)

    async def process_record(self, record: Record[Entry], ctx: Context[Account]) -> None:
        entry, state = record.value, ctx.state
        if entry.number % 2 and not (INPUT / "mended").exists():
            raise ValueError(f"{entry.number} is odd")
        state.total += entry.number
        state.booked += 1
        ctx.produce(BOOKED, Booked(entry.number, entry.account, state.booked))


def build() -> Pipeline:
    made = Pipeline("mended")
    made.inject(
        ENTRIES,
        JsonLines(INPUT / "entries.jsonl", follow=True),
        timestamp=lambda entry: BEGIN + timedelta(seconds=entry.number),
    )
    made.add(Book(), ENTRIES.by(lambda entry: entry.account), on_error="dead_letter")
    made.sink(BOOKED, Table("booked", Booked, numbered=True))
    return made


pipeline = build()


def append(directory: Path, numbers: range, keys: int) -> None:
    with (directory / "entries.jsonl").open("ab") as file:
        for number in numbers:
            file.write(msgspec.json.encode(Entry(number // 2 % keys, number)) + b"\n")


def mend(
    directory: Path, letters: int, edits: int, kills: int, keys: int, say: Callable[[str], None]
) -> None:
    """Run it, and compare.

    Raises:
        AssertionError: a record or an edit has had its effect not once, or a worker ended by
            itself.
    """
    random = Random(1)
    append(directory, range(2 * letters), keys)
    service = Service(directory, "tests.faults.mended:pipeline", "mended", "MENDED_INPUT")
    service.start()
    service.start()
    try:
        service.wait("SELECT count(*) FROM dead_letter", lambda found: found == letters)
        say(f"{letters:,} dead letters")
        (directory / "mended").touch()
        began = time.monotonic()
        with transaction(service.url()) as connection:
            asked = Asking(connection, "mended")
            matched = asked.match(LetterFilter(computation="book", error="is odd"))
            _, count = asked.retry(ME, matched.ids)
        assert (len(matched.ids), count) == (letters, letters)
        each = edits // keys
        batches: list[int] = []
        written = 2 * letters
        due = sorted(random.uniform(1.0, max(2.0, 3.0 * kills)) for _ in range(kills))
        while True:
            if len(batches) < each * keys:
                with transaction(service.url()) as connection:
                    asked = Asking(connection, "mended")
                    for number in range(len(batches), min(len(batches) + BATCH, each * keys)):
                        edit = number // keys
                        payload = {"merge": {"edits": edit + 1}, "if": {"edits": edit}}
                        batches.append(asked.ask(ME, "set_state", "book", number % keys, payload))
            append(directory, range(written, written + 200), keys)
            written += 200
            if due and time.monotonic() - began >= due[0]:
                due.pop(0)
                service.kill(random)
                (left,) = service.read("SELECT count(*) FROM request WHERE outcome IS NULL")
                say(f"{time.monotonic() - began:5.0f} s: kill {service.kills}, {left[0]:,} open")
            if not due and len(batches) == each * keys:
                break
            time.sleep(0.2)
        service.wait("SELECT count(*) FROM request WHERE outcome IS NULL", lambda found: found == 0)
        say(f"all requests are settled after {time.monotonic() - began:.0f} s")
        service.wait("SELECT count(*) FROM booked", lambda found: found >= written)
        outcomes = Counter(dict(service.read("SELECT outcome, count(*) FROM request GROUP BY 1")))
        assert outcomes == {"done": letters + each * keys}, outcomes
        rows = service.read("SELECT number, account, place FROM booked")
        assert Counter(number for number, *_ in rows) == Counter(range(written))
        places = Counter((account, place) for _, account, place in rows)
        assert max(places.values()) == 1
        states = service.read(
            "SELECT key::text::integer, value ->> 'total', value ->> 'booked', value ->> 'edits' "
            "FROM states WHERE computation = 'book'"
        )
        wanted = Counter[int]()
        for number in range(written):
            wanted[number // 2 % keys] += number
        assert {int(key): int(total) for key, total, *_ in states} == dict(wanted)
        assert {int(found) for *_, found in states} == {each}
        assert service.read("SELECT count(*) FROM dead_letter") == [(0,)]
        say(
            f"{letters:,} dead letters of {keys:,} keys and {each * keys:,} edits, {service.kills} "
            f"kills, {written:,} records: each once"
        )
    finally:
        service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--edits", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--keys", type=int, default=1000)
    options = parser.parse_args()
    with workplace() as directory:
        mend(
            directory, options.letters, options.edits, options.kills, options.keys,
            lambda text: print(text, flush=True),
        )  # fmt: skip


if __name__ == "__main__":
    main()
