"""The low watermarks of one interval: its input, its holds, and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.runtime.interval.work import IntervalWork
from millwheel.store.port import Claim
from millwheel.timers.holds import Holds
from millwheel.timers.percentile import Percentile


class IntervalWatermarks:
    """The low watermarks of an interval since its last claim.

    Args:
        percentiles: the percentile low watermarks that the computation keeps.
        percentile: the percentile that its timers and code use; None: the exact low watermark.
    """

    def __init__(
        self, claim: Claim, percentiles: Iterable[float] = (), percentile: float | None = None
    ) -> None:
        self.input = claim.input_watermark
        """The low watermark that timers fire by and user code sees."""
        self.exact = claim.low_watermark
        """The exact input watermark: no record on time arrives with an older timestamp. `input` is
        ahead of it if the computation uses a percentile."""
        self.promised = claim.low_watermark
        """The low watermark of the last commit built: the next one follows it or fails."""
        self.durable = claim.low_watermark
        """The low watermark of the last commit known to be durable."""
        self.holds = Holds()
        """Holds of timers, and of sent records that are un-ACKed."""
        self.release: list[int] = []
        """Holds that the next commit releases: of fired timers, and of productions that get their
        number in the log."""
        self.state_holds = Holds()
        """Holds that user code has set (`Context.hold_watermark`)."""
        self.state_release: list[int] = []
        """Holds of user code that the next commit releases."""
        self.percentiles = {
            each: Percentile(claim.percentiles.get(each, MIN_TIME), self.holds, self.state_holds)
            for each in percentiles
        }
        """Percentile low watermarks (decision 21)."""
        self._percentile = percentile

    # -- the input moves ------------------------------------------------------------------

    def raise_input(self, watermark: int) -> None:
        """Raise the exact input watermark: no later record on time is older than `watermark`."""
        self.exact = max(self.exact, watermark)
        self.input = max(self.input, watermark)

    def raise_percentile(self, percentile: float, watermark: int) -> None:
        """Raise a percentile input watermark: few later records are older than `watermark`."""
        kept = self.percentiles[percentile]
        kept.input = max(kept.input, watermark)
        if self._percentile == percentile:
            self.input = max(self.input, watermark)

    def advance(self, watermark: int, early: Callable[[float], int | None]) -> bool:
        """Raise the exact low watermark, and each percentile one as far as `early` says.

        Returns:
            Whether more may be promised than is stored.
        """
        self.raise_input(watermark)
        for percentile in self.percentiles:
            if (value := early(percentile)) is not None:
                self.raise_percentile(percentile, value)
        return self.has_news()

    # -- holds ----------------------------------------------------------------------------

    def keep_back(self, micros: int) -> None:
        """Hold the output at a production's timestamp until `let_up`: its user code is still
        running."""
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
        """The low watermark that may be promised now: min(input watermark, all holds), never
        decreasing.

        At the end of time the holds of user code do not count: the last timer has fired, so no code
        can release them.
        """
        least = min(self.exact, self.holds.least())
        if least < MAX_TIME:
            least = min(least, self.state_holds.least())
        return max(self.promised, least)

    def has_news(self) -> bool:
        """Whether a higher low watermark may be promised than the stored one."""
        exact = self.output()
        return exact > self.durable or any(
            kept.output(exact) > kept.durable for kept in self.percentiles.values()
        )

    def promise(self, work: IntervalWork) -> None:
        """Set the low watermarks that the commit being built promises: the highest possible
        ones."""
        self.release_holds()
        self.promised = work.low_watermark = self.output()
        for percentile, kept in self.percentiles.items():
            kept.promised = work.percentiles[percentile] = kept.output(self.promised)

    def settled(self, work: IntervalWork) -> None:
        """Note that a commit is durable, with the low watermarks that it promises."""
        self.durable = work.low_watermark
        for percentile, watermark in work.percentiles.items():
            self.percentiles[percentile].durable = watermark
