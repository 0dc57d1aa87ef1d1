"""How many examples and seeds tests draw, in `make test` and in `make soak`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, settings

from tests.support import examples as shares

SOAK = 1_000
"""From so many examples on a test is one of `make soak`."""


def examples(number: int, least: int = shares.LEAST) -> settings:
    """So many examples in `make soak`, a share of them in `make test`, but at least so many; from
    `SOAK` on new ones each time."""
    return settings(
        max_examples=number if number >= SOAK else shares.examples(number, least),
        deadline=None,
        derandomize=number < SOAK,
        suppress_health_check=list(HealthCheck),
    )


def seeds(few: int, many: int) -> list[ParameterSet]:
    """Seeds from 0 to `many`: the first `few` in `make test`, the others in `make soak`."""
    soak = pytest.mark.soak
    return [pytest.param(seed, marks=[] if seed < few else soak) for seed in range(many)]


def chosen(values: Iterable[Any], *quick: Any) -> list[ParameterSet]:
    """Values of a parameter: the named ones in `make test`, the others in `make soak`."""
    soak = pytest.mark.soak
    return [pytest.param(value, marks=[] if value in quick else soak) for value in values]
