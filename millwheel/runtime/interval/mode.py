"""The mode of an interval's productions: one protocol, called at fixed points of a record's way.

Strong productions need no hooks: they go into the open commit, are numbered when it is built, and
are sent when it is durable. So `Mode` itself is the strong mode, and each hook does nothing. The
other modes are in `millwheel.runtime.modes` and override the hooks that they need::

    claim ──begin──▶ records are taken ──gather──▶ user code ──decided──▶ open commit
                                                                              │ join
      start_over ◀── a commit failed, or the interval leaves                  ▼
                                          acknowledged ◀──durable── commit on the wire
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millwheel.core.effects import Effects
from millwheel.core.model import Delivery
from millwheel.runtime.interval.work import IntervalWork, Item
from millwheel.runtime.keys.map_entries import Change
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit


class Mode:
    """Strong productions."""

    is_strong = True
    """Whether productions are committed with the state (strong production)."""
    is_tended = False
    """Whether the runner has to call `tend`."""
    gathers = False
    """Whether `gather` takes the records, instead of user code one by one."""
    may_keep_work = False
    """Whether the mode may keep decided work from the open commit, so that `decided` is called."""

    # -- restarts ---------------------------------------------------------------------

    def begin(self, claim: Claim) -> None:
        """The interval was claimed, for the first time or again: start from its stored state."""

    def start_over(self) -> None:
        """The interval's inputs run again, here or elsewhere: forget their results."""

    def resume(self) -> None:
        """The interval takes work again: its hand-over was cancelled."""

    # -- called by the runner -------------------------------------------------------------

    @property
    def wants_records(self) -> bool:
        """Whether the mode can take queued records now."""
        return True

    @property
    def needs_records(self) -> bool:
        """Whether the interval waits for certain records, so that it takes records without
        credits."""
        return False

    def has_room(self) -> bool:
        """Whether the mode lets more be sent, in addition to the credits of the logs (I8)."""
        return True

    def awaits_room_of(self, reader: int) -> bool:
        """Whether a full queue of a computation may have kept this interval from sending."""
        return False

    def gather(self, records: Sequence[Item], now: int) -> None:
        """Take records that dedup has passed; called if `gathers`."""

    def due_at(self) -> int | None:
        """Wall time when work of the mode becomes due, in microseconds; None: never."""
        return None

    def tend(self, now: int) -> None:
        """Start work that is due at wall time `now`; called before each look for records."""

    @property
    def busy_since(self) -> int | None:
        """When the bundle that is being delivered was closed, microseconds; None: none is."""
        return None

    @property
    def first_member(self) -> Delivery[Any] | None:
        """The first record of the bundle that is being delivered, for which the bundle can be
        recognized; None: none is."""
        return None

    @property
    def is_busy(self) -> bool:
        """Whether the mode has begun work that must be finished before the interval leaves."""
        return False

    @property
    def is_empty(self) -> bool:
        """Whether no work of the mode waits."""
        return True

    # -- from user code to the durable commit ------------------------------

    def decided(self, items: list[Item], effects: Effects, changes: list[Change]) -> bool:
        """User code has run on a key's items.

        Returns:
            Whether the open commit has to carry them; otherwise the mode is responsible for them.
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
        """Events that the mode has counted since the last call, by counter."""
        return {}

    def durable(self, work: IntervalWork) -> None:
        """A commit of the interval is durable."""

    def refused(self, work: IntervalWork, error: Exception, *, alone: bool) -> None:
        """The store has refused rows or statements of user code in a commit.

        Args:
            alone: the commit carried no work of other intervals.
        """

    def arrived(self, seqs: Iterable[int]) -> list[Delivery[Any]]:
        """Note ACKs of productions in the interval's newest log; gives inputs that are finished by
        them."""
        return []
