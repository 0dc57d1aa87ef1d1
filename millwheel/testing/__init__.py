"""Tools for testing pipelines: an in-memory store and a virtual clock, no database, no sleeping.

`Harness` runs a pipeline step by step, and `frame` shows what it produced as a table;
`assert_exactly_once` runs it in many modes, with crashes and takeovers. `check_source` and
`check_sink` check a source or sink of your own against the rules that the engine relies on. `fork`
copies a pipeline that runs elsewhere, for a test of new code on its state: that one needs a store.
"""

from millwheel.testing.contracts import check_sink, check_source
from millwheel.testing.copied_pipeline import Fork, fork
from millwheel.testing.exactly_once import (
    assert_at_least_once,
    assert_at_most_once,
    assert_exactly_once,
)
from millwheel.testing.frames import frame
from millwheel.testing.harness import Harness
from millwheel.testing.script import advance, inject

__all__ = [
    "Fork",
    "Harness",
    "advance",
    "assert_at_least_once",
    "assert_at_most_once",
    "assert_exactly_once",
    "check_sink",
    "check_source",
    "fork",
    "frame",
    "inject",
]
