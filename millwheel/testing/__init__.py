"""For testing pipelines: `Harness` runs one step by step, `assert_exactly_once` in every way (and
its sisters, where less is promised).

Both use a store in memory and a clock that the test moves: no database, no sleeping.
"""

from millwheel.testing.exactly_once import (
    assert_at_least_once,
    assert_at_most_once,
    assert_exactly_once,
)
from millwheel.testing.harness import Harness
from millwheel.testing.script import advance, inject

__all__ = [
    "Harness",
    "advance",
    "assert_at_least_once",
    "assert_at_most_once",
    "assert_exactly_once",
    "inject",
]
