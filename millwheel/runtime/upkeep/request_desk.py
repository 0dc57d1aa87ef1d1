"""Reads the requests of operators to the keys that this worker owns (decision 59)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from millwheel.codec import decode_key
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.mode import Mode
from millwheel.runtime.interval.requests import KeyRequest
from millwheel.runtime.process.service import Service
from millwheel.store.port import OpenRequest, PlacedSlots, SettledRequest

MOST_TAKEN = 2000
"""Most requests that a worker has read and not settled."""

ROWS_A_KEY = 500
"""Most rows of a parked key that are read at a time."""

NOT_STRONG = (
    "its computation does not commit its productions with its state (weak, tree or bundle productions), so "
    "there is no commit that could carry the request alone"
)


class RequestDesk(Service):
    """Takes open requests from the store to the intervals of their keys, once a period."""

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        super().__init__(env.clock, env.settings.placement_seconds)
        self._env = env
        self._exchange = exchange

    async def run_once(self) -> None:
        """Read requests until there are none, or enough."""
        while True:
            intervals = {i.id: i for i in self._exchange.intervals if _has_a_turn(i)}
            taken = [n for i in intervals.values() for n in i.requests.taken if n > 0]
            room = MOST_TAKEN - len(taken)
            if not intervals or room <= 0:
                return
            await self._read_parked(intervals)
            letters = {letter for i in intervals.values() for letter in i.requests.letters()}
            lives = {id_: interval.requests.life for id_, interval in intervals.items()}
            places = [PlacedSlots(i.id, i.step.id, *i.slots) for i in intervals.values()]
            found = await self._env.store.open_requests(places, taken, room)
            refused: list[SettledRequest] = []
            for asked in found:
                interval = intervals[asked.interval_id]
                if type(interval.mode) is not Mode:
                    refused.append(SettledRequest(asked.id, "refused", NOT_STRONG))
                elif asked.about in letters:
                    continue  # a request that was withdrawn too late is about it: read again after that
                elif interval.requests.life == lives[interval.id]:  # else it is read again
                    interval.requests.add([self._request(interval, asked)])
                    interval.wake()
            if refused:
                await self._env.store.settle_requests(refused)
            if len(found) < room or letters:
                return

    async def _read_parked(self, intervals: Mapping[int, Interval]) -> None:
        """Read rows of parked keys that nothing stops any more."""
        places = [
            at
            for i in intervals.values()
            if type(i.mode) is Mode
            for at in i.parked.places(i.id, i.step.id)
        ]
        if not places:
            return
        lives = {id_: interval.requests.life for id_, interval in intervals.items()}
        taken = [letter for i in intervals.values() for letter in i.requests.letters()]
        found = await self._env.store.parked_rows(places, taken, ROWS_A_KEY)
        for row in found:
            interval = intervals[row.interval_id]
            if interval.requests.life == lives[interval.id]:
                interval.parked.add_rows([self._request(interval, row)])
                interval.wake()

    def _request(self, interval: Interval, asked: OpenRequest) -> KeyRequest:
        place = (decode_key(asked.key), asked.key, asked.slot)
        read_timer = partial(
            self._env.store.read_timer, interval.id, interval.step.id, asked.slot, asked.key
        )
        return KeyRequest(asked.id, asked.verb, place, asked.payload, asked.letter, read_timer)


def _has_a_turn(interval: Interval) -> bool:
    """Whether the keys of an interval have turns now."""
    return (
        interval.lane is not None
        and interval.step.node.computation is not None
        and not interval.leaving
        and not interval.lane.is_recovering
    )
