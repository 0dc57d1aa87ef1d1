"""Reads the requests of operators to the keys that this worker owns (decision 59)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeVar

import msgspec

from millwheel.core.codec import decode_key, encode_key, shown
from millwheel.errors import UserCodeError
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.key_requests import UNPARK, KeyRequest, ParkedRow
from millwheel.runtime.process.service import Service
from millwheel.store.port.requests import OpenRequest, PlacedSlots, SettledRequest

R = TypeVar("R", bound=KeyRequest)

MOST_TAKEN = 2000

ROWS_A_KEY = 500

NOT_STRONG = (
    "its computation does not commit its productions with its state (weak, tree or bundle "
    "productions), so there is no commit that could carry the request alone"
)


HOW_TO_ASK = "ask by: millwheel state, timers or dead-letters"


class RequestDesk(Service):
    """Takes open requests from the store to the intervals of their keys, once a period.

    An interval may start over while the store answers. Nothing in the answer has run then, since
    only this service hands out requests and asks for none that the interval has. Requests that
    arrive before the interval is restored are forgotten, and read again.
    """

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        super().__init__(env.clock, env.settings.placement_seconds)
        self._env = env
        self._exchange = exchange

    async def run_once(self) -> None:
        while True:
            intervals = {i.id: i for i in self._exchange.intervals if _has_a_turn(i)}
            taken = [n for i in intervals.values() for n in i.requests.numbers()]
            room = MOST_TAKEN - len(taken)
            if not intervals or room <= 0:
                return
            await self._read_parked(intervals)
            letters = {letter for i in intervals.values() for letter in i.requests.letters()}
            places = [PlacedSlots(i.id, i.step.id, *i.slots) for i in intervals.values()]
            found = await self._env.store.open_requests(places, taken, room)
            refused: list[SettledRequest] = []
            for asked in found:
                interval = intervals[asked.interval_id]
                reason = fault_of(asked) if interval.mode.is_strong else NOT_STRONG
                if reason is not None:
                    refused.append(SettledRequest(asked.id, "refused", reason))
                elif asked.about in letters:
                    # a request that was withdrawn too late is about it: read again after that
                    continue
                else:
                    interval.requests.add([self._request(KeyRequest, interval, asked)])
                    interval.wake()
            if refused:
                await self._env.store.settle_requests(refused)
            if len(found) < room or letters:
                return

    async def _read_parked(self, intervals: Mapping[int, Interval]) -> None:
        places = [at for i in intervals.values() if i.mode.is_strong for at in i.turns.places()]
        if not places:
            return
        taken = [letter for i in intervals.values() for letter in i.requests.letters()]
        found = await self._env.store.parked_rows(places, taken, ROWS_A_KEY)
        for row in found:
            interval = intervals[row.interval_id]
            interval.turns.add_rows([self._request(ParkedRow, interval, row)])
            interval.wake()

    def _request(self, kind: type[R], interval: Interval, asked: OpenRequest) -> R:
        place = (decode_key(asked.key), asked.key, asked.slot)
        read_timer = partial(
            self._env.store.read_timer, interval.id, interval.step.id, asked.slot, asked.key
        )
        return kind(asked.id, asked.verb, place, asked.payload, asked.letter, read_timer)


def fault_of(asked: OpenRequest) -> str | None:
    """Why a request cannot be carried out, whatever its key's state is; None: it may be.

    Operators may insert rows into the table, so nothing in one is believed: a wrong slot would make
    a second state of its key.
    """
    try:
        key = decode_key(asked.key)
        as_stored = encode_key(key)
    except (msgspec.DecodeError, RecursionError, UserCodeError) as error:
        return (
            f"its key {shown(asked.key.decode())} is none: {error}. A text is in quotes: "
            f"{HOW_TO_ASK}"
        )
    if as_stored != (asked.key, asked.slot):
        text, slot = as_stored[0].decode(), as_stored[1]
        return (
            f"its key {shown(asked.key.decode())} is stored as {text}, with the slot {slot}. "
            f"{HOW_TO_ASK}"
        )
    if asked.verb == UNPARK:
        return (
            "the owner runs waiting records by itself: retry or discard the letter that stops "
            "the key"
        )
    if not isinstance(asked.payload, dict):
        return "its payload is no JSON object with arguments"
    return None


def _has_a_turn(interval: Interval) -> bool:
    return (
        interval.lane is not None
        and interval.step.node.computation is not None
        and not interval.leaving
        and not interval.lane.is_recovering
    )
