"""The user code of a step: its context, its `process_record`, and the effects of its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from millwheel.computation import Computation
from millwheel.context import SPREAD, TIMERLESS, WEAK, Context, context_class
from millwheel.core.effects import Call, Effects
from millwheel.core.model import Record, Timer
from millwheel.runtime.environment import Wrap
from millwheel.runtime.interval.step import Step
from millwheel.runtime.keys.broadcast_tables import BroadcastTable, BroadcastTables
from millwheel.runtime.keys.key_state import KeyState
from millwheel.runtime.seen.weak_ids import WeakIds

Process = Callable[[Record[Any], Context[Any, Any]], Awaitable[None]]
"""The user's `process_record`, or a function around it."""

ProcessGroup = Callable[[Sequence[Record[Any]], Context[Any, Any]], Awaitable[None]]


class StepCode:
    """A step's user code, for one call after the other.

    Args:
        effects: receives the decisions of the code.
        wrap: puts code around the user code of weak computations (tests).
    """

    __slots__ = (
        "_wrap", "call", "computation", "context", "effects", "lineage", "process", "step",
        "together",
    )  # fmt: skip

    def __init__(self, step: Step, effects: Effects, *, wrap: Wrap | None = None) -> None:
        assert step.node.computation is not None
        self.step = step
        self.computation = step.node.computation
        self.effects = effects
        self.lineage = effects.lineage = WeakIds(step.id, step.run) if step.node.is_weak else None
        """Makes the ids of weak productions; None: its productions are strong."""
        self._wrap = wrap
        self.process = self._process()
        one_by_one = step.node.is_weak or step.node.at_most_once
        self.together = None if one_by_one else _together(self.computation)
        """The user's method for several records of a key; None: they come one by one, as for weak
        productions, whose ids are derived from a record."""
        self.call = Call(step.node.name, step.routes, effects)
        self.context = context_of(step, self.call)

    def renew(self) -> Context[Any, Any]:
        """Replace the context; gives the former one."""
        former, self.context = self.context, context_of(self.step, self.call)
        return former

    def begin(self, state: KeyState) -> None:
        """Prepare calls for a key."""

    def check(self) -> None:
        """Raises:
        UserCodeError: a call has changed an object that it shares with others.
        """

    def no_cause(self) -> None:
        """Productions from here on have no input record that weak ids could come from."""
        if self.lineage is not None:
            self.lineage.begin(None)

    async def process_timer(self, timer: Timer) -> None:
        self.call.micros = timer.micros
        self.no_cause()
        await self.computation.process_timer(timer, self.context)

    def _process(self) -> Process:
        node = self.step.node
        process: Process = self.computation.process_record
        if node.at_most_once and node.shown_names:
            process = _under_their_names(process, node.shown_names)
        if self._wrap is not None and node.is_weak:
            process = self._wrap(self.step, process, context_of, self.effects)
        if self.lineage is not None:
            process = _as_causes(process, self.lineage)
        return process


def _together(computation: Computation[Any, Any, Any, Any]) -> ProcessGroup | None:
    """The user's `process_group`, unless a class below it has a `process_record` of its own, which
    it would pass by."""
    for kind in type(computation).__mro__:
        if "process_group" in vars(kind):
            return computation.process_group
        if "process_record" in vars(kind):
            return None
    return None


class SharingCode(StepCode):
    """User code with keys that share tables, built from broadcast records."""

    __slots__ = ("_of_keys", "_table", "_tables", "_together_of_keys")

    def __init__(
        self, step: Step, effects: Effects, tables: BroadcastTables, *, wrap: Wrap | None = None
    ) -> None:
        super().__init__(step, effects, wrap=wrap)
        self._tables = tables
        self._table: BroadcastTable | None = None
        """The table that the present key shares; None: the key is a cell's own."""
        self._of_keys, self._together_of_keys = self.process, self.together

    def renew(self) -> Context[Any, Any]:
        self.call.share(self._table)  # code that has kept the former table changes no later record
        return super().renew()

    def begin(self, state: KeyState) -> None:
        """Select the table of the key's cell; for the cell's own key, code that changes the
        table."""
        if isinstance(state, BroadcastTable):
            self._table, self.process = None, self._process_broadcast
            self.together = None
        else:
            self._table, self.process = self._tables.of(state.slot), self._of_keys
            self.together = self._together_of_keys
        self.call.share(self._table)

    def check(self) -> None:
        if self._table is not None:
            self._table.check_unchanged()

    async def _process_broadcast(self, record: Record[Any], context: Context[Any, Any]) -> None:
        name = self.step.node.shown_names.get(record.stream, record.stream)
        shown = Record(record.key, record.value, record.micros, name)
        await self.computation.process_broadcast(shown, context.state)


def context_of(step: Step, call: Call) -> Context[Any, Any]:
    """A context that offers less where the code's output must not depend on the time of the run."""
    node = step.node
    assert node.computation is not None
    refusals = []
    if node.is_spread:
        refusals.append(SPREAD)
    elif not node.computation.defines("process_timer"):
        refusals.append(TIMERLESS)
    if node.is_weak and not node.computation.order_insensitive:
        refusals.append(WEAK)
    return context_class(*refusals)(call)


def _as_causes(process: Process, lineage: WeakIds) -> Process:
    def registered(record: Record[Any], context: Context[Any, Any]) -> Awaitable[None]:
        lineage.begin(record)  # type: ignore[arg-type]
        return process(record, context)

    return registered


def _under_their_names(process: Process, names: Mapping[str, str]) -> Process:
    """Show records that arrive by a relay under the name of the stream that the user reads."""

    def shown(record: Record[Any], context: Context[Any, Any]) -> Awaitable[None]:
        name = names.get(record.stream, record.stream)
        return process(Record(record.key, record.value, record.micros, name), context)

    return shown
