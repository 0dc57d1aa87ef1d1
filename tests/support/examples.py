"""The number of examples that a property is tried with: all of them in ``make soak``, a fifth in
``make test`` and ``make quick``."""

from __future__ import annotations

import os

IS_SOAK = "MILLWHEEL_ALL_EXAMPLES" in os.environ
SHARE = 1 if IS_SOAK else 5
LEAST = 10


def examples(count: int, least: int = LEAST) -> int:
    """The number of examples now; `least` may be smaller where each one is a cluster."""
    return min(count, max(least, count // SHARE))
