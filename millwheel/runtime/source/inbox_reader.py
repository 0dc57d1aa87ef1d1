"""Reads an inbox: numbers the records that users have sent, and decodes them.

::

    send() in a transaction ──commit──▶ waiting ──take_sent──▶ numbered ──▶ rows of the injector
                                                    │
                                  the number is stored before the row is sent (I1, I9)

After a crash the numbered records are read first, from the stored position on. An owner that has
lost its claim can number none, because `Store.take_sent` checks the sequencer (I4).

Event time comes from the store's clock and its transactions: once every transaction that ran at
some moment has ended, no record with an older time can follow (see ``take_sent.sql``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from millwheel.core.json_rows import BadRow, JsonRows
from millwheel.errors import InputError, UsageError
from millwheel.fetching import FetchingReader
from millwheel.inbox import Inbox, InboxPartition
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.sources import Lag, Row, Rows
from millwheel.store.port.inbox import InboxOwner, SentRecord, TakenRecords

POLL_SECONDS = 0.05
"""Pause between two looks for records while there are none."""

MARK_SECONDS = 0.5
"""While no record arrives, event time advances this often: each time takes a transaction id, and
makes a commit."""

TAKEN_RECORDS = 1_000

FORGET_SECONDS = 1.0
"""Pause between two deletions of acknowledged records, and two counts of waiting ones."""

FORGOTTEN_ROWS = 20_000

MOST_MARKS = 1_000
"""If there are more marks, every second one is dropped, and event time advances in larger steps."""

COUNTED_RECORDS = 100_000
"""The count of waiting records ends here."""


class _Mark(NamedTuple):
    """A moment of the store, and a transaction that began after it, as did every one with a higher
    id."""

    now: int
    newest: int
    last_seq: int
    """Every record of a transaction that began later comes after this one in the order of
    sending."""


class StoredInbox(InboxPartition):
    def __init__(self, env: Environment, interval: Interval, source: Inbox, stream: str) -> None:
        self._env = env
        self._interval = interval
        self._source = source
        self._stream = stream

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> InboxReader:
        """`UsageError` if values cannot be decoded to this type."""
        try:
            json = JsonRows(value_type)
        except (TypeError, NotImplementedError, NameError) as error:
            raise UsageError(
                f"inbox of stream {self._stream!r}: values cannot be read as {value_type!r}: "
                f"{error}"
            ) from error
        env, source = self._env, self._source
        stream = await env.patiently(
            lambda: env.store.open_inbox(
                self._stream,
                self._interval.id,
                requires_id=source.require_id,
                remember=source.remember,
            )
        )
        first = 0 if position is None else int(position["next"])
        return InboxReader(env, self._interval, json, stream, first)


class InboxReader(FetchingReader):
    def __init__(
        self,
        env: Environment,
        interval: Interval,
        json: JsonRows,
        stream: int,
        first: int,
    ) -> None:
        super().__init__()
        self._env = env
        self._interval = interval
        self._json = json
        self._stream = stream
        self._next = self._acknowledged = first
        self._may_be_numbered = True
        """Records from the next one on may have their numbers already."""
        self._waiting = 0
        self._marks: deque[_Mark] = deque()
        self._marked_at = -MARK_SECONDS
        self._last_seq = 0
        """The last number in the order of sending, as of the look before the next mark."""
        self._after = 0
        """No record up to this one in the order of sending waits, nor will."""
        self._sure: int | None = None
        """Every record with an older time is fetched."""
        self._shown: int | None = None
        """Every record with an older time is read."""
        self._keeper: asyncio.Task[None] | None = None

    @property
    def seen(self) -> int | None:
        """Microseconds: every older record has been read."""
        if not self.ahead:
            self._shown = self._sure
        return self._shown

    async def fetch(self) -> Sequence[Row]:
        """Waits until there are some."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        while True:
            if records := await self._env.patiently(self._numbered_or_taken):
                self._next = records[-1].number + 1
                return self._rows(records)
            await self._env.clock.sleep(POLL_SECONDS)

    async def _numbered_or_taken(self) -> Sequence[SentRecord]:
        """Records that have their numbers come again after a restart, and after a lost answer of
        the store."""
        env, interval = self._env, self._interval
        if self._may_be_numbered:
            records = await env.store.read_sent(interval.id, self._next, TAKEN_RECORDS)
            if records:
                return records
        self._may_be_numbered = True  # if the answer is lost
        taken = await env.store.take_sent(
            InboxOwner(self._stream, interval.id, interval.commits.sequencer),
            self._next,
            TAKEN_RECORDS,
            after=self._after,
            mark=env.clock.monotonic() - self._marked_at >= MARK_SECONDS,
        )
        self._may_be_numbered = False
        if not taken.owned:  # the next commit is refused, and ends work on the interval
            interval.touch(urgent=True)
            await asyncio.Event().wait()
        self._advance(taken)
        return taken.records

    def _advance(self, taken: TakenRecords) -> None:
        marks = self._marks
        if (
            not taken.records
        ):  # otherwise older ones may wait: there are limits to what is taken at once
            while marks and marks[0].newest <= taken.oldest:
                self._sure, _, self._after = marks.popleft()
                self.announce()
                self.found_none()
        if taken.newest is not None:
            self._marked_at = self._env.clock.monotonic()
            marks.append(_Mark(taken.now, taken.newest, self._last_seq))
            if len(marks) > MOST_MARKS:  # a transaction stays open for long
                self._marks = deque(list(marks)[::2])
        self._last_seq = taken.last_seq

    def _rows(self, records: Sequence[SentRecord]) -> Sequence[Row]:
        raws = [record.value for record in records]
        first, last = records[0].number, records[-1].number
        values = self._json.together(raws) if last - first + 1 == len(records) else None
        if values is None:
            return [self._row(record) for record in records]
        return Rows(first, first, values, raws, [record.ts for record in records])

    def _row(self, record: SentRecord) -> Row:
        number, text = record.number, record.value.decode()
        try:
            value = self._json.one(record.value)
        except BadRow as error:
            wrong = InputError(f"inbox, record {number}: {error}")
            return Row(number, number, error=wrong, text=text)
        return Row(number, number, value, micros=record.ts)

    def position(self, acknowledged: int) -> dict[str, Any]:
        self._acknowledged = max(acknowledged, self._acknowledged)
        return {"next": self._acknowledged}

    def lag(self) -> Lag:
        return Lag(rows=self._waiting + self.ahead)

    def close(self) -> None:
        super().close()
        if self._keeper is not None:
            self._keeper.cancel()

    async def _keep(self) -> None:
        env, store, stream = self._env, self._env.store, self._stream
        try:
            while True:
                await env.clock.sleep(FORGET_SECONDS)
                forgotten = FORGOTTEN_ROWS
                while forgotten == FORGOTTEN_ROWS:
                    forgotten = await env.patiently(
                        lambda: store.forget_sent(stream, self._interval.id, FORGOTTEN_ROWS)
                    )
                self._waiting = await env.patiently(
                    lambda: store.count_sent(stream, COUNTED_RECORDS)
                )
        except Exception as error:
            self.fail(error)
