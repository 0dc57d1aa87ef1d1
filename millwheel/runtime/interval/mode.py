"""The mode of an interval's productions: one protocol, called at fixed points of a record's way.

Strong productions need none of it: they go into the open commit, are numbered when that is built, and
are sent when it is durable. So `Mode` itself is the strong mode, and each hook does nothing. The other
modes stand in `millwheel.runtime.modes` and override the hooks that they need::

    claim ──begin──▶ records are taken ──gather──▶ user code ──decided──▶ open commit
                                                                              │ join
      start_over ◀── a commit failed, or the interval leaves                  ▼
                                          acknowledged ◀──durable── commit on the wire
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millwheel.context import Effects
from millwheel.model import Delivery
from millwheel.runtime.interval.map_entries import Change
from millwheel.runtime.interval.work import IntervalWork, Item
from millwheel.store.port import Claim, Commit


class Mode:
    """Strong productions."""

    is_tended = False
    """`tend` has something to do."""
    gathers = False
    """Records are not run one by one: `gather` takes them."""

    # -- restarts ---------------------------------------------------------------------

    def begin(self, claim: Claim) -> None:
        """The interval was claimed, for the first time or again: start from what is stored."""

    def start_over(self) -> None:
        """The interval's inputs run again, here or elsewhere: forget what came of them."""

    def resume(self) -> None:
        """The interval takes work again: its hand-over was cancelled."""

    # -- the runner asks -------------------------------------------------------------

    @property
    def wants_records(self) -> bool:
        """Whether records that wait in the queue have a place."""
        return True

    @property
    def needs_records(self) -> bool:
        """Whether the interval waits for certain records, so that it takes records without credits."""
        return False

    def has_room(self) -> bool:
        """Whether more may be sent, besides what the credits of the logs say (I8)."""
        return True

    def awaits_room_of(self, reader: int) -> bool:
        """Whether a full queue of a computation may have kept this interval from sending."""
        return False

    def gather(self, records: Sequence[Item], now: int) -> None:
        """Take records that dedup has let pass, where `gathers`."""

    def due_at(self) -> int | None:
        """When the wall clock makes something due, in microseconds."""
        return None

    def tend(self, now: int) -> None:
        """Start what is due at wall time `now`; called before each look for records."""

    @property
    def is_busy(self) -> bool:
        """Whether something of the mode has begun that the interval has to finish before it leaves."""
        return False

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the mode waits."""
        return True

    # -- code has decided, the commit is built, it is durable ------------------------------

    def decided(self, items: list[Item], effects: Effects, changes: list[Change]) -> bool:
        """User code has run on a key's items.

        Returns:
            Whether the open commit has to note them; otherwise the mode vouches for them.
        """
        return True

    def join(self, commit: Commit, work: IntervalWork, stamp: int) -> None:
        """Add the mode's rows to the commit that is being built."""

    def position(self, work: IntervalWork) -> bytes | None:
        """The mode's part of the interval's stored position, as JSON."""
        return None

    def take_passed(self) -> int:
        """Inputs that were finished without a commit since the last call."""
        return 0

    def take_events(self) -> dict[str, int]:
        """What the mode has counted since the last call, by counter."""
        return {}

    def durable(self, work: IntervalWork) -> None:
        """A commit of the interval is durable."""

    def refused(self, work: IntervalWork, error: Exception, *, alone: bool) -> None:
        """The store has refused what user code wanted written in a commit.

        Args:
            alone: the commit carried nothing of other intervals.
        """

    def arrived(self, seqs: Iterable[int]) -> list[Delivery[Any]]:
        """Productions in the interval's newest log were acknowledged; gives inputs that are finished
        by that."""
        return []
