from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from millwheel.core.codec import encode_key
from millwheel.core.model import Key
from millwheel.store.memory.claims import read_timers
from millwheel.store.memory.subject import MemorySubject
from millwheel.store.memory.tables import Tables
from millwheel.store.port.requests import (
    DeadLetter,
    KeptLetter,
    OpenRequest,
    ParkedKeyPlace,
    PlacedSlots,
    SettledRequest,
)

MOST_TIMERS = 1 << 30


@dataclass(slots=True)
class RequestRow:
    id: int
    verb: str
    computation: int
    slot: int
    key: bytes
    payload: dict[str, Any]
    letter: DeadLetter | None = None
    settled: SettledRequest | None = None
    withdrawn: bool = False


class MemoryRequests(MemorySubject):
    def ask(
        self,
        verb: str,
        computation: str,
        key: Key,
        payload: dict[str, Any] | None = None,
        *,
        letter: DeadLetter | None = None,
    ) -> int:
        """Returns the number of the request."""
        key_text, slot = encode_key(key)
        number = len(self.tables.requests) + 1
        id_ = self.tables.computations[computation].id
        row = RequestRow(number, verb, id_, slot, key_text, payload or {}, letter)
        self.tables.requests[number] = row
        return number

    def withdraw(self, number: int) -> None:
        """Take a request back, as an operator does."""
        self.tables.requests[number].withdrawn = True

    def asked_about(self, letter: DeadLetter) -> bool:
        return any(
            row.settled is None and row.letter is letter for row in self.tables.requests.values()
        )

    def outcome(self, number: int) -> SettledRequest | None:
        """None while the request is open."""
        settled: SettledRequest | None = self.tables.requests[number].settled
        return settled

    async def open_requests(
        self, intervals: Sequence[PlacedSlots], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        await self._called("open_requests")
        return [
            OpenRequest(
                row.id, at.interval_id, row.verb, row.slot, row.key, row.payload,
                None if row.letter is None else _number(row.letter), self._kept(row),
            )
            for row in self.tables.requests.values()
            for at in intervals
            if row.settled is None
            and not row.withdrawn
            and row.verb != "set_aside"
            and row.id not in taken
            and row.computation == at.computation
            and at.slot_from <= row.slot < at.slot_to
        ][:limit]  # fmt: skip

    def _kept(self, row: RequestRow) -> KeptLetter | None:
        letter = row.letter
        if letter is None or letter not in self.tables.dead_letters:
            return None
        return _kept(letter)

    async def parked_rows(
        self, keys: Sequence[ParkedKeyPlace], taken: Sequence[int], limit: int
    ) -> list[OpenRequest]:
        await self._called("parked_rows")
        places = {(at.computation, at.key): at for at in keys}
        found: list[OpenRequest] = []
        of_key: Counter[bytes] = Counter()
        for letter in self.tables.dead_letters:
            if letter.parked != "waiting" or letter.key is None or _number(letter) in taken:
                continue
            at = places.get((letter.computation, letter.key))
            if at is not None and of_key[letter.key] < limit:
                of_key[letter.key] += 1
                found.append(
                    OpenRequest(
                        -_number(letter), at.interval_id, "unpark", letter.slot, letter.key, {},
                        _number(letter),
                        _kept(letter),
                    )
                )  # fmt: skip
        return found

    async def settle_requests(self, settled: Sequence[SettledRequest]) -> None:
        await self._called("settle_requests")
        settle(self.tables, settled)

    async def read_timer(
        self, interval_id: int, computation: int, slot: int, key: bytes, kind: str, tag: str
    ) -> tuple[int, int] | None:
        await self._called("read_timer")
        for timer in read_timers(self.tables, interval_id, kind, None, MOST_TIMERS):
            if (timer.computation, timer.key, timer.tag) == (computation, key, tag):
                assert timer.due is not None
                assert timer.hold is not None
                return timer.due, timer.hold
        return None


def settle(tables: Tables, settled: Iterable[SettledRequest]) -> None:
    for one in settled:
        row: RequestRow | None = tables.requests.get(one.id)
        if row is not None and row.settled is not None:
            continue
        if row is not None:
            row.settled = one
        numbers = [_number(letter) for letter in tables.dead_letters]
        if one.letter is None or one.letter not in numbers:
            continue
        place = numbers.index(one.letter)
        if one.outcome == "done":
            del tables.dead_letters[place]
        elif one.failure is not None:
            failed = _failed_again(tables.dead_letters[place], one.failure)
            tables.dead_letters[place] = failed
            if row is not None:
                row.letter = failed


def _number(letter: DeadLetter) -> int:
    same = (
        letter.computation,
        letter.record_id,
        letter.key,
        letter.value,
        letter.ts,
        letter.place,
    )
    return crc32(repr(same).encode())


def _kept(letter: DeadLetter) -> KeptLetter:
    return KeptLetter(
        _number(letter), letter.stream, letter.record_id, letter.value, letter.ts, letter.attempts,
        letter.parked,
        letter.watermark, letter.stamp, letter.version,
    )  # fmt: skip


def _failed_again(letter: DeadLetter, failure: DeadLetter) -> DeadLetter:
    return letter._replace(
        error=failure.error,
        traceback=failure.traceback,
        attempts=letter.attempts + failure.attempts,
        stamp=failure.stamp,
        parked=None if letter.parked is None else "failed",
    )
