"""Tools for testing pipelines.

`Harness` runs a pipeline step by step. `assert_exactly_once` runs it in many modes, with crashes
and takeovers; `assert_at_least_once` and `assert_at_most_once` do so for weaker guarantees.

`check_source` and `check_sink` check a source or a sink of your own against the rules that
the engine relies on.

The others use an in-memory store and a virtual clock that the test moves: no database, no sleeping.
"""

from millwheel.testing.contracts import check_sink, check_source
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
    "check_sink",
    "check_source",
    "inject",
]
