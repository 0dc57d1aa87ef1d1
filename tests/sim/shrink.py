"""Makes a failing scenario smaller, as long as it fails by the same check."""

from __future__ import annotations

import time

from tests.sim.cluster import run
from tests.sim.scenario import Scenario, smaller
from tests.sim.violation import Violation


def violation_of(scenario: Scenario) -> Violation | None:
    """What a scenario violates, if it does."""
    try:
        run(scenario)
    except Violation as violation:
        return violation
    return None


def shrunk(scenario: Scenario, violation: Violation, seconds: float) -> tuple[Scenario, Violation]:
    """The smallest scenario that is found within so many seconds, and what it violates."""
    end = time.monotonic() + seconds
    while True:
        for less in smaller(scenario):
            if time.monotonic() > end:
                return scenario, violation
            found = violation_of(less)
            if found is not None and found.check == violation.check:
                scenario, violation = less, found
                break
        else:
            return scenario, violation
