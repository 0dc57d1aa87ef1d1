"""How Hypothesis draws examples here."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SOAK = 1_000
"""From so many examples on a test is one of `make soak`."""


def examples(number: int) -> settings:
    """So many examples: the same ones each time in `make test`, new ones in `make soak`."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=number < SOAK,
        suppress_health_check=list(HealthCheck),
    )
