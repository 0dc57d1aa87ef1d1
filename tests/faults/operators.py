"""``python -m tests.faults.operators [--records 20000] [--presses 60] [--kills 8]``: five operators
press the buttons of the pages at the same time, while workers are killed.

Two workers read a file. Of one computation some records become dead letters, of another one some
park their keys. The operators retry, edit and discard what failed, and pause and resume the
injector, each under a name of their own. In the end each record must have had its effect once, or
been discarded, and the log of operators must agree: it has one entry for each press that was
accepted, under the name of its operator, and one outcome for each request.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec

from millwheel import Computation, Context, JsonLines, Park, Pipeline, Record, Stream, Table
from millwheel.ui.access import ViewerAccess
from millwheel.ui.verbs import VERBS
from tests.faults.kill_flights import workplace
from tests.faults.parked import BEGIN, ENTRIES, INPUT, Entry, mended
from tests.faults.service import Service
from tests.support.seen_pages import SeenPages

NAMES = ("ann", "bob", "cleo", "dan", "eve")
TOKEN = "secret of the operators"
KEYS = 200
POISON = 5
"""Each so-many-th record fails at first."""
EDITED = 1_000_001
"""An operator edits a record by adding this to its number, which then does not fail."""


class Effect(msgspec.Struct):
    number: int
    account: int
    place: int
    """It was the account's so-many-th."""


class Account(msgspec.Struct):
    place: int = 0
    touched: int = 0
    """Changed by operators only."""


BOOKED = Stream("booked", Effect)
PASSED = Stream("passed", Effect)


class Book(Computation[Entry, Account]):
    """Refuses some numbers until the file `mended` names them, or a greater one."""

    writes = (BOOKED,)

    async def process_record(self, record: Record[Entry], ctx: Context[Account]) -> None:
        ctx.produce(BOOKED, _effect(record.value, ctx))


class Check(Computation[Entry, Account]):
    """As `Book`, for keys that are parked."""

    writes = (PASSED,)

    async def process_record(self, record: Record[Entry], ctx: Context[Account]) -> None:
        ctx.produce(PASSED, _effect(record.value, ctx))


def _effect(entry: Entry, ctx: Context[Account]) -> Effect:
    if entry.number % POISON == 0 and entry.number > mended():
        raise ValueError(f"{entry.number} is poison")
    ctx.state.place += 1
    return Effect(entry.number, entry.account, ctx.state.place)


def build() -> Pipeline:
    made = Pipeline("operated")
    made.inject(
        ENTRIES,
        JsonLines(INPUT / "entries.jsonl", follow=True),
        timestamp=lambda entry: BEGIN + timedelta(seconds=entry.number),
    )
    by_account = ENTRIES.by(lambda entry: entry.account)
    made.add(Book(), by_account, on_error="dead_letter")
    made.add(Check(), by_account, on_error=Park(hold_watermark=True, most_keys=KEYS))
    made.sink(BOOKED, Table("booked", Effect, numbered=True))
    made.sink(PASSED, Table("passed", Effect, numbered=True))
    return made


pipeline = build()


def account_of(number: int) -> int:
    return number * 7 % KEYS


def append(directory: Path, numbers: range) -> None:
    with (directory / "entries.jsonl").open("ab") as file:
        for number in numbers:
            file.write(msgspec.json.encode(Entry(account_of(number), number)) + b"\n")


@dataclass
class Operator:
    """Presses buttons, as a browser does, under a name."""

    name: str
    client: httpx.Client
    accepted: Counter[str] = field(default_factory=Counter)
    """Verbs, by the reason of each press that was accepted."""
    refused: int = 0
    error: BaseException | None = None

    def press(self, verb: str, **form: Any) -> bool:
        """Whether it was accepted: there may be nothing to do for it any more."""
        reason = f"{self.name} {verb} {sum(self.accepted.values()) + self.refused}"
        answer = self.client.post(f"/pipelines/operated/do/{verb}", data={**form, "reason": reason})
        assert answer.status_code in (303, 400), (answer.status_code, answer.text)
        if answer.status_code == 303:
            self.accepted[reason] += 1
            return True
        self.refused += 1
        return False

    def letters(self, **filters: Any) -> list[dict[str, Any]]:
        answer = self.client.get("/api/pipelines/operated/letters", params=filters)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["letters"]
        return found

    def mend(self, random: Random, presses: int) -> None:
        try:
            for _ in range(presses):
                random.choice(CHOICES)(self, random)
            while not self.accepted:
                random.choice((_pause, _resume))(self, random)
        except BaseException as error:
            self.error = error
            raise


def _retry(operator: Operator, random: Random) -> None:
    forms: tuple[dict[str, Any], ...] = (
        {"error": f"{random.randrange(0, 100, POISON)} is poison"},
        {"step": "check", "rate": 200},
        {"all": "true"},
    )
    if random.random() < 0.8:
        operator.press("retry", key=random.randrange(0, KEYS, POISON))
    else:
        operator.press("retry", **random.choice(forms))


def _some(operator: Operator, random: Random) -> dict[str, Any] | None:
    """A dead letter; None: the key has none that somebody could mend."""
    step = random.choice(("book", "check"))
    found = operator.letters(step=step, key=random.randrange(0, KEYS, POISON), group="none")
    return random.choice(found) if found else None


def _edit(operator: Operator, random: Random) -> None:
    letter = _some(operator, random)
    if letter is not None:
        entry = msgspec.json.decode(letter["value"], type=Entry)
        value = msgspec.json.encode(Entry(entry.account, entry.number + EDITED)).decode()
        operator.press("edit", letter=letter["id"], value=value)


def _discard(operator: Operator, random: Random) -> None:
    letter = _some(operator, random)
    if letter is not None:
        operator.press("discard", ids=letter["id"])


def _pause(operator: Operator, random: Random) -> None:
    operator.press("pause")


def _resume(operator: Operator, random: Random) -> None:
    operator.press("resume")


def _set_state(operator: Operator, random: Random) -> None:
    """Count one more, if the count is as guessed."""
    touched = random.randrange(3)
    operator.press(
        "set_state",
        step="book",
        key=random.randrange(3),
        merge=msgspec.json.encode({"touched": touched + 1}).decode(),
        condition=msgspec.json.encode({"touched": touched}).decode(),
    )


CHOICES: tuple[Callable[[Operator, Random], None], ...] = (
    _retry, _retry, _edit, _edit, _discard, _discard, _pause, _resume,
    *([_set_state] if "set_state" in VERBS else []),
)  # fmt: skip


def operate(
    directory: Path, records: int, presses: int, kills: int, say: Callable[[str], None]
) -> None:
    """Run it, and compare.

    Raises:
        AssertionError: a record has had its effect not once, the log does not agree, an answer of
            the pages was wrong, or a worker ended by itself.
    """
    random = Random(3)
    append(directory, range(records))
    service = Service(directory, "tests.faults.operators:pipeline", "operated", "PARKED_INPUT")
    service.start()
    service.start()
    pages = None
    operators: list[Operator] = []
    try:
        poison = len(range(0, records, POISON))
        service.wait("SELECT count(*) FROM dead_letter", lambda found: found >= poison)
        pages = SeenPages(service.url(), ViewerAccess(mend_tokens=(TOKEN,)))
        operators = [
            Operator(name, httpx.Client(base_url=pages.server.url, auth=(name, TOKEN), timeout=60))
            for name in NAMES
        ]
        threads = [
            threading.Thread(target=one.mend, args=(Random(number), presses))
            for number, one in enumerate(operators)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        while service.kills < kills or any(thread.is_alive() for thread in threads):
            (directory / "mended").write_text(str(random.randrange(records // 2)))
            if service.kills < kills:
                service.kill(random)
                say(f"{time.monotonic() - began:5.1f} s: kill {service.kills}")
            time.sleep(random.uniform(0.2, 2.0))
        for thread in threads:
            thread.join()
        assert [one.error for one in operators if one.error is not None] == []
        say(f"{time.monotonic() - began:5.1f} s: all buttons are pressed")
        (directory / "mended").write_text(str(records))
        operators[0].press("resume")
        _finish(service, operators)
        say(f"{time.monotonic() - began:5.1f} s: nothing is open")
        for line in _compare(service, operators, records):
            say(line)
    finally:
        for one in operators:
            one.client.close()
        if pages is not None:
            pages.close()
        service.stop()


def _finish(service: Service, operators: list[Operator]) -> None:
    """Retry what is left until nothing is."""
    random = Random(4)
    deadline = time.monotonic() + 300
    left = "SELECT (SELECT count(*) FROM dead_letter), count(*) FROM request WHERE outcome IS NULL"
    while service.read(left) != [(0, 0)]:
        assert time.monotonic() < deadline, service.read(left)
        random.choice(operators).press("retry", all="true")
        time.sleep(0.3)
    service.wait("SELECT count(*) FROM pending_productions", lambda found: found == 0)


def _compare(service: Service, operators: list[Operator], records: int) -> Iterator[str]:
    gone = Counter[int]()
    for (letters,) in service.read("SELECT payload -> 'letters' FROM request WHERE verb='discard'"):
        gone.update(letters or [])
    done = service.read(
        "SELECT verb, letter, count(*) FROM request WHERE outcome = 'done' AND letter IS NOT NULL "
        "GROUP BY 1, 2"
    )
    ended = Counter(letter for _, letter, _ in done) + gone
    assert max(ended.values(), default=0) <= 1, "a letter has ended twice, by the log"
    assert max((count for *_, count in done), default=0) <= 1
    discarded = away = len(gone) + sum(verb == "discard" for verb, *_ in done)
    for table in ("booked", "passed"):
        rows = service.read(f"SELECT number, account, place FROM {table}")
        effects = Counter(number % EDITED for number, *_ in rows)
        assert max(effects.values()) == 1, f"an effect of {table} is there twice"
        away -= records - len(effects)
        assert {number for number in range(records) if number % POISON} <= effects.keys()
        places = Counter((account, place) for _, account, place in rows)
        assert max(places.values()) == 1
        for account in range(KEYS):
            mine = sorted(place for _, of, place in rows if of == account)
            assert mine == list(range(1, len(mine) + 1)), f"{table}: account {account} has a gap"
    assert away == 0, f"{away:,} letters were discarded by the log, and have effects (or less)"
    edited = service.read(
        "SELECT count(*) FROM request WHERE outcome = 'done' AND verb = 'retry' AND payload ? 'was'"
    )
    effects_of_edits = service.read(
        f"SELECT (SELECT count(*) FROM booked WHERE number >= {EDITED}) + "
        f"(SELECT count(*) FROM passed WHERE number >= {EDITED})"
    )
    assert edited == effects_of_edits
    touched = dict(
        service.read(
            "SELECT key, count(*) FROM request WHERE verb = 'set_state' AND outcome = 'done' "
            "GROUP BY 1"
        )
    )
    states = service.read(
        "SELECT key::text, (value ->> 'touched')::integer FROM states WHERE computation = 'book'"
    )
    assert {key: count for key, count in states if count} == touched, "an edit is there twice"
    assert service.read("SELECT count(*) FROM request WHERE outcome IS NULL") == [(0,)]
    asked = service.read("SELECT DISTINCT actor, reason, verb FROM request")
    assert {actor for actor, *_ in asked} == set(NAMES)
    wanted = {(one.name, reason) for one in operators for reason in one.accepted}
    assert {(actor, reason) for actor, reason, _ in asked} == wanted, "the log lacks a press"
    outcomes = Counter(dict(service.read("SELECT outcome, count(*) FROM request GROUP BY 1")))
    refused = sum(one.refused for one in operators)
    yield (
        f"{len(wanted):,} presses of {len(NAMES)} operators, and {refused:,} with nothing to do; "
        f"{service.kills} kills; requests: {dict(outcomes)}; {edited[0][0]:,} records were edited, "
        f"{discarded:,} discarded, and all others have had their effect once"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--presses", type=int, default=60)
    parser.add_argument("--kills", type=int, default=8)
    options = parser.parse_args()
    with workplace() as directory:
        operate(
            directory, options.records, options.presses, options.kills,
            lambda text: print(text, flush=True),
        )  # fmt: skip


if __name__ == "__main__":
    main()
