"""Brings all stored states to the present version of their types, beside workers that run.

Each value is migrated when it is read, so nothing depends on this: afterwards SQL shows every value
in the new form, and the migrations can go from the code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millwheel.core.model import SLOTS
from millwheel.errors import MigrationFailed, UsageError
from millwheel.graph.node import Node
from millwheel.pipeline import Pipeline
from millwheel.runtime.keys.stored_states import StoredParts
from millwheel.runtime.ownership.trial import has_migrations
from millwheel.store.console.old_states import (
    BEFORE_ALL,
    OldStates,
    StatePage,
    StatePlace,
    StoredValue,
    old_states,
)

SHOW_SECONDS = 5.0

SETTLE_SECONDS = 1.0
"""Pause before values are looked for again that were in use, or not folded yet."""

SETTLE_ATTEMPTS = 10


@dataclass
class MigratedStates:
    computations: int
    migrated: int = 0
    owned: int = 0
    """Values in intervals that former code may still own: they stay as they are."""
    to_fold: int = 0
    """Values that their owners have to fold first."""
    has_workers: bool = True
    """Whether a worker runs, which would fold them."""
    in_use: int = 0
    """Values that others wrote or held whenever they were looked at."""
    failed: int = 0
    first_failure: MigrationFailed | None = None
    share: float = 0.0
    """Share of the slots that were looked through, in this pass."""
    seconds: float = 0.0

    @property
    def left(self) -> int:
        """Without values that have failed to migrate."""
        return self.owned + self.to_fold + self.in_use


def migrate_states(
    pipeline: Pipeline,
    url: str,
    *,
    values_per_second: float,
    show: Callable[[MigratedStates], None] = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> MigratedStates:
    """Migrate stored states, each page of them in a transaction of its own; a call after an
    interrupted one finds the rest.

    Args:
        show: is called every `SHOW_SECONDS`.
        pause: waits for a number of seconds.

    Raises:
        UsageError: this code is not the deployed one, or the pipeline runs on Spark.
    """
    nodes = {
        node.name: node
        for node in pipeline.graph().nodes
        if node.computation is not None and has_migrations(node.computation)
    }
    if not nodes:
        return MigratedStates(0)
    with old_states(url, pipeline.name) as states:
        return _Migration(states, nodes, values_per_second, show, pause).run()


class _Migration:
    def __init__(
        self,
        states: OldStates,
        nodes: dict[str, Node],
        rate: float,
        show: Callable[[MigratedStates], None],
        pause: Callable[[float], None],
    ) -> None:
        self._states = states
        self._current = states.current(
            {name: node.computation.version for name, node in nodes.items() if node.computation}
        )
        self._parts = {
            of.computation: StoredParts(nodes[name]) for name, of in self._current.items()
        }
        self._rate = rate
        self._show = show
        self._pause = pause
        self._began = self._shown = time.monotonic()
        self._done = MigratedStates(len(nodes))

    def run(self) -> MigratedStates:
        """A pass leaves out values that are in use, so it is repeated until no value is left that
        can be migrated."""
        for attempt in range(SETTLE_ATTEMPTS):
            if attempt:
                self._pause(SETTLE_SECONDS)
            self._done.owned = self._done.failed = 0
            self._done.in_use = sum(map(self._migrate, self._pages()))
            self._done.to_fold = self._states.to_fold(list(self._current.values()))
            self._done.has_workers = self._states.has_workers()
            is_foldable = self._done.to_fold and self._done.has_workers
            if not self._done.in_use and not is_foldable:
                break
        self._done.seconds = time.monotonic() - self._began
        return self._done

    def _pages(self) -> Iterator[StatePage]:
        after: StatePlace | None = BEFORE_ALL
        while after is not None:
            page = self._states.page(list(self._current.values()), after)
            yield page
            after = page.last
            self._report(1.0 if after is None else after.slot / SLOTS)

    def _migrate(self, page: StatePage) -> int:
        """Returns the number of values that were in use."""
        began = time.monotonic()
        if page.found and not self._states.is_current():
            raise UsageError("other code was deployed in the meantime: repeat the command with it")
        free = [of for of in page.found if of.is_free]
        self._done.owned += len(page.found) - len(free)
        values = [found for of in free if (found := self._migrated(of)) is not None]
        migrated = self._states.replace(values)
        self._done.migrated += migrated
        self._pause(max(0.0, len(values) / self._rate - (time.monotonic() - began)))
        return len(values) - migrated

    def _migrated(self, of: StoredValue) -> tuple[StoredValue, bytes, int] | None:
        """None: the code does not read it, or the migration fails."""
        key, entry = of.place.key, of.place.entry
        part = self._parts[of.place.computation].of(key, entry)
        if part is None:
            return None
        try:
            return of, part.migrated(of.value, of.version, key, entry), part.version
        except MigrationFailed as error:
            self._done.failed += 1
            self._done.first_failure = self._done.first_failure or error
            return None

    def _report(self, share: float) -> None:
        self._done.share = share
        now = time.monotonic()
        if now - self._shown >= SHOW_SECONDS:
            self._done.seconds = now - self._began
            self._shown = now
            self._show(self._done)
