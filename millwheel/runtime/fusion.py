"""Fused stages: neighbouring weak computations on one key run back to back (decision 33).

A record of key k runs through A; what A produces for B under k runs through B at once, inside A's
execution, and what B produces stands in A's ACK chain under the ids that it would have had::

    input ─ A ─┬─ another key, another reader ─────────────────▶ numbered in A's log, sent
               └─ same key, B fusable and here, nothing of it on the other way
                    │
                    B ─┬─ done ─▶ each output as if A had made it: C behind B, or A's log
                       └─ raises, or wants something stored ─▶ thrown away; A's output goes to B's
                                                               queue, and B is fused no more:
                                                               of no key, each once it may change
                                                               its way (`two_ways.py`)

B runs here without its state cache, dedup, commit and log: it is only fused where it needs none of
them. Its key is taken (`Interval.backlog`) as its own lane would take it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from millwheel.context import Context, Effects
from millwheel.errors import UserCodeError
from millwheel.graph import Node
from millwheel.model import Delivery, Key
from millwheel.runtime.ack_chain import Caused
from millwheel.runtime.interval import Interval
from millwheel.runtime.late_use import LateUses
from millwheel.runtime.lineage import Lineage
from millwheel.runtime.step import Step
from millwheel.runtime.tasks import in_own_task, is_ours, raise_ours
from millwheel.runtime.user_code import Process, context_of, process_of

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine


def is_fusable(node: Node) -> bool:
    """Whether a node's code can run behind another's: it is weak, which those with numbered bundles
    are not, and keeps and writes nothing.

    Steps that are acknowledged by trees keep nothing of what they send, and are left as they are.
    """
    return (
        node.is_weak
        and not node.is_tree
        and node.computation is not None
        and node.layout is not None
        and node.layout.stateless
        and not node.cells
        and not node.is_spread
        and not node.sinks
        and not node.at_most_once
    )


class Fusion:
    """Which steps of an engine are fused."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._behind: dict[int, dict[int, Step]] = {}
        """By step, those behind it that can be fused, or could."""
        self._parted: set[int] = set()
        """Those that are not fused any more: of some keys, what was is still on its way."""

    def connect(self, steps: Iterable[Step]) -> None:
        """Find out who can run behind whom; once, when the graph is known."""
        if not self._engine.settings.fuse:
            return
        for step in steps:
            if step.node.is_weak and not step.node.is_tree:
                readers = [r for route in step.routes.values() for r in route.readers]
                self._behind[step.id] = {
                    reader.step.id: reader.step
                    for reader in readers
                    if is_fusable(reader.step.node)
                    and not reader.step.fleeting  # what is sent at most once is stored as an effect
                }

    def behind(self, step: Step) -> dict[int, Step]:
        """The steps that can be fused behind one, or could, by id."""
        return self._behind.get(step.id, {})

    def part(self, step: Step, reason: str) -> None:
        """A step is not fused any more, until the process ends."""
        self._parted.add(step.id)
        self._engine.log.info("not_fused_any_more", computation=step.name, reason=reason)

    def is_parted(self, step: Step) -> bool:
        """Whether a step is not fused any more."""
        return step.id in self._parted

    def passing(self, interval: Interval) -> Passing | None:
        """For one execution: what runs behind an interval's code, or has run and is to be waited
        for; None: nothing."""
        chain = interval.chain
        for id_ in self.behind(interval.step):
            assert chain is not None
            if id_ not in self._parted or not chain.ways.is_clear_of(id_):
                return Passing(self._engine, interval)
        return None


class NoState:
    """The key of a computation that keeps nothing."""

    __slots__ = ("key", "key_text", "slot")

    key: Key
    key_text: bytes
    slot: int

    def open_state(self) -> None:
        """There is none."""

    def replace_state(self, state: Any) -> None:
        """None may be put in the place of None."""
        if state is not None:
            raise UserCodeError(f"the computation keeps no state: {state!r:.80}")


class Stage:
    """A step as one execution runs it behind another."""

    __slots__ = ("cell", "context", "effects", "lineage", "process", "step")

    def __init__(self, step: Step, keeper: Interval, *, run_twice: bool) -> None:
        self.step = step
        self.effects = Effects()
        self.effects.keeper = keeper
        self.lineage = self.effects.lineage = Lineage(step.id, step.run)
        self.context: Context[Any, Any] = context_of(step, self.effects)
        self.cell = NoState()
        self.process: Process = process_of(step, self.effects, run_twice=run_twice)

    def renew_context(self, late_uses: LateUses) -> None:
        """End the context of the last call, and make another one for the next."""
        late_uses.end(self.context)
        self.context = context_of(self.step, self.effects)


class Passing:
    """Runs what stands behind one interval's code, for one execution.

    Not shared between tasks, as the execution is not.
    """

    __slots__ = ("_apart", "_engine", "_interval", "_now", "_promised", "_queued", "_stages")

    def __init__(self, engine: Engine, interval: Interval) -> None:
        self._engine = engine
        self._interval = interval
        self._stages: dict[int, Stage] = {}
        self._queued: set[int] = set()
        """Steps to which something of the key goes by the queue, and is not sent yet."""
        self._promised = self._now = 0
        self._apart = False

    def begin(self, now: int, *, apart: bool) -> None:
        """The next key's turn: what the one before has made is sent.

        Args:
            apart: each piece of code runs in a task of its own.
        """
        self._apart = apart
        self._promised = self._interval.promised
        self._now = now
        self._queued.clear()

    async def go_on(self, cause: Delivery[Any], effects: Effects, mark: int) -> None:
        """Run what can be fused on what `cause` has just produced: `effects.caused` from `mark`."""
        made = effects.caused[mark:]
        del effects.caused[mark:]
        await self._pass(self._interval.step, cause, made, effects)

    async def _pass(
        self, writer: Step, cause: Delivery[Any], made: list[Caused], effects: Effects
    ) -> None:
        """What a step has made goes through the steps behind it, or into `effects` as `cause`'s.

        One after the other, each through to the end: the order of the queues.
        """
        behind = self._engine.fusion.behind(writer)
        key_text, caused = cause.key_text, effects.caused
        for _, output in made:
            step = behind.get(output.receiver)
            if step is None or output.key_text != key_text:
                caused.append((cause, output))
                continue
            interval = self._free(step, output)
            further = None if interval is None else await self._run(step, interval, output, effects)
            if interval is None or further is None:
                self._queued.add(step.id)
                effects.queued.add(step.id)
                caused.append((cause, output))
            else:
                effects.fused.append((cause, interval))
                if further:
                    await self._pass(step, cause, further, effects)

    def _free(self, step: Step, output: Delivery[Any]) -> Interval | None:
        """The interval in whose place an output may run here and now; None: it takes the queue.

        One that leaves is not among the step's destinations from that moment on.
        """
        interval = step.interval_of(output.slot)
        if (
            not isinstance(interval, Interval)
            or self._engine.fusion.is_parted(step)
            or output.key_text in interval.backlog
            or step.id in self._queued
        ):
            return None
        chain, own = interval.chain, self._interval.chain
        assert chain is not None
        assert own is not None
        if not own.ways.may_fuse((output.key_text, step.id)) or chain.has_stored(interval.logs):
            return None
        if step.node.on_error == "dead_letter" and interval.dedup.may_know(output):
            return None
        return interval

    async def _run(
        self, step: Step, interval: Interval, output: Delivery[Any], own: Effects
    ) -> list[Caused] | None:
        """What comes of an output; None: it has to go by the queue.

        Args:
            own: what the record that all comes of asks for.
        """
        stage = self._stages.get(step.id)
        if stage is None:
            stage = self._stages[step.id] = Stage(
                step, self._interval, run_twice=self._engine.run_weak_twice
            )
        effects, context, cell = stage.effects, stage.context, stage.cell
        cell.key, cell.key_text, cell.slot = output.key, output.key_text, output.slot
        stage.lineage.begin(output)
        held = getrefcount(context)
        # A's promise, not B's: what is older could not be held by A's log (I7).
        context._open(cell, interval.input_watermark, self._promised, self._now)
        context._micros = output.micros
        waiting = interval.backlog[output.key_text] = []
        try:
            work = stage.process(output, context)
            await (in_own_task(work) if self._apart else work)
            if getrefcount(context) != held:
                stage.renew_context(self._engine.late_uses)
        except GeneratorExit:
            raise
        except BaseException as error:
            effects.clear()
            stage.renew_context(self._engine.late_uses)
            if is_ours(error):
                raise_ours(error)
            step.renew(output)
            self._engine.fusion.part(step, f"it failed: {error!r:.200}")
            return None
        finally:
            if interval.backlog.get(output.key_text) is waiting:  # else it has started over
                if waiting:
                    self._hand_on(interval, output, waiting)
                else:
                    del interval.backlog[output.key_text]
                    if interval.leaving:
                        self._engine.ended(interval)
        if effects.are_stored():
            effects.clear()
            step.renew(output)
            self._engine.fusion.part(step, "it wants something stored")
            return None
        effects.size = 0
        made, effects.caused = effects.caused, []
        own.held += effects.held
        effects.held.clear()
        return made

    def _hand_on(self, interval: Interval, output: Delivery[Any], waiting: list[Any]) -> None:
        """What came for the key meanwhile runs in the interval's own lane, which has it now."""
        state = interval.state_of(output.key, output.key_text, output.slot)
        interval.backlog[output.key_text] = None
        self._engine.run_in_lane(interval, deque([(state, waiting)]))
