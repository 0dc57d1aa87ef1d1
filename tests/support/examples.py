"""The number of examples that a property is tried with: a fifth of them in ``make quick``."""

from __future__ import annotations

import os

IS_QUICK = "MILLWHEEL_QUICK_TESTS" in os.environ
SHARE = 5
LEAST = 10


def examples(count: int) -> int:
    return max(LEAST, count // SHARE) if IS_QUICK else count
