"""Who is told of every effect in the store, in the moment in which it happens."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.errors import MillwheelError
from millwheel.runtime.network.frames import Acknowledge
from millwheel.store.port.buckets import Bucket
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit


class Watch:
    """Somebody who looks on; this one takes no notice."""

    def deployed(self) -> None:
        """The graph is stored, perhaps since long."""

    def committed(self, worker: str, commit: Commit, sent_at: float) -> None:
        """A commit took effect that its worker sent at a virtual time."""

    def claimed(self, worker: str, raised: Mapping[int, int], new_logs: Mapping[int, int]) -> None:
        """Sequencers were raised; nothing is read yet."""

    def took(self, worker: str, claims: list[Claim]) -> None:
        """What a claim has read."""

    def released(self, worker: str, intervals: list[int]) -> None:
        """Intervals were given up."""

    def split(self, interval: int, upper: int) -> None:
        """An interval was cut in two."""

    def merged(self, lower: int, upper: int, made: int) -> None:
        """Two intervals became one."""

    def folded(self, interval: int, through: int) -> None:
        """Commits of an interval were folded."""

    def retired(self, logs: list[int]) -> None:
        """Nobody needs to send anything of these logs any more."""

    def dropped(self, bucket: Bucket) -> None:
        """A bucket is gone."""

    def acknowledged(self, sender: str, frame: Acknowledge) -> None:
        """A worker tells another one that its records are durable."""

    def note(self, who: str, what: str) -> None:
        """Something worth a line."""

    def broken(self, what: str, error: MillwheelError) -> None:
        """The store says that an invariant is broken."""

    def fail(self, error: BaseException) -> None:
        """Something of the simulation itself went wrong, or a check did."""
        raise error
