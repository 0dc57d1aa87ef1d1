"""The inbox of a stream, as a source: records that users send in transactions, or over HTTP.

See `millwheel.client` to send from Python, and ``docs/howto/connect/sql-and-http.md``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from millwheel.errors import UsageError
from millwheel.sources import Partition, Reader

__all__ = ["Inbox"]


class Inbox:
    """Records that are sent to the stream, each in a transaction of its sender's.

    ```python
    # SELECT shop.send('payments', '{"customer": "ann", …}', id => 'payment-17');
    PAYMENTS = Stream("payments", Order)
    pipeline.inject(PAYMENTS, Inbox(remember=timedelta(days=7), require_id=True))
    ```

    A record arrives once if that transaction commits, and otherwise not. Its event time is the time
    of sending, or the one given to ``send``; the low watermark waits for open transactions.

    Args:
        remember: how long a sender may repeat a record with an id without a second effect.
        require_id: refuse records without an id.
        id: returns the id of a value that comes over HTTP without an Idempotency-Key.
        verify: over HTTP, whether a request is genuine by its headers and body: the sender's
            signature in place of a token (`millwheel.ingest.hmac_sha256`).
        max_body: over HTTP, most bytes of a request's body.

    Raises:
        UsageError: an option does not fit.
    """

    bounded = False
    timestamps = True
    shows_time = True
    """The reader shows how far the source is in event time (`Reader.seen`)."""

    def __init__(
        self,
        *,
        remember: timedelta = timedelta(hours=24),
        require_id: bool = False,
        id: Callable[[Any], Any] | None = None,
        verify: Callable[[Mapping[str, str], bytes], bool] | None = None,
        max_body: int = 1 << 20,
    ) -> None:
        if not isinstance(remember, timedelta) or remember <= timedelta(0):
            raise UsageError(f"Inbox: remember must be a timedelta above zero, not {remember!r}")
        for option, given in (("id", id), ("verify", verify)):
            if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
                raise UsageError(f"Inbox: {option} must be a plain function, not {given!r}")
        if not isinstance(max_body, int) or max_body < 1:
            raise UsageError(f"Inbox: max_body must be a number of bytes, not {max_body!r}")
        self.remember = remember
        self.require_id = require_id
        self.id = id
        self.verify = verify
        self.max_body = max_body

    def partitions(self) -> list[Partition]:
        """One partition, which the worker opens in its store."""
        return [InboxPartition()]

    def describe(self) -> dict[str, Any]:
        return {"inbox": True}

    def __repr__(self) -> str:
        return "Inbox()"


class InboxPartition:
    """The whole inbox: its records are read in one order."""

    identity = "inbox"
    row_name = "record"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> Reader:
        """An inbox is a part of the store, which only a worker has.

        Raises:
            UsageError: always.
        """
        raise UsageError("an Inbox is read by a worker of its pipeline, not by itself")
