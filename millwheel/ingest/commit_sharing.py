"""Sends the records of requests: all requests that wait share one commit.

::

    request ──┐
    request ──┼──▶ waiting ──▶ one transaction ──▶ answers        while it runs, the next ones wait
    request ──┘

If the store refuses a group, nothing of it was committed, and each request is sent again alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import Any

from millwheel.client import Client
from millwheel.errors import StoreUnavailable
from millwheel.ingest.request_reading import RequestRefused, Sending

GROUP_RECORDS = 5_000
"""Most records of one transaction, unless one request has more."""

GROUP_BYTES = 8 << 20
"""Most bytes of one transaction, unless one request has more."""

COUNT_SECONDS = 0.1


@dataclass
class _Waiting:
    sending: Sending
    answer: asyncio.Future[list[bool]]


class GroupSender:
    """Sends requests to the streams of one pipeline.

    Args:
        most_waiting: records of a stream that may wait for its injector; with more, requests are
            refused.
    """

    def __init__(self, client: Client, most_waiting: int) -> None:
        self._client = client
        self._most_waiting = most_waiting
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._counted: dict[str, tuple[float, bool]] = {}
        """By stream: when its waiting records were counted, and whether there were too many."""

    async def send(self, sending: Sending) -> list[bool]:
        """Send the records of a request; says of each whether it is new.

        Raises:
            RequestRefused: too many records wait.
            SendRefused, StoreUnavailable: as `Client.send_all`.
        """
        if await self._is_full(sending.stream):
            raise RequestRefused(
                429,
                f"stream {sending.stream!r} has {self._most_waiting:,} records waiting: send again "
                "later",
                {"retry-after": "1"},
            )
        answer: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(sending, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await answer

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._client.close()

    async def _is_full(self, stream: str) -> bool:
        at, is_full = self._counted.get(stream, (0.0, False))
        now = time.monotonic()
        if now - at < COUNT_SECONDS:
            return is_full
        self._counted[stream] = now, is_full  # other requests need not count
        limit = self._most_waiting
        is_full = await self._client.count_waiting(stream, limit) >= limit
        self._counted[stream] = time.monotonic(), is_full
        return is_full

    async def _run(self) -> None:
        while self._waiting:
            group = self._take()
            try:
                await self._send(group)
            except StoreUnavailable as error:  # some of it may be committed
                for each in group:
                    _fail(each, error)
            except Exception:  # nothing is committed: one of them is at fault
                for each in group:
                    await self._send_alone(each)

    def _take(self) -> list[_Waiting]:
        """The requests of the next transaction: in their order, and no batch twice."""
        records, size, batches = 0, 0, set()
        for place, each in enumerate(self._waiting):
            records += len(each.sending.records)
            size += sum(map(len, each.sending.records))
            name = each.sending.stream, each.sending.batch
            if place and (records > GROUP_RECORDS or size > GROUP_BYTES or name in batches):
                break
            if each.sending.batch is not None:
                batches.add(name)
        else:
            place = len(self._waiting)
        group, self._waiting = self._waiting[:place], self._waiting[place:]
        return group

    async def _send(self, group: list[_Waiting]) -> None:
        plain: dict[str, list[_Waiting]] = defaultdict(list)
        for each in group:
            if each.sending.batch is None:
                plain[each.sending.stream].append(each)
        batches = [[each] for each in group if each.sending.batch is not None]
        batches.sort(
            key=_name
        )  # two processes that send the same batches wait for each other in one order
        calls = [*plain.values(), *batches]
        if len(calls) == 1:
            answers = [await self._call(calls[0], None)]
        else:
            async with self._client.transaction() as connection:
                answers = [await self._call(call, connection) for call in calls]
        for call, answer in zip(calls, answers, strict=True):
            rest = iter(answer)
            for each in call:
                are_new = list(islice(rest, len(each.sending.records)))
                if not each.answer.done():  # its client is gone
                    each.answer.set_result(are_new)

    async def _call(self, call: list[_Waiting], connection: Any) -> list[bool]:
        first = call[0].sending
        return await self._client.send_json(
            first.stream,
            [record for each in call for record in each.sending.records],
            ids=[id_ for each in call for id_ in each.sending.ids],
            at=[each.sending.at for each in call for _ in each.sending.records],
            batch=first.batch,
            connection=connection,
        )

    async def _send_alone(self, waiting: _Waiting) -> None:
        try:
            await self._send([waiting])
        except Exception as error:
            _fail(waiting, error)


def _name(batch: list[_Waiting]) -> tuple[str, str]:
    sending = batch[0].sending
    return sending.stream, sending.batch or ""


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
