"""Names that the lines of all aggregates may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millwheel.sql.accumulating.arithmetic import (
    combined,
    combined_pairs,
    numeric_add,
    square,
    with_pair,
    with_value,
)
from millwheel.sql.accumulating.plans import ZERO
from millwheel.sql.accumulating.row_order import precedes
from millwheel.sql.functions.composites.lists import compared
from millwheel.sql.functions.numbers.floats import narrowed

NAMES: Mapping[str, Any] = {
    "ZERO": ZERO, "numeric_add": numeric_add, "square": square, "narrowed": narrowed,
    "with_value": with_value, "combined": combined, "with_pair": with_pair,
    "combined_pairs": combined_pairs, "precedes": precedes, "compared": compared,
}  # fmt: skip
