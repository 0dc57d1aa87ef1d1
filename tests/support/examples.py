"""The number of examples that a property is tried with: all of them in ``make soak``, a third in
``make test``, a fifth in ``make quick``."""

from __future__ import annotations

import os

IS_QUICK = "MILLWHEEL_QUICK_TESTS" in os.environ
IS_SOAK = "MILLWHEEL_ALL_EXAMPLES" in os.environ
SHARE = 1 if IS_SOAK else 5 if IS_QUICK else 3
LEAST = 10


def examples(count: int, least: int = LEAST) -> int:
    """The number of examples now; `least` may be smaller where each one is a cluster."""
    return min(count, max(least, count // SHARE))
