"""Trees of weak productions: what came of a record, held together by one number.

An *entry* of a stretch tracks each record that comes from outside, its *root*, until everything
that came of it is durable. Every delivery in the tree has an *edge*, 63 bits drawn from what it is.
The root keeps the XOR of all edges that were told so far::

    entry   begins with the edges of the root's outputs          a ^ b
    inside  a delivery has run, and gave others                  a ^ (c ^ d)
    leaf    the effects of a delivery are durable                c

Each edge is told by who sends and by who receives: when nothing is lacking the XOR is zero, in
whatever order they came. It is zero at no other time, even if things come twice (decision 32). A
report of nothing, XOR 0, says that a delivery of the tree is in good hands: it may take long.

A root of which nothing was heard for too long has lost something on the way. It is forgotten and
its record runs again, under another token. That is done for few at a time, and for the same record
ever more seldom, so that what is only slow is not made slower by replays (Storm, guaranteeing
message processing).

All this is about numbers: who sends, reports and asks for the time is in `runtime/modes/tree_acks.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from millwheel.model import Delivery

if TYPE_CHECKING:
    from millwheel.runtime.interval.interval import Interval
    from millwheel.runtime.interval.routing import Step

COUNTER_BITS = 39
"""Of a token: the rest of 63 tells whose it is. At 100,000 roots a second it takes two months to
come round, and then collides with nothing that is still on its way."""

_COUNTER_MASK = (1 << COUNTER_BITS) - 1
_EDGE_MASK = (1 << 63) - 1

REPLAYED_SHARE = 16
"""Of a worker's roots, one in so many may be replayed in a period."""

REPLAYED_LEAST = 8
"""Or so many, where there are few roots."""

MOST_DOUBLINGS = 4
"""Of the patience with a root that was replayed again and again."""

_place = Struct(">Qq").pack


@lru_cache(maxsize=4096)
def owner_bits(worker: str) -> int:
    """What the tokens of a worker begin with; two workers may have the same."""
    return _first_token(worker) >> COUNTER_BITS


def _first_token(worker: str) -> int:
    return xxh3_64_intdigest(worker.encode()) & _EDGE_MASK


def owner_of(token: int) -> int:
    """The `owner_bits` of the worker that tracks the root of a token."""
    return token >> COUNTER_BITS


def edge_of(id_: bytes, token: int, receiver: int) -> int:
    """The edge of a delivery: its own for each output, reader, cell and attempt."""
    return xxh3_64_intdigest(id_ + _place(token, receiver)) & _EDGE_MASK


class Entry:
    """An interval as the entry of a stretch."""

    __slots__ = ("interval", "patience", "pending", "readers", "replayed", "tries")

    def __init__(self, interval: Interval, replay_seconds: float, readers: Iterable[Step]) -> None:
        self.interval = interval
        self.readers = list(readers)
        """Who gets what it passes on."""
        self.patience = replay_seconds
        """With a root that was not replayed yet, in seconds."""
        self.pending = 0
        """Roots whose trees are not done."""
        self.tries: dict[bytes, int] = {}
        """How often a record was replayed that is about to run again, by its id."""
        self.replayed = 0
        """Replays since the last commit."""

    def has_room(self, most: int) -> bool:
        """Whether more may be passed on: while many trees are not done, or much is queued at a
        reader, the rest waits where it is (I8)."""
        return self.pending < most and all(
            destination.queued < most for step in self.readers for destination in step.destinations
        )

    def noted(self, ids: Iterable[bytes]) -> None:
        """These records have effects of their own: a commit stands for them."""
        if self.tries:
            for id_ in ids:
                self.tries.pop(id_, None)

    def take_replayed(self) -> int:
        """Replays since this was asked last."""
        replayed, self.replayed = self.replayed, 0
        return replayed


class Root:
    """A record whose tree is not done."""

    __slots__ = ("cause", "entry", "heard", "tries", "xor")

    def __init__(
        self, entry: Entry, cause: Delivery[Any], xor: int, heard: float, tries: int
    ) -> None:
        self.entry = entry
        self.cause = cause
        self.xor = xor
        self.heard = heard
        """When it was last told of, in seconds of the worker's attention."""
        self.tries = tries
        """How often it was replayed."""

    @property
    def patience(self) -> float:
        """How long it may not be told of, in seconds."""
        return self.entry.patience * (1 << min(self.tries, MOST_DOUBLINGS))


class Roots:
    """All roots that one worker tracks.

    Args:
        worker: its id; the one of no worker before it.
    """

    def __init__(self, worker: str) -> None:
        first = _first_token(worker)
        self._owner = first >> COUNTER_BITS
        self._counter = first & _COUNTER_MASK
        self._roots: dict[int, Root] = {}
        """By token, those first of which was not heard for the longest time."""
        self._least_patience = float("inf")

    def __len__(self) -> int:
        return len(self._roots)

    def next_token(self) -> int:
        """A token that no root had before, and no root of another worker has."""
        self._counter = (self._counter + 1) & _COUNTER_MASK
        return self._owner << COUNTER_BITS | self._counter

    def begin(self, token: int, entry: Entry, cause: Delivery[Any], xor: int, now: float) -> None:
        """A record's outputs are on their way; `xor` is that of their edges."""
        tries = entry.tries.pop(cause.id, 0) if entry.tries else 0
        self._roots[token] = Root(entry, cause, xor, now, tries)
        entry.pending += 1
        self._least_patience = min(self._least_patience, entry.patience)

    def hear(self, token: int, xor: int, now: float) -> Root | None:
        """Something of a root was told; gives the root if its tree is done by that.

        A token that nobody knows is of an attempt that counts for nothing any more.
        """
        root = self._roots.pop(token, None)
        if root is None:
            return None
        root.xor ^= xor
        if xor and not root.xor:
            root.entry.pending -= 1
            return root
        root.heard = now
        self._roots[token] = root  # behind the others
        return None

    def overdue(self, now: float) -> list[Root]:
        """Roots that must have lost something, a few at a time: they are forgotten, and their
        records are to run again."""
        roots = self._roots
        most = max(REPLAYED_LEAST, len(roots) // REPLAYED_SHARE)
        found: list[int] = []
        for token, root in roots.items():
            silent = now - root.heard
            if silent <= self._least_patience or len(found) >= most:
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
        """The interval starts over, or is not here any more: its records come again by themselves."""
        for token in [token for token, root in self._roots.items() if root.entry is entry]:
            del self._roots[token]
        entry.pending = 0
        entry.tries.clear()
