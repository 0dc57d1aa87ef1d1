"""The mode of an interval's productions: one protocol, called at fixed points of a record's way.

Strong productions go into the open commit, are numbered when it is built, and are sent when it is
durable. So `Mode` itself is the strong mode, and each hook does nothing. The modes in
`millwheel.runtime.modes` override the hooks that they need::

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
    """Whether productions are committed with the state."""
    is_tended = False
    """Whether the runner has to call `tend`."""
    gathers = False
    """Whether `gather` takes the records, instead of user code one by one."""
    may_keep_work = False
    """Whether the mode may keep decided work from the open commit: `decided` is called."""

    # -- restarts ---------------------------------------------------------------------

    def begin(self, claim: Claim) -> None:
        """The interval was claimed (again): start from its stored state."""

    def start_over(self) -> None:
        """The interval's inputs run again, here or elsewhere: forget their results."""

    def resume(self) -> None:
        """The interval's hand-over was cancelled: it takes work again."""

    # -- called by the runner -------------------------------------------------------------

    @property
    def wants_records(self) -> bool:
        return True

    @property
    def needs_records(self) -> bool:
        """Whether it must take records without credits, as it waits for certain ones."""
        return False

    def has_room(self) -> bool:
        """Whether the mode lets more be sent, in addition to the credits of the logs (I8)."""
        return True

    def awaits_room_of(self, reader: int) -> bool:
        """Whether a full queue of a computation may have kept this interval from sending."""
        return False

    def gather(self, records: Sequence[Item], now: int) -> None:
        """Take records that dedup has passed, if `gathers`."""

    def due_at(self) -> int | None:
        """Wall time of the mode's next work, in microseconds; None: never."""
        return None

    def tend(self, now: int) -> None:
        """Start work due at wall time `now`; called before each look for records."""

    @property
    def busy_since(self) -> int | None:
        """When the bundle being delivered was closed, microseconds."""
        return None

    @property
    def first_member(self) -> Delivery[Any] | None:
        """The first record of the bundle being delivered, which identifies it."""
        return None

    @property
    def is_busy(self) -> bool:
        """Whether begun work must be finished before the interval leaves."""
        return False

    @property
    def is_empty(self) -> bool:
        return True

    # -- from user code to the durable commit ------------------------------

    def decided(self, items: list[Item], effects: Effects, changes: list[Change]) -> bool:
        """User code has run on a key's items.

        Returns:
            True: the open commit carries them; False: the mode is responsible for them.
        """
        return True

    def join(self, commit: Commit, work: IntervalWork, stamp: int) -> None:
        """Add the mode's rows to the commit being built."""

    def position(self, work: IntervalWork) -> bytes | None:
        """The mode's part of the stored position, as JSON."""
        return None

    def take_passed(self) -> int:
        """Inputs finished without a commit since the last call."""
        return 0

    def take_events(self) -> dict[str, int]:
        """Events counted since the last call, by counter."""
        return {}

    def durable(self, work: IntervalWork) -> None:
        """A commit of the interval is durable."""

    def refused(self, work: IntervalWork, error: Exception, *, alone: bool) -> None:
        """The store has refused rows or statements of user code in a commit.

        Args:
            alone: the commit carried no work of other intervals.
        """

    def arrived(self, seqs: Iterable[int]) -> list[Delivery[Any]]:
        """Note ACKs in the newest log; gives inputs that they finish."""
        return []
