"""Trees of weak productions: all descendants of a record, tracked by one number (decision 32).

A *stretch* is a set of tree computations that read from each other. Its *entry* is the computation
where a record enters from outside. The entry tracks each such record, a *root*, until the effects
of all its descendants are durable. Each delivery in the tree has an *edge*, a 63-bit hash of its
id, token and receiver. The root keeps the XOR of all edges that were reported so far::

    entry   the root has run; reports the edges of its outputs      a ^ b
    inside  delivery a has run, and has produced c and d            a ^ (c ^ d)
    leaf    the effects of delivery c are durable                   c

Both the sender and the receiver of a delivery report its edge. When no report is missing the XOR is
zero, in any order of the reports, and at no other time, even if deliveries or reports arrive twice
(decision 32). A report with XOR 0 means that a worker holds a delivery of the tree.

A root without a report for too long has lost a delivery or a report. Then the entry forgets the
root, and its record runs again under another token. The number of such replays in a period is
limited, and the time-out of a record doubles with each replay, so that replays do not make a slow
tree slower (Storm, "guaranteeing message processing").

This module only computes. `runtime/modes/tree_acks.py` sends, reports and reads the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import Any

from xxhash import xxh3_64_intdigest

from millwheel.core.model import Delivery
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.routes.destinations import ReceivingStep

COUNTER_BITS = 39
"""Bits of a token that count; the other 24 of 63 bits identify the worker. At 100,000 roots per
second the counter wraps after two months, when no older token is in use any more."""

_COUNTER_MASK = (1 << COUNTER_BITS) - 1
_EDGE_MASK = (1 << 63) - 1

REPLAYED_SHARE = 16
"""At most one in this number of a worker's roots is replayed in a period."""

REPLAYED_LEAST = 8
"""Maximum number of replays in a period if there are few roots."""

MOST_DOUBLINGS = 4
"""Maximum number of times that the time-out of a replayed root is doubled."""

_place = Struct(">Qq").pack


@lru_cache(maxsize=4096)
def owner_bits(worker: str) -> int:
    """The high bits of all tokens of a worker; two workers may have the same."""
    return _first_token(worker) >> COUNTER_BITS


def _first_token(worker: str) -> int:
    return xxh3_64_intdigest(worker.encode()) & _EDGE_MASK


def owner_of(token: int) -> int:
    """The `owner_bits` of the worker that tracks the root of a token."""
    return token >> COUNTER_BITS


def edge_of(id_: bytes, token: int, receiver: int) -> int:
    """The edge of a delivery: a different one for each output, reader, cell and attempt."""
    return xxh3_64_intdigest(id_ + _place(token, receiver)) & _EDGE_MASK


class Entry:
    """An interval as the entry of a stretch."""

    __slots__ = ("finish", "interval", "patience", "pending", "readers", "replayed", "tries")

    def __init__(
        self,
        interval: Interval,
        replay_seconds: float,
        readers: Iterable[ReceivingStep],
        finish: Callable[[list[Delivery[Any]]], None],
    ) -> None:
        self.interval = interval
        self.finish = finish
        """Called with the records of completed trees."""
        self.readers = list(readers)
        """The steps that read its productions."""
        self.patience = replay_seconds
        """Seconds without a report before the first replay of a root."""
        self.pending = 0
        """Number of roots with incomplete trees."""
        self.tries: dict[bytes, int] = {}
        """Replays of the records that are about to run again, by record id."""
        self.replayed = 0
        """Number of replays since `take_replayed`."""

    def has_room(self, limit: int) -> bool:
        """Whether the entry may send more (I8): fewer than `limit` trees are incomplete, and fewer
        than `limit` records are queued at each reader."""
        return self.pending < limit and all(
            destination.queued < limit for step in self.readers for destination in step.destinations
        )

    def noted(self, ids: Iterable[bytes]) -> None:
        """Forget the replays of records that have stored effects: a commit finishes these
        records."""
        if self.tries:
            for id_ in ids:
                self.tries.pop(id_, None)

    def take_replayed(self) -> int:
        replayed, self.replayed = self.replayed, 0
        return replayed


class Root:
    """A record with an incomplete tree."""

    __slots__ = ("cause", "entry", "reported_at", "tries", "xor")

    def __init__(
        self, entry: Entry, cause: Delivery[Any], xor: int, reported_at: float, tries: int
    ) -> None:
        self.entry = entry
        self.cause = cause
        self.xor = xor
        self.reported_at = reported_at
        """The time of the last report, in seconds that this worker was running (`TreeAcks`)."""
        self.tries = tries
        """Number of replays so far."""

    @property
    def patience(self) -> float:
        """Seconds without a report before a replay."""
        return self.entry.patience * (1 << min(self.tries, MOST_DOUBLINGS))


class Roots:
    """All roots that one worker tracks.

    Args:
        worker: the worker's id, which no earlier worker has had.
    """

    def __init__(self, worker: str) -> None:
        first = _first_token(worker)
        self._owner = first >> COUNTER_BITS
        self._counter = first & _COUNTER_MASK
        self._roots: dict[int, Root] = {}
        """The roots by token, the one with the oldest last report first."""
        self._least_patience = float("inf")

    def __len__(self) -> int:
        return len(self._roots)

    def next_token(self) -> int:
        """A new token, which no earlier root and no other worker uses."""
        self._counter = (self._counter + 1) & _COUNTER_MASK
        return self._owner << COUNTER_BITS | self._counter

    def begin(self, token: int, entry: Entry, cause: Delivery[Any], xor: int, now: float) -> None:
        """Track a record: its outputs are being sent, and `xor` is the XOR of their edges."""
        tries = entry.tries.pop(cause.id, 0) if entry.tries else 0
        self._roots[token] = Root(entry, cause, xor, now, tries)
        entry.pending += 1
        self._least_patience = min(self._least_patience, entry.patience)

    def add_report(self, token: int, xor: int, now: float) -> Root | None:
        """Add a report to the XOR of a root; gives the root if that completes its tree.

        An unknown token belongs to an abandoned attempt.
        """
        root = self._roots.pop(token, None)
        if root is None:
            return None
        root.xor ^= xor
        if xor and not root.xor:
            root.entry.pending -= 1
            return root
        root.reported_at = now
        self._roots[token] = root  # to the end of the order
        return None

    def overdue(self, now: float) -> list[Root]:
        """Forget roots without a report for too long, a limited number per call; the caller runs
        their records again."""
        roots = self._roots
        limit = max(REPLAYED_LEAST, len(roots) // REPLAYED_SHARE)
        found: list[int] = []
        for token, root in roots.items():
            silent = now - root.reported_at
            if silent <= self._least_patience or len(found) >= limit:
                break
            if silent > root.patience:
                found.append(token)
        return [self._give_up(token) for token in found]

    def _give_up(self, token: int) -> Root:
        root = self._roots.pop(token)
        entry = root.entry
        entry.pending -= 1
        entry.replayed += 1
        entry.tries[root.cause.id] = root.tries + 1
        return root

    def forget(self, entry: Entry) -> None:
        """Forget the roots of an interval that starts over or leaves: senders send its records
        again."""
        for token in [token for token, root in self._roots.items() if root.entry is entry]:
            del self._roots[token]
        entry.pending = 0
        entry.tries.clear()
