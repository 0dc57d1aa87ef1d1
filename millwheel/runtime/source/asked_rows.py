"""Rows that an operator has asked to set aside (``millwheel set-aside``): they become dead letters,
and are not sent.

The claim of the injector's interval reads the request (decision 59): a row that stops the pipeline
ends its worker, and the claim of the next one finds the request. It is settled once the letter is
durable or, if its row is behind the injector, at the start.
"""

from __future__ import annotations

from collections.abc import Collection

from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.turns import SET_ASIDE
from millwheel.store.port.requests import SettledRequest


class AskedRows:
    def __init__(self, env: Environment, interval: Interval) -> None:
        self._env = env
        self._interval = interval
        self._asked: dict[int, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def __contains__(self, row: int) -> bool:
        return row in self._asked

    def any_of(self, rows: Collection[int]) -> bool:
        return bool(self) and not self._asked.keys().isdisjoint(rows)

    async def begin(self) -> None:
        interval = self._interval
        self._asked.clear()
        settled = []
        for request in interval.requests.to_injector:
            row = request.payload.get("row") if isinstance(request.payload, dict) else None
            if request.verb != SET_ASIDE or type(row) is not int or row < 0:
                why = "an injector can only set a row aside: millwheel set-aside INJECTOR ROW"
                settled.append(SettledRequest(request.id, "refused", why))
            elif interval.log.is_acknowledged(row):
                settled.append(SettledRequest(request.id, "done", "the injector is past the row"))
            else:
                self._asked.setdefault(row, []).append(request.id)
        await self._settle(settled)

    async def done(self, rows: Collection[int]) -> None:
        requests = [id_ for row in rows for id_ in self._asked.pop(row, ())]
        if not requests:
            return
        await self._interval.store_all()
        await self._settle([SettledRequest(id_, "done", "a dead letter") for id_ in requests])

    async def _settle(self, settled: list[SettledRequest]) -> None:
        if settled:
            await self._env.patiently(lambda: self._env.store.settle_requests(settled))
