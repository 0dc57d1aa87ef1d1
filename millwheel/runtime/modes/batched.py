"""The mode of computations that receive their records in numbered bundles (decision 30)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from millwheel.core.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.mode import Mode
from millwheel.runtime.interval.work import IntervalWork, Item
from millwheel.runtime.modes.batch_execution import run_batch
from millwheel.runtime.modes.batches import Batches, Kept, Numbering, Phase, encoded
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit


class Batched(Mode):
    """Gathers records, stores the ids of a bundle, and then delivers the bundle to user code."""

    is_strong = False
    is_tended = True
    gathers = True

    def __init__(self, env: Environment, numbering: Numbering, interval: Interval) -> None:
        self._env = env
        self._numbering = numbering
        self._interval = interval
        self.batches: Batches

    def begin(self, claim: Claim) -> None:
        limits = self._interval.step.node.bundles
        assert limits is not None
        before = getattr(self, "batches", None)
        self.batches = Batches(
            limits,
            claim.position,
            None if before is None else before.refusal,
            most_bytes=self._env.settings.bundle_bytes,
            numbering=self._numbering,
        )

    # -- records ------------------------------------------------------------------------

    @property
    def wants_records(self) -> bool:
        return self.batches.wants_more

    @property
    def needs_records(self) -> bool:
        """Whether members are missing.

        Their stored copies may use up the interval's credits, so the bundle must not wait for
        credits.
        """
        return self.batches.lacks_members

    def gather(self, records: Sequence[Item], now: int) -> None:
        self.batches.offer(records, now)  # type: ignore[arg-type]  # no timers: there is no state

    # -- the protocol of a bundle ----------------------------------------------------------

    def due_at(self) -> int | None:
        return self.batches.due_at()

    def tend(self, now: int) -> None:
        """Close a due bundle, or deliver a stored one to user code."""
        interval, batches = self._interval, self.batches
        assert interval.lane is not None
        if batches.is_due(now) and not interval.leaving:
            batches.close(now)
            interval.lane.open_work(interval)
        elif batches.may_be_delivered:  # also while the interval leaves: its credits are taken
            batches.deliver()
            interval.lane.run_apart(interval, self._deliver)

    async def _deliver(self) -> None:
        """Run user code over the bundle; its effects go into one commit with the members' ids."""
        interval, batches, env = self._interval, self.batches, self._env
        if batches.is_replay:
            env.log.info(
                "bundle_again",
                interval=interval.name,
                scope=interval.id,
                number=batches.number,
                records=len(batches.members),
            )
        effects = await run_batch(env, interval, batches)
        batches.delivered(withheld=interval.step.withholds)
        assert interval.lane is not None
        work = interval.lane.open_work(interval, alone=batches.refusal is not None)
        work.delivers = True
        work.items += batches.members
        interval.watermarks.release += effects.held
        effects.held.clear()
        work.effects.take(effects)

    @property
    def first_member(self) -> Delivery[Any] | None:
        members = self.batches.members
        return members[0] if members and self.busy_since is not None else None

    @property
    def busy_since(self) -> int | None:
        return None if self.batches.phase is Phase.GATHERING else self.batches.closed_at

    @property
    def is_busy(self) -> bool:
        return self.batches.is_under_way

    @property
    def is_empty(self) -> bool:
        return self.batches.is_empty

    # -- commits ------------------------------------------------------------------------

    def join(self, commit: Commit, work: IntervalWork, stamp: int) -> None:
        commit.stragglers += self._keep_members(stamp)
        kept = self.batches.kept
        if work.delivers and kept is not None:
            for log in self._interval.logs:
                if log.id == kept.log:
                    log.settle(kept.numbers)

    def _keep_members(self, stamp: int) -> list[Delivery[Any]]:
        """Number copies of the bundle's weak members in the interval's own log, and return them.

        They are stored as productions from the interval to itself.
        """
        members = self.batches.to_keep()
        if not members:
            return []
        interval = self._interval
        log, promised = interval.log, interval.watermarks.promised
        first = log.next_seq
        copies = [
            structs.replace(member, log=log.id, seq=seq, hold=max(member.hold, promised))
            for seq, member in enumerate(members, first)
        ]
        holds = [copy.hold for copy in copies]
        size = sum(copy.size for copy in copies)
        end = first + len(copies)
        log.sent(end, min(holds), size, stamp)
        log.stored(copies)
        self.batches.kept = Kept(log.id, range(first, end))
        return copies

    def position(self, work: IntervalWork) -> bytes | None:
        return encoded(self.batches.position(self._interval.commits.n, delivers=work.delivers))

    def durable(self, work: IntervalWork) -> None:
        self.batches.settled(work.n)
        self._interval.wake()  # a stored bundle may be delivered, or the next one closed

    def refused(self, work: IntervalWork, error: Exception, *, alone: bool) -> None:
        if work.delivers:
            self.batches.refuse(error, alone=alone)
