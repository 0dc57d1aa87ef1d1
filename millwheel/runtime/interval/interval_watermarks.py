"""The low watermarks of one interval: what comes in, what is held back, what may be promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.runtime.interval.work import IntervalWork
from millwheel.store.port import Claim
from millwheel.timers.holds import Holds
from millwheel.timers.percentile import Percentile


class IntervalWatermarks:
    """The low watermarks of an interval since its last claim.

    Args:
        percentiles: the percentile low watermarks that the computation keeps.
        percentile: the one that its timers and code go by; None: the exact low watermark.
    """

    def __init__(
        self, claim: Claim, percentiles: Iterable[float] = (), percentile: float | None = None
    ) -> None:
        self.input = claim.input_watermark
        """The low watermark that timers fire by and user code sees."""
        self.exact = claim.low_watermark
        """No record that is on time comes with an older timestamp; `input` is ahead of it where the
        computation goes by a percentile."""
        self.promised = claim.low_watermark
        """The low watermark of the last commit built: the next one follows it or fails."""
        self.durable = claim.low_watermark
        """The low watermark of the last commit known to be durable."""
        self.holds = Holds()
        """Holds of timers, and of sent records that are un-ACKed."""
        self.release: list[int] = []
        """Holds that the next commit takes away: of fired timers, and of productions that get their place
        in the log."""
        self.state_holds = Holds()
        """Holds that user code has set (`Context.hold_watermark`)."""
        self.state_release: list[int] = []
        """User code's holds that the next commit takes away."""
        self.percentiles = {
            each: Percentile(claim.percentiles.get(each, MIN_TIME), self.holds, self.state_holds)
            for each in percentiles
        }
        """Percentile low watermarks (decision 21)."""
        self._percentile = percentile

    # -- the input moves ------------------------------------------------------------------

    def raise_input(self, watermark: int) -> None:
        """Nothing on time comes in any more that is older than `watermark`."""
        self.exact = max(self.exact, watermark)
        self.input = max(self.input, watermark)

    def raise_percentile(self, percentile: float, watermark: int) -> None:
        """Few records come in any more that are older than `watermark`."""
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
        """Promise no more than this before `let_up`: user code has produced it, and is still running."""
        self.holds.add(micros)

    def let_up(self, micros: int) -> None:
        """The production stands in the log, or was dropped: it holds by itself, or no more."""
        self.holds.remove(micros)

    def release_holds(self) -> None:
        """Take away the holds that the commit being built takes away."""
        for holds, release in (
            (self.holds, self.release),
            (self.state_holds, self.state_release),
        ):
            for hold in release:
                holds.remove(hold)
            release.clear()

    # -- the output -----------------------------------------------------------------------

    def output(self) -> int:
        """What may be promised now: LW = min(IW, all holds), and never back.

        At the end of time, when the last timer has fired, nothing is left that could release the holds
        of user code.
        """
        least = min(self.exact, self.holds.least())
        if least < MAX_TIME:
            least = min(least, self.state_holds.least())
        return max(self.promised, least)

    def has_news(self) -> bool:
        """Whether more may be promised than is stored."""
        exact = self.output()
        return exact > self.durable or any(
            kept.output(exact) > kept.durable for kept in self.percentiles.values()
        )

    def promise(self, work: IntervalWork) -> None:
        """Promise as much as may be with the commit that is being built."""
        self.release_holds()
        self.promised = work.low_watermark = self.output()
        for percentile, kept in self.percentiles.items():
            kept.promised = work.percentiles[percentile] = kept.output(self.promised)

    def settled(self, work: IntervalWork) -> None:
        """A commit is durable, with its promises."""
        self.durable = work.low_watermark
        for percentile, watermark in work.percentiles.items():
            self.percentiles[percentile].durable = watermark
