"""What an operator changes in a store by hand, as `millwheel.store.administration` does."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.store.generations import Generation, without
from millwheel.store.memory.tables import Tables


def pause(tables: Tables, injectors: Sequence[str]) -> None:
    """Let these rest, and no others."""
    tables.paused = set(injectors)


def remove(tables: Tables, names: list[str]) -> None:
    """Take nodes away, with all that is stored of them.

    Raises:
        UsageError: there is no such node, or one that stays needs it.
    """
    newest = tables.generations[-1]
    code = without(tables.pipeline, newest.code, names)
    tables.generations.append(Generation(newest.number + 1, code))
    for name in names:
        tables.computations[name].removed = True
    gone = {tables.computations[name].id for name in names}
    for row in [row for row in tables.intervals.values() if row.computation in gone]:
        tables.logs = {id_: log for id_, log in tables.logs.items() if log.interval_id != row.id}
        del tables.intervals[row.id]
    tables.state = {key: found for key, found in tables.state.items() if key[1] not in gone}
    tables.timers = {key: found for key, found in tables.timers.items() if key[1] not in gone}
