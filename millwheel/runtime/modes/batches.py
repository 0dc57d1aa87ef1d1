"""The numbered bundles of one interval: which is open, what is in it, what gathers (decision 30).

A bundle goes through two commits. The first one closes it: its number and the ids of its members, in
their order, are stored. Only then may `process_bundle` be called. The second one says that it
is delivered, and that its members are seen; only then are these acknowledged::

    GATHERING ──close──▶ CLOSING ──stored──▶ CLOSED ──deliver──▶ DELIVERING
        ▲                                       ▲                     │
        │                                   complete              delivered
        │                                       │                     ▼
        └───────────────stored──────────────────┼──────────────── DELIVERED
                                                │
    (claimed with an open bundle)           REPLAYING

* Whatever fails, the interval is claimed again, and begins with what is stored: GATHERING if the last
  bundle is delivered, else REPLAYING. So nobody but REPLAYING ever puts members together anew, and it
  takes those that are stored, each of them, in the stored order.
* Members, and what gathers behind them, are un-ACKed at their senders and in flight in
  `Dedup`: whoever has the interval next is sent all of them again.
* Of weak productions that may take for ever: nobody has stored them, and who makes them again has used
  up his credits, maybe, for records that wait here behind the bundle. So the commit that closes a bundle
  stores these members too, in the interval's own log, from which they are sent again.
* A bundle that is closed after the store may have lost commits gets a number above all that can have been
  given (`Numbering`); one that is stored as open keeps its number, and its members.
* One bundle is on its way at a time, so that numbers are delivered in their order.

No await, no clock, no store: the lane asks, and tells what has happened.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from millwheel.bundles import Bundles
from millwheel.errors import InvariantBroken
from millwheel.model import (
    NAME_BYTES,
    Delivery,
    digest_of,
    is_derived,
    log_and_number,
    name_of,
)
from millwheel.runtime.interval.dedup import another_value


class Phase(enum.Enum):
    """Where the newest bundle is."""

    GATHERING = "gathering"
    """Every bundle is delivered; records gather for the next one."""
    CLOSING = "closing"
    """It has its number and members; nobody knows yet that these are stored."""
    REPLAYING = "replaying"
    """An earlier owner, or an earlier try, closed it; some members have not come again."""
    CLOSED = "closed"
    """Its number and members are stored, and the members are here."""
    DELIVERING = "delivering"
    """User code has it."""
    DELIVERED = "delivered"
    """User code is through with it; nobody knows yet that this is stored."""


TRANSITIONS = {
    Phase.GATHERING: {"close": Phase.CLOSING, "claimed open": Phase.REPLAYING},
    Phase.CLOSING: {"stored": Phase.CLOSED},
    Phase.REPLAYING: {"complete": Phase.CLOSED},
    Phase.CLOSED: {"deliver": Phase.DELIVERING},
    Phase.DELIVERING: {"delivered": Phase.DELIVERED},
    Phase.DELIVERED: {"stored": Phase.GATHERING},
}


@dataclass(frozen=True)
class Refusal:
    """The store did not take what the delivery of a bundle wanted written."""

    number: int
    tries: int
    """How often it was refused while it stood alone in its commit, so that it was its own fault."""
    error: Exception


@dataclass(frozen=True)
class Numbering:
    """Which numbers bundles may get where the store may have lost some that were given (decision 40).

    A database elsewhere keeps the greatest number that it was given. If the store has lost that one,
    the next bundle must have a greater number, or its records would be left out there.
    """

    incarnation: str = ""
    """Of the store's server, shortened. Stored with the number of a bundle that was closed in it."""
    floor: int = 0
    """Every number that was given in another incarnation is less: microseconds since 1970, of which no
    interval closes a bundle each."""
    is_first: bool = True
    """The pipeline was deployed in this incarnation: an interval without bundles has had none."""


class Bundling:
    """The numbered bundles of one interval, since it was last claimed.

    Args:
        position: of the interval, as stored.
        numbering: what the next number depends on besides the last one.
        refusal: what is known of the bundle that is open, from before the claim.
        most_bytes: of the values of members that are stored with the bundle; one may be larger.
    """

    def __init__(
        self,
        limits: Bundles,
        position: Mapping[str, Any] | None,
        refusal: Refusal | None = None,
        *,
        most_bytes: int = 1 << 62,
        numbering: Numbering = Numbering(),
    ) -> None:
        stored = (position or {}).get("bundle", {})
        self._numbering = numbering
        first = numbering.incarnation if not stored and numbering.is_first else ""
        self._incarnation: str = stored.get("incarnation", first)
        """Where the newest bundle was closed: if it is not the present one, later numbers may be lost."""
        self._records = limits.records
        self._wait = int(limits.seconds * 1e6)
        self._most_bytes = most_bytes
        self.phase = Phase.GATHERING
        self.number: int = stored.get("number", 0)
        """Of the newest bundle; 0: there was none."""
        self.members: list[Delivery[Any]] = []
        """Of the bundle that is open, in its order."""
        self.kept = range(0)
        """Where those stand in the interval's log that this claim has stored there."""
        self.is_replay = "open" in stored
        """Its members were stored before this claim: the sink may have had it already."""
        self._missing: dict[bytes, Delivery[Any] | None] = {}
        """While replaying, the members by what tells them apart, in the stored order; None: not here
        yet."""
        self._gathered: deque[tuple[int, Delivery[Any]]] = deque()
        """Since when each waits, and the record, in the order in which they came."""
        self._stored_by: int | None = None
        """The number of the commit that first carries the last change of phase."""
        self._open: list[str] = []
        """Ids of the members as they are stored."""
        self.refusal: Refusal | None = None
        """Of the open bundle: it is committed alone from then on."""
        if self.is_replay:
            self._change("claimed open")
            self._open = stored["open"]
            self._missing = {name_of(bytes.fromhex(id_)): None for id_ in self._open}
            if refusal is not None and refusal.number == self.number:
                self.refusal = refusal

    def _change(self, event: str) -> None:
        """Move along the protocol.

        Raises:
            InvariantBroken: the event is illegal in this phase.
        """
        allowed = TRANSITIONS[self.phase]
        if event not in allowed:
            raise InvariantBroken(f"bundle {self.number}: {event!r} while {self.phase.value}")
        self.phase = allowed[event]
        self._stored_by = None

    # -- records ------------------------------------------------------------------

    def offer(self, deliveries: Iterable[Delivery[Any]], now: int) -> None:
        """Take records that nobody has seen, at wall time `now` (µs), in the order they came.

        Raises:
            NotTheSameAgain: a member was a weak production, and was made again with another value.
        """
        if self.phase is not Phase.REPLAYING:
            self._gathered.extend((now, delivery) for delivery in deliveries)
            return
        missing = self._missing
        for delivery in deliveries:
            name = name_of(delivery.id)
            if name in missing:
                if delivery.id.hex() not in self._open and self._says_otherwise(delivery):
                    raise another_value(delivery)
                missing[name] = delivery
            else:
                self._gathered.append((now, delivery))
        members = [delivery for delivery in missing.values() if delivery is not None]
        if len(members) == len(missing):
            self.members = members
            missing.clear()
            self._change("complete")

    @property
    def wants_more(self) -> bool:
        """Whether records that wait in the interval's queue have a place here.

        While members are missing any may be one; else more than a bundle's worth waits there.
        """
        return self.lacks_members or len(self._gathered) < self._records

    @property
    def lacks_members(self) -> bool:
        """Whether nothing goes on here before more has come."""
        return self.phase is Phase.REPLAYING

    def due_at(self) -> int | None:
        """When what gathers will have waited long enough (µs); None: nothing may be closed."""
        if self.phase is not Phase.GATHERING or not self._gathered:
            return None
        return self._gathered[0][0] + self._wait

    def is_due(self, now: int) -> bool:
        """Whether the next bundle is to be closed."""
        due = self.due_at()
        return due is not None and (due <= now or len(self._gathered) >= self._records)

    def _says_otherwise(self, delivery: Delivery[Any]) -> bool:
        """Whether a member that was made again differs from the one that the bundle was stored with.

        That one may be outside of the store already, whoever made it: no other takes its place.
        """
        stored = [bytes.fromhex(id_) for id_ in self._open]
        name, says = name_of(delivery.id), digest_of(delivery.id)
        return (name, says) not in [(name_of(id_), digest_of(id_)) for id_ in stored]

    # -- the way of a bundle --------------------------------------------------------

    def close(self) -> None:
        """Make a bundle of what came first."""
        self._change("close")
        if self._incarnation != self._numbering.incarnation:
            self.number = max(self.number, self._numbering.floor)
            self._incarnation = self._numbering.incarnation
        self.number += 1
        self.members = []
        size = 0
        while self._gathered and len(self.members) < self._records:
            member = self._gathered[0][1]
            size += member.size if is_derived(member.id) else 0
            if self.members and size > self._most_bytes:
                break
            self.members.append(self._gathered.popleft()[1])
        self._open = [member.id.hex() for member in self.members]
        self.kept = range(0)
        self.is_replay = False

    def deliver(self) -> None:
        """User code gets it: the first time, or again."""
        self._change("deliver")

    def delivered(self) -> None:
        """User code is through with it, or was given up on."""
        self._change("delivered")

    def to_keep(self) -> list[Delivery[Any]]:
        """Members that the commit being put together has to store, as nobody else does: it is the
        first one that carries their bundle, and they are weak productions."""
        if self.phase is not Phase.CLOSING or self._stored_by is not None:
            return []
        return [member for member in self.members if is_derived(member.id)]

    def position(self, n: int, *, delivers: bool) -> dict[str, Any]:
        """What commit `n` of the interval says of the bundles.

        Args:
            delivers: the commit carries what the delivery has left.
        """
        if self._stored_by is None and (self.phase is Phase.CLOSING or delivers):
            self._stored_by = n
        found: dict[str, Any] = {"number": self.number}
        if self._incarnation:
            found["incarnation"] = self._incarnation
        if self.phase is Phase.GATHERING or (
            self.phase is Phase.DELIVERED and self._stored_by is not None
        ):
            return found
        return {**found, "open": self._open}

    def settled(self, n: int) -> None:
        """Commit `n` of the interval is durable."""
        if self._stored_by is None or n < self._stored_by:
            return
        self._change("stored")
        if self.phase is Phase.GATHERING:
            self.members = []
            self._open = []
            self.refusal = None

    def refuse(self, error: Exception, *, alone: bool) -> None:
        """The commit that carried the delivery was refused for what user code wanted written.

        Args:
            alone: it carried nothing else.
        """
        tries = 0 if self.refusal is None else self.refusal.tries
        self.refusal = Refusal(self.number, tries + alone, error)

    @property
    def may_be_delivered(self) -> bool:
        """Whether the sink may be called."""
        return self.phase is Phase.CLOSED

    @property
    def is_under_way(self) -> bool:
        """Whether there is a bundle that can be delivered without anything from outside."""
        return self.phase not in (Phase.GATHERING, Phase.REPLAYING)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open, and nothing gathers."""
        return self.phase is Phase.GATHERING and not self._gathered

    def awaited(self) -> dict[int, int]:
        """Of each log that members are missing of, the greatest of their numbers. Those of weak
        productions and of user-supplied ids are not told."""
        found: dict[int, int] = {}
        for name, member in self._missing.items():
            if member is None and len(name) > NAME_BYTES:
                log, number = log_and_number(name)
                found[log] = max(found.get(log, 0), number)
        return found

    @property
    def missing(self) -> int:
        """Members that have not come again."""
        return sum(member is None for member in self._missing.values())


def encoded(position: dict[str, Any]) -> bytes:
    """The position of an interval whose records come in numbered bundles."""
    return msgspec.json.encode({"bundle": position})
