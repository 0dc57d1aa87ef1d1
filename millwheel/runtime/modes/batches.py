"""The numbered bundles of one interval: the open bundle, its members, and the records that gather
for the next one (decision 30).

A bundle takes two commits. The first one closes it: it stores the bundle's number and the ids of
its members, in order. Only after it may `process_bundle` be called. The second commit stores that
the bundle is delivered and that its members are seen; only after it are the members acknowledged::

    GATHERING ──close──▶ CLOSING ──stored──▶ CLOSED ──deliver──▶ DELIVERING
        ▲                                       ▲                     │
        │                                   complete              delivered
        │                                       │                     ▼
        └───────────────stored──────────────────┼──────────────── DELIVERED
                                                │
    (claimed with an open bundle)           REPLAYING

* After any failure the interval is claimed again, and starts from its stored position: in GATHERING
  if the last bundle is delivered, otherwise in REPLAYING. Only REPLAYING assembles a bundle a
  second time, from all of the stored members, in the stored order.
* Members and gathered records are un-ACKed at their senders and in flight in `Dedup`: the next
  owner of the interval receives all of them again.
* Weak productions are an exception, as their senders do not store them. A sender that makes them
  again may have used up its credits for records that wait here behind the bundle, so that the
  members would never arrive. Therefore the commit that closes a bundle also stores its weak
  members, in the interval's own log, from which they are sent again. These copies use credits as
  well: the commit that delivers the bundle acknowledges them, also those of an earlier claim: its
  members may have come from their sender.
* A bundle that is closed after the store may have lost commits gets a number above all numbers that
  may have been given before (`Numbering`). A bundle that is stored as open keeps its number and its
  members.
* One bundle at a time is between closing and delivery, so that bundles are delivered in the order
  of their numbers.

This module has no await, no clock and no store: the lane asks it, and reports events to it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from millwheel.bundles import Bundles
from millwheel.core.model import (
    NAME_BYTES,
    Delivery,
    digest_of,
    is_derived,
    log_and_number,
    name_of,
)
from millwheel.runtime.process.state_table import next_state
from millwheel.runtime.seen.dedup import another_value


class Phase(enum.Enum):
    """The state of the newest bundle."""

    GATHERING = "gathering"
    """All bundles are delivered; records gather for the next one."""
    CLOSING = "closing"
    """The commit that stores the bundle's number and members is not known to be durable."""
    REPLAYING = "replaying"
    """The bundle was closed by an earlier owner or attempt; some members have not come again."""
    CLOSED = "closed"
    """The bundle's number and member ids are stored, and the members are here."""
    DELIVERING = "delivering"
    DELIVERED = "delivered"
    """User code has finished; the commit that stores its effects is not known to be durable."""


TRANSITIONS = {
    Phase.GATHERING: {"close": Phase.CLOSING, "claimed open": Phase.REPLAYING},
    Phase.CLOSING: {"stored": Phase.CLOSED},
    Phase.REPLAYING: {"complete": Phase.CLOSED},
    Phase.CLOSED: {"deliver": Phase.DELIVERING},
    Phase.DELIVERING: {"delivered": Phase.DELIVERED},
    Phase.DELIVERED: {"stored": Phase.GATHERING},
}


class Kept(NamedTuple):
    """Copies of a bundle's weak members, stored in a log of the interval."""

    log: int
    numbers: range


@dataclass(frozen=True)
class Refusal:
    """The store refused the effects of a bundle's delivery."""

    number: int
    """The number of the bundle."""
    tries: int
    """Refusals of commits that carried only this bundle, so that no other record was at fault."""
    error: Exception
    """The latest error of the store."""


@dataclass(frozen=True)
class Numbering:
    """Numbers for new bundles after the store may have lost some numbers (decision 40).

    An external database keeps the greatest number that it has received. If the store has lost that
    number, the next bundle needs a greater one; otherwise the database would skip its records.
    """

    incarnation: str = ""
    """The incarnation of the store's server, shortened; stored with the number of each bundle that
    is closed in it."""
    floor: int = 0
    """A number greater than all of other incarnations: the present time in microseconds since 1970,
    as no interval closes a bundle per microsecond."""
    is_first: bool = True
    """The pipeline was first deployed in this incarnation: an interval without a stored bundle has
    never had one."""


class Batches:
    """The numbered bundles of one interval since its last claim.

    Args:
        limits: the limits that the user has set for a bundle.
        refusal: the refusal of the open bundle, if it was refused before the claim.
        most_bytes: maximum total size of the values that are stored with a bundle, except that a
            single value may be larger.
        numbering: how numbers continue after the store may have lost some.
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
        """The incarnation in which the newest bundle was closed. If it is not the present one, the
        store may have lost later numbers."""
        self._records = limits.records
        self._wait = int(limits.seconds * 1e6)
        self._most_bytes = most_bytes
        self.phase = Phase.GATHERING
        self.number: int = stored.get("number", 0)
        """Number of the newest bundle; 0: there was none."""
        self.inherited: int = stored.get("inherited", 0)
        """The number above which this interval's own bundles begin: the newest one of those that it
        came from, or that were withheld."""
        self.previous: int = stored.get("previous", self.number - ("open" in stored))
        """Number of the newest bundle that is delivered."""
        self.closed_at: int = stored.get("at", 0)
        """When the open bundle was closed, microseconds."""
        self.members: list[Delivery[Any]] = []
        """Members of the open bundle, in order."""
        self.kept: Kept | None = None
        """Copies of the open bundle's members, whichever claim has stored them."""
        self.is_replay = "open" in stored
        """The bundle was closed before this claim: user code may have processed it already."""
        self._missing: dict[bytes, Delivery[Any] | None] = {}
        """While replaying, the members by the name part of their ids (`name_of`), in the stored
        order; None: not here yet."""
        self._gathered: deque[tuple[int, Delivery[Any]]] = deque()
        """Gathered records with the time since which each waits, in order of arrival."""
        self._stored_by: int | None = None
        """Number of the first commit that carries the latest phase; None: no commit does yet."""
        self._open: list[str] = []
        """Ids of the open bundle's members, in the stored form."""
        self.refusal: Refusal | None = None
        """The refusal of the open bundle, which is committed alone from then on."""
        if self.is_replay:
            self._change("claimed open")
            self._open = stored["open"]
            if "kept" in stored:
                log, first, end = stored["kept"]
                self.kept = Kept(log, range(first, end))
            self._missing = {name_of(bytes.fromhex(id_)): None for id_ in self._open}
            if refusal is not None and refusal.number == self.number:
                self.refusal = refusal

    def _change(self, event: str) -> None:
        self.phase = next_state(TRANSITIONS, self.phase, event, f"bundle {self.number}")
        self._stored_by = None

    # -- records ------------------------------------------------------------------

    def offer(self, deliveries: Iterable[Delivery[Any]], now: int) -> None:
        """Take new records, in order of arrival.

        Args:
            deliveries: records that dedup has let pass.
            now: wall time in microseconds.

        Raises:
            NotTheSameAgain: a member is a weak production, and was made again with another value.
        """
        if self.phase is not Phase.REPLAYING:
            self._gathered.extend((now, delivery) for delivery in deliveries)
            return
        missing = self._missing
        for delivery in deliveries:
            name = name_of(delivery.id)
            if name in missing:
                if delivery.id.hex() not in self._open and self._has_other_value(delivery):
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
        """Whether to take records from the interval's queue: until a whole bundle is gathered, and
        while members are missing, as any record may be one of them."""
        return self.lacks_members or len(self._gathered) < self._records

    @property
    def lacks_members(self) -> bool:
        """Whether the bundle waits for members that have not come again."""
        return self.phase is Phase.REPLAYING

    def due_at(self) -> int | None:
        """The wall time (µs) at which the next bundle must be closed; None: no bundle may be
        closed."""
        if self.phase is not Phase.GATHERING or not self._gathered:
            return None
        return self._gathered[0][0] + self._wait

    def is_due(self, now: int) -> bool:
        """Whether the next bundle must be closed, since it is old enough or has enough records."""
        if self._gathered and self._gathered[0][0] > now:  # the clock has gone back
            self._gathered[0] = (now, self._gathered[0][1])
        due = self.due_at()
        return due is not None and (due <= now or len(self._gathered) >= self._records)

    def _has_other_value(self, delivery: Delivery[Any]) -> bool:
        """Whether a member that was made again differs from the stored member of the same name.

        The stored member's value may have reached the external database already, so no other value
        may replace it.
        """
        stored = [bytes.fromhex(id_) for id_ in self._open]
        name, digest = name_of(delivery.id), digest_of(delivery.id)
        return (name, digest) not in [(name_of(id_), digest_of(id_)) for id_ in stored]

    # -- the protocol of a bundle -----------------------------------------------------

    def close(self, now: int) -> None:
        """Close the next bundle: give it its number and the oldest gathered records."""
        self._change("close")
        self.previous, self.closed_at = self.number, now
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
        self.kept = None
        self.is_replay = False

    def deliver(self) -> None:
        """User code gets the bundle, for the first time or again."""
        self._change("deliver")

    def delivered(self, *, withheld: bool = False) -> None:
        """User code has finished the bundle, or it was given up.

        Args:
            withheld: it was dropped: the next bundle is numbered as after the store has lost this
                one, and an external database that does not have it lacks nothing.
        """
        self._change("delivered")
        if withheld:
            self.inherited, self._incarnation = self.number, ""

    def to_keep(self) -> list[Delivery[Any]]:
        """The weak members, which their senders do not store, if the commit being built is the
        first that carries their bundle and so must store them."""
        if self.phase is not Phase.CLOSING or self._stored_by is not None:
            return []
        return [member for member in self.members if is_derived(member.id)]

    def position(self, n: int, *, delivers: bool) -> dict[str, Any]:
        """The bundles' part of the position that commit `n` stores.

        Args:
            delivers: the commit carries the effects of the delivery.
        """
        if self._stored_by is None and (self.phase is Phase.CLOSING or delivers):
            self._stored_by = n
        found: dict[str, Any] = {"number": self.number}
        if self.inherited:
            found["inherited"] = self.inherited
        if self._incarnation:
            found["incarnation"] = self._incarnation
        if self.phase is Phase.GATHERING or (
            self.phase is Phase.DELIVERED and self._stored_by is not None
        ):
            return found
        found |= {"open": self._open, "previous": self.previous, "at": self.closed_at}
        if self.kept is not None:
            found["kept"] = [self.kept.log, self.kept.numbers.start, self.kept.numbers.stop]
        return found

    def settled(self, n: int) -> None:
        if self._stored_by is None or n < self._stored_by:
            return
        self._change("stored")
        if self.phase is Phase.GATHERING:
            self.members = []
            self._open = []
            self.refusal = None

    def refuse(self, error: Exception, *, alone: bool) -> None:
        """The store refused the delivery's commit because of user code's effects.

        Args:
            alone: the commit carried only this delivery.
        """
        tries = 0 if self.refusal is None else self.refusal.tries
        self.refusal = Refusal(self.number, tries + alone, error)

    @property
    def may_be_delivered(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def is_under_way(self) -> bool:
        """Whether a bundle is open that can be delivered without further records."""
        return self.phase not in (Phase.GATHERING, Phase.REPLAYING)

    @property
    def is_empty(self) -> bool:
        """Whether no bundle is open and no record is gathered."""
        return self.phase is Phase.GATHERING and not self._gathered

    def awaited(self) -> dict[int, int]:
        """The greatest number of a missing member, by log, without weak and user-supplied ids."""
        found: dict[int, int] = {}
        for name, member in self._missing.items():
            if member is None and len(name) > NAME_BYTES:
                log, number = log_and_number(name)
                found[log] = max(found.get(log, 0), number)
        return found

    @property
    def missing(self) -> int:
        return sum(member is None for member in self._missing.values())


def encoded(position: dict[str, Any]) -> bytes:
    """Encode the position of an interval with numbered bundles."""
    return msgspec.json.encode({"bundle": position})
