"""The computations on departures: totals of an hour, and a model of an airport's usual delay.

They are pure functions and data, so that a batch run over the pane log can be compared with the
pipeline's results.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from examples.flights.replay import Flight
from millwheel.computations import Fold
from millwheel.windows import Pane

HOURS_TO_LEARN = 14
"""Number of panes of one hour of day before the model reports alerts: two weeks."""
FAR_OFF = 4.0
"""Number of usual deviations above the usual delay that causes an alert."""
LEAST_MINUTES = 20.0
"""Mean delay below which there is no alert, in minutes."""
MEMORY = 0.05
"""Weight of the newest pane in the model, which therefore covers about twenty days."""


class HourTotals(msgspec.Struct, frozen=True):
    """Departures planned for one hour, or another span of time, at one airport."""

    flights: int = 0
    cancelled: int = 0
    delay_minutes: int = 0
    """Sum of the known departure delays; early departures count negative."""
    delayed_15: int = 0

    @property
    def mean_delay(self) -> float | None:
        """Mean delay in minutes of the flights that departed; None if none did."""
        departed = self.flights - self.cancelled
        return self.delay_minutes / departed if departed else None


def add_flight(totals: HourTotals, flight: Flight) -> HourTotals:
    """The totals with one more departure."""
    delay = flight.dep_delay
    return HourTotals(
        totals.flights + 1,
        totals.cancelled + flight.cancelled,
        totals.delay_minutes + (delay or 0),
        totals.delayed_15 + (delay is not None and delay >= 15),
    )


def add_totals(one: HourTotals, other: HourTotals) -> HourTotals:
    """The sum of two totals."""
    return HourTotals(
        one.flights + other.flights,
        one.cancelled + other.cancelled,
        one.delay_minutes + other.delay_minutes,
        one.delayed_15 + other.delayed_15,
    )


departures: Fold[Flight, HourTotals, HourTotals] = Fold(
    HourTotals, add_flight, lambda totals: totals, HourTotals, add_totals
)


class Habit(msgspec.Struct):
    """The usual mean delay at one hour of day, and its usual deviation."""

    panes: int = 0
    mean: float = 0.0
    deviation: float = 0.0


class DelayModel(msgspec.Struct):
    """An airport's usual delays, by hour of day (UTC)."""

    hours: dict[int, Habit] = msgspec.field(default_factory=dict)


class DelayAlert(msgspec.Struct, frozen=True):
    """An hour with a mean delay far above the airport's usual one; a row of `delay_alert`."""

    origin: str
    hour: datetime
    pane: int
    mean_delay: float
    usual_delay: float


def watch(model: DelayModel, pane: Pane[HourTotals]) -> DelayAlert | None:
    """Compare a pane with the model, then update the model, except by amendments."""
    mean = pane.value.mean_delay
    if mean is None:
        return None
    habit = model.hours.setdefault(pane.start.hour, Habit())
    alert = None
    limit = max(LEAST_MINUTES, habit.mean + FAR_OFF * habit.deviation)
    if habit.panes >= HOURS_TO_LEARN and mean > limit:
        alert = DelayAlert(str(pane.key), pane.start, pane.number, mean, habit.mean)
    if pane.number == 0:
        weight = max(MEMORY, 1 / (habit.panes + 1))
        habit.deviation += weight * (abs(mean - habit.mean) - habit.deviation)
        habit.mean += weight * (mean - habit.mean)
        habit.panes += 1
    return alert
