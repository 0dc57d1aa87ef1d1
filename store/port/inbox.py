from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple, Protocol

TAKEN_CHARACTERS = 8 << 20
"""Most characters of one answer of `take_sent` or `read_sent`; the last record may exceed it."""


class SentRecord(NamedTuple):
    """A record with its number in the injector's log."""

    number: int
    value: bytes
    """JSON."""
    ts: int
    """Event time in microseconds."""


class InboxOwner(NamedTuple):
    """The interval that takes the records of an inbox, and its claim."""

    stream: int
    interval_id: int
    sequencer: int


class TakenRecords(NamedTuple):
    owned: bool
    """The interval still has the given sequencer; otherwise there are no records."""
    now: int
    """The store's time, no later than the snapshot."""
    oldest: int
    """Every transaction before this one has ended."""
    newest: int | None
    """Every transaction after this one began after `now`, and its records have later times; None if
    it was not asked for, and no record was taken."""
    last_seq: int
    """The last number in the order of sending that was given to any record by about now."""
    records: list[SentRecord]


class StoreInbox(Protocol):
    async def open_inbox(
        self, stream: str, interval_id: int, *, requires_id: bool, remember: timedelta
    ) -> int:
        """Let a stream take records, for the injector of an interval; returns the stream's id.

        Args:
            requires_id: refuse records without an id.
            remember: how long an id is remembered after its record.
        """
        ...

    async def take_sent(
        self,
        owner: InboxOwner,
        first: int,
        limit: int,
        *,
        after: int = 0,
        mark: bool = False,
    ) -> TakenRecords:
        """Take and number up to `limit` committed records that have no number yet, in the order of
        sending.

        Args:
            first: the number of the first one.
            after: no record with this place in the order of sending, or one before, waits.
            mark: find out which transaction is the newest, even if there is no record; it uses up a
                transaction id.
        """
        ...

    async def read_sent(self, interval_id: int, first: int, limit: int) -> list[SentRecord]:
        """Records that an interval has taken, from number `first` on, in order."""
        ...

    async def count_sent(self, stream: int, limit: int) -> int:
        """Committed records without a number, up to `limit`."""
        ...

    async def forget_sent(self, stream: int, interval_id: int, limit: int) -> int:
        """Delete records before the injector's stored position, and ids that are old enough.

        Returns the number of deleted records or ids, whichever is more; at most `limit`.
        """
        ...
