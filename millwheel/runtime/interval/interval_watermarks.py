"""The low watermarks of one interval: its input, its holds, and its output."""

from __future__ import annotations

from millwheel.core.model import MAX_TIME
from millwheel.runtime.interval.work import IntervalWork
from millwheel.store.port.claims import Claim
from millwheel.timers.holds import Holds


class IntervalWatermarks:
    """The low watermarks of an interval since its last claim."""

    def __init__(self, claim: Claim) -> None:
        self.input = claim.input_watermark
        """The low watermark that fires timers and that user code sees."""
        self.exact = claim.low_watermark
        """The input watermark that the output follows: after a claim it begins at the output."""
        self.promised = claim.low_watermark
        """Low watermark of the last commit built: the next one follows it or fails."""
        self.durable = claim.low_watermark
        """Low watermark of the last commit known to be durable."""
        self.holds = Holds()
        """Holds of timers and of un-ACKed records."""
        self.release: list[int] = []
        """Holds that the next commit releases: of fired timers, and of productions that it
        numbers."""
        self.state_holds = Holds()
        """Holds that user code has set (`Context.hold_watermark`)."""
        self.state_release: list[int] = []

    # -- the input moves ------------------------------------------------------------------

    def raise_input(self, watermark: int) -> None:
        """Promise that no later record on time is older than `watermark`."""
        self.exact = max(self.exact, watermark)
        self.input = max(self.input, watermark)

    def advance(self, watermark: int) -> bool:
        """Raise the input watermark; True: more may be promised than is stored."""
        self.raise_input(watermark)
        return self.has_news()

    # -- holds ----------------------------------------------------------------------------

    def keep_back(self, micros: int) -> None:
        """Hold the output at a production's timestamp until `let_up`: its user code still runs."""
        self.holds.add(micros)

    def let_up(self, micros: int) -> None:
        """Release a hold of `keep_back`: the production was dropped, or has its own hold in the
        log."""
        self.holds.remove(micros)

    def release_holds(self) -> None:
        """Release the holds that end with the commit being built."""
        for holds, release in (
            (self.holds, self.release),
            (self.state_holds, self.state_release),
        ):
            for hold in release:
                holds.remove(hold)
            release.clear()

    # -- the output -----------------------------------------------------------------------

    def output(self) -> int:
        """The low watermark that may be promised: min(input watermark, all holds), never
        decreasing.

        At the end of time the holds of user code do not count: no code can release them any more.
        """
        least = min(self.exact, self.holds.least())
        if least < MAX_TIME:
            least = min(least, self.state_holds.least())
        return max(self.promised, least)

    def has_news(self) -> bool:
        return self.output() > self.durable

    def promise(self, work: IntervalWork) -> None:
        """Set the highest possible low watermark of the commit being built."""
        self.release_holds()
        self.promised = work.low_watermark = self.output()

    def settled(self, work: IntervalWork) -> None:
        self.durable = work.low_watermark
